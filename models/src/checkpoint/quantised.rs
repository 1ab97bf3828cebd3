//! Quantised checkpoints: one file per scheme, and the trait by which [`Weights`](super::Weights) reads them.
//!
//! A scheme names the tensors that can hold a weight, and decodes them to f32. The presence of tensors in the file
//! determines which weights are quantised, so lists such as `modules_to_not_convert` and `ignore` are not needed. Only
//! weights are quantised: scales of activations are read and ignored.

mod adapters;
mod awq;
mod bitnet;
mod bitsandbytes;
mod blocks;
mod compressed;
mod fp4;
mod fp8;
mod gptq;
mod kaskade;
mod modelopt;
mod mxfp4;
mod packed;
mod scheme;
mod stored;

use serde_json::Value;

use self::adapters::Adapters;
pub(super) use self::adapters::has_adapters;
pub(crate) use self::kaskade::Quantisation;
pub(crate) use self::scheme::KEY;
pub(super) use self::scheme::{Part, Scheme};
use self::scheme::{all_beside, beside, product};
pub(super) use self::stored::{Fault, Stored, StoredTensor};
use super::{Config, LoadError};
use crate::precision::WeightType;

/// Key in old versions of compressed-tensors.
const OLD_KEY: &str = "compression_config";

/// Section of the language model within a configuration, which may contain the quantisation settings.
const TEXT: &str = "text_config";

/// Reads the quantisation scheme of a checkpoint, or its task adapters, of which that of `task` is applied; `None`
/// without either.
///
/// # Errors
/// [`LoadError::BadKey`] and [`LoadError::MissingKey`], naming the key within the scheme's settings.
pub(super) fn read(config: &Config, task: Option<&str>) -> Result<Option<Box<dyn Scheme>>, LoadError> {
    let Some(key) = own_key(config) else {
        if let Some(text) = text_part(config) {
            return read(&text, task);
        }
        let adapters = Adapters::read(config, task, original_type(config)?)?;
        return Ok(adapters.map(|adapters| Box::new(adapters) as Box<dyn Scheme>));
    };
    let settings = config.section(key, &[])?;
    let method = settings.optional::<String>("quant_method")?;
    let loads = |key: &str| Ok::<_, LoadError>(settings.optional::<bool>(key)?.unwrap_or(false));
    let method = match method {
        Some(method) => method,
        None if key == OLD_KEY => "compressed-tensors".to_owned(),
        None if loads("load_in_4bit")? || loads("load_in_8bit")? => "bitsandbytes".to_owned(),
        None => settings.required("quant_method")?,
    };
    let kind = original_type(config)?;
    Ok(Some(match method.as_str() {
        "kaskade" => Box::new(Quantisation::read(config)?),
        "mxfp4" => Box::new(mxfp4::Mxfp4 { kind }),
        "fp8" | "fbgemm_fp8" => Box::new(fp8::Fp8::read(&settings, kind)?),
        "modelopt" => Box::new(modelopt::ModelOpt::read(&settings, kind)?),
        "compressed-tensors" => Box::new(compressed::Compressed::read(&settings, kind)?),
        "gptq" => Box::new(gptq::Gptq::read(&settings, kind)?),
        "awq" => Box::new(awq::Awq::read(&settings, kind)?),
        "bitnet" => Box::new(bitnet::BitNet::read(&settings, kind)?),
        "bitsandbytes" => Box::new(bitsandbytes::BitsAndBytes { kind }),
        _ => {
            let reason = "weights quantised by kaskade, mxfp4, fp8, fbgemm_fp8, modelopt, compressed-tensors, gptq, awq, \
                          bitnet and bitsandbytes are read; of others save the original weights, and set `dtype` or run `kaskade quantise`";
            return Err(settings.invalid_value("quant_method", reason));
        }
    }))
}

/// Checks that the scheme that a configuration states is supported.
///
/// # Errors
/// [`LoadError::BadKey`] and [`LoadError::MissingKey`], naming the key within the scheme's settings.
pub(crate) fn check(config: &Config) -> Result<(), LoadError> {
    read(config, None).map(drop)
}

/// Returns the key of the quantisation settings, if there is one.
pub(crate) fn stated_key(config: &Config) -> Option<&'static str> {
    own_key(config).or_else(|| own_key(&text_part(config)?))
}

/// Returns the configuration of the language model within a configuration, if there is one.
fn text_part(config: &Config) -> Option<Config> {
    let is_there = config.keys().get(TEXT).is_some_and(Value::is_object);
    is_there.then(|| config.nested(TEXT).ok()).flatten()
}

fn own_key(config: &Config) -> Option<&'static str> {
    let is_stated = |key: &&str| config.keys().get(*key).is_some_and(|value| !value.is_null());
    [KEY, OLD_KEY].into_iter().find(is_stated)
}

/// Returns the type of the weights before quantisation; bf16 if the configuration does not state it.
fn original_type(config: &Config) -> Result<WeightType, LoadError> {
    let key = config.present_key(["dtype", "torch_dtype"]);
    let stated = config.optional::<String>(key)?;
    Ok(match stated.as_deref() {
        Some("float32") => WeightType::F32,
        Some("float16") => WeightType::F16,
        _ => WeightType::Bf16,
    })
}

#[cfg(test)]
mod tests;
