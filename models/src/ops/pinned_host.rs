//! Host memory for weights, including pinned buffers from which a device copies repeatedly.

use std::borrow::Cow;
use std::sync::Arc;

#[cfg(feature = "burn")]
use burn::tensor::Bytes;

/// A tensor in host memory, as words of f32 or of smaller packed numbers.
#[derive(Debug, Clone)]
pub enum HostWords {
    /// Memory for a single upload.
    Owned(Vec<u32>),
    /// Shared memory, cheap to clone.
    Shared(Arc<[u32]>),
    /// Memory that the device can copy from without the CPU, if it has such memory. Cheap to clone.
    #[cfg(feature = "burn")]
    Pinned(Bytes),
}

impl HostWords {
    /// Returns the size, bytes.
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

    /// Returns the words; copies them if they are shared.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        if let Self::Owned(words) = self {
            return words;
        }
        self.words().into_owned()
    }
}
