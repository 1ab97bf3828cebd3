//! Phi-3.5 `MoE` (Abdin et al. 2024): layer norms with bias, and two experts per token, each weighted by its softmax
//! among the experts with almost the same score.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::experts::{ExpertLayout, ExpertTensors};
use crate::decoder::gated::{self, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::{Routing, Scoring};
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| true)?;
    let experts = ExpertLayout {
        block: "block_sparse_moe",
        tensors: ExpertTensors::Each(["w1", "w3", "w2"]),
        ..ExpertLayout::everywhere(config, "intermediate_size")?
    };
    let keys = RotaryKeys {
        theta: 1e6,
        ..RotaryKeys::LLAMA
    };
    let routing = Routing::read(config, experts.count, false)?;
    if routing.chosen != 2 {
        return Err(config.invalid_value("num_experts_per_tok", "2 experts per token are supported"));
    }
    let part = config.optional::<f32>("router_jitter_noise")?.unwrap_or(0.01);
    let model_config = ModelConfig {
        local,
        routing: Some(Routing {
            scoring: Scoring::Nearest(part),
            ..routing
        }),
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        norms: NormKind::Layer,
        local_layers,
        experts: Some(experts),
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
