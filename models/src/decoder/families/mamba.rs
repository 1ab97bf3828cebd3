//! Mamba 1 and 2 (Gu and Dao 2023; Dao and Gu 2024) and Falcon Mamba (TII 2024): each layer is one recurrent mixer,
//! without attention.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::config_values::{eos_token_ids, epsilon, layers};
use crate::decoder::recurrent::mamba::{Mamba, MambaKeys, StepNorms};
use crate::decoder::recurrent::mamba2::{Mamba2, Mamba2Keys};
use crate::decoder::recurrent::{self, MixerConfig};
use crate::decoder::weights::{Decoder, LayerWeights, ModelConfig, NormWeights};

/// Keys of Mamba 2's sizes.
const KEYS_2: Mamba2Keys = Mamba2Keys {
    heads: "num_heads",
    head_dim: "head_dim",
    groups: "n_groups",
    state_size: "state_size",
    kernel: "conv_kernel",
    bias: "use_bias",
    convolution_bias: "use_conv_bias",
    activation: "hidden_act",
};

pub(super) fn read_1(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let mixer = Mamba::read(&checkpoint.config, MambaKeys::MAMBA, StepNorms::No)?;
    read(checkpoint, partition, &MixerConfig::Mamba(mixer))
}

pub(super) fn read_2(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let inner = recurrent::expanded(config, "expand", config.size("hidden_size")?)?;
    let mixer = Mamba2::read(
        config,
        KEYS_2,
        inner,
        epsilon(config, "layer_norm_epsilon", 1e-5)?,
    )?;
    read(checkpoint, partition, &MixerConfig::Mamba2(mixer))
}

pub(super) fn read_falcon(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let norms = StepNorms::Plain(epsilon(config, "mixer_rms_eps", 1e-6)?);
    let mixer = Mamba::read(config, MambaKeys::MAMBA, norms)?;
    read(checkpoint, partition, &MixerConfig::Mamba(mixer))
}

fn model_config(config: &Config) -> Result<ModelConfig, LoadError> {
    Ok(ModelConfig {
        width: config.size("hidden_size")?,
        vocabulary: config.size("vocab_size")?,
        context: usize::MAX,
        epsilon: epsilon(config, "layer_norm_epsilon", 1e-5)?,
        eos_token_ids: eos_token_ids(config)?,
        ..ModelConfig::default()
    })
}

fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
    mixer: &MixerConfig,
) -> Result<Decoder, LoadError> {
    let (config, weights) = (&checkpoint.config, &mut checkpoint.weights);
    let model_config = model_config(config)?;
    let (width, vocabulary) = (model_config.width, model_config.vocabulary);
    let older = "backbone.embedding.weight";
    let name = if weights.contains(older) {
        older
    } else {
        "backbone.embeddings.weight"
    };
    let embedding = weights.take(name, &[vocabulary, width])?;
    let mut blocks = Vec::new();
    for index in layers(config, "num_hidden_layers", partition)? {
        let at = |part: &str| format!("backbone.layers.{index}.{part}");
        let layer = LayerWeights {
            attention_norm: Some(NormWeights::take_rms(weights, &at("norm"), width)?),
            recurrent: Some(mixer.take(weights, &at("mixer"), &model_config)?),
            ..LayerWeights::default()
        };
        blocks.push(layer.stored_as(weights.weight_type()));
    }
    let final_norm = NormWeights::take_rms(weights, "backbone.norm_f", width)?;
    Ok(Decoder::without_head(model_config, embedding, blocks, final_norm))
}
