//! `HyperCLOVA` X SEED Think (NAVER 2025): Granite with output norms, and logits multiplied by their factor instead of
//! divided.

use kaskade_policy::plan::Partition;

use super::granite::{RESIDUALS, factors, model_config};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::positive;
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::weights::{Decoder, LayerWeights, ModelConfig, OutputNorms};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let after = config.optional("use_post_norm")?.unwrap_or(true);
    let base = if after {
        factors(config)?
    } else {
        model_config(config)?
    };
    let added = if after {
        positive(config, RESIDUALS)?.unwrap_or(1.0)
    } else {
        1.0
    };
    let mut model_config = ModelConfig {
        logit_scale: positive(config, "logits_scaling")?,
        ..base
    };
    if positive(config, "attention_multiplier")?.is_none() {
        model_config.heads.scale = 1.0 / (base.heads.head_dim as f32).sqrt();
    }
    if after {
        model_config.output_norms = OutputNorms::Outputs;
        model_config.embedding_scale = positive(config, "embedding_multiplier")?;
    }
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        norm_names: NormNames {
            attention_output: "post_norm1",
            feed_forward_output: "post_norm2",
            ..base.norm_names
        },
        ..base
    };
    // The weights of these norms absorb the residual multiplier.
    let scaled = |mut layer: LayerWeights, _: &ModelConfig| {
        let norms = [
            &mut layer.attention_output_norm,
            &mut layer.feed_forward_output_norm,
        ];
        for norm in norms.into_iter().flatten() {
            norm.gamma.iter_mut().for_each(|gamma| *gamma *= added);
        }
        layer
    };
    gated::read_adapted(checkpoint, partition, model_config, &layout, scaled)
}
