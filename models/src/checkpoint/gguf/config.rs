//! Converts the metadata of a file to the keys of the corresponding `config.json`.
//!
//! A key that architectures name differently is written under each of its names; an architecture reads its own.

use serde_json::{Map, Value, json};

use super::architectures::Architecture;
use super::file::Header;
use super::rotary;
use crate::checkpoint::{Config, LoadError};

/// Metadata keys whose number is copied, with their names in `config.json`.
const NUMBERS: &[(&str, &[&str])] = &[
    ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]),
    (
        "attention.layer_norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
    ),
    ("attn_logit_softcapping", &["attn_logit_softcapping"]),
    ("final_logit_softcapping", &["final_logit_softcapping"]),
    ("embedding_scale", &["embedding_multiplier"]),
    ("residual_scale", &["residual_multiplier"]),
    ("attention.scale", &["attention_multiplier"]),
    ("logit_scale", &["logit_scale", "logits_scaling"]),
    ("attention.clamp_kqv", &["clip_qkv"]),
];

/// Metadata keys whose size is copied, with their names in `config.json`.
const SIZES: &[(&str, &[&str])] = &[
    ("embedding_length", &["hidden_size", "n_embd", "n_embed"]),
    ("block_count", &["num_hidden_layers", "n_layer"]),
    ("attention.head_count", &["num_attention_heads", "n_head"]),
    (
        "context_length",
        &["max_position_embeddings", "n_positions", "seq_length"],
    ),
    (
        "feed_forward_length",
        &["intermediate_size", "n_inner", "ffn_hidden_size"],
    ),
    (
        "attention.head_count_kv",
        &["num_key_value_heads", "num_kv_heads"],
    ),
    ("attention.key_length", &["head_dim"]),
    ("attention.sliding_window", &["sliding_window"]),
    ("expert_count", &["num_experts", "num_local_experts"]),
    ("expert_used_count", &["num_experts_per_tok"]),
];
/// Number of entries of [`SIZES`], from the first, that every file must have.
const REQUIRED: usize = 4;

/// Maximum number of layers.
const MAX_LAYERS: u64 = 10_000;

/// Conversion of a file's metadata in progress.
pub(super) struct Reading<'a> {
    pub(super) header: &'a Header,
    pub(super) architecture: &'static Architecture,
    pub(super) keys: Map<String, Value>,
}

/// Returns the configuration of a file; `factors` are the divisors of its rotary frequencies.
///
/// # Errors
/// [`LoadError`], naming the key of the metadata.
pub(super) fn read(
    header: &Header,
    architecture: &'static Architecture,
    factors: &rotary::Factors,
) -> Result<Config, LoadError> {
    let mut reading = Reading {
        header,
        architecture,
        keys: Map::new(),
    };
    reading.sizes()?;
    reading.numbers()?;
    reading.tensors();
    rotary::read(&mut reading, factors)?;
    reading.family()?;
    Ok(Config::of_keys(header.metadata.file.clone(), reading.keys))
}

