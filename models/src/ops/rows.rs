//! Matrices in host memory.

/// A row-major matrix in host memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
}

impl Rows {
    /// Returns the values of a range of rows; empty if the range exceeds the matrix.
    pub(super) fn span(&self, from: usize, count: usize) -> &[f32] {
        let [start, end] = [from, from.saturating_add(count)].map(|row| row.saturating_mul(self.width));
        self.values.get(start..end).unwrap_or_default()
    }
}
