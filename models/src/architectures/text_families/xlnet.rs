//! `XLNet` (Yang et al. 2019) for single texts: attention with relative positions and segments, without memory.

use serde_json::Value;

use crate::architectures::encoder::{BlockNames, EncoderConfig, Mixing, activation, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    DenseConfig, DistanceVectors, Embeddings, RelativePositionConfig, Segments, TextEncoderConfig,
    TextHeadConfig,
};
use crate::architectures::weight_layout::{WeightLayout, WeightLayouts};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows};
use crate::tasks::embedding::Pooling;

const NAMES: BlockNames = BlockNames {
    projections: &["rel_attn.q", "rel_attn.k", "rel_attn.v"],
    output: "rel_attn.o",
    attention_norm: "rel_attn.layer_norm",
    up: &["ff.layer_1"],
    down: "ff.layer_2",
    feed_forward_norm: "ff.layer_norm",
    ..BlockNames::BERT
};
/// Maximum length of a text, as in training, tokens; relative positions have no limit.
const CONTEXT: usize = 512;
/// Number of segments of the tokenizer: two texts, the classification token, a separator and padding.
const SEGMENTS: usize = 5;

/// Describes an `XLNet` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if config
        .optional::<String>("attn_type")?
        .is_some_and(|kind| kind != "bi")
    {
        return Err(config.invalid_value("attn_type", "only `bi` is supported"));
    }
    if config.optional::<bool>("bi_data")?.unwrap_or(false) {
        return Err(config.invalid_value("bi_data", "distances of two directions are not supported"));
    }
    let keys = ["d_model", "n_layer", "n_head", "d_inner", "ff_activation"];
    let mut encoder = EncoderConfig::sized(config, keys)?;
    let (width, heads) = (encoder.width, encoder.heads);
    if !width.is_multiple_of(2) {
        return Err(config.invalid_value("d_model", "it must be even"));
    }
    let head_dim = config.optional_size("d_head")?;
    if head_dim.is_some_and(|size| size != width / heads) {
        return Err(config.invalid_value("d_head", "it must be d_model over n_head"));
    }
    encoder.epsilon = epsilon(config, "layer_norm_eps")?;
    encoder.attention_scale = Some(1.0 / ((width / heads) as f32).sqrt());
    (encoder.projection_bias, encoder.output_bias) = (false, false);
    encoder.mixing = Mixing::Relative;
    encoder.weight_layouts = WeightLayouts {
        projections: [WeightLayout::OutputHeads(heads); 3],
        output: WeightLayout::InputHeads(heads),
        ..WeightLayouts::default()
    };
    let clamp = match config.optional::<i64>("clamp_len")?.map(usize::try_from) {
        Some(Ok(clamp @ 1..)) => clamp,
        _ => usize::MAX,
    };
    let embeddings = Embeddings::new(
        "word_embedding",
        width,
        TokenLimits {
            vocabulary: config.size("vocab_size")?,
            types: SEGMENTS,
            context: CONTEXT,
        },
    );
    Ok(TextEncoderConfig {
        distances: Some(RelativePositionConfig {
            vectors: DistanceVectors::Sinusoidal(CONTEXT, clamp),
            rows: DistanceRows::new(CONTEXT, |distance| CONTEXT.saturating_add_signed(distance)),
            keys: Some("rel_attn.r"),
            key_bias: false,
            queries: None,
        }),
        segments: Segments::Types,
        ..TextEncoderConfig::new(
            "transformer",
            encoder.numbered("layer"),
            encoder,
            NAMES,
            embeddings,
            summary(config)?,
        )
    })
}

/// Reads the head of a sequence classifier.
fn summary(config: &Config) -> Result<TextHeadConfig, LoadError> {
    if !config.optional("summary_use_proj")?.unwrap_or(true) {
        return Err(config.invalid_value("summary_use_proj", "a summary needs its projection"));
    }
    let activation = match config.keys().get("summary_activation") {
        None => Activation::Tanh,
        Some(Value::String(_)) => activation(config, "summary_activation")?,
        Some(_) => return Err(config.invalid_value("summary_activation", "it must be an activation")),
    };
    Ok(TextHeadConfig {
        pooling: match config.optional::<String>("summary_type")?.as_deref() {
            None | Some("last" | "cls_index") => Pooling::Last,
            Some("first") => Pooling::First,
            Some("mean") => Pooling::Mean,
            Some(_) => {
                let reason = "last, first, mean and cls_index are supported";
                return Err(config.invalid_value("summary_type", reason));
            }
        },
        late: false,
        dense: Some(DenseConfig::plain("sequence_summary.summary", activation)),
        block: None,
        output: "logits_proj",
    })
}
