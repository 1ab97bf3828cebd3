//! How a checkpoint's weights are quantised: one file per scheme, and the trait by which
//! [`Weights`](super::Weights) reads them.
//!
//! A scheme names the tensors that can hold a weight, and decodes them to f32. The tensors of the file decide which weights
//! are quantised; lists such as `modules_to_not_convert` and `ignore` are therefore not needed. Only weights are decoded:
//! scales of activations are read and not used, because activations are computed unquantised.

mod awq;
mod bitsandbytes;
mod blocks;
mod compressed;
mod fp8;
mod gptq;
mod mxfp4;
mod own;
mod packed;
mod stored;

use std::fmt::Debug;

use safetensors::Dtype;
use serde_json::Value;

pub(crate) use self::own::Quantisation;
pub(super) use self::stored::{Fault, Stored, StoredTensor};
use super::{Config, LoadError};
use crate::precision::WeightType;

/// The key of `config.json`.
pub(crate) const KEY: &str = "quantization_config";
/// The key that old versions of compressed-tensors wrote.
const OLD_KEY: &str = "compression_config";

/// The section of a language model within a configuration; some files state there how its weights are quantised.
const TEXT: &str = "text_config";

/// A tensor's role, and the name that it has for a weight.
pub(super) type Part = (&'static str, String);

/// A way of storing quantised weights.
pub(super) trait Scheme: Debug + Send + Sync {
    /// The type of the weights in memory, unless another one is requested.
    fn weight_type(&self) -> WeightType;

    /// The tensors that can hold the weight `name`; none if weights of such a name are never quantised.
    fn tensors(&self, name: &str) -> Vec<Part>;

    /// Whether a tensor of this type that has the weight's own name holds codes.
    fn is_code(&self, dtype: Dtype) -> bool;

    /// Whether matrices that the model stores as `[inputs, outputs]` (GPT-2) are `[outputs, inputs]` once quantised.
    fn is_output_major(&self) -> bool {
        true
    }

    /// Decodes a weight of shape `shape`, row-major.
    ///
    /// # Errors
    /// [`Fault`] if the tensors do not hold such a weight.
    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault>;

    /// Whether a tensor of this name concerns activations only.
    fn is_unused(&self, _name: &str) -> bool {
        false
    }

    /// Whether programs of this scheme save a tensor of this name also where the model has none, with zeros.
    fn may_be_zeros(&self, _name: &str) -> bool {
        false
    }
}

/// Reads how a checkpoint's weights are quantised; `None` if they are not.
///
/// # Errors
/// [`LoadError::BadKey`] and [`LoadError::MissingKey`], naming the key within the scheme's settings.
pub(super) fn read(config: &Config) -> Result<Option<Box<dyn Scheme>>, LoadError> {
    let Some(key) = own_key(config) else {
        return text_part(config).map_or(Ok(None), |text| read(&text));
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
        "compressed-tensors" => Box::new(compressed::Compressed::read(&settings, kind)?),
        "gptq" => Box::new(gptq::Gptq::read(&settings, kind)?),
        "awq" => Box::new(awq::Awq::read(&settings, kind)?),
        "bitsandbytes" => Box::new(bitsandbytes::BitsAndBytes { kind }),
        _ => {
            let reason = "weights quantised by kaskade, mxfp4, fp8, fbgemm_fp8, compressed-tensors, gptq, awq and \
                          bitsandbytes are read; of others save the original weights, and set `dtype` or run `kaskade quantise`";
            return Err(settings.invalid_value("quant_method", reason));
        }
    }))
}

/// Checks that the scheme that a configuration states is read.
///
/// # Errors
/// [`LoadError::BadKey`] and [`LoadError::MissingKey`], naming the key within the scheme's settings.
pub(crate) fn check(config: &Config) -> Result<(), LoadError> {
    read(config).map(drop)
}

/// Returns the key that states how weights are quantised, if there is one.
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

/// The type that the weights had before they were quantised; bf16 if the configuration does not say it.
fn original_type(config: &Config) -> Result<WeightType, LoadError> {
    let key = config.present_key(["dtype", "torch_dtype"]);
    let stated = config.optional::<String>(key)?;
    Ok(match stated.as_deref() {
        Some("float32") => WeightType::F32,
        Some("float16") => WeightType::F16,
        _ => WeightType::Bf16,
    })
}

/// Returns the name of a module's tensor `end` beside its tensor `weight`; `None` for a tensor of another name.
fn beside(name: &str, end: &str) -> Option<String> {
    let module = name.strip_suffix("weight")?;
    (module.is_empty() || module.ends_with('.')).then(|| format!("{module}{end}"))
}

/// Returns a module's tensors beside its tensor `weight`, each named by its role; none beside a tensor of another name.
fn all_beside(name: &str, roles: &[&'static str]) -> Vec<Part> {
    let roles = roles.iter();
    roles
        .filter_map(|role| Some((*role, beside(name, role)?)))
        .collect()
}

/// Returns the product of sizes.
fn product(shape: &[usize]) -> Result<usize, Fault> {
    let product = shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    product.ok_or_else(|| Fault::Reason(format!("its shape {shape:?} is too large")))
}

#[cfg(test)]
mod tests;
