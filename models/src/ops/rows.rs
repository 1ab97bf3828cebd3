//! Matrices in the host's memory.

/// Rows in the host's memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rows {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
}

impl Rows {
    /// The values of some rows.
    pub(super) fn span(&self, from: usize, count: usize) -> &[f32] {
        self.values
            .get(from * self.width..(from + count) * self.width)
            .unwrap_or_default()
    }
}
