//! EXAONE 4 and K-EXAONE (LG AI Research 2025, 2026): query-key norms. In models with a sliding window, global layers
//! have no positions. EXAONE 4 has output norms instead of input norms, K-EXAONE has experts.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::experts::{Correction, ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, OutputNorms, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let (base, local_layers) = model_config(&checkpoint.config)?;
    let model_config = ModelConfig {
        no_input_norms: true,
        output_norms: OutputNorms::Outputs,
        ..base
    };
    let layout = Layout {
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

pub(super) fn read_moe(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let prediction = |name: &str| name.starts_with("mtp.");
    checkpoint.weights.ignore(prediction);
    let config = &checkpoint.config;
    let (base, local_layers) = model_config(config)?;
    let mixture = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let key = "mlp_layer_types";
    let experts = ExpertLayout {
        correction: Some(Correction {
            name: "e_score_correction_bias",
            is_row: false,
        }),
        shared: Some(SharedExpert {
            block: Some("mlp.shared_experts"),
            inner: mixture.inner * config.optional_size("num_shared_experts")?.unwrap_or(1),
            bias: false,
            gate: None,
        }),
        layers: match config.optional::<Vec<String>>(key)? {
            Some(_) => gated::layers_of_type(config, key, &["sparse"], &["dense"])?,
            None => deepseek::sparse_layers(config, mixture.layers.len(), 1)?,
        },
        ..mixture
    };
    let model_config = ModelConfig {
        routing: Some(deepseek::sigmoid_routing(config, experts.count)?),
        ..base
    };
    let layout = Layout {
        local_layers,
        experts: Some(experts),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns the configuration without input and output norms, and which layers are local.
fn model_config(config: &Config) -> Result<(ModelConfig, Vec<bool>), LoadError> {
    // Published files state a pattern as text in addition to the types of all layers.
    let listed = config.optional::<serde_json::Value>("layer_types")?.is_some();
    let pattern = if listed {
        None
    } else {
        config.optional_size("sliding_window_pattern")?
    };
    let pattern = pattern.unwrap_or(4);
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(pattern))?;
    let base = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    Ok((gated::positions_of_windows(base, local), local_layers))
}
