//! Residual connections of a block.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::Ops;

/// Treatment of a result before the residual addition.
pub(in crate::architectures) enum Added<O: Ops> {
    /// The result is added unchanged.
    Unchanged,
    /// The elements are multiplied by layer scales.
    Scaled(O::Norm),
    /// The result is normalised.
    Normalised(O::Norm),
}

impl<O: Ops> Added<O> {
    /// Takes the layer scale `scale` or the norm `norm` for rows of size `width`; `take_norm` takes a norm of the
    /// encoder.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        [scale, norm]: [Option<String>; 2],
        width: usize,
        take_norm: impl FnOnce(&mut Layers<'_, O>, &str) -> Result<O::Norm, LoadError>,
    ) -> Result<Self, LoadError> {
        if let Some(name) = scale {
            return Ok(Self::Scaled(layers.factors(&name, width)?));
        }
        match norm {
            Some(name) => Ok(Self::Normalised(take_norm(layers, &name)?)),
            None => Ok(Self::Unchanged),
        }
    }

    /// Returns whether results are added unchanged.
    pub(in crate::architectures) fn is_unchanged(&self) -> bool {
        matches!(self, Self::Unchanged)
    }

    /// Returns the sum of the residual input `x` and a result.
    pub(in crate::architectures) fn to(&self, ops: &O, x: &O::Matrix, mut result: O::Matrix) -> O::Matrix {
        match self {
            Self::Unchanged => {}
            Self::Scaled(factors) => ops.scale(&mut result, factors),
            Self::Normalised(norm) => result = ops.normalise(&result, norm),
        }
        ops.add(&mut result, x);
        result
    }
}

/// Query and key norms per head.
pub(in crate::architectures) struct HeadNorms<O: Ops> {
    /// RMS norm of a head, without weights.
    norm: O::Norm,
    /// Weights for the elements of queries, keys and values.
    factors: O::Norm,
}

impl<O: Ops> HeadNorms<O> {
    /// Takes the query and key norms by name, for `heads` heads of size `head`; `offset` is added to their weights.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        names: [String; 2],
        [heads, head]: [usize; 2],
        (offset, epsilon): (f32, f64),
    ) -> Result<Self, LoadError> {
        let mut factors = Vec::with_capacity(3 * heads * head);
        for name in names {
            let own = layers.weights.take(&format!("{name}.weight"), &[head])?;
            let own: Vec<f32> = own.iter().map(|factor| factor + offset).collect();
            factors.extend(own.repeat(heads));
        }
        factors.resize(3 * heads * head, 1.0);
        Ok(Self {
            norm: layers.ops.norm(vec![1.0; head], None, epsilon as f32),
            factors: layers.ops.norm(factors, None, 0.0),
        })
    }

    /// Normalises the query and key heads in rows of queries, keys and values.
    pub(in crate::architectures) fn apply(&self, ops: &O, rows: &mut O::Matrix, heads: usize) {
        ops.normalise_heads(rows, 2 * heads, &self.norm);
        ops.scale(rows, &self.factors);
    }
}
