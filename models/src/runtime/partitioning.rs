//! How a checkpoint can be split into partitions.

/// Layers of a checkpoint that can be split, and the size of what its partitions send each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partitioning {
    /// Number of layers: the most partitions.
    pub layers: usize,
    /// Values of the hidden state of one token or patch.
    pub width: usize,
    /// Longest sequence, in tokens or patches; `None` if the model has no limit.
    pub tokens: Option<usize>,
}
