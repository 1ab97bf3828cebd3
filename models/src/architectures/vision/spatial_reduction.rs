//! Spatial-reduction attention of pixels to those of a smaller image (Wang et al. 2021, "Pyramid Vision Transformer",
//! section 3.3).

use super::steps::{Step, run};
use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{AttentionSpans, Heads, Ops, ScoreRules, Span};

/// Names of the layers.
pub(super) struct ReducedNames {
    pub query: String,
    pub key: String,
    pub value: String,
    pub output: String,
}

/// Spatial-reduction attention: every pixel attends to the pixels of a smaller image.
pub(super) struct ReducedAttention<O: Ops> {
    queries: O::Linear,
    /// Steps from the image to the smaller one; empty without reduction.
    reduction: Vec<Step<O>>,
    keys_and_values: O::Linear,
    output: O::Linear,
    heads: Heads,
    /// Number of pixels of the image, and of the smaller one.
    pixels: [usize; 2],
}

impl<O: Ops> ReducedAttention<O> {
    /// Takes the layers; `width` is the number of channels.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take(
        layers: &mut Layers<'_, O>,
        names: &ReducedNames,
        (width, heads, biased): (usize, usize, bool),
        pixels: [usize; 2],
        reduction: Vec<Step<O>>,
    ) -> Result<Self, LoadError> {
        let head_dim = width / heads.max(1);
        let pair = [names.key.clone(), names.value.clone()];
        Ok(Self {
            queries: layers.linear_with(&names.query, width, width, biased)?,
            reduction,
            keys_and_values: layers.concatenated(&pair, width, width, biased)?,
            output: layers.linear(&names.output, width, width)?,
            heads: Heads {
                queries: heads,
                keys: heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            pixels,
        })
    }

    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let [pixels, reduced] = self.pixels;
        let queries = ops.multiply(x, &self.queries);
        let smaller = run(ops, &self.reduction, x, images);
        let pairs = ops.multiply(smaller.as_ref().unwrap_or(x), &self.keys_and_values);
        let requests = (0..images).map(|image| AttentionSpans {
            queries: pixels,
            cached: vec![Span {
                matrix: &pairs,
                from: image * reduced,
                count: reduced,
            }],
            new_kv: None,
        });
        let requests: Vec<_> = requests.collect();
        let attended = ops.attend(&queries, &requests, &self.heads, ScoreRules::default());
        ops.multiply(&attended, &self.output)
    }
}
