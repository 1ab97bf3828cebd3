//! Dimensions out of a Hugging Face `config.json`.

use serde::Deserialize;
use thiserror::Error;

use super::shape::{BadShape, Shape};

/// Why a `config.json` gives no shape.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is no JSON object, or a key has another type.
    #[error("not a config.json")]
    Json(#[from] serde_json::Error),
    /// The engine does not run this architecture.
    #[error("`model_type` is `{0}`; opt, gpt2, gptj and llama are known")]
    Unknown(String),
    /// A key is missing that the architecture needs.
    #[error("no `{key}`, which `{model}` needs")]
    Missing {
        /// The architecture.
        model: String,
        /// The key.
        key: &'static str,
    },
    /// The dimensions are invalid.
    #[error(transparent)]
    Shape(#[from] BadShape),
}

/// The keys that are read, of all architectures; others are ignored.
#[derive(Debug, Deserialize)]
struct Config {
    model_type: String,
    #[serde(alias = "n_layer")]
    num_hidden_layers: Option<usize>,
    #[serde(alias = "n_embd")]
    hidden_size: Option<usize>,
    #[serde(alias = "ffn_dim", alias = "n_inner")]
    intermediate_size: Option<usize>,
    #[serde(alias = "n_head")]
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(alias = "n_positions")]
    max_position_embeddings: Option<usize>,
    vocab_size: Option<usize>,
    #[serde(alias = "torch_dtype")]
    dtype: Option<String>,
}

impl Shape {
    /// The shape that a `config.json` of an OPT, GPT-2, GPT-J or Llama describes.
    ///
    /// Weights and cache have the type that the file names, 16 bits where it names none.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn published(name: &str, json: &str) -> Result<Self, ConfigError> {
        let config: Config = serde_json::from_str(json)?;
        let model = config.model_type.clone();
        let of = |key: &'static str, value: Option<usize>| {
            value.ok_or_else(|| ConfigError::Missing {
                model: model.clone(),
                key,
            })
        };
        let llama = match model.as_str() {
            "opt" | "gpt2" | "gptj" => false,
            "llama" => true,
            _ => return Err(ConfigError::Unknown(model)),
        };
        let width = of("hidden_size", config.hidden_size)?;
        let heads = of("num_attention_heads", config.num_attention_heads)?.max(1);
        let own = config.head_dim.unwrap_or(width / heads);
        let inner = match config.intermediate_size {
            // GPT-2 and GPT-J leave it out where it is four times as long.
            None if model.starts_with("gpt") => width.saturating_mul(4),
            inner => of("intermediate_size", inner)?,
        };
        let shape = Self {
            name: name.to_owned(),
            layers: of("num_hidden_layers", config.num_hidden_layers)?,
            width,
            kv_width: own.saturating_mul(config.num_key_value_heads.filter(|_| llama).unwrap_or(heads)),
            inner,
            gated: llama,
            vocabulary: of("vocab_size", config.vocab_size)?,
            context: of("max_position_embeddings", config.max_position_embeddings)?,
            element_bytes: match config.dtype.as_deref() {
                Some("float32") => 4,
                _ => 2,
            },
        };
        shape.check()?;
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "vocab_size": 128256,
        "torch_dtype": "bfloat16", "rope_theta": 500000.0}"#;

    #[test]
    fn grouped_heads_share_keys_and_values() {
        let shape = Shape::published("llama-3-8b", LLAMA).unwrap();
        assert_eq!((shape.kv_width, shape.inner, shape.gated), (1_024, 14_336, true));
        // Its head has separate weights, which are not counted: 8.03e9 less 0.53e9.
        assert!((shape.parameters() as f64 / 7.5e9 - 1.0).abs() < 0.01);
        // Four queries' heads share keys and values: an ACT block is twice a KV block.
        assert_eq!(shape.act_bytes(), 2 * shape.kv_bytes());
    }

    #[test]
    fn opt_and_gpt2_name_things_their_own_way() {
        let opt = r#"{"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12,
            "max_position_embeddings": 2048, "vocab_size": 50272, "torch_dtype": "float32"}"#;
        let opt = Shape::published("opt-125m", opt).unwrap();
        assert_eq!((opt.kv_width, opt.inner, opt.element_bytes), (768, 3_072, 4));
        let gpt2 = r#"{"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_inner": null, "n_head": 12, "n_positions": 1024,
            "vocab_size": 50257}"#;
        let gpt2 = Shape::published("gpt2", gpt2).unwrap();
        assert_eq!(
            (gpt2.layers, gpt2.inner, gpt2.context, gpt2.gated),
            (12, 3_072, 1_024, false)
        );
    }

    #[test]
    fn what_says_too_little_is_refused_by_its_key() {
        let message = |json: &str| Shape::published("x", json).unwrap_err().to_string();
        assert!(message("[]").contains("config.json"));
        assert!(message(r#"{"model_type": "t5"}"#).contains("`t5`"));
        assert!(message(&LLAMA.replace("intermediate_size", "other")).contains("`intermediate_size`"));
        assert!(
            message(&LLAMA.replace("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 0"))
                .contains("`layers` is 0")
        );
    }
}
