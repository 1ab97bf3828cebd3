//! Position biases of an encoder's attention, by the distance of query and key.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::decoder::families::t5::bucket;
use crate::ops::Ops;

/// Bias of a masked token.
const HIDDEN: f32 = -1e9;

/// Kind of position bias.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::architectures) enum PositionBias {
    /// Learned bias per distance bucket, as in T5.
    Buckets {
        /// Name of the table `[buckets, heads]`.
        name: &'static str,
        /// Number of buckets for both directions together.
        buckets: usize,
        /// Distance from which on all distances share a bucket.
        max_distance: usize,
    },
    /// Bias that decreases linearly with the distance (Press et al. 2022, "`ALiBi`").
    Slopes {
        /// Slope per head.
        slopes: Vec<f32>,
        /// Maximum distance.
        max_distance: usize,
    },
    /// Causal mask: hides later tokens.
    Earlier {
        /// Maximum distance.
        max_distance: usize,
    },
}

impl PositionBias {
    /// Takes the bias, expanded to a table by distance ([`RelativeBias`](crate::ops::RelativeBias)); `at` returns the
    /// full name of a tensor.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        heads: usize,
        at: &dyn Fn(&str) -> String,
    ) -> Result<O::Matrix, LoadError> {
        let (values, center) = match self {
            Self::Slopes { slopes, max_distance } => {
                let center = *max_distance;
                let row = |slope: &f32| {
                    let slope = -slope;
                    (0..=2 * center).map(move |place| slope * place.abs_diff(center) as f32)
                };
                (slopes.iter().flat_map(row).collect(), center)
            }
            Self::Earlier { max_distance } => {
                let row = |place: usize| if place > *max_distance { HIDDEN } else { 0.0 };
                let rows = (0..heads).flat_map(|_| (0..=2 * max_distance).map(row));
                (rows.collect(), *max_distance)
            }
            Self::Buckets {
                name,
                buckets,
                max_distance,
            } => {
                let name = format!("{}.weight", at(name));
                let table = layers.weights.take(&name, &[*buckets, heads])?;
                let (half, center) = (buckets / 2, *max_distance);
                let row = |place: usize| {
                    bucket(place.abs_diff(center), half, center) + if place > center { half } else { 0 }
                };
                let places = (0..heads).flat_map(|head| (0..=2 * center).map(move |place| (head, place)));
                let values = places
                    .map(|(head, place)| table.get(row(place) * heads + head).copied().unwrap_or_default());
                (values.collect::<Vec<f32>>(), center)
            }
        };
        Ok(layers.ops.upload(values, 2 * center + 1))
    }
}
