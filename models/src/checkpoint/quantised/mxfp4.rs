//! MXFP4, as in gpt-oss: the tensors of all experts consist of blocks of 32 4-bit values with a shared exponent (OCP
//! Microscaling Formats 1.0).
//!
//! `{name}_blocks` is U8 `[experts, outputs, inputs / 32, 16]`: two values per byte, the first in the lower half.
//! `{name}_scales` is U8 `[experts, outputs, inputs / 32]`: 2^(byte - 127). The decoded weight is `[experts, inputs,
//! outputs]`.

use rayon::prelude::*;
use safetensors::Dtype;

use super::stored::exponential;
use super::{Fault, Part, Scheme, Stored, fp4};
use crate::checkpoint::transposed;
use crate::precision::WeightType;

/// Values per block.
const BLOCK: usize = 32;

/// Scheme for MXFP4.
#[derive(Debug)]
pub(super) struct Mxfp4 {
    pub(super) kind: WeightType,
}

impl Scheme for Mxfp4 {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        ["blocks", "scales"]
            .map(|part| (part, format!("{name}_{part}")))
            .to_vec()
    }

    fn is_code(&self, _: Dtype) -> bool {
        false
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let blocks = stored.required("blocks")?.of_type(Dtype::U8)?;
        let scales = stored.required("scales")?.of_type(Dtype::U8)?;
        let &[experts, outputs, count, 16] = blocks.shape() else {
            return Err(blocks.fault("should have the shape [experts, outputs, blocks, 16]"));
        };
        let inputs = count.saturating_mul(BLOCK);
        if shape != [experts, inputs, outputs] {
            return Err(Fault::Shape(vec![experts, inputs, outputs]));
        }
        let scales = scales.of_shape(&[experts, outputs, count])?;
        let mut values = vec![0.0; blocks.bytes().len() * 2];
        let (codes, _) = blocks.bytes().as_chunks::<16>();
        let parts = values.par_chunks_mut(BLOCK).zip(codes).zip(scales.bytes());
        parts.for_each(|((values, codes), scale)| {
            let scale = exponential(*scale);
            for (value, code) in values.iter_mut().zip(fp4::values(codes)) {
                *value = code * scale;
            }
        });
        let each = values.chunks((inputs * outputs).max(1));
        Ok(each.flat_map(|expert| transposed(expert, inputs)).collect())
    }
}
