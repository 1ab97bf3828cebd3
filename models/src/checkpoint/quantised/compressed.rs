//! compressed-tensors, as saved by llm-compressor: `F8_E4M3`, 8 bits, a few bits packed into words, or FP4.
//!
//! `{name}` is `F8_E4M3` or I8 `[rows, columns]`; or `{name}_packed` I32 `[rows, columns * bits / 32]` holds codes
//! plus half of their range, and `{name}_shape` the shape. `{name}_scale` has one scale, one per row, one per block,
//! or `[rows, groups]`; the offsets `{name}_zero_point` have the same layout, packed along the rows if weights are
//! packed. In NVFP4 and MXFP4, `{name}_packed` is U8 `[rows, columns / 2]` with two E2M1 values per byte, and the scales
//! are `F8_E4M3`, to be divided by `{name}_global_scale`, or U8 exponents. `{name}_g_idx` is the group of each column; without it, groups are consecutive columns.

use safetensors::Dtype;
use serde::Deserialize;

use super::blocks::Blocks;
use super::fp8::is_cache_scale;
use super::stored::Named;
use super::{Fault, Part, Scheme, Stored, all_beside, beside, fp4, packed};
use crate::checkpoint::{Config, LoadError};
use crate::precision::WeightType;

/// Supported formats; a mixed format states one per group of modules.
const FORMATS: [&str; 7] = [
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
];
/// Roles and name suffixes of the tensors of a weight.
const ENDS: [(&str, &str); 7] = [
    ("scale", "_scale"),
    ("global_scale", "_global_scale"),
    ("zero_point", "_zero_point"),
    ("packed", "_packed"),
    ("shape", "_shape"),
    ("g_idx", "_g_idx"),
    ("weight", ""),
];
/// Tensors that concern only activations.
const UNUSED: [&str; 6] = [
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "input_g_idx",
];

/// Scheme for compressed-tensors.
#[derive(Debug)]
pub(super) struct Compressed {
    kind: WeightType,
    /// Weight settings, one per group of modules.
    weights: Vec<WeightSettings>,
}

/// A group of modules.
#[derive(Debug, Deserialize)]
struct Group {
    weights: Option<WeightSettings>,
    format: Option<String>,
}

/// Weight settings that do not follow from the tensors.
#[derive(Debug, Deserialize)]
struct WeightSettings {
    num_bits: usize,
    #[serde(rename = "type", default = "integer")]
    numbers: String,
    group_size: Option<i64>,
    block_structure: Option<Structure>,
}

/// Rows and columns of a block.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Structure {
    Sizes([usize; 2]),
    /// Text such as `128x128`.
    Text(String),
}

fn integer() -> String {
    "int".to_owned()
}

impl Structure {
    fn sizes(&self) -> Option<[usize; 2]> {
        match self {
            Self::Sizes(sizes) => Some(*sizes),
            Self::Text(text) => {
                let (height, width) = text.split_once('x')?;
                Some([height.parse().ok()?, width.parse().ok()?])
            }
        }
    }
}

impl Compressed {
    pub(super) fn read(settings: &Config, kind: WeightType) -> Result<Self, LoadError> {
        let is_read = |format: &str| FORMATS.contains(&format);
        let reason = format!("{} are read", FORMATS.join(", "));
        let format = settings.optional::<String>("format")?;
        if format.is_some_and(|format| !is_read(&format)) {
            return Err(settings.invalid_value("format", reason));
        }
        let sparsity = settings.section("sparsity_config", &[])?;
        let key = "format";
        if sparsity
            .optional::<String>(key)?
            .is_some_and(|format| format != "dense")
        {
            return Err(sparsity.invalid_value(key, "sparse weights are not read; save them dense"));
        }
        let key = "transform_config";
        let transforms = settings.section(key, &[])?.section("config_groups", &[])?;
        if !transforms.keys().is_empty() {
            return Err(settings.invalid_value(key, "weights that are rotated are not read"));
        }
        let key = "config_groups";
        let groups: std::collections::BTreeMap<String, Group> = settings.required(key)?;
        let mut weights = Vec::new();
        for group in groups.into_values() {
            if group.format.is_some_and(|format| !is_read(&format)) {
                return Err(settings.invalid_value(key, reason));
            }
            let Some(group) = group.weights else {
                continue;
            };
            let known = match group.numbers.as_str() {
                "float" => matches!(group.num_bits, 4 | 8),
                "int" => (1..=8).contains(&group.num_bits),
                _ => false,
            };
            if !known {
                return Err(settings.invalid_value(
                    key,
                    "weights of type int of up to 8 bits and float of 4 and 8 bits are read",
                ));
            }
            weights.push(group);
        }
        Ok(Self { kind, weights })
    }

    /// Returns the block size for scales of this shape: the whole matrix, rows, the stated blocks, or groups of
    /// columns.
    fn blocks(&self, scale: Named<'_>, [rows, columns]: [usize; 2]) -> Result<Blocks, Fault> {
        let structures = self
            .weights
            .iter()
            .filter_map(|weights| weights.block_structure.as_ref()?.sizes());
        let structures = structures.filter(|[height, width]| {
            *height > 0 && *width > 0 && scale.shape() == [rows.div_ceil(*height), columns.div_ceil(*width)]
        });
        let groups = self.weights.iter().filter_map(|weights| {
            let size = usize::try_from(weights.group_size?)
                .ok()
                .filter(|size| *size > 0)?;
            (scale.shape() == [rows, columns.div_ceil(size)]).then_some([1, size])
        });
        let whole = || match scale.shape() {
            [] | [1] | [1, 1] => Some([rows, columns]),
            [count] | [count, 1] if *count == rows => Some([1, columns]),
            _ => None,
        };
        let found = groups.chain(structures).next().or_else(whole);
        let [height, width] =
            found.ok_or_else(|| scale.fault("has neither one factor nor one per row, group or block"))?;
        Ok(Blocks { height, width })
    }

