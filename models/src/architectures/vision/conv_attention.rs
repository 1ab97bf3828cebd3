//! Attention with convolutional query, key and value projections (Wu et al. 2021, "`CvT`", section 3.2).

use super::steps::{Step, run, span};
use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{AttentionSpans, Heads, Ops, ScoreRules};

/// A projection: steps that may reduce the pixels, then a linear layer.
struct Projection<O: Ops> {
    steps: Vec<Step<O>>,
    linear: O::Linear,
    /// Number of output pixels.
    pixels: usize,
}

/// Attention of all pixels of an image to those of a smaller image, optionally with a class token before the pixels.
pub(super) struct ConvolvedAttention<O: Ops> {
    /// Query, key and value projections.
    projections: [Projection<O>; 3],
    heads: Heads,
    width: usize,
    /// Number of pixels of an image.
    pixels: usize,
    /// Whether a class token precedes the pixels; the projections' steps do not change it.
    with_class: bool,
}

impl<O: Ops> ConvolvedAttention<O> {
    /// Takes the linear layers of queries, keys and values; `steps` are the preceding steps, with their number of
    /// output pixels.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take(
        layers: &mut Layers<'_, O>,
        names: [String; 3],
        steps: [(Vec<Step<O>>, usize); 3],
        (width, heads, biased): (usize, usize, bool),
        (pixels, with_class): (usize, bool),
    ) -> Result<Self, LoadError> {
        let [query, key, value] = names;
        let [queries, keys, values] = steps;
        let mut take = |name: String, (steps, pixels)| {
            Ok::<_, LoadError>(Projection {
                steps,
                linear: layers.linear_with(&name, width, width, biased)?,
                pixels,
            })
        };
        Ok(Self {
            projections: [take(query, queries)?, take(key, keys)?, take(value, values)?],
            heads: Heads {
                queries: heads,
                keys: heads,
                head_dim: width / heads.max(1),
                // By the full width, as in transformers.
                scale: 1.0 / (width as f32).sqrt(),
            },
            width,
            pixels,
            with_class,
        })
    }

    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let class = usize::from(self.with_class);
        let each = self.pixels + class;
        let own = (0..images).map(|image| span(x, image * each + class, self.pixels));
        let pixels = ops.gather(&own.collect::<Vec<_>>(), self.width);
        let projected = self.projections.each_ref().map(|projection| {
            let result = run(ops, &projection.steps, &pixels, images);
            let result = result.as_ref().unwrap_or(&pixels);
            let rows = (0..images).flat_map(|image| {
                let token = span(x, image * each, class);
                [token, span(result, image * projection.pixels, projection.pixels)]
            });
            let rows: Vec<_> = rows.filter(|span| span.count > 0).collect();
            ops.multiply(&ops.gather(&rows, self.width), &projection.linear)
        });
        let [queries, keys, values] = projected;
        let [asked, seen] = [0, 1].map(|part| {
            let projection = self.projections.get(part);
            projection.map_or(0, |projection| projection.pixels) + class
        });
        let count = images * seen;
        // A key with its value.
        let both = ops.gather(&[span(&keys, 0, count), span(&values, 0, count)], self.width);
        let rows: Vec<usize> = (0..count).flat_map(|row| [row, count + row]).collect();
        let pairs = ops.with_width(ops.select(&both, &rows), 2 * self.width);
        let requests = (0..images).map(|image| AttentionSpans {
            queries: asked,
            cached: vec![span(&pairs, image * seen, seen)],
            new_kv: None,
        });
        let requests: Vec<_> = requests.collect();
        ops.attend(&queries, &requests, &self.heads, ScoreRules::default())
    }
}
