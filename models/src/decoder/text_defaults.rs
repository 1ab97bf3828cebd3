//! Defaults of transformers' classes. A nested language model configuration often states only the differences from
//! them, while a `config.json` states everything.

use serde_json::{Map, Value, json};

/// Returns the defaults for this `model_type`; empty if its files state everything.
#[expect(clippy::too_many_lines, reason = "one entry per type")]
pub(super) fn of(model_type: &str) -> Map<String, Value> {
    let defaults = match model_type {
        "llama" | "granite" => llama(),
        "mistral" => json!({
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
        }),
        "ministral3" => json!({
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-5,
        }),
        "qwen2" => qwen(32_768),
        "qwen3" => headed(qwen(32_768)),
        "qwen2_vl_text" | "qwen2_5_vl_text" => json!({
            "vocab_size": 152_064,
            "hidden_size": 8192,
            "intermediate_size": 29_568,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "sliding_window": 4096,
            "max_window_layers": 80,
        }),
        "qwen2_5_omni_text" => json!({
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "rope_theta": 1e6,
            "sliding_window": 32_768,
            "max_window_layers": 28,
        }),
        "mllama_text_model" => json!({
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
        }),
        "qwen3_vl_text" => with(headed(qwen(128_000)), "rope_theta", json!(5e5)),
        "qwen3_vl_moe_text" => json!({
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 128_000,
            "rope_theta": 5e5,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 4,
            "norm_topk_prob": true,
        }),
        "gemma2" => with(
            with(gemma(256_000, 8192), "final_logit_softcapping", json!(30.0)),
            "attn_logit_softcapping",
            json!(50.0),
        ),
        "gemma3_text" => gemma(262_208, 131_072),
        "llama4_text" => json!({
            "vocab_size": 202_048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16_384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 1,
            "num_local_experts": 16,
            "attention_chunk_size": 8192,
        }),
        "gemma4_text" => json!({
            "vocab_size": 262_144,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "sliding_window": 512,
            "vocab_size_per_layer_input": 262_144,
            "hidden_size_per_layer_input": 256,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        }),
        "cohere2" => json!({
            "vocab_size": 256_000,
            "hidden_size": 8192,
            "intermediate_size": 22_528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "max_position_embeddings": 8192,
            "logit_scale": 0.0625,
            "layer_norm_eps": 1e-5,
            "sliding_window": 4096,
        }),
        "glm4v_text" => json!({
            "vocab_size": 151_552,
            "hidden_size": 4096,
            "intermediate_size": 13_696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 1.0,
            "attention_bias": true,
        }),
        "glm4v_moe_text" => json!({
            "vocab_size": 151_424,
            "hidden_size": 4096,
            "intermediate_size": 10_944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "max_position_embeddings": 65_536,
            "rms_norm_eps": 1e-5,
            "attention_bias": true,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
        }),
        _ => json!({}),
    };
    match defaults {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
    }
}

fn llama() -> Value {
    json!({
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    })
}

/// Returns the defaults of Qwen 2.
fn qwen(context: u32) -> Value {
    json!({
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": context,
        "sliding_window": 4096,
        "max_window_layers": 28,
    })
}

/// Sets the default head size of Qwen 3.
fn headed(defaults: Value) -> Value {
    with(defaults, "head_dim", json!(128))
}

/// Returns the defaults of Gemma 2 and 3.
fn gemma(vocabulary: u32, context: u32) -> Value {
    json!({
        "vocab_size": vocabulary,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": context,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    })
}

fn with(mut defaults: Value, key: &str, value: Value) -> Value {
    if let Value::Object(keys) = &mut defaults {
        keys.insert(key.to_owned(), value);
    }
    defaults
}
