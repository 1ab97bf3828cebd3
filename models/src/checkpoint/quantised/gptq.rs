//! GPTQ (Frantar et al. 2022), as saved by `AutoGPTQ` and `GPTQModel`.
//!
//! `qweight` is I32 `[inputs * bits / 32, outputs]`, packed along the inputs; `scales` `[groups, outputs]`; `qzeros`
//! I32 `[groups, outputs * bits / 32]`, packed along the outputs; `g_idx` I32 `[inputs]` is the group of each input;
//! without it, groups are `group_size` consecutive inputs. A weight is `(code - zero) * scale`. `checkpoint_format`
//! `gptq` stores zeros minus 1, `gptq_v2` unchanged.

use safetensors::Dtype;

use super::blocks::grouped;
use super::{Fault, Part, Scheme, Stored, all_beside, packed};
use crate::checkpoint::{Config, LoadError, transposed};
use crate::precision::WeightType;

/// Scheme for GPTQ.
#[derive(Debug)]
pub(super) struct Gptq {
    kind: WeightType,
    bits: usize,
    /// Inputs per group; `None` for a single group.
    group_size: Option<usize>,
    /// Number to add to the stored zeros.
    zero_offset: u32,
}

impl Gptq {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let bits = settings.size("bits")?;
        if ![2, 3, 4, 8].contains(&bits) {
            return Err(settings.invalid_value("bits", "2, 3, 4 and 8 are read"));
        }
        let key = "checkpoint_format";
        let format = settings.optional::<String>(key)?;
        let zero_offset = match format.as_deref().unwrap_or("gptq") {
            "gptq" => 1,
            "gptq_v2" => 0,
            _ => return Err(settings.invalid_value(key, "gptq and gptq_v2 are read; save the checkpoint so")),
        };
        let key = "is_marlin_format";
        if settings.optional(key)?.unwrap_or(false) {
            return Err(settings.invalid_value(key, "save the checkpoint in the format gptq"));
        }
        let key = "dynamic";
        let rules = settings.optional::<serde_json::Map<String, serde_json::Value>>(key)?;
        // Rules with the prefix `-:` exclude modules, which the presence of tensors shows as well.
        if rules.is_some_and(|rules| rules.keys().any(|rule| !rule.starts_with("-:"))) {
            return Err(settings.invalid_value(key, "modules of different settings are not read"));
        }
        Ok(Self {
            kind,
            bits,
            group_size: group_size(settings)?,
            zero_offset,
        })
    }
}

/// Reads the group size; `None` for a single group.
pub(super) fn group_size(settings: &Config) -> Result<Option<usize>, LoadError> {
    let key = settings.present_key(["group_size", "q_group_size"]);
    match settings.required::<i64>(key)? {
        -1 => Ok(None),
        _ => settings.size(key).map(Some),
    }
}

/// Returns the group of each input if there is no `g_idx`.
pub(super) fn runs(inputs: usize, group_size: Option<usize>) -> Vec<usize> {
    let size = group_size.unwrap_or(inputs).max(1);
    (0..inputs).map(|input| input / size).collect()
}

pub(super) fn is_bias(name: &str) -> bool {
    name.strip_suffix("bias")
        .is_some_and(|module| module.ends_with('.'))
}

impl Scheme for Gptq {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        all_beside(name, &["qweight", "qzeros", "scales", "g_idx"])
    }

    fn is_code(&self, _: Dtype) -> bool {
        false
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let bits = self.bits;
        let weight = stored.required("qweight")?;
        let &[lines, outputs] = weight.shape() else {
            return Err(weight.fault("should be a matrix"));
        };
        let &[_, inputs] = shape else {
            return Err(weight.fault("holds a matrix"));
        };
        if packed::words(inputs, bits) != Some(lines) || shape != [outputs, inputs] {
            return Err(Fault::Shape(vec![outputs, lines.saturating_mul(32) / bits]));
        }
        let scales = stored.required("scales")?;
        let groups = self.group_size.map_or(1, |size| inputs.div_ceil(size));
        let group_of_input = match stored.optional("g_idx") {
            Some(indices) => indices.groups(inputs, groups)?,
            None => runs(inputs, self.group_size),
        };
        let factors = scales.of_shape(&[groups, outputs])?.numbers()?;
        let across = packed::words(outputs, bits).unwrap_or_default();
        let zeros = stored.required("qzeros")?.of_shape(&[groups, across])?.words()?;
        let mask = (1_u32 << bits) - 1;
        // A zero of 0 is stored as the maximum code.
        let zero = |code: u32| ((code + self.zero_offset) & mask) as f32;
        let zeros = zeros
            .chunks(across.max(1))
            .flat_map(|line| packed::row(line, bits, outputs).map(zero));
        let zeros: Vec<f32> = zeros.collect();
        let words = weight.words()?;
        let values = grouped(&group_of_input, outputs, &factors, &zeros, |input, line| {
            for (value, code) in line.iter_mut().zip(packed::across(&words, outputs, bits, input)) {
                *value = code as f32;
            }
        });
        Ok(transposed(&values, outputs))
    }

    fn may_be_zeros(&self, name: &str) -> bool {
        is_bias(name)
    }
}
