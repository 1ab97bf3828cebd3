//! ModernBERT (Warner et al. 2024): rotary positions, pre-norm, gated feed-forwards, and an attention window in most
//! blocks.

use crate::architectures::encoder::{BlockNames, EncoderConfig, activation, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    DenseConfig, Embeddings, TextEncoderConfig, TextHeadConfig, rotation,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Rotary;
use crate::tasks::embedding::Pooling;

const NAMES: BlockNames = BlockNames {
    projections: &["attn.Wqkv"],
    output: "attn.Wo",
    attention_norm: "attn_norm",
    up: &["mlp.Wi"],
    down: "mlp.Wo",
    inner_norm: None,
    feed_forward_norm: "mlp_norm",
    scales: None,
    output_norms: None,
    head_norms: None,
    split_biases: None,
};

/// Describes a ModernBERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_activation",
    ];
    let flag = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
    let mut encoder = EncoderConfig::sized(config, keys)?;
    encoder.epsilon = epsilon(config, "norm_eps")?;
    (encoder.gated, encoder.norms_first, encoder.norm_bias) = (true, true, flag("norm_bias")?);
    (encoder.projection_bias, encoder.output_bias) = (flag("attention_bias")?, flag("attention_bias")?);
    encoder.feed_forward_bias = flag("mlp_bias")?;
    let mut blocks = encoder.numbered("layers");
    let every = config.optional_size("global_attn_every_n_layers")?.unwrap_or(3);
    let kinds = config.optional::<Vec<String>>("layer_types")?;
    let window = config.optional_size("local_attention")?.unwrap_or(128) / 2;
    for (index, block) in blocks.iter_mut().enumerate() {
        let global = match &kinds {
            Some(kinds) => kinds.get(index).is_some_and(|kind| kind == "full_attention"),
            None => index % every == 0,
        };
        block.without_first_norm = index == 0;
        block.window = (!global).then_some(window);
        block.rotary = Some(rotary(config, global, encoder.width / encoder.heads)?);
    }
    let head = TextHeadConfig {
        pooling: pooling(config)?,
        late: false,
        block: None,
        dense: Some(DenseConfig {
            name: "head.dense",
            activation: match config.optional::<String>("classifier_activation")? {
                Some(_) => activation(config, "classifier_activation")?,
                None => crate::ops::Activation::Gelu,
            },
            bias: flag("classifier_bias")?,
            norm: Some("head.norm"),
        }),
        output: "classifier",
    };
    let embeddings = Embeddings {
        norm: Some("embeddings.norm"),
        ..Embeddings::new(
            "embeddings.tok_embeddings",
            encoder.width,
            TokenLimits {
                vocabulary: config.size("vocab_size")?,
                types: 0,
                context: config.size("max_position_embeddings")?,
            },
        )
    };
    Ok(TextEncoderConfig {
        final_norm: Some("final_norm"),
        spans: head,
        tokens: head,
        ..TextEncoderConfig::new("model", blocks, encoder, NAMES, embeddings, head)
    })
}

/// Reads the rotary embedding of blocks with global or local attention.
fn rotary(config: &Config, global: bool, head_dim: usize) -> Result<Rotary, LoadError> {
    let (kind, key, absent) = if global {
        ("full_attention", "global_rope_theta", 160_000.0)
    } else {
        ("sliding_attention", "local_rope_theta", 10_000.0)
    };
    rotary_of(config, kind, (key, absent), head_dim)
}

/// Reads the rotary embedding of blocks with one kind of attention, in the format of transformers 5, or of version 4,
/// which has the base under `key`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn rotary_of(
    config: &Config,
    kind: &str,
    (key, absent): (&str, f64),
    head_dim: usize,
) -> Result<Rotary, LoadError> {
    let theta = match config.optional::<serde_json::Value>("rope_parameters")? {
        Some(parameters) => {
            let of = parameters.get(kind);
            let rope_type = of
                .and_then(|of| of.get("rope_type"))
                .and_then(serde_json::Value::as_str);
            if rope_type.is_some_and(|rope_type| rope_type != "default") {
                return Err(config.invalid_value("rope_parameters", "only the type default is supported"));
            }
            of.and_then(|of| of.get("rope_theta"))
                .and_then(serde_json::Value::as_f64)
        }
        None => config.optional::<f64>(key)?,
    };
    rotation(theta.unwrap_or(absent), head_dim)
        .ok_or_else(|| config.invalid_value(key, "it must be positive, and the size of a head even"))
}

/// Reads the pooling of a classifier: the first token, or the mean.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn pooling(config: &Config) -> Result<Pooling, LoadError> {
    let key = "classifier_pooling";
    match config.optional::<String>(key)?.as_deref() {
        None | Some("cls") => Ok(Pooling::First),
        Some("mean") => Ok(Pooling::Mean),
        Some(_) => Err(config.invalid_value(key, "cls and mean are supported")),
    }
}