    /// Unpacks the codes of a weight; also returns the number of bits per code.
    fn unpacked(&self, weight: Named<'_>, [rows, columns]: [usize; 2]) -> Result<(Vec<f32>, usize), Fault> {
        let fits = |bits: &usize| {
            let words = packed::words(columns, *bits);
            words.is_some_and(|words| weight.shape() == [rows, words])
        };
        let integers = self.weights.iter().filter(|weights| weights.numbers == "int");
        let bits = integers.map(|weights| weights.num_bits).find(fits);
        let bits = bits.ok_or_else(|| weight.fault("does not have the size that `num_bits` implies"))?;
        let words = weight.words()?;
        let width = packed::words(columns, bits).unwrap_or_default().max(1);
        let lines = words
            .chunks(width)
            .flat_map(|line| packed::row(line, bits, columns));
        Ok((lines.map(|code| signed(code, bits)).collect(), bits))
    }
}

/// Converts a packed code to a signed number by subtracting half of the range.
fn signed(code: u32, bits: usize) -> f32 {
    let half = (1_u32 << bits) >> 1;
    code as f32 - half as f32
}

impl Scheme for Compressed {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        if beside(name, "").is_none() {
            return Vec::new();
        }
        let own = ENDS.map(|(role, end)| (role, format!("{name}{end}")));
        own.into_iter().chain(all_beside(name, &UNUSED)).collect()
    }

    fn is_code(&self, dtype: Dtype) -> bool {
        matches!(dtype, Dtype::F8_E4M3 | Dtype::I8)
    }

    fn is_unused(&self, name: &str) -> bool {
        is_cache_scale(name)
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let scale = stored.required("scale")?;
        let &[rows, columns] = shape else {
            return Err(scale.fault("belongs to a matrix"));
        };
        let matrix = [rows, columns];
        let packed = stored.optional("packed");
        let (mut codes, bits) = if let Some(weight) = packed.filter(|weight| weight.dtype() == Dtype::U8) {
            (fp4::matrix(weight, matrix)?, None)
        } else if let Some(weight) = packed {
            let stated = stored.required("shape")?.integers()?;
            let stated: Vec<usize> = stated
                .into_iter()
                .filter_map(|size| usize::try_from(size).ok())
                .collect();
            if stated != shape {
                return Err(Fault::Shape(stated));
            }
            let (codes, bits) = self.unpacked(weight, matrix)?;
            (codes, Some(bits))
        } else {
            let weight = stored.required("weight")?;
            if !self.is_code(weight.dtype()) {
                return Err(weight.fault("should be F8_E4M3 or I8: the checkpoint is not compressed"));
            }
            if weight.shape() != shape {
                return Err(Fault::Shape(weight.shape().to_vec()));
            }
            (weight.numbers()?, None)
        };
        let (blocks, mut factors) = (self.blocks(scale, matrix)?, fp4::scales(scale)?);
        if let Some(global) = stored.optional("global_scale") {
            let divisor = fp4::single(global)?;
            for factor in &mut factors {
                *factor /= divisor;
            }
        }
        let offsets = stored.optional("zero_point");
        let offsets = offsets.map(|offsets| match (offsets.dtype(), bits) {
            (Dtype::I32, Some(bits)) => unpacked_offsets(offsets, scale, bits, rows),
            _ => offsets.of_shape(scale.shape())?.numbers(),
        });
        let offsets = offsets.transpose()?;
        let indices = stored.optional("g_idx");
        // If all indices are -1, columns were not reordered.
        let is_used = |indices: &Named<'_>| {
            indices
                .integers()
                .map(|read| read.iter().any(|group| *group != -1))
        };
        let groups = columns.div_ceil(blocks.width.max(1));
        match indices {
            Some(indices) if is_used(&indices)? => {
                let group_of_column = indices.groups(columns, groups)?;
                for (row, line) in codes.chunks_mut(columns.max(1)).enumerate() {
                    let of = |all: &[f32], group: usize| {
                        all.get(row * groups + group).copied().unwrap_or_default()
                    };
                    for (code, group) in line.iter_mut().zip(&group_of_column) {
                        let offset = offsets.as_ref().map_or(0.0, |offsets| of(offsets, *group));
                        *code = (*code - offset) * of(&factors, *group);
                    }
                }
            }
            _ => blocks.scale(&mut codes, matrix, &factors, offsets.as_deref())?,
        }
        Ok(codes)
    }
}

/// Unpacks offsets that are packed along the rows.
fn unpacked_offsets(
    offsets: Named<'_>,
    scale: Named<'_>,
    bits: usize,
    rows: usize,
) -> Result<Vec<f32>, Fault> {
    let groups = scale.shape().get(1).copied().unwrap_or(1);
    let lines = packed::words(rows, bits).unwrap_or_default();
    let words = offsets.of_shape(&[lines, groups])?.words()?;
    let rows = (0..rows).flat_map(|row| packed::across(&words, groups, bits, row));
    Ok(rows.map(|code| signed(code, bits)).collect())
}
