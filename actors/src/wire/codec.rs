//! Encodes and decodes messages: limits are checked before decoding, and tensor data is not copied.

use std::cell::RefCell;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec_error::{CodecError, Limits};
use super::scan;

/// A message: a MessagePack map with field names.
pub trait Message: Serialize + DeserializeOwned {
    /// Name of the message, for errors.
    const NAME: &'static str;

    /// Returns the approximate encoded size, bytes, to allocate the buffer once.
    fn size_hint(&self) -> usize {
        256
    }

    /// Encodes the message.
    ///
    /// # Errors
    /// [`CodecError::Unwritable`], which no message of this crate causes.
    fn encode(&self) -> Result<Bytes, CodecError> {
        let mut buffer = Vec::with_capacity(self.size_hint());
        rmp_serde::encode::write_named(&mut buffer, self).map_err(|error| CodecError::Unwritable {
            message: Self::NAME,
            reason: error.to_string(),
        })?;
        Ok(buffer.into())
    }

    /// Decodes a message with the default [`Limits`]. Its tensors share the memory of `bytes`.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Unwritable`.
    fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        Self::decode_within(bytes, &Limits::default())
    }

    /// Decodes a message with other limits.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Unwritable`.
    fn decode_within(bytes: &Bytes, limits: &Limits) -> Result<Self, CodecError> {
        scan::messagepack(bytes, limits)?;
        let _guard = use_buffer(bytes);
        rmp_serde::from_slice(bytes).map_err(|error| CodecError::Schema {
            message: Self::NAME,
            reason: error.to_string(),
        })
    }
}

thread_local! {
    // serde passes no context to a visitor. This thread-local passes the received buffer, so that tensor data can be
    // sliced from it without borrowing message types.
    static BUFFER: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// Restores the previous buffer when decoding ends, also after an error. Otherwise the thread would keep the buffer
/// alive.
struct BufferGuard {
    before: Bytes,
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        BUFFER.set(std::mem::take(&mut self.before));
    }
}

fn use_buffer(bytes: &Bytes) -> BufferGuard {
    BufferGuard {
        before: BUFFER.replace(bytes.clone()),
    }
}

/// Returns `slice` as a part of the buffer being decoded, without a copy; copies it if it is not part of that buffer.
pub(super) fn share(slice: &[u8]) -> Bytes {
    BUFFER.with_borrow(|lent| {
        let whole = lent.as_ptr_range();
        let part = slice.as_ptr_range();
        if whole.start <= part.start && part.end <= whole.end {
            lent.slice_ref(slice)
        } else {
            Bytes::copy_from_slice(slice)
        }
    })
}
