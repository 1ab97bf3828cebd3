//! Layers after the pooling of an embedding model.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::checkpoint::sentence::{SentenceDense, SentenceLayer};
use crate::ops::{Activation, Ops};

/// What a layer adds to its result.
pub(in crate::architectures) enum Residual<L> {
    /// Nothing.
    No,
    /// Its input.
    Input,
    /// Its input through this layer, because their sizes differ.
    Through(L),
}

/// What becomes of the vector of a text.
pub(in crate::architectures) enum VectorLayer<O: Ops> {
    /// A layer with its activation.
    Dense {
        linear: O::Linear,
        activation: Option<Activation>,
        residual: Residual<O::Linear>,
    },
    /// A norm by the root mean square whose factors make the length 1.
    Normalise(O::Norm),
}

impl<O: Ops> VectorLayer<O> {
    /// Takes the layers of sentence-transformers after a vector of `width` elements, which becomes the number that the last one returns.
    ///
    /// # Errors
    /// As [`VectorLayer::take`].
    pub(in crate::architectures) fn take_all(
        ops: &O,
        layers: Vec<SentenceLayer>,
        width: &mut usize,
    ) -> Result<Vec<Self>, LoadError> {
        let taken = layers.into_iter().map(|layer| match layer {
            SentenceLayer::Dense(dense) => {
                let inputs = std::mem::replace(width, dense.outputs);
                Self::take(ops, dense, inputs)
            }
            SentenceLayer::Normalise => Ok(Self::length_one(ops, *width)),
        });
        taken.collect()
    }

    /// Takes a layer of sentence-transformers that reads `inputs` elements.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take); [`LoadError::UnusedTensors`] for others in its file.
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

    /// Divides vectors of this size by their length.
    fn length_one(ops: &O, width: usize) -> Self {
        let factor = (width as f32).sqrt().recip();
        // So small that it matters only for a vector of zeros, which stays one.
        Self::Normalise(ops.norm(vec![factor; width], None, 1e-30))
    }

    /// Returns what becomes of vectors.
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