impl Reading<'_> {
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.insert(key.to_owned(), value.into());
    }

    /// Returns a size that is already set.
    pub(super) fn size(&self, key: &str) -> Option<u64> {
        self.keys.get(key).and_then(Value::as_u64)
    }

    fn has(&self, tensor: &str) -> bool {
        self.header.tensors.contains_key(tensor)
    }

    /// Returns a dimension of a tensor, counted from the outermost.
    fn dimension(&self, tensor: &str, index: usize) -> Option<usize> {
        self.header.tensors.get(tensor)?.shape.get(index).copied()
    }

    fn sizes(&mut self) -> Result<(), LoadError> {
        let metadata = &self.header.metadata;
        let (architectures, model_type) = (json!([self.architecture.class]), self.architecture.model_type);
        self.set("architectures", architectures);
        self.set("model_type", model_type);
        for (index, (ours, theirs)) in SIZES.iter().enumerate() {
            let Some(size) = metadata.own_whole(ours)? else {
                if index < REQUIRED {
                    return Err(metadata.missing(&metadata.own(ours)));
                }
                continue;
            };
            // 0 means none, such as no experts or no window.
            if size == 0 && index < REQUIRED || *ours == "block_count" && size > MAX_LAYERS {
                let reason = format!("it must be 1 or more, and at most {MAX_LAYERS} layers are possible");
                return Err(metadata.invalid(&metadata.own(ours), reason));
            }
            if size > 0 {
                theirs.iter().for_each(|key| self.set(key, size));
            }
        }
        let vocabulary = self.dimension("token_embd.weight", 0);
        let vocabulary = vocabulary.ok_or_else(|| LoadError::MissingTensor {
            file: metadata.file.clone(),
            name: "token_embd.weight".into(),
            expected: Vec::new(),
        })?;
        self.set("vocab_size", vocabulary);
        let values = metadata.own_whole("attention.value_length")?;
        if values.is_some() && values != self.size("head_dim") {
            let key = metadata.own("attention.value_length");
            return Err(metadata.invalid(&key, "keys and values of different sizes are not supported"));
        }
        Ok(())
    }

    fn numbers(&mut self) -> Result<(), LoadError> {
        for (ours, theirs) in NUMBERS {
            if let Some(number) = self.header.metadata.own_number(ours)? {
                theirs.iter().for_each(|key| self.set(key, number.clone()));
            }
        }
        Ok(())
    }

    /// Sets the keys that follow from the presence of tensors.
    fn tensors(&mut self) {
        self.set("tie_word_embeddings", !self.has("output.weight"));
        let attention = self.has("blk.0.attn_q.bias");
        for key in ["attention_bias", "use_qkv_bias", "qkv_bias", "use_bias"] {
            self.set(key, attention);
        }
        self.set("bias", self.has("blk.0.attn_qkv.bias"));
        self.set("mlp_bias", self.has("blk.0.ffn_up.bias"));
        let norms = self.has("blk.0.attn_q_norm.weight");
        self.set("qk_layernorm", norms);
        self.set("use_qk_norm", norms);
        self.set("use_parallel_residual", !self.has("blk.0.ffn_norm.weight"));
        if let Some(inner) = self.dimension("blk.0.ffn_gate_exps.weight", 1) {
            self.set("moe_intermediate_size", inner);
        }
        if let Some(inner) = self.dimension("blk.0.ffn_gate_shexp.weight", 0) {
            self.set("shared_expert_intermediate_size", inner);
        }
    }

    /// Sets the keys that llama.cpp hard-codes per architecture and the metadata do not state.
    fn family(&mut self) -> Result<(), LoadError> {
        let metadata = &self.header.metadata;
        let (heads, width) = (self.size("num_attention_heads"), self.size("hidden_size"));
        let each = heads
            .zip(width)
            .map(|(heads, width)| width as f64 / heads.max(1) as f64);
        let head_dim = self.size("head_dim").map(|size| size as f64).or(each);
        match self.architecture.model_type {
            "gemma" | "gemma2" | "gemma3_text" => {
                self.set("hidden_activation", "gelu_pytorch_tanh");
                // In the largest models, the query scale derives from `hidden_size / heads` instead of the head
                // dimension.
                let is_largest = match self.architecture.model_type {
                    "gemma2" => self.size("num_hidden_layers") == Some(46),
                    _ => self.size("num_hidden_layers") == Some(62),
                };
                let scalar = if is_largest { each } else { head_dim };
                self.set("query_pre_attn_scalar", scalar);
            }
            "qwen2_moe" | "qwen3_moe" => {
                let stated = metadata.flag(&metadata.own("expert_weights_norm"))?;
                let normalised = stated.unwrap_or(self.architecture.model_type == "qwen3_moe");
                self.set("norm_topk_prob", normalised);
            }
            "granite" if !self.keys.contains_key("attention_multiplier") => {
                self.set("attention_multiplier", head_dim.map(|size| size.sqrt().recip()));
            }
            "phi" => self.set("hidden_act", "gelu_new"),
            "starcoder2" => self.set("hidden_act", "gelu_pytorch_tanh"),
            "gpt2" => self.set("activation_function", "gelu_new"),
            "falcon" => {
                let groups = self.size("num_kv_heads").unwrap_or(1);
                self.set("new_decoder_architecture", groups > 1);
                let norms = if self.has("blk.0.attn_norm_2.weight") {
                    2
                } else {
                    1
                };
                self.set("num_ln_in_parallel_attn", norms);
            }
            _ => {}
        }
        Ok(())
    }
}
