//! Trinity (Arcee AI 2025): input and output norms, query-key norms, gated attention output, rotary positions in the
//! sliding-window layers only, and experts with shared ones.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::positive;
use crate::decoder::experts::{Correction, ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Extra, Layout, NormNames};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, ModelConfig, OutputNorms, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let period = config.optional_size("global_attn_every_n_layers")?.unwrap_or(4);
    let (local, local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(period))?;
    if local.is_none() {
        return Err(config.invalid_value(
            "sliding_window",
            "layers without positions need others with a window",
        ));
    }
    let experts = experts(config)?;
    let routing = Routing {
        scoring: Scoring::Sigmoid,
        factor: positive(config, "route_scale")?.unwrap_or(1.0),
        ..Routing::read(config, experts.count, true)?
    };
    let base = gated::model_config(config, RotaryKeys::LLAMA)?;
    let scaled = config.optional("mup_enabled")?.unwrap_or(false);
    let base = ModelConfig {
        query_key_norm: QueryKeyNorm::EachHead,
        output_norms: OutputNorms::Outputs,
        embedding_scale: scaled.then(|| (base.width as f32).sqrt()),
        routing: Some(routing),
        ..base
    };
    let model_config = gated::positions_of_windows(base, local);
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        extra: Extra::OwnOutputGate,
        norm_names: NormNames {
            feed_forward: "pre_mlp_layernorm",
            feed_forward_output: "post_mlp_layernorm",
            ..base.norm_names
        },
        local_layers,
        experts: Some(experts),
        feed_forward_bias: false,
        ..base
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

fn experts(config: &Config) -> Result<ExpertLayout, LoadError> {
    let base = ExpertLayout::everywhere(config, "moe_intermediate_size")?;
    let dense = config.optional::<usize>("num_dense_layers")?.unwrap_or(1);
    let shared = config.optional::<usize>("num_shared_experts")?.unwrap_or(2);
    let expert = SharedExpert {
        block: Some("mlp.shared_experts"),
        inner: base.inner * shared,
        bias: false,
        gate: None,
    };
    Ok(ExpertLayout {
        router: "router.gate",
        correction: Some(Correction {
            name: "expert_bias",
            is_row: false,
        }),
        shared: (shared > 0).then_some(expert),
        layers: (0..base.layers.len()).map(|layer| layer >= dense).collect(),
        ..base
    })
}
