//! nanochat (Karpathy 2025): Llama with norms without weights, a norm after the embedding, query-key norms after a
//! rotation in the opposite direction, and an ungated feed-forward with squared ReLU.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::activation;
use crate::decoder::gated::{self, HeadNormLayout, HeadNormTensors, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig, NormWeights, QueryKeyNorm};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let mut model_config = ModelConfig {
        activation: activation(config, "hidden_act", "relu2")?,
        gated: false,
        query_key_norm: QueryKeyNorm::RotatedHead,
        logit_softcap: config.optional("final_logit_softcapping")?,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    for frequency in model_config
        .rotary
        .iter_mut()
        .flat_map(|rotary| &mut rotary.frequencies)
    {
        *frequency = -*frequency;
    }
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        norms: NormKind::PlainRms,
        head_norms: HeadNormLayout {
            tensors: HeadNormTensors::Plain,
            ..base.head_norms
        },
        up: &["mlp.fc1"],
        down: "mlp.fc2",
        feed_forward_bias: false,
        ..base
    };
    let width = model_config.width;
    let decoder = gated::read(checkpoint, partition, model_config, &layout)?;
    Ok(Decoder {
        embedding_norm: Some(NormWeights::plain_rms(width)),
        ..decoder
    })
}
