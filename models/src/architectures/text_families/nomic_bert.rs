//! Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions, and gated feed-forwards or experts (Nomic Embed v2,
//! Nussbaum and Duderstadt 2025).

use crate::architectures::encoder::feed_forward::ExpertsConfig;
use crate::architectures::encoder::{BlockNames, EncoderConfig, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{Embeddings, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::Routing;
use crate::ops::Activation;

/// Key of the distance between blocks with experts, of which the second block is the first one.
const EXPERTS: &str = "moe_every_n_layers";

const NAMES: BlockNames = BlockNames {
    projections: &["attn.Wqkv"],
    output: "attn.out_proj",
    attention_norm: "norm1",
    up: &["mlp.fc12", "mlp.fc11"],
    down: "mlp.fc2",
    inner_norm: None,
    feed_forward_norm: "norm2",
    scales: None,
    output_norms: None,
    head_norms: None,
    split_biases: None,
};

/// Names of the feed-forward without a gate.
const PLAIN_NAMES: BlockNames = BlockNames {
    up: &["mlp.fc1"],
    ..NAMES
};

/// Describes a Nomic BERT model. Published files have the keys of GPT-2, those of transformers 5 the keys of BERT.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    for key in [
        "prenorm",
        "causal",
        "parallel_block",
        "rotary_emb_interleaved",
        "use_rms_norm",
        "expert_choice_router",
        "moe_normalize_expert_weights",
    ] {
        if config.optional(key)?.unwrap_or(false) {
            return Err(config.invalid_value(key, "only false is supported"));
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
    let (activation, gated) = activation(config)?;
    let mut encoder = EncoderConfig::sized_with(config, keys, activation)?;
    encoder.epsilon = epsilon(
        config,
        config.present_key(["layer_norm_eps", "layer_norm_epsilon"]),
    )?;
    encoder.gated = gated;
    let is_set = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
    encoder.projection_bias = is_set("qkv_proj_bias")?;
    encoder.output_bias = encoder.projection_bias;
    encoder.feed_forward_bias = is_set("mlp_fc2_bias")?;
    encoder.up_bias = is_set("mlp_fc1_bias")?;
    if encoder.up_bias && !encoder.feed_forward_bias {
        return Err(config.invalid_value("mlp_fc2_bias", "it must be true if mlp_fc1_bias is"));
    }
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
    let every = config.optional::<usize>(EXPERTS)?.unwrap_or(0);
    if every > 0 {
        let experts = experts(config, gated)?;
        for block in blocks.iter_mut().skip(1).step_by(every) {
            block.experts = Some(experts.clone());
        }
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
        if gated { NAMES } else { PLAIN_NAMES },
        embeddings,
        TextHeadConfig::first("nomic_bert.pooler.dense", Activation::Tanh, "classifier"),
    ))
}

/// Reads the activation, and whether the feed-forward is gated: always in transformers, by the name in published files.
fn activation(config: &Config) -> Result<(Activation, bool), LoadError> {
    let key = config.present_key(["hidden_act", "activation_function"]);
    match (config.required::<String>(key)?.as_str(), key) {
        ("silu" | "swish" | "swiglu", _) => Ok((Activation::Silu, true)),
        ("gelu", "activation_function") => Ok((Activation::Gelu, false)),
        _ => Err(config.invalid_value(key, "silu, swiglu, and as activation_function gelu are supported")),
    }
}

/// Reads the experts of a block.
fn experts(config: &Config, gated: bool) -> Result<ExpertsConfig, LoadError> {
    if config.size(EXPERTS)? < 2 {
        return Err(config.invalid_value(EXPERTS, "it must be 0 or at least 2"));
    }
    if gated {
        return Err(config.invalid_value(EXPERTS, "gated experts are not supported"));
    }
    for (key, expected) in [("num_shared_experts", 0), ("ffn_div", 1)] {
        if config.optional(key)?.unwrap_or(expected) != expected {
            return Err(config.invalid_value(key, format!("only {expected} is supported")));
        }
    }
    let count = config.size("num_experts")?;
    Ok(ExpertsConfig {
        count,
        routing: Routing::by_key(config, "moe_top_k", count, false)?,
        router: "mlp.router.layer",
        up: "mlp.experts.mlp.w1",
        down: "mlp.experts.mlp.w2",
        bias: "mlp.experts.bias",
    })
}
