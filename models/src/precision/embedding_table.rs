//! Tables of vectors, such as embeddings, of which a few rows are read at a time.

use super::{WeightType, decode, encode};

/// A table of weights `[rows, width]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    kind: WeightType,
    width: usize,
    /// Weights of an f32 table, row-major; empty for other types.
    values: Vec<f32>,
    /// Encoded weights of other types, row by row.
    bytes: Vec<u8>,
    /// Whether the rows are computed rather than stored in a file, so that the table stays f32.
    computed: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(Vec::new(), 0)
    }
}

impl Table {
    /// Creates an f32 table from its rows.
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        Self {
            kind: WeightType::F32,
            width,
            values,
            bytes: Vec::new(),
            computed: false,
        }
    }

    /// Creates a table of computed rows, which stays f32.
    pub(crate) fn computed(values: Vec<f32>, width: usize) -> Self {
        Self {
            computed: true,
            ..Self::new(values, width)
        }
    }

    /// Converts an f32 table to a type. It stays f32 if the type cannot represent the weights, or if the rows are
    /// computed.
    #[must_use]
    pub fn stored_as(self, kind: WeightType) -> Self {
        let kind = kind.for_rows(self.width, &self.values);
        if kind == WeightType::F32 || self.kind != WeightType::F32 || self.computed {
            return self;
        }
        Self {
            kind,
            width: self.width,
            bytes: encode(&self.values, kind),
            values: Vec::new(),
            computed: false,
        }
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.bytes.is_empty()
    }

    /// Returns the weights of an f32 table, row-major; empty for other types.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns all weights, row-major.
    pub(crate) fn into_values(self) -> Vec<f32> {
        if self.kind == WeightType::F32 {
            return self.values;
        }
        let mut values = vec![0.0; self.elements()];
        decode(&self.bytes, self.kind, &mut values);
        values
    }

    /// Returns the memory of the table, bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice()) + self.bytes.len()
    }

    /// Returns the number of weights.
    pub fn elements(&self) -> usize {
        let row = self.kind.bytes(self.width).max(1);
        self.values.len() + self.bytes.len() / row * self.width
    }

    /// Appends a row to `out`; zeros if the index is out of range.
    pub(crate) fn push_row(&self, index: usize, out: &mut Vec<f32>) {
        let from = out.len();
        out.resize(from + self.width, 0.0);
        if let Some(out) = out.get_mut(from..) {
            self.read_row(index, out);
        }
    }

    /// Adds a row to `out`; does nothing if the index is out of range.
    pub fn add_row(&self, index: usize, out: &mut [f32]) {
        if self.kind == WeightType::F32 {
            let row = self.values.get(index * self.width..(index + 1) * self.width);
            for (slot, value) in out.iter_mut().zip(row.unwrap_or_default()) {
                *slot += value;
            }
            return;
        }
        let mut row = vec![0.0; self.width];
        self.read_row(index, &mut row);
        for (slot, value) in out.iter_mut().zip(row) {
            *slot += value;
        }
    }

    /// Writes a row to `out`; does nothing if the index is out of range.
    pub(crate) fn read_row(&self, index: usize, out: &mut [f32]) {
        if self.kind == WeightType::F32 {
            if let Some(row) = self.values.get(index * self.width..(index + 1) * self.width) {
                out.copy_from_slice(row);
            }
            return;
        }
        let row = self.kind.bytes(self.width);
        let bytes = self.bytes.get(index * row..(index + 1) * row);
        decode(bytes.unwrap_or_default(), self.kind, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_in_every_type() {
        let width = 64;
        let values: Vec<f32> = (0..5 * width)
            .map(|index| ((index * 37) % 101) as f32 / 101.0 - 0.5)
            .collect();
        for kind in WeightType::ALL {
            let table = Table::new(values.clone(), width).stored_as(kind);
            assert_eq!(
                (table.elements(), table.bytes()),
                (values.len(), kind.bytes(values.len()))
            );
            let (mut row, mut sum) = (vec![9.0], vec![1.0; width]);
            table.push_row(3, &mut row);
            table.add_row(3, &mut sum);
            for (index, expected) in values[3 * width..4 * width].iter().enumerate() {
                let error = match kind {
                    WeightType::F32 => 0.0,
                    WeightType::Q4_0 => 0.08,
                    _ => 0.003,
                };
                assert!((row[1 + index] - expected).abs() <= error, "{kind}");
                assert!((sum[index] - 1.0 - row[1 + index]).abs() < 1e-6);
            }
            table.push_row(5, &mut row);
            assert_eq!(row[1 + width..], vec![0.0; width]);
        }
    }

    #[test]
    fn a_width_without_whole_blocks_stays_f32() {
        let table = Table::new(vec![0.25; 60], 20).stored_as(WeightType::Q8_0);
        assert_eq!(table.bytes(), 240);
        assert!(Table::default().is_empty());
    }
}
