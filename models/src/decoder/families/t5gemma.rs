//! `T5Gemma` (Zhang et al. 2025): an encoder and a decoder of Gemma 2 layers; the decoder also has cross-attention.

use kaskade_policy::plan::Partition;

use super::gemma;
use crate::checkpoint::{Checkpoint, LoadError, Weights};
use crate::decoder::config_values::start_token;
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::head::LmHeadConfig;
use crate::decoder::weights::{
    CrossWeights, Decoder, Encoder, LinearWeights, ModelConfig, NormWeights, TokenInputs,
};

pub(super) fn read(checkpoint: &mut Checkpoint) -> Result<Decoder, LoadError> {
    let outer = checkpoint.config.clone();
    let encoder = side(checkpoint, "encoder", ["model.encoder", "model.encoder.norm"])?;
    checkpoint.config = outer.clone();
    let mut decoder = side(checkpoint, "decoder", ["model.decoder", "model.decoder.norm"])?;
    let start_token = start_token(checkpoint, outer.optional("decoder_start_token_id")?)?;
    if encoder.model_config != decoder.model_config {
        return Err(outer.invalid_value("encoder", "its sizes and settings must be those of `decoder`"));
    }
    let biased = checkpoint.config.optional("attention_bias")?.unwrap_or(false);
    checkpoint.config = outer;
    let weights = &mut checkpoint.weights;
    let kind = weights.weight_type();
    for (index, layer) in decoder.layers.iter_mut().enumerate() {
        let name = format!("model.decoder.layers.{index}");
        let cross = cross_attention(weights, &decoder.model_config, &name, biased)?;
        layer.cross = Some(cross);
        *layer = std::mem::take(layer).stored_as(kind);
    }
    let (embedding, width) = (decoder.embedding.values(), decoder.model_config.width);
    decoder.head = LmHeadConfig::OUT_PROJ.take(&checkpoint.config, weights, embedding, width)?;
    decoder.encoder = Some(Encoder {
        context: encoder.model_config.context,
        start_token,
        starts_with_last: false,
        relative_bias: None,
        inputs: TokenInputs {
            embedding: Some(encoder.embedding),
            ..TokenInputs::default()
        },
        layers: encoder.layers,
        final_norm: encoder.final_norm,
    });
    Ok(decoder)
}

/// Reads the encoder or decoder whose configuration is nested under `key`, and leaves that as the checkpoint's
/// configuration.
fn side(
    checkpoint: &mut Checkpoint,
    key: &str,
    [base, final_norm]: [&'static str; 2],
) -> Result<Decoder, LoadError> {
    checkpoint.config = checkpoint.config.nested(key)?;
    let (model_config, layout) = gemma::version_2(&checkpoint.config)?;
    let layout = Layout {
        base,
        final_norm,
        norm_names: NormNames {
            attention: "pre_self_attn_layernorm",
            attention_output: "post_self_attn_layernorm",
            ..layout.norm_names
        },
        ..layout
    };
    gated::read(checkpoint, Partition::WHOLE, model_config, &layout)
}

fn cross_attention(
    weights: &mut Weights,
    model_config: &ModelConfig,
    name: &str,
    biased: bool,
) -> Result<CrossWeights, LoadError> {
    let (width, heads) = (model_config.width, &model_config.heads);
    let mut norm = |part: &str| -> Result<NormWeights, LoadError> {
        let norm = NormWeights::take_rms(weights, &format!("{name}.{part}"), width)?;
        Ok(norm.plus(1.0))
    };
    let (before, after) = (
        norm("pre_cross_attn_layernorm")?,
        norm("post_cross_attn_layernorm")?,
    );
    let mut linear = |part: &str, inputs: usize, outputs: usize| {
        LinearWeights::take(
            weights,
            &format!("{name}.cross_attn.{part}"),
            inputs,
            outputs,
            biased,
        )
    };
    let keys = linear("k_proj", width, heads.key_width())?;
    Ok(CrossWeights {
        norm: before,
        output_norm: Some(after),
        query: linear("q_proj", width, heads.query_width())?,
        key_value: keys.concat_outputs(&linear("v_proj", width, heads.key_width())?),
        output: linear("o_proj", heads.query_width(), width)?,
    })
}
