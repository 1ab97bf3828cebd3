//! Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions, gated feed-forwards and no biases.

use crate::architectures::encoder::{BlockNames, EncoderConfig, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{Embeddings, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attn.Wqkv"],
    output: "attn.out_proj",
    attention_norm: "norm1",
    up: &["mlp.fc12", "mlp.fc11"],
    down: "mlp.fc2",
    feed_forward_norm: "norm2",
    scales: None,
    output_norms: None,
    head_norms: None,
    split_biases: None,
};

/// Describes a Nomic BERT model. Published files have the keys of GPT-2, those of transformers 5 the keys of BERT.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    for (key, value) in [
        ("prenorm", false),
        ("qkv_proj_bias", false),
        ("mlp_fc1_bias", false),
        ("mlp_fc2_bias", false),
        ("rotary_emb_interleaved", false),
        ("use_rms_norm", false),
    ] {
        if config.optional::<bool>(key)?.is_some_and(|found| found != value) {
            return Err(config.invalid_value(key, format!("only {value} is supported")));
        }
    }
    for key in ["rotary_scaling_factor", "rotary_emb_scale_base"] {
        if config
            .optional::<f64>(key)?
            .is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON)
        {
            let reason =
                "positions are not scaled; only null is supported, for texts up to the context of training";
            return Err(config.invalid_value(key, reason));
        }
    }
    let keys = [
        config.present_key(["hidden_size", "n_embd"]),
        config.present_key(["num_hidden_layers", "n_layer"]),
        config.present_key(["num_attention_heads", "n_head"]),
        config.present_key(["intermediate_size", "n_inner"]),
    ];
    let activation_key = config.present_key(["hidden_act", "activation_function"]);
    let activation = config.required::<String>(activation_key)?;
    if !matches!(activation.as_str(), "silu" | "swish" | "swiglu") {
        return Err(config.invalid_value(activation_key, "silu and swiglu are supported"));
    }
    let mut encoder = EncoderConfig::sized_with(config, keys, Activation::Silu)?;
    encoder.epsilon = epsilon(
        config,
        config.present_key(["layer_norm_eps", "layer_norm_epsilon"]),
    )?;
    encoder.gated = true;
    (
        encoder.projection_bias,
        encoder.output_bias,
        encoder.feed_forward_bias,
    ) = (false, false, false);
    let positions = RotaryKeys {
        theta_key: "rotary_emb_base",
        theta: 1000.0,
        partial_key: "rotary_emb_fraction",
        ..RotaryKeys::default()
    };
    let positions = rotary(config, encoder.width / encoder.heads, positions)?;
    let mut blocks = encoder.numbered("encoder.layers");
    for block in &mut blocks {
        block.rotary = Some(positions.rotary.clone());
    }
    let context = config.present_key(["max_position_embeddings", "n_positions"]);
    let embeddings = Embeddings {
        types: "embeddings.token_type_embeddings",
        norm: Some("emb_ln"),
        ..Embeddings::new(
            "embeddings.word_embeddings",
            encoder.width,
            TokenLimits {
                vocabulary: config.size("vocab_size")?,
                types: config.optional("type_vocab_size")?.unwrap_or(0),
                context: config.size(context)?,
            },
        )
    };
    Ok(TextEncoderConfig::new(
        "nomic_bert",
        blocks,
        encoder,
        NAMES,
        embeddings,
        TextHeadConfig::first("nomic_bert.pooler.dense", Activation::Tanh, "classifier"),
    ))
}
