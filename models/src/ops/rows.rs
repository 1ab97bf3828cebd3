//! Matrices in host memory.

/// A row-major matrix in host memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
}

impl Rows {
    /// Returns the values of a range of rows.
    pub(super) fn span(&self, from: usize, count: usize) -> &[f32] {
        self.values
            .get(from * self.width..(from + count) * self.width)
            .unwrap_or_default()
    }
}
