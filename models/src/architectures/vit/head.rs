//! Heads of ViT and similar models, which the last partition applies to hidden states.

use super::attention_pooling::Probe;
use super::config::{ImageHead, VitConfig};
use crate::architectures::layers::Layers;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Ops, Span};
use crate::runtime::batch::{BatchResults, device_failed, rows};
use crate::runtime::model::ModelError;
use crate::runtime::tensor;
use crate::tasks::classification::Classifier;

use crate::architectures::encoder::EncoderConfig;

/// Default width of the embeddings shared by texts and images, as in CLIP.
const PROJECTION: usize = 512;

/// Computes the output from hidden states.
pub(in crate::architectures) struct Head<O: Ops> {
    norm: Option<O::Norm>,
    kind: ImageHead,
    answer: Answer<O>,
}

/// Kind of output.
enum Answer<O: Ops> {
    /// The normalised first token, optionally projected by a layer; the width of the embedding.
    First(Option<O::Linear>, usize),
    /// Attention pooling of the normalised patches.
    Probe(Box<Probe<O>>),
    /// Logits.
    Classes(Classes<O>),
}

/// Computes logits.
struct Classes<O: Ops> {
    /// One layer per classified token; a single layer if the mean of the patches is classified too.
    outputs: Vec<O::Linear>,
    classifier: Classifier,
}

/// Layout of an image's tokens.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct Tokens {
    /// Number of tokens of an image.
    pub count: usize,
    /// Number of tokens before the patches.
    pub first: usize,
    /// Hidden size.
    pub width: usize,
}

