//! FP8, as in `DeepSeek` V3 and Qwen3-FP8: `F8_E4M3` weights with a scale per block, row or tensor.
//!
//! `{name}` is `F8_E4M3`, and `{name}_scale_inv` or `{name}_scale` holds the scales: one per block of
//! `weight_block_size` (blocks at the edges may be smaller), one per row, or a single one. `activation_scheme`
//! concerns only activations.

use safetensors::Dtype;

use super::blocks::Blocks;
use super::{Fault, Part, Scheme, Stored, all_beside, product};
use crate::checkpoint::{Config, LoadError};
use crate::precision::WeightType;

/// Scheme for FP8.
#[derive(Debug)]
pub(super) struct Fp8 {
    kind: WeightType,
    /// Rows and columns of a block.
    block: Option<[usize; 2]>,
}

impl Fp8 {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let key = "fmt";
        if settings
            .optional::<String>(key)?
            .is_some_and(|format| format != "e4m3")
        {
            return Err(settings.invalid_value(key, "e4m3 is read"));
        }
        let key = "weight_block_size";
        let block = settings.optional::<[usize; 2]>(key)?;
        if block.is_some_and(|block| block.contains(&0)) {
            return Err(settings.invalid_value(key, "it must be the rows and columns of a block, at least 1"));
        }
        Ok(Self { kind, block })
    }
}

impl Scheme for Fp8 {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        let own = [("weight", ""), ("scale_inv", "_scale_inv"), ("scale", "_scale")];
        let own = own.map(|(role, end)| (role, format!("{name}{end}")));
        let unused = all_beside(name, &["input_scale", "activation_scale"]);
        own.into_iter().chain(unused).collect()
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F8_E4M3
    }

    fn is_unused(&self, name: &str) -> bool {
        is_cache_scale(name)
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required("weight")?.of_type(Dtype::F8_E4M3)?;
        if weight.shape() != shape {
            return Err(Fault::Shape(weight.shape().to_vec()));
        }
        let scales = match (stored.optional("scale_inv"), stored.optional("scale")) {
            (None, Some(scale)) => scale,
            (Some(_), Some(scale)) => return Err(scale.fault("is there beside a `_scale_inv`")),
            (_, None) => stored.required("scale_inv")?,
        };
        let [leading @ .., rows, columns] = shape else {
            return Err(weight.fault("should be a matrix"));
        };
        let factors = scales.numbers()?;
        let matrices = product(leading)?.max(1);
        let blocks = Blocks::of(factors.len() / matrices, *rows, *columns, self.block).ok_or_else(|| {
            scales.fault("has neither one factor nor one per row or block of `weight_block_size`")
        })?;
        let mut values = weight.numbers()?;
        blocks.scale(&mut values, [*rows, *columns], &factors, None)?;
        Ok(values)
    }
}

/// Returns whether a tensor is a scale of the KV cache, which is not quantised here.
pub(super) fn is_cache_scale(name: &str) -> bool {
    [".k_scale", ".v_scale", ".q_scale", ".kv_scale"]
        .iter()
        .any(|end| name.ends_with(end))
}
