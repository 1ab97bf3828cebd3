//! `StableLM` (Bellagente et al. 2024): layer norms with bias, rotary positions over a part of a head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::epsilon;
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, Parallel, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let norms = config.optional("qk_layernorm")?.unwrap_or(false);
    let keys = RotaryKeys {
        partial: 0.25,
        ..RotaryKeys::default()
    };
    let parallel = config.optional("use_parallel_residual")?.unwrap_or(false);
    let model_config = ModelConfig {
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        parallel: if parallel {
            Parallel::SharedNorm
        } else {
            Parallel::No
        },
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
            tensors: HeadNormTensors::Each,
        },
        qkv_bias: config.optional("use_qkv_bias")?.unwrap_or(false),
        norms: NormKind::Layer,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
