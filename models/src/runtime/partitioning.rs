//! Limits for splitting a checkpoint into partitions.

/// Number of layers of a checkpoint, and the size of the hidden states that its partitions exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partitioning {
    /// Number of layers, which is the maximum number of partitions.
    pub layers: usize,
    /// Width of the hidden state of one token or patch.
    pub width: usize,
    /// Maximum sequence length, tokens or patches; `None` if the model has no limit.
    pub tokens: Option<usize>,
}
