//! Decodes the weights of a GGUF file, and reverts the transformations of llama.cpp's converter.

use std::collections::BTreeMap;

use rayon::prelude::*;
use safetensors::Dtype;

use super::types::TensorType;
use crate::checkpoint::quantised::{Fault, Part, Scheme, Stored};
use crate::precision::WeightType;

/// Order of a tensor's rows in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As in the Hugging Face checkpoint.
    Same,
    /// Per head, the rows of a rotary pair are adjacent instead of half a head apart.
    AdjacentPairs { heads: usize },
    /// Queries of all heads, then keys, then values; the checkpoint groups them per head (BLOOM).
    ByPart { heads: usize },
    /// Queries of all KV groups, then keys, then values; the checkpoint groups them per KV group (Falcon).
    ByKind { groups: usize, queries: usize },
}

impl RowOrder {
    /// Returns the number that must divide a tensor's rows.
    fn unit(self) -> usize {
        match self {
            Self::Same => 1,
            Self::AdjacentPairs { heads } => 2 * heads,
            Self::ByPart { heads } => 3 * heads,
            Self::ByKind { groups, queries } => groups * (queries + 2),
        }
    }

    /// Returns the row in the file of a row of the checkpoint, given the total of `rows`.
    fn stored(self, row: usize, rows: usize) -> usize {
        let size = (rows / self.unit().max(1)).max(1);
        let (unit, place) = (row / size, row % size);
        match self {
            Self::Same => row,
            // `size` is half a head, and `unit` the index of the half.
            Self::AdjacentPairs { .. } => (unit / 2 * size + place) * 2 + unit % 2,
            Self::ByPart { heads } => (unit % 3 * heads + unit / 3) * size + place,
            Self::ByKind { groups, queries } => {
                let (group, part) = (unit / (queries + 2), unit % (queries + 2));
                let unit = match part.checked_sub(queries) {
                    None => group * queries + part,
                    Some(kind) => groups * (queries + kind) + group,
                };
                unit * size + place
            }
        }
    }
}

/// Decoding of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Coding {
    pub(super) kind: TensorType,
    /// Shape of the weight.
    pub(super) shape: Vec<usize>,
    pub(super) order: RowOrder,
    /// Offset to add to every weight.
    pub(super) offset: f32,
}

impl Coding {
    /// Decodes a weight of shape `shape`.
    fn decode(&self, bytes: &[u8], shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let width = match shape {
            // A reordered vector has one element per row.
            [_] if self.order != RowOrder::Same => 1,
            _ => shape.last().copied().unwrap_or(1),
        };
        let elements: usize = shape.iter().product();
        let rows = elements / width.max(1);
        let each = self.kind.row_bytes(width).filter(|each| *each > 0);
        let Some(each) = each.filter(|each| each.checked_mul(rows) == Some(bytes.len())) else {
            return Err(Fault::Shape(self.shape.clone()));
        };
        if !rows.is_multiple_of(self.order.unit().max(1)) {
            let reason = format!(
                "its {rows} rows are not a multiple of the {} that the attention heads need",
                self.order.unit()
            );
            return Err(Fault::Reason(reason));
        }
        let mut values = vec![0.0; elements];
        let decode = |(row, out): (usize, &mut [f32])| {
            let from = self.order.stored(row, rows) * each;
            self.kind
                .decode(bytes.get(from..from + each).unwrap_or_default(), out);
            if self.offset != 0.0 {
                for value in out {
                    *value += self.offset;
                }
            }
        };
        let lines = values.par_chunks_mut(width.max(1)).with_min_len(64);
        lines.enumerate().for_each(decode);
        Ok(values)
    }
}

/// Scheme with the transformed tensors of a file, by their names in the checkpoint; others are read unchanged.
#[derive(Debug)]
pub(super) struct Gguf {
    /// Type of the weights in memory, unless another type is requested.
    pub(super) kind: WeightType,
    pub(super) coded: BTreeMap<String, Coding>,
}

impl Scheme for Gguf {
    fn weight_type(&self) -> WeightType {
        self.kind
    }

    fn tensors(&self, name: &str) -> Vec<Part> {
        let coded = self.coded.get_key_value(name);
        coded
            .map(|(name, _)| ("weight", name.clone()))
            .into_iter()
            .collect()
    }

    fn is_code(&self, _: Dtype) -> bool {
        true
    }

    fn decode(&self, stored: &Stored, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let Some((_, name, Some(tensor))) = stored.parts.first() else {
            return Err(Fault::Reason("it is missing".into()));
        };
        let Some(coding) = self.coded.get(name) else {
            return Err(Fault::Reason("its type is not known".into()));
        };
        // A slice along the first dimension is decoded like a whole tensor.
        let is_part = shape.first() == Some(&1) && shape.get(1..) == coding.shape.get(1..);
        if shape != coding.shape && !(is_part && coding.order == RowOrder::Same) {
            return Err(Fault::Shape(coding.shape.clone()));
        }
        coding.decode(&tensor.bytes, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reordered(order: RowOrder, rows: usize) -> Vec<usize> {
        (0..rows).map(|row| order.stored(row, rows)).collect()
    }

    /// Inverse of llama.cpp's converter: `reshape(heads, 2, size / 2).swapaxes(1, 2)`.
    #[test]
    fn rotated_pairs_are_half_a_head_apart() {
        let order = RowOrder::AdjacentPairs { heads: 2 };
        assert_eq!(reordered(order, 12), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn queries_keys_and_values_are_gathered_by_head() {
        // Two heads of two rows: queries 0 to 3, keys 4 to 7, values 8 to 11.
        let order = RowOrder::ByPart { heads: 2 };
        assert_eq!(reordered(order, 12), [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        // Two groups of two queries, a key and a value, of one row each.
        let order = RowOrder::ByKind {
            groups: 2,
            queries: 2,
        };
        assert_eq!(reordered(order, 8), [0, 1, 4, 6, 2, 3, 5, 7]);
    }

    #[test]
    fn a_vector_is_reordered_and_shifted() {
        let coding = Coding {
            kind: TensorType::F32,
            shape: vec![4],
            order: RowOrder::AdjacentPairs { heads: 1 },
            offset: -1.0,
        };
        let bytes: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(coding.decode(&bytes, &[4]).unwrap(), [0.0, 2.0, 1.0, 3.0]);
        let odd = Coding {
            order: RowOrder::AdjacentPairs { heads: 3 },
            ..coding
        };
        assert!(matches!(odd.decode(&bytes, &[4]), Err(Fault::Reason(_))));
    }
}
