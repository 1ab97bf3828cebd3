//! Pinned host buffers from which a device copies repeatedly.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "burn")]
use burn::tensor::Bytes;

/// A tensor in host memory: words of f32, or parts of smaller numbers.
#[derive(Debug, Clone)]
pub enum HostWords {
    /// Made once, to be uploaded once.
    Owned(Vec<u32>),
    /// Cheap to clone.
    Shared(Arc<[u32]>),
    /// In the memory that a device of burn copies from without the processor, if it has such memory. Cheap to clone.
    #[cfg(feature = "burn")]
    Pinned(Bytes),
}

impl HostWords {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Owned(words) => size_of_val(words.as_slice()) as u64,
            Self::Shared(words) => size_of_val::<[u32]>(words) as u64,
            #[cfg(feature = "burn")]
            Self::Pinned(bytes) => bytes.len() as u64,
        }
    }

    /// Returns the words.
    pub(crate) fn words(&self) -> Cow<'_, [u32]> {
        match self {
            Self::Owned(words) => Cow::Borrowed(words),
            Self::Shared(words) => Cow::Borrowed(words),
            #[cfg(feature = "burn")]
            Self::Pinned(bytes) => Cow::Owned(pulp::bytemuck::pod_collect_to_vec(bytes)),
        }
    }

    /// Returns the words; copies those that are shared.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        if let Self::Owned(words) = self {
            return words;
        }
        self.words().into_owned()
    }
}
