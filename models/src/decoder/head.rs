//! The language model head: the projection from the last hidden states to logits.

use super::config_values::activation;
use super::families::modernbert;
use super::weights::{HeadLayer, LinearWeights};
use crate::checkpoint::{Config, LoadError, Weights};

/// Location of a family's head.
pub(super) struct LmHeadConfig {
    /// Name of the layer.
    name: &'static str,
    /// Whether the layer has a bias.
    bias: bool,
    /// Key that states whether there is a bias, if there is one.
    bias_key: Option<&'static str>,
    /// Whether the head is tied to the embedding if `tie_word_embeddings` is missing.
    tied: bool,
    /// Name of the layer before the head, if there is one.
    layer: Option<&'static str>,
}

impl LmHeadConfig {
    /// `lm_head`, untied by default.
    pub(super) const SEPARATE: Self = Self {
        name: "lm_head",
        bias: false,
        bias_key: None,
        tied: false,
        layer: None,
    };
    /// `lm_head`, tied to the embedding by default.
    pub(super) const TIED: Self = Self {
        tied: true,
        ..Self::SEPARATE
    };
    /// `lm_head` with a bias.
    pub(super) const BIASED: Self = Self {
        bias: true,
        ..Self::SEPARATE
    };
    /// `lm_head`, with a bias if `lm_head_bias` says so.
    pub(super) const WITH_KEY: Self = Self {
        bias_key: Some("lm_head_bias"),
        ..Self::SEPARATE
    };
    /// `lm_head`, tied to the embedding by default, with a bias if `use_bias` says so.
    pub(super) const TIED_WITH_KEY: Self = Self {
        bias_key: Some("use_bias"),
        ..Self::TIED
    };
    /// `output_projection`, tied to the embedding by default.
    pub(super) const OUTPUT_PROJECTION: Self = Self {
        name: "output_projection",
        ..Self::TIED
    };
    /// `lm_head.out_proj`, tied to the embedding by default.
    pub(super) const OUT_PROJ: Self = Self {
        name: "lm_head.out_proj",
        ..Self::TIED
    };
    /// `embed_out`.
    pub(super) const EMBED_OUT: Self = Self {
        name: "embed_out",
        ..Self::SEPARATE
    };

    /// `decoder` after the layer `lm_head`, tied to the embedding by default, with a bias unless `decoder_bias` says
    /// otherwise.
    pub(super) const MODERN_BERT: Self = Self {
        name: "decoder",
        bias: true,
        bias_key: Some("decoder_bias"),
        tied: true,
        layer: Some("lm_head"),
    };

    /// Takes the layer before the head, if there is one.
    ///
    /// # Errors
    /// [`LoadError`], naming the key or tensor.
    pub(super) fn take_layer(
        &self,
        config: &Config,
        weights: &mut Weights,
        width: usize,
    ) -> Result<Option<HeadLayer>, LoadError> {
        let Some(name) = self.layer else {
            return Ok(None);
        };
        let bias = config.optional("classifier_bias")?.unwrap_or(false);
        let norms = modernbert::norms(config)?;
        Ok(Some(HeadLayer {
            linear: LinearWeights::take(weights, &format!("{name}.dense"), width, width, bias)?,
            activation: activation(config, "classifier_activation", "gelu")?,
            norm: norms.take(weights, &format!("{name}.norm"), width)?,
        }))
    }

    /// Takes the head, or creates one tied to the embedding, whose rows are `width` long. As in transformers 5, a head in the file that
    /// differs from the embedding is not tied.
    ///
    /// # Errors
    /// [`LoadError`], naming the key or tensor.
    pub(super) fn take(
        &self,
        config: &Config,
        weights: &mut Weights,
        embedding: &[f32],
        width: usize,
    ) -> Result<LinearWeights, LoadError> {
        let vocabulary = embedding.len() / width.max(1);
        let stated = self.bias_key.map(|key| config.optional::<bool>(key));
        let has_bias = stated.transpose()?.flatten().unwrap_or(self.bias);
        if !config.optional("tie_word_embeddings")?.unwrap_or(self.tied) {
            return LinearWeights::take(weights, self.name, width, vocabulary, has_bias);
        }
        let weight = format!("{}.weight", self.name);
        if weights.contains(&weight) && !weights.has_values(&weight, &[vocabulary, width], embedding)? {
            return LinearWeights::take(weights, self.name, width, vocabulary, has_bias);
        }
        let mut head = LinearWeights::shared(width, vocabulary);
        let bias = format!("{}.bias", self.name);
        if has_bias && weights.contains(&bias) {
            head.bias = weights.take(&bias, &[vocabulary])?;
        }
        // Old versions of transformers saved the shared embedding twice.
        weights.ignore_suffixes(&[&weight]);
        Ok(head)
    }
}

#[cfg(test)]
mod tests;
