//! A contiguous range of a model's layers (pipeline parallelism).
//!
//! The first partition also reads the request, and the last one gives the answer. Hidden states travel between them; no partition
//! exits early.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A partition: a contiguous range of a variant's layers (HybridServe §V).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Position in the chain, from 0.
    pub index: u32,
    /// Length of the chain, `S_i`.
    pub of: u32,
}

/// The index is not below the number of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("partition {index} of {of} does not exist; partitions are counted from 0")]
pub struct InvalidPartition {
    index: u32,
    of: u32,
}

impl Partition {
    /// The whole model.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// The partition `index` of `of`.
    ///
    /// # Errors
    /// `InvalidPartition` unless `index` is below `of`.
    pub fn new(index: u32, of: u32) -> Result<Self, InvalidPartition> {
        if index < of {
            Ok(Self { index, of })
        } else {
            Err(InvalidPartition { index, of })
        }
    }

    /// Whether this is the first partition, which reads the request.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether this is the last partition, which gives the answer.
    pub fn is_last(self) -> bool {
        self.index.checked_add(1) == Some(self.of)
    }

    /// Returns this partition's range of the `all` layers of a model; ranges of a chain differ by at most one layer. Empty for a partition
    /// that
    /// [`Partition::new`] refuses.
    pub fn layers(self, all: usize) -> Range<usize> {
        let start = |index: u32| (u64::from(index) * all as u64).checked_div(u64::from(self.of));
        let start = |index: u32| start(index).map_or(all, |start| all.min(start as usize));
        start(self.index)..start(self.index.saturating_add(1))
    }
}

impl Default for Partition {
    fn default() -> Self {
        Self::WHOLE
    }
}

/// A partition of a model or the whole model, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPart(pub Option<Partition>);

impl fmt::Display for ModelPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "the whole model"),
            Some(Partition { index, of }) => write!(f, "partition {index} of {of}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_of_a_chain_hold_every_layer_once() {
        for all in 1..20_u32 {
            for of in 1..=all {
                let (all, mut next) = (all as usize, 0);
                for index in 0..of {
                    let partition = Partition::new(index, of).unwrap();
                    let layers = partition.layers(all);
                    assert_eq!(layers.start, next);
                    assert!(!layers.is_empty() && layers.len() <= all.div_ceil(of as usize));
                    assert_eq!(
                        (partition.is_first(), partition.is_last()),
                        (index == 0, index + 1 == of)
                    );
                    next = layers.end;
                }
                assert_eq!(next, all);
            }
        }
        assert_eq!(Partition::WHOLE.layers(7), 0..7);
    }

    #[test]
    fn a_partition_out_of_range_is_refused_and_has_no_layers() {
        for (index, of) in [(2, 2), (3, 2), (0, 0), (u32::MAX, u32::MAX), (u32::MAX, 0)] {
            assert_eq!(Partition::new(index, of), Err(InvalidPartition { index, of }));
            let partition = Partition { index, of };
            assert!(partition.layers(12).is_empty(), "{partition:?}");
            assert!(!partition.is_last(), "{partition:?}");
        }
    }
}
