//! Mellum 2 (`JetBrains` 2026): Qwen 3 with experts, sliding-window layers, and separate rotary positions for them.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::experts::ExpertLayout;
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let prediction = |name: &str| name.starts_with("mtp.");
    checkpoint.weights.ignore(prediction);
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| false)?;
    let of = |layer_type, theta| RotaryKeys {
        layer_type: Some(layer_type),
        theta,
        ..RotaryKeys::LLAMA
    };
    let key = "mlp_layer_types";
    let base = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let experts = ExpertLayout {
        layers: match config.optional::<Vec<String>>(key)? {
            Some(_) => gated::layers_of_type(config, key, &["sparse"], &["dense"])?,
            None => base.layers.clone(),
        },
        ..base
    };
    let normalised = config.optional("norm_topk_prob")?.unwrap_or(true);
    let mut model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        routing: Some(Routing::read(config, experts.count, normalised)?),
        ..gated::model_config(config, of("full_attention", 5e5))?
    };
    let near = rotary(config, model_config.heads.head_dim, of("sliding_attention", 1e4))?;
    model_config.local = local.map(|local| LocalAttention {
        rotary: Some(near.rotary),
        ..local
    });
    let layout = Layout {
        local_layers,
        experts: Some(experts),
        feed_forward_bias: false,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
