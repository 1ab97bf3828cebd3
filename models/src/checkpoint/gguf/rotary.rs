//! Rotary embedding settings of a file: base, rotated dimensions, scaling, and factors that some files store as
//! tensors.

use serde_json::{Value, json};

use super::config::Reading;
use crate::checkpoint::LoadError;

/// Names of the tensors that divide the rotary frequencies, in the order of [`Factors`].
pub(super) const TENSORS: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_short.weight",
    "rope_factors_long.weight",
];
/// Maximum number of factors; heads are far smaller.
pub(super) const MAX_FACTORS: usize = 1 << 12;
/// Default base.
const BASE: f64 = 10_000.0;
/// Base of the sliding-window layers of Gemma 3, which llama.cpp hard-codes and files do not state.
const BASE_OF_WINDOWS: f64 = 10_000.0;

/// Divisors of the rotary frequencies; empty without the tensor.
#[derive(Debug, Default)]
pub(super) struct Factors {
    /// Divisors for all sequence lengths (Llama 3.1).
    pub(super) all: Vec<f32>,
    /// Divisors for sequences within the training context (`LongRoPE`).
    pub(super) short: Vec<f32>,
}

/// Sets the keys of the rotary embeddings.
///
/// # Errors
/// [`LoadError::BadKey`] for an unsupported scaling.
pub(super) fn read(reading: &mut Reading<'_>, factors: &Factors) -> Result<(), LoadError> {
    let metadata = &reading.header.metadata;
    let base = metadata.number(&metadata.own("rope.freq_base"))?;
    reading.set("rope_theta", base.unwrap_or(BASE));
    let near = metadata.number(&metadata.own("rope.freq_base_swa"))?;
    reading.set("rope_local_base_freq", near.unwrap_or(BASE_OF_WINDOWS));
    let (heads, width) = (reading.size("num_attention_heads"), reading.size("hidden_size"));
    let each = heads.zip(width).map(|(heads, width)| width / heads.max(1));
    let head_dim = reading.size("head_dim").or(each).unwrap_or(1).max(1);
    if let Some(rotated) = metadata.own_whole("rope.dimension_count")?
        && rotated != head_dim
    {
        // Adds one half so that truncation gives exactly this number of dimensions.
        reading.set("partial_rotary_factor", (rotated as f64 + 0.5) / head_dim as f64);
    } else {
        reading.set("partial_rotary_factor", 1.0);
    }
    if let Some(scaling) = scaling(reading, factors)? {
        reading.set("rope_scaling", scaling);
    }
    Ok(())
}

fn scaling(reading: &Reading<'_>, factors: &Factors) -> Result<Option<Value>, LoadError> {
    let metadata = &reading.header.metadata;
    let key = metadata.own("rope.scaling.type");
    let trained = metadata.own_number("rope.scaling.original_context_length")?;
    let scale = metadata.own_number("rope.scaling.attn_factor")?;
    if !factors.all.is_empty() {
        // Expressed as LongRoPE whose short factors apply to the whole context, with an attention factor of 1.
        return Ok(Some(json!({
            "rope_type": "longrope",
            "short_factor": factors.all,
            "attention_factor": 1.0,
            "original_max_position_embeddings": reading.size("max_position_embeddings"),
        })));
    }
    if !factors.short.is_empty() {
        return Ok(Some(json!({
            "rope_type": "longrope",
            "short_factor": factors.short,
            "attention_factor": scale,
            "original_max_position_embeddings": trained.or_else(|| reading.size("max_position_embeddings").map(Value::from)),
        })));
    }
    let factor = match metadata.own_number("rope.scaling.factor")? {
        None => metadata.own_number("rope.scale_linear")?,
        stated => stated,
    };
    // Older files state only the factor of linear scaling; 0 and 1 mean none.
    let is_scaled = factor
        .as_ref()
        .and_then(Value::as_f64)
        .is_some_and(|factor| factor > 1.0);
    let absent = if is_scaled { "linear" } else { "none" };
    Ok(match metadata.text(&key)?.unwrap_or(absent) {
        "none" => None,
        "linear" if !is_scaled => None,
        "linear" => Some(json!({"rope_type": "linear", "factor": factor})),
        "yarn" => {
            for name in ["attn_factor", "yarn_ext_factor", "yarn_attn_factor"] {
                let key = metadata.own(&format!("rope.scaling.{name}"));
                if metadata
                    .number(&key)?
                    .is_some_and(|stated| stated >= 0.0 && (stated - 1.0).abs() > 1e-6)
                {
                    return Err(metadata.invalid(&key, "YaRN with a factor of its own is not supported"));
                }
            }
            Some(json!({
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": trained,
                "beta_fast": metadata.own_number("rope.scaling.yarn_beta_fast")?,
                "beta_slow": metadata.own_number("rope.scaling.yarn_beta_slow")?,
            }))
        }
        _ => return Err(metadata.invalid(&key, "none, linear, yarn and factors in tensors are supported")),
    })
}
