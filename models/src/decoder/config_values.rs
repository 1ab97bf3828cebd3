//! Readers for `config.json` keys that several decoders share.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError, generation_config};
use crate::ops::{Activation, Heads};

/// Returns the layers of a partition; `key` holds the total number of layers.
pub(super) fn layers(
    config: &Config,
    key: &str,
    partition: Partition,
) -> Result<std::ops::Range<usize>, LoadError> {
    let all = config.size(key)?;
    if partition.of as usize > all {
        return Err(LoadError::TooManyPartitions {
            file: config.file().to_owned(),
            blocks: all,
            of: partition.of,
        });
    }
    Ok(partition.layers(all))
}

/// Returns the size stated by the first of these keys that is present.
///
/// # Errors
/// [`LoadError::BadKey`] unless the value is a positive integer.
pub(super) fn first_size(config: &Config, keys: &[&str]) -> Result<Option<usize>, LoadError> {
    let mut sizes = keys.iter().map(|key| config.optional_size(key));
    sizes.find_map(Result::transpose).transpose()
}

/// Reads `eos_token_id`: a token id, a list, or none.
pub(super) fn eos_token_ids(config: &Config) -> Result<Vec<u32>, LoadError> {
    Ok(generation_config::eos_token_ids(config)?.unwrap_or_default())
}

/// Returns the start token of an encoder-decoder's answers: `decoder_start_token_id` of `generation_config.json`, else
/// of `config.json`, else `absent`, else the BOS token.
pub(super) fn start_token(checkpoint: &Checkpoint, absent: Option<u32>) -> Result<u32, LoadError> {
    let (config, key) = (&checkpoint.config, "decoder_start_token_id");
    let own = checkpoint.generation.decoder_start_token_id;
    let stated = match own {
        Some(token) => Some(token),
        None => config.optional(key)?.or(absent),
    };
    let token = match stated {
        Some(token) => token,
        None => match config.optional("bos_token_id")? {
            Some(token) => token,
            None => config.required(key)?,
        },
    };
    let vocabulary = config.size("vocab_size")?;
    if (token as usize) < vocabulary {
        Ok(token)
    } else {
        let reason = format!("{token} begins answers; it must be below the vocabulary size of {vocabulary}");
        Err(config.invalid_value(key, reason))
    }
}

/// Reads attention heads that divide `width` evenly, without grouped keys.
pub(super) fn attention_heads(config: &Config, key: &str, width: usize) -> Result<Heads, LoadError> {
    let count = config.size(key)?;
    if !width.is_multiple_of(count) {
        return Err(config.invalid_value(key, format!("it must divide the width of {width}")));
    }
    let head_dim = width / count;
    Ok(Heads {
        queries: count,
        keys: count,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
    })
}

/// Reads a number between 0 and 1; `absent` is the default.
pub(super) fn epsilon(config: &Config, key: &str, absent: f64) -> Result<f32, LoadError> {
    let epsilon = config.optional::<f64>(key)?.unwrap_or(absent);
    if epsilon > 0.0 && epsilon < 1.0 {
        Ok(epsilon as f32)
    } else {
        Err(config.invalid_value(key, "it must be between 0 and 1"))
    }
}

/// Reads a factor, which must be positive.
pub(super) fn positive(config: &Config, key: &str) -> Result<Option<f32>, LoadError> {
    let factor = config.optional::<f32>(key)?;
    if factor.is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
        return Err(config.invalid_value(key, "it must be positive"));
    }
    Ok(factor)
}

/// Reads an activation by its transformers name; `absent` is the default.
pub(super) fn activation(config: &Config, key: &str, absent: &str) -> Result<Activation, LoadError> {
    let name = config
        .optional::<String>(key)?
        .unwrap_or_else(|| absent.to_owned());
    parse_activation(&name).ok_or_else(|| {
        config.invalid_value(
            key,
            "relu, relu2, gelu, gelu_new, gelu_pytorch_tanh and silu are supported",
        )
    })
}

pub(super) fn parse_activation(name: &str) -> Option<Activation> {
    match name {
        "relu" => Some(Activation::Relu),
        "gelu" => Some(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Activation::GeluTanh),
        "silu" | "swish" => Some(Activation::Silu),
        "relu2" => Some(Activation::SquaredRelu),
        _ => None,
    }
}

/// Rejects a boolean key unless it has the supported value.
pub(super) fn require(config: &Config, key: &str, value: bool, reason: &str) -> Result<(), LoadError> {
    match config.optional::<bool>(key)? {
        Some(other) if other != value => Err(config.invalid_value(key, reason)),
        _ => Ok(()),
    }
}
