//! Phi-1, 1.5 and 2 (Gunasekar et al. 2023; Li et al. 2023): parallel attention and feed-forward after one layer norm,
//! biases, rotary positions over a part of a head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, epsilon};
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, Parallel, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let norms = config.optional("qk_layernorm")?.unwrap_or(false);
    let keys = RotaryKeys {
        partial: 0.5,
        ..RotaryKeys::default()
    };
    let model_config = ModelConfig {
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        activation: activation(config, "hidden_act", "gelu_new")?,
        gated: false,
        parallel: Parallel::SharedNorm,
        query_key_norm: if norms {
            QueryKeyNorm::EachHead
        } else {
            QueryKeyNorm::No
        },
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        head_norms: HeadNormLayout {
            names: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
            tensors: HeadNormTensors::Norm,
        },
        qkv_bias: true,
        output_bias: true,
        feed_forward_bias: true,
        output: "self_attn.dense",
        up: &["mlp.fc1"],
        down: "mlp.fc2",
        norms: NormKind::Layer,
        final_norm: "model.final_layernorm",
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
