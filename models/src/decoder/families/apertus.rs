//! Apertus (Swiss AI 2025): norms of the heads of queries and keys, and a feed-forward layer without a gate, whose activation
//! xIELU has learned coefficients.

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
    // The activation of the configuration is not one of the others, and every layer has its own.
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
