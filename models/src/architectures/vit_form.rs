//! Descriptions of ViT and models like it: ViT-MSN, DeiT, `DINOv2`.

use super::encoder::{BlockNames, EncoderConfig, activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: &[
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ],
    attention_norm: "layernorm_before",
    feed_forward_norm: "layernorm_after",
    ..BlockNames::BERT
};

const DINO_NAMES: BlockNames = BlockNames {
    attention_norm: "norm1",
    feed_forward_norm: "norm2",
    up: &["mlp.fc1"],
    down: "mlp.fc2",
    scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
    ..BLOCK_NAMES
};
const DINO_GATED_NAMES: BlockNames = BlockNames {
    up: &["mlp.weights_in"],
    down: "mlp.weights_out",
    ..DINO_NAMES
};

/// What distinguishes the architectures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Prefix of the base model's tensors.
    pub base: &'static str,
    /// Tokens before the patches.
    pub tokens: &'static [&'static str],
    /// Tokens between these and the patches, which have no positions.
    pub registers: Option<&'static str>,
    /// What is classified.
    pub head: HeadForm,
    /// Whether blocks and sizes are those of `DINOv2`.
    pub dino: bool,
}

/// What the classifier reads.
#[derive(Debug, Clone, Copy)]
pub(super) enum HeadForm {
    /// Each of the first tokens, by the layer of this name; the logits of several are averaged.
    Tokens(&'static [&'static str]),
    /// The first token and the mean of the patches, side by side.
    FirstAndMean,
}

impl Form {
    /// `ViTForImageClassification` and `ViTMSNForImageClassification`.
    pub(super) const VIT: Self = Self {
        base: "vit",
        tokens: &["cls_token"],
        registers: None,
        head: HeadForm::Tokens(&["classifier"]),
        dino: false,
    };
    /// `DeiTForImageClassification`.
    pub(super) const DEIT: Self = Self {
        base: "deit",
        tokens: &["cls_token", "distillation_token"],
        ..Self::VIT
    };
    /// `DeiTForImageClassificationWithTeacher`.
    pub(super) const DEIT_WITH_TEACHER: Self = Self {
        head: HeadForm::Tokens(&["cls_classifier", "distillation_classifier"]),
        ..Self::DEIT
    };
    /// `Dinov2ForImageClassification`.
    pub(super) const DINO: Self = Self {
        base: "dinov2",
        head: HeadForm::FirstAndMean,
        dino: true,
        ..Self::VIT
    };
    /// `Dinov2WithRegistersForImageClassification`.
    pub(super) const DINO_WITH_REGISTERS: Self = Self {
        base: "dinov2_with_registers",
        registers: Some("register_tokens"),
        ..Self::DINO
    };

    /// Reads sizes and names of the blocks.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(super) fn blocks(self, config: &Config) -> Result<(EncoderConfig, BlockNames), LoadError> {
        if !self.dino {
            return Ok((EncoderConfig::read(config)?, BLOCK_NAMES));
        }
        let keys = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_size",
        ];
        let mut read = EncoderConfig::sized_with(config, keys, activation(config, "hidden_act")?)?;
        read.epsilon = epsilon(config, "layer_norm_eps")?;
        read.projection_bias = config.optional("qkv_bias")?.unwrap_or(true);
        read.intermediate_size = read.width * config.optional_size("mlp_ratio")?.unwrap_or(4);
        if config.optional("use_swiglu_ffn")?.unwrap_or(false) {
            // Two thirds, rounded up to a multiple of 8.
            read.intermediate_size = (read.intermediate_size * 2 / 3).next_multiple_of(8);
            (read.gated, read.activation) = (true, Activation::Silu);
            return Ok((read, DINO_GATED_NAMES));
        }
        Ok((read, DINO_NAMES))
    }
}
