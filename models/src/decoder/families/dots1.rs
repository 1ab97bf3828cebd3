//! `dots.llm1` (Huo et al. 2025): Qwen 3 with the experts of `DeepSeek` V3.

use kaskade_policy::plan::Partition;

use super::deepseek;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{Decoder, ModelConfig, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let first = config.optional::<usize>("max_window_layers")?.unwrap_or(62);
    let (local, local_layers) = gated::windows(config, |index| index >= first)?;
    let experts = deepseek::experts(config, 0)?;
    let model_config = ModelConfig {
        local,
        query_key_norm: QueryKeyNorm::EachHead,
        routing: Some(Routing {
            normalised: config.optional("norm_topk_prob")?.unwrap_or(false),
            ..deepseek::sigmoid_routing(config, experts.count)?
        }),
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    let layout = Layout {
        local_layers,
        experts: Some(experts),
        feed_forward_bias: false,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