impl<O: Ops> Head<O> {
    /// Takes the head of a model; `config` is the top-level configuration, `encoder` that of the blocks.
    ///
    /// # Errors
    /// [`LoadError`], naming the key or tensor.
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        vit: &VitConfig,
        encoder: &EncoderConfig,
        config: &Config,
        classifier: Option<Classifier>,
    ) -> Result<Self, LoadError> {
        let width = encoder.width;
        let answer = match (vit.head, classifier) {
            (ImageHead::Probe { prefix, .. }, _) => {
                Answer::Probe(Box::new(Probe::take(layers, prefix, encoder)?))
            }
            (ImageHead::Features { projection, .. }, _) => match projection {
                Some(name) => {
                    let size = config.optional_size("projection_dim")?.unwrap_or(PROJECTION);
                    Answer::First(Some(layers.linear_with(name, width, size, false)?), size)
                }
                None => Answer::First(None, width),
            },
            (_, None) => Answer::First(None, width),
            (head, Some(classifier)) => {
                let (names, inputs): (&[&str], _) = match head {
                    ImageHead::Tokens(names) => (names, width),
                    ImageHead::FirstAndMean => (&["classifier"], 2 * width),
                    _ => (&["classifier"], width),
                };
                let outputs = names
                    .iter()
                    .map(|name| layers.linear(name, inputs, classifier.len()));
                Answer::Classes(Classes {
                    outputs: outputs.collect::<Result<_, LoadError>>()?,
                    classifier,
                })
            }
        };
        let norm = match vit.head {
            ImageHead::Mean => Some("pooler.layernorm"),
            ImageHead::MeanOf(norm) => norm,
            ImageHead::Features { norm, .. } | ImageHead::Probe { norm, .. } => Some(norm),
            ImageHead::Tokens(_) | ImageHead::FirstAndMean => Some("layernorm"),
        };
        let norm =
            norm.map(|norm| layers.layer_norm(&format!("{}.{norm}", vit.base), width, encoder.epsilon));
        Ok(Self {
            norm: norm.transpose()?,
            kind: vit.head,
            answer,
        })
    }

    /// Returns the outputs of images, whose tokens are concatenated in `states`.
    ///
    /// # Errors
    /// [`ModelError::Failed`] with the message of the device.
    pub(in crate::architectures) fn outputs(
        &self,
        ops: &O,
        states: &O::Matrix,
        images: usize,
        tokens: Tokens,
    ) -> Result<BatchResults, ModelError> {
        // Only the first tokens are read, so only these need the final norm.
        let normalised = |token: usize| {
            let spans = (0..images).map(|index| Span {
                matrix: states,
                from: index * tokens.count + token,
                count: 1,
            });
            let first = ops.gather(&spans.collect::<Vec<_>>(), tokens.width);
            match &self.norm {
                Some(norm) => ops.normalise(&first, norm),
                None => first,
            }
        };
        let Classes { outputs, classifier } = match &self.answer {
            Answer::First(projection, width) => {
                let vectors = normalised(0);
                let projected = projection.as_ref().map(|layer| ops.multiply(&vectors, layer));
                return embeddings(ops, projected.as_ref().unwrap_or(&vectors), *width);
            }
            Answer::Probe(probe) => {
                let normalised = self.norm.as_ref().map(|norm| ops.normalise(states, norm));
                let vectors = probe.vectors(ops, normalised.as_ref().unwrap_or(states), tokens)?;
                return embeddings(ops, &vectors, tokens.width);
            }
            Answer::Classes(classes) => classes,
        };
        if !matches!(self.kind, ImageHead::Tokens(_)) {
            return self.classify_mean(ops, (outputs, classifier), states, tokens);
        }
        let mut sum: Vec<Vec<f32>> = vec![vec![0.0; classifier.len()]; images];
        for (token, output) in outputs.iter().enumerate() {
            let logits = ops.multiply(&normalised(token), output);
            let logits = rows(ops, &logits, classifier.len())?;
            for (sum, logits) in sum.iter_mut().flatten().zip(logits.iter().flatten()) {
                *sum += logits / outputs.len() as f32;
            }
        }
        Ok(sum.iter().map(|logits| classifier.outputs(logits)).collect())
    }

    /// Classifies, per image, the mean of the patches, normalised afterwards; or, normalised before, the mean, or the
    /// first token with the mean.
    fn classify_mean(
        &self,
        ops: &O,
        (outputs, classifier): (&[O::Linear], &Classifier),
        states: &O::Matrix,
        Tokens { count, first, width }: Tokens,
    ) -> Result<BatchResults, ModelError> {
        let takes_first = matches!(self.kind, ImageHead::FirstAndMean);
        let norm_follows = matches!(self.kind, ImageHead::Mean);
        let norm = self.norm.as_ref();
        let normalised = norm
            .filter(|_| !norm_follows)
            .map(|norm| ops.normalise(states, norm));
        let values = ops.values(normalised.as_ref().unwrap_or(states));
        let values = values.map_err(|error| device_failed(&error))?;
        let mut pairs = Vec::new();
        for image in values.chunks((count * width).max(1)) {
            let patches = image.get(first * width..).unwrap_or_default();
            if takes_first {
                pairs.extend(image.iter().take(width));
            }
            let from = pairs.len();
            pairs.resize(from + width, 0.0);
            let mean = pairs.get_mut(from..).unwrap_or_default();
            for patch in patches.chunks(width.max(1)) {
                for (mean, value) in mean.iter_mut().zip(patch) {
                    *mean += value / (count - first) as f32;
                }
            }
        }
        let Some(output) = outputs.first() else {
            return Ok(Vec::new());
        };
        let features = ops.upload(pairs, if takes_first { 2 * width } else { width });
        let features = match norm.filter(|_| norm_follows) {
            Some(norm) => ops.normalise(&features, norm),
            None => features,
        };
        let logits = ops.multiply(&features, output);
        let logits = rows(ops, &logits, classifier.len())?;
        Ok(logits.iter().map(|logits| classifier.outputs(logits)).collect())
    }
}

/// Returns one output `embedding` FP32 `[width]` per row.
pub(in crate::architectures) fn embeddings<O: Ops>(
    ops: &O,
    vectors: &O::Matrix,
    width: usize,
) -> Result<BatchResults, ModelError> {
    let vectors = rows(ops, vectors, width)?;
    let vectors = vectors.iter().map(|vector| {
        let vector = tensor::Tensor::from_f32("embedding", &[vector.len()], vector)?;
        Ok(vec![vector])
    });
    Ok(vectors.collect())
}
