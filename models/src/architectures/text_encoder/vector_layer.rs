//! Layers after the pooling of an embedding model.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::checkpoint::sentence::{SentenceDense, SentenceLayer};
use crate::ops::{Activation, Ops};

/// Residual connection of a layer.
pub(in crate::architectures) enum Residual<L> {
    /// None.
    No,
    /// Adds the input.
    Input,
    /// Adds the input projected by this layer, because the sizes differ.
    Through(L),
}

/// A layer after the pooling.
pub(in crate::architectures) enum VectorLayer<O: Ops> {
    /// A linear layer with an activation.
    Dense {
        linear: O::Linear,
        activation: Option<Activation>,
        residual: Residual<O::Linear>,
    },
    /// An RMS norm whose weights normalise to unit length.
    Normalise(O::Norm),
}

impl<O: Ops> VectorLayer<O> {
    /// Takes the sentence-transformers layers after a vector of `width` elements; sets `width` to the number of
    /// outputs of the last one.
    ///
    /// # Errors
    /// Same as [`VectorLayer::take`].
    pub(in crate::architectures) fn take_all(
        ops: &O,
        layers: Vec<SentenceLayer>,
        width: &mut usize,
    ) -> Result<Vec<Self>, LoadError> {
        let taken = layers.into_iter().map(|layer| match layer {
            SentenceLayer::Dense(dense) => {
                let inputs = std::mem::replace(width, dense.outputs);
                Self::take(ops, *dense, inputs)
            }
            SentenceLayer::Normalise => Ok(Self::length_one(ops, *width)),
        });
        taken.collect()
    }

    /// Takes a sentence-transformers layer with `inputs` inputs.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take); [`LoadError::UnusedTensors`] for unused tensors in
    /// its file.
    fn take(ops: &O, mut dense: SentenceDense, inputs: usize) -> Result<Self, LoadError> {
        let mut own = Layers {
            ops,
            weights: &mut dense.weights,
        };
        let linear = own.linear_with("linear", inputs, dense.outputs, dense.bias)?;
        let residual = match dense.residual {
            false => Residual::No,
            true if inputs == dense.outputs => Residual::Input,
            true => Residual::Through(own.linear_with("residual", inputs, dense.outputs, false)?),
        };
        dense.weights.finish(&[])?;
        Ok(Self::Dense {
            linear,
            activation: dense.activation,
            residual,
        })
    }

    /// Creates a layer that normalises vectors of this size to unit length.
    fn length_one(ops: &O, width: usize) -> Self {
        let factor = (width as f32).sqrt().recip();
        // So small that it affects only a zero vector, which stays zero.
        Self::Normalise(ops.norm(vec![factor; width], None, 1e-30))
    }

    /// Applies the layer to vectors.
    pub(in crate::architectures) fn applied(&self, ops: &O, x: &O::Matrix) -> O::Matrix {
        match self {
            Self::Normalise(norm) => ops.normalise(x, norm),
            Self::Dense {
                linear,
                activation,
                residual,
            } => {
                let mut result = ops.multiply(x, linear);
                if let Some(activation) = activation {
                    result = ops.activate(result, *activation, false);
                }
                match residual {
                    Residual::Through(layer) => ops.add(&mut result, &ops.multiply(x, layer)),
                    Residual::Input => ops.add(&mut result, x),
                    Residual::No => {}
                }
                result
            }
        }
    }
}
