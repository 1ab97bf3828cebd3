//! Apertus (Swiss AI 2025): query-key norms, and an ungated feed-forward with the activation xIELU, whose coefficients
//! are learned.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Extra, Layout, NormNames};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, QueryKeyNorm};
use crate::ops::Activation;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let key = "hidden_act";
    if config
        .optional::<String>(key)?
        .is_some_and(|name| name != "xielu")
    {
        return Err(config.invalid_value(key, "xielu is supported"));
    }
    let keys = RotaryKeys {
        theta: 12e6,
        ..RotaryKeys::LLAMA
    };
    // The configured activation is not among the usual ones, and each layer has its own coefficients.
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        gated: false,
        ..gated::activated(config, Activation::default(), keys)?
    };
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        feed_forward_bias: false,
        up: &["mlp.up_proj"],
        extra: Extra::Activation,
        norm_names: NormNames {
            attention: "attention_layernorm",
            feed_forward: "feedforward_layernorm",
            ..base.norm_names
        },
        ..base
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
