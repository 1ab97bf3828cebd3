//! Attention in windows whose queries are pooled, so that the result is a smaller image (Ryali et al. 2023, "Hiera",
//! section 3).

use super::windows::Windows;
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{AttentionSpans, Convolution, Heads, Ops, ScoreRules, Span};

/// Attention of pooled queries to the pixels of their window, or of the image.
pub(super) struct PooledAttention<O: Ops> {
    queries: O::Linear,
    keys_and_values: O::Linear,
    output: O::Linear,
    heads: Heads,
    /// Max pooling of the queries, if there is one.
    pool: Option<Convolution>,
    /// Windows of the queries, and of the keys; `None` if all pixels of an image are a window.
    windows: Option<[Windows; 2]>,
    /// Number of queries of a window, and of its keys.
    pixels: [usize; 2],
}

impl<O: Ops> PooledAttention<O> {
    /// Takes attention over images of this height, width and number of channels, with the fused layer `{name}.qkv` and
    /// the output layer `{name}.proj`, in windows of this side, or over whole images. If `pooled`, queries are pooled by
    /// squares of 2x2 pixels.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take(
        layers: &mut Layers<'_, O>,
        name: &str,
        [height, width, inputs]: [usize; 3],
        (outputs, heads): (usize, usize),
        side: Option<usize>,
        pooled: bool,
    ) -> Result<Self, LoadError> {
        let factor = if pooled { 2 } else { 1 };
        let smaller = [height, width].map(|side| side / factor);
        let windows = side.map(|side| {
            let own = Windows::new(smaller, side / factor, 0);
            [own, Windows::new([height, width], side, 0)]
        });
        let pixels = match &windows {
            Some(windows) => windows.each_ref().map(Windows::pixels),
            None => [smaller, [height, width]].map(|[height, width]| height * width),
        };
        let pool = pooled.then_some(Convolution {
            height,
            width,
            channels: outputs,
            kernel: 2,
            stride: 2,
            border: [0; 4],
        });
        let fused = format!("{name}.qkv");
        let mut queries = layers
            .weights
            .take(&format!("{fused}.weight"), &[3 * outputs, inputs])?;
        let mut bias = layers.weights.take(&format!("{fused}.bias"), &[3 * outputs])?;
        let (pairs, pair_bias) = (queries.split_off(outputs * inputs), bias.split_off(outputs));
        let head_dim = outputs / heads.max(1);
        Ok(Self {
            queries: layers.upload(transposed(&queries, inputs), bias, inputs, outputs),
            keys_and_values: layers.upload(transposed(&pairs, inputs), pair_bias, inputs, 2 * outputs),
            output: layers.linear(&format!("{name}.proj"), outputs, outputs)?,
            heads: Heads {
                queries: heads,
                keys: heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
            },
            pool,
            windows,
            pixels,
        })
    }

    /// Computes the attention of `images` images.
    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let mut queries = ops.multiply(x, &self.queries);
        let mut pairs = ops.multiply(x, &self.keys_and_values);
        if let Some(pool) = &self.pool {
            queries = ops.max_pool(&queries, pool);
        }
        let mut count = images;
        if let Some([own, all]) = &self.windows {
            queries = own.split(ops, &queries, images);
            pairs = all.split(ops, &pairs, images);
            count = images * own.count();
        }
        let [of_queries, of_keys] = self.pixels;
        let requests = (0..count).map(|window| AttentionSpans {
            queries: of_queries,
            cached: vec![Span {
                matrix: &pairs,
                from: window * of_keys,
                count: of_keys,
            }],
            new_kv: None,
        });
        let requests: Vec<_> = requests.collect();
        let mut attended = ops.attend(&queries, &requests, &self.heads, ScoreRules::default());
        if let Some([own, _]) = &self.windows {
            attended = own.join(ops, &attended, images);
        }
        ops.multiply(&attended, &self.output)
    }
}
