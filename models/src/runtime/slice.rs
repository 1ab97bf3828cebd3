//! Slices of a model: contiguous layers on one worker (HybridServe §VI: the partitions `S_i` of a model that no single
//! device can hold).
//!
//! The first slice also reads the request, the last one also produces the answer. Hidden states travel between them; no
//! slice exits early.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A contiguous part of a model's layers: number `index` of `of`, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    index: usize,
    of: usize,
}

/// The index is not below the number of slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("slice {index} of {of} does not exist; slices are counted from 0")]
pub struct InvalidSlice {
    index: usize,
    of: usize,
}

impl Slice {
    /// The whole model.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// The slice `index` of `of`.
    ///
    /// # Errors
    /// `InvalidSlice` unless `index` is below `of`.
    pub fn new(index: usize, of: usize) -> Result<Self, InvalidSlice> {
        if index < of {
            Ok(Self { index, of })
        } else {
            Err(InvalidSlice { index, of })
        }
    }

    /// Its index, from 0.
    pub fn index(self) -> usize {
        self.index
    }

    /// Number of slices.
    pub fn of(self) -> usize {
        self.of
    }

    /// Returns whether it reads the request.
    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }

    /// Returns whether it produces the answer.
    pub fn is_last(self) -> bool {
        self.index + 1 == self.of
    }

    /// Its range of the `all` layers; slices differ by at most one layer.
    pub fn blocks(self, all: usize) -> Range<usize> {
        let start = |index: usize| index * all / self.of;
        start(self.index)..start(self.index + 1)
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self::WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_partition_the_layers() {
        for all in 1..20 {
            for of in 1..=all {
                let mut next = 0;
                for index in 0..of {
                    let slice = Slice::new(index, of).unwrap();
                    let blocks = slice.blocks(all);
                    assert_eq!(blocks.start, next);
                    assert!(!blocks.is_empty() && blocks.len() <= all.div_ceil(of));
                    assert_eq!((slice.is_first(), slice.is_last()), (index == 0, index + 1 == of));
                    next = blocks.end;
                }
                assert_eq!(next, all);
            }
        }
        assert!(Slice::new(2, 2).is_err());
    }
}
