//! `OLMo` Hybrid (Ai2 2026): gated `DeltaNets` with Llama's norms; in every fourth layer, the attention of `OLMo` 3
//! with norms of the outputs, and without positions unless the base of rotary positions is stated.

use kaskade_policy::plan::Partition;
use serde_json::Value;

use super::qwen_hybrid;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::recurrent::delta_net::{DeltaNet, DeltaNetTensors};
use crate::decoder::recurrent::{MixerConfig, RecurrentLayout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, OutputNorms, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    // Names in files, which transformers changes when it loads them.
    checkpoint.weights.rename(|name| {
        name.replace(".attention_layer_norm.", ".input_layernorm.")
            .replace(".feedforward_layer_norm.", ".post_attention_layernorm.")
    });
    let config = &checkpoint.config;
    let base = gated::model_config(config, RotaryKeys::LLAMA)?;
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::AllHeads,
        no_input_norms: true,
        output_norms: OutputNorms::Outputs,
        rotary: base.rotary.filter(|_| has_positions(config)),
        ..base
    };
    let doubles = config.optional("linear_allow_neg_eigval")?.unwrap_or(true);
    let mixer = DeltaNet {
        beta_scale: if doubles { 2.0 } else { 1.0 },
        ..qwen_hybrid::delta_net(config, &model_config, DeltaNetTensors::Separate)?
    };
    let layout = Layout {
        recurrent_input_norms: true,
        recurrent: Some(RecurrentLayout {
            layers: qwen_hybrid::layers(config)?,
            beside_attention: false,
            module: "linear_attn",
            mixer: MixerConfig::DeltaNet(mixer),
        }),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns whether the configuration states the base of rotary positions.
fn has_positions(config: &Config) -> bool {
    let key = "rope_theta";
    let nested = config
        .keys()
        .get("rope_parameters")
        .and_then(|keys| keys.get(key));
    let stated = nested.or_else(|| config.keys().get(key));
    stated.is_some_and(Value::is_number)
}
