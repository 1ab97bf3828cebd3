//! AWQ (Lin et al. 2023), in `AutoAWQ`'s gemm version.
//!
//! `qweight` is I32 `[inputs, outputs / 8]`, `qzeros` I32 `[groups, outputs / 8]` and `scales` `[groups, outputs]`.
//! From the lowest bits on, the eight codes of a word belong to the outputs 0, 2, 4, 6, 1, 3, 5 and 7. A weight is
//! `(code - zero) * scale`.

use safetensors::Dtype;

use super::blocks::grouped;
use super::gptq::{group_size, is_bias, runs};
use super::{Fault, Part, Scheme, Stored, all_beside};
use crate::checkpoint::{Config, LoadError, transposed};
use crate::precision::WeightType;

/// Position of each output's code within a word.
const ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Scheme for AWQ.
#[derive(Debug)]
pub(super) struct Awq {
    kind: WeightType,
    /// Inputs per group; `None` for a single group.
    group_size: Option<usize>,
}

impl Awq {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let key = settings.present_key(["bits", "w_bit"]);
        if settings.size(key)? != 4 {
            return Err(settings.invalid_value(key, "4 is read"));
        }
        for key in ["version", "checkpoint_format"] {
            let version = settings.optional::<String>(key)?;
            if version.is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
                return Err(settings.invalid_value(key, "the version gemm is read; save the checkpoint so"));
            }
        }
        Ok(Self {
            kind,
            group_size: group_size(settings)?,
        })
    }
}

impl Scheme for Awq {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        all_beside(name, &["qweight", "qzeros", "scales"])
    }

    fn is_code(&self, _: Dtype) -> bool {
        false
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required("qweight")?;
        let &[inputs, words] = weight.shape() else {
            return Err(weight.fault("should be a matrix"));
        };
        let outputs = words.saturating_mul(8);
        if shape != [outputs, inputs] {
            return Err(Fault::Shape(vec![outputs, inputs]));
        }
        let groups = self.group_size.map_or(1, |size| inputs.div_ceil(size));
        let factors = stored
            .required("scales")?
            .of_shape(&[groups, outputs])?
            .numbers()?;
        let zeros = stored.required("qzeros")?.of_shape(&[groups, words])?.words()?;
        let zeros: Vec<f32> = codes(&zeros).collect();
        let packed = weight.words()?;
        let group_of_input = runs(inputs, self.group_size);
        let values = grouped(&group_of_input, outputs, &factors, &zeros, |input, line| {
            let row = packed.get(input * words..).unwrap_or_default();
            for (value, code) in line.iter_mut().zip(codes(row)) {
                *value = code;
            }
        });
        Ok(transposed(&values, outputs))
    }

    fn may_be_zeros(&self, name: &str) -> bool {
        is_bias(name)
    }
}

/// Unpacks the codes of words, in the order of the outputs.
fn codes(words: &[u32]) -> impl Iterator<Item = f32> {
    let words = words.iter();
    words.flat_map(|word| ORDER.map(|place| ((word >> (4 * place)) & 15) as f32))
}
