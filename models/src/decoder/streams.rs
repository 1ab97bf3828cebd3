//! AltUp streams of hidden states (Baykal et al. 2023, section 3), as in Gemma 3n: every layer predicts all streams
//! from all streams, computes the first one, and corrects the others by its change.

use super::linear_weights::{LinearWeights, NormWeights};
use crate::checkpoint::{LoadError, Weights};
use crate::precision::WeightType;

/// Sizes of the streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamLayout {
    /// Number of streams.
    pub(super) count: usize,
    /// Rank of the learned residual.
    pub(super) rank: usize,
    /// Whether the correction of the other streams is scaled.
    pub(super) scaled: bool,
}

/// Prediction and correction of the streams in a layer, and its learned residual (`LAuReL`, Menghani et al. 2024).
#[derive(Debug, Clone, PartialEq)]
pub struct StreamWeights {
    /// Norm before the router.
    pub router_norm: NormWeights,
    /// Projection to one element per stream.
    pub router: LinearWeights,
    /// Prediction coefficients from the router's result, `[streams * streams, streams]`.
    pub prediction: Vec<f32>,
    /// Correction coefficients from the router's result, `[streams, streams]`.
    pub correction: Vec<f32>,
    /// Factors of the first stream where the others read it.
    pub output_scale: Option<Vec<f32>>,
    /// The two layers of the learned residual.
    pub residual: [LinearWeights; 2],
    /// Norm of the learned residual.
    pub residual_norm: NormWeights,
}

impl StreamWeights {
    /// Takes the weights of the layer with this prefix.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn take(
        weights: &mut Weights,
        layer: &str,
        width: usize,
        layout: StreamLayout,
    ) -> Result<Self, LoadError> {
        let StreamLayout { count, rank, scaled } = layout;
        let at = |name: &str| format!("{layer}.{name}");
        let mut router_norm = NormWeights::take_rms(weights, &at("altup.router_norm"), width)?;
        for factor in &mut router_norm.gamma {
            *factor /= width as f32;
        }
        let scale = scaled.then(|| weights.take(&at("altup.correct_output_scale"), &[width]));
        if !scaled {
            let unused = at("altup.correct_output_scale");
            weights.ignore(|name| name == unused);
        }
        Ok(Self {
            router_norm,
            router: LinearWeights::take(weights, &at("altup.modality_router"), width, count, false)?,
            prediction: weights.take(&at("altup.prediction_coefs.weight"), &[count * count, count])?,
            correction: weights.take(&at("altup.correction_coefs.weight"), &[count, count])?,
            output_scale: scale.transpose()?,
            residual: [
                LinearWeights::take(weights, &at("laurel.linear_left"), width, rank, false)?,
                LinearWeights::take(weights, &at("laurel.linear_right"), rank, width, false)?,
            ],
            residual_norm: NormWeights::take_rms(weights, &at("laurel.post_laurel_norm"), width)?,
        })
    }

    /// Returns the linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeights> {
        std::iter::once(&self.router).chain(&self.residual)
    }

    /// Returns the norms.
    pub(super) fn norms(&self) -> [&NormWeights; 2] {
        [&self.router_norm, &self.residual_norm]
    }

    /// Returns the number of coefficients and factors, which are always f32.
    pub(super) fn exact(&self) -> usize {
        self.prediction.len() + self.correction.len() + self.output_scale.as_ref().map_or(0, Vec::len)
    }

    /// Encodes the weights of the linear layers as this type.
    #[must_use]
    pub(super) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            router: self.router.stored_as(kind),
            residual: self.residual.map(|linear| linear.stored_as(kind)),
            ..self
        }
    }
}

/// Projections from and to the streams: each stream except the first has one after the embedding, and one after the
/// last layer.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamProjections {
    /// Projections after the embedding.
    pub begin: Vec<LinearWeights>,
    /// Projections after the last layer.
    pub end: Vec<LinearWeights>,
}

impl StreamProjections {
    /// Takes the projections.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn take(
        weights: &mut Weights,
        base: &str,
        width: usize,
        count: usize,
    ) -> Result<Self, LoadError> {
        let mut take = |kind: &str| {
            let names = (1..count).map(|stream| format!("{base}.{kind}.{}", stream - 1));
            let linears = names.map(|name| LinearWeights::take(weights, &name, width, width, false));
            linears.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            begin: take("altup_projections")?,
            end: take("altup_unembed_projections")?,
        })
    }

    fn linears(&self) -> impl Iterator<Item = &LinearWeights> {
        self.begin.iter().chain(&self.end)
    }

    /// Returns the number of weights.
    pub(crate) fn elements(&self) -> usize {
        self.linears().map(LinearWeights::elements).sum()
    }

    /// Returns the memory if they have weights of this type, bytes.
    pub(crate) fn bytes(&self, kind: WeightType) -> usize {
        self.linears().map(|linear| linear.bytes(kind)).sum()
    }

    /// Encodes the weights as this type.
    #[must_use]
    pub(crate) fn stored_as(self, kind: WeightType) -> Self {
        let all = |linears: Vec<LinearWeights>| {
            let stored = linears.into_iter().map(|linear| linear.stored_as(kind));
            stored.collect()
        };
        Self {
            begin: all(self.begin),
            end: all(self.end),
        }
    }
}
