//! bitsandbytes: NF4 and FP4 by block (Dettmers et al. 2023), and 8 bits by row (Dettmers et al. 2022).
//!
//! 4 bits: `{name}` holds two codes per byte, the first in the upper half, `{name}.quant_map` the 16 values of the
//! codes, and `{name}.absmax` the scale of each block. `{name}.quant_state.bitsandbytes__nf4` (or `__fp4`) is JSON in
//! bytes, with the shape and the sizes. With double quantisation, the scales are codes too: `{name}.nested_quant_map`
//! has their 256 values, `{name}.nested_absmax` the scales of their blocks, and `nested_offset` in the JSON is added.
//!
//! 8 bits: `{name}` is I8, and `SCB` next to it is F32, the maximum magnitude of each row.

use rayon::prelude::*;
use safetensors::Dtype;
use serde::Deserialize;

use super::blocks::Blocks;
use super::stored::Named;
use super::{Fault, Part, Scheme, Stored, all_beside, product};
use crate::precision::WeightType;

/// Maximum 8-bit code.
const LARGEST: f32 = 127.0;
/// Roles and name suffixes of the tensors besides the codes.
const ENDS: [(&str, &str); 6] = [
    ("absmax", ".absmax"),
    ("map", ".quant_map"),
    ("nested_absmax", ".nested_absmax"),
    ("nested_map", ".nested_quant_map"),
    ("nf4", ".quant_state.bitsandbytes__nf4"),
    ("fp4", ".quant_state.bitsandbytes__fp4"),
];

/// Scheme for bitsandbytes.
#[derive(Debug)]
pub(super) struct BitsAndBytes {
    pub(super) kind: WeightType,
}

/// Quantisation state of a 4-bit weight (JSON).
#[derive(Debug, Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

impl Scheme for BitsAndBytes {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        let ends = ENDS.map(|(role, end)| (role, format!("{name}{end}")));
        std::iter::once(("weight", name.to_owned()))
            .chain(ends)
            .chain(all_beside(name, &["SCB", "weight_format"]))
            .collect()
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        matches!(dtype, Dtype::U8 | Dtype::I8)
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let weight = stored.required("weight")?;
        if stored.optional("SCB").is_some() || weight.dtype() == Dtype::I8 {
            return by_rows(stored, weight, shape);
        }
        let described = stored.optional("fp4");
        let described = described.map_or_else(|| stored.required("nf4"), Ok)?;
        let state: State = serde_json::from_slice(described.bytes())
            .map_err(|error| described.fault(format_args!("is malformed: {error}")))?;
        if state.shape != shape {
            return Err(Fault::Shape(state.shape));
        }
        let count = product(shape)?;
        // The bytes may be stored as another type.
        if weight.bytes().len() != count.div_ceil(2) {
            return Err(weight.fault(format_args!("should have the bytes of {count} codes")));
        }
        let block = state.blocksize.max(1);
        let map = stored.required("map")?.of_shape(&[16])?.numbers()?;
        let absmax = stored.required("absmax")?.of_shape(&[count.div_ceil(block)])?;
        let factors = match absmax.dtype() {
            Dtype::U8 => nested(stored, absmax, &state)?,
            _ => absmax.numbers()?,
        };
        let value = |code: u8| map.get(usize::from(code)).copied().unwrap_or_default();
        let pairs = weight.bytes().par_iter();
        let mut values: Vec<f32> = pairs
            .flat_map_iter(|pair| [value(pair >> 4), value(pair & 15)])
            .collect();
        values.truncate(count);
        let blocks = values.par_chunks_mut(block).zip(&factors);
        blocks.for_each(|(block, factor)| block.iter_mut().for_each(|value| *value *= factor));
        Ok(values)
    }
}

/// Decodes double-quantised block scales.
fn nested(stored: &Stored, absmax: Named<'_>, state: &State) -> Result<Vec<f32>, Fault> {
    let (Some(block), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
        return Err(
            absmax.fault("is quantised, and the quant_state has no nested_blocksize and nested_offset")
        );
    };
    let (codes, block) = (absmax.bytes(), block.max(1));
    let map = stored.required("nested_map")?.of_shape(&[256])?.numbers()?;
    let factors = stored
        .required("nested_absmax")?
        .of_shape(&[codes.len().div_ceil(block)])?
        .numbers()?;
    let blocks = codes.chunks(block).zip(factors);
    let value = |code: &u8| map.get(usize::from(*code)).copied().unwrap_or_default();
    let values =
        blocks.flat_map(|(block, factor)| block.iter().map(move |code| value(code) * factor + offset));
    Ok(values.collect())
}

/// Decodes rows of 8-bit codes.
fn by_rows(stored: &Stored, weight: Named<'_>, shape: &[usize]) -> Result<Vec<f32>, Fault> {
    let weight = weight.of_type(Dtype::I8)?;
    let &[rows, columns] = weight.shape() else {
        return Err(weight.fault("should be a matrix"));
    };
    if shape != [rows, columns] {
        return Err(Fault::Shape(vec![rows, columns]));
    }
    if let Some(format) = stored.optional("weight_format")
        && format.bytes().iter().any(|byte| *byte != 0)
    {
        return Err(format.fault("should be 0: rows as they are"));
    }
    let mut factors = stored.required("SCB")?.of_shape(&[rows])?.numbers()?;
    for factor in &mut factors {
        *factor /= LARGEST;
    }
    let mut values = weight.numbers()?;
    let blocks = Blocks {
        height: 1,
        width: columns,
    };
    blocks.scale(&mut values, [rows, columns], &factors, None)?;
    Ok(values)
}
