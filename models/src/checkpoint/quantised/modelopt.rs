//! `ModelOpt` (NVIDIA): NVFP4, and FP8 with a scale per tensor.
//!
//! NVFP4: `{name}` is U8 `[rows, columns / 2]` with two E2M1 values per byte; `{name}_scale` is `F8_E4M3` `[rows,
//! columns / 16]`, and `{name}_scale_2` a factor of these scales. FP8: `{name}` is `F8_E4M3`, and `{name}_scale` one
//! factor. `input_scale` concerns only activations.

use safetensors::Dtype;

use super::blocks::Blocks;
use super::fp8::{Fp8, is_cache_scale};
use super::{Fault, Part, Scheme, Stored, all_beside, fp4};
use crate::checkpoint::{Config, LoadError};
use crate::precision::WeightType;

/// Columns that share a scale in NVFP4.
const GROUP: usize = 16;

/// Scheme for `ModelOpt`.
#[derive(Debug)]
pub(super) struct ModelOpt {
    kind: WeightType,
    /// Scheme of the weights that are FP8.
    bytes: Fp8,
}

impl ModelOpt {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let key = "quant_algo";
        let algorithm = settings.required::<String>(key)?;
        if !matches!(algorithm.as_str(), "NVFP4" | "FP8") {
            return Err(settings.invalid_value(key, "NVFP4 and FP8 are read"));
        }
        let bytes = Fp8::read(settings, kind)?;
        Ok(Self { kind, bytes })
    }
}

impl Scheme for ModelOpt {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        let own = [("weight", ""), ("scale", "_scale"), ("scale_2", "_scale_2")];
        let own = own.map(|(role, end)| (role, format!("{name}{end}")));
        own.into_iter()
            .chain(all_beside(name, &["input_scale"]))
            .collect()
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        dtype == Dtype::U8 || self.bytes.is_code(dtype)
    }

    fn is_unused(&self, name: &str) -> bool {
        is_cache_scale(name)
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required("weight")?;
        if weight.dtype() != Dtype::U8 {
            return self.bytes.decode(stored, shape);
        }
        let &[rows, columns] = shape else {
            return Err(weight.fault("belongs to a matrix"));
        };
        let mut values = fp4::matrix(weight, [rows, columns])?;
        let scale = stored.required("scale")?.of_type(Dtype::F8_E4M3)?;
        let scale = scale.of_shape(&[rows, columns.div_ceil(GROUP)])?;
        let factor = fp4::single(stored.required("scale_2")?)?;
        let scales: Vec<f32> = scale.numbers()?.iter().map(|scale| scale * factor).collect();
        let blocks = Blocks {
            height: 1,
            width: GROUP,
        };
        blocks.scale(&mut values, [rows, columns], &scales, None)?;
        Ok(values)
    }
}
