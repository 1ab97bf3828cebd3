//! Encodes and decodes messages: limits are checked before decoding, and tensor data is not copied.

use std::cell::RefCell;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::scan;
use crate::error::{Code, Fault};

/// Limits that a message must satisfy before it is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the whole message, bytes.
    pub bytes: usize,
    /// Nesting depth of maps and arrays, including the message itself.
    pub depth: usize,
    /// Number of values, keys and elements alike. Tensor data sent as bytes is one value; sent as an array, one per
    /// element.
    pub items: usize,
}

impl Default for Limits {
    /// Returns 64 MiB (the largest `max_payload` of a nats-server), 16 levels and one million values.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            depth: 16,
            items: 1 << 20,
        }
    }
}

/// Error of decoding or encoding a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// The message exceeds [`Limits::bytes`].
    #[error("the message has {size} bytes; at most {limit} are decoded")]
    TooLarge {
        /// Size of the message, bytes.
        size: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The message exceeds [`Limits::depth`].
    #[error("at byte {offset} the message nests deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
        /// Offset of the violation, bytes.
        offset: usize,
    },
    /// The message exceeds [`Limits::items`].
    #[error("the message holds more than {limit} values; send tensor data as bytes, not as an array")]
    TooManyItems {
        /// The limit.
        limit: usize,
    },
    /// A length in the message exceeds the remaining bytes.
    #[error(
        "at byte {offset} the message claims {claimed} more bytes or elements, but {left} bytes are left"
    )]
    Truncated {
        /// Offset of the length, bytes.
        offset: usize,
        /// Bytes or elements claimed.
        claimed: u64,
        /// Bytes left.
        left: usize,
    },
    /// The message contains the byte that MessagePack reserves.
    #[error("byte {offset} is 0xc1, which MessagePack does not use")]
    Reserved {
        /// Offset of the byte.
        offset: usize,
    },
    /// There are bytes after the message.
    #[error("the message ends at byte {offset}, but {extra} bytes follow")]
    Trailing {
        /// Offset of the end of the message, bytes.
        offset: usize,
        /// Number of extra bytes.
        extra: usize,
    },
    /// The message is well-formed, but a field is missing or has another type.
    #[error("not a valid {message}: {reason}")]
    Schema {
        /// The message expected.
        message: &'static str,
        /// The problem.
        reason: String,
    },
    /// The message contains a value that the format cannot represent, such as NaN in JSON.
    #[error("the {message} cannot be encoded: {reason}")]
    Unwritable {
        /// The message.
        message: &'static str,
        /// The problem.
        reason: String,
    },
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Self {
        let code = match error {
            CodecError::TooLarge { .. } => Code::TooLarge,
            CodecError::Unwritable { .. } => Code::BadOutput,
            _ => Code::Malformed,
        };
        Self::new(code, error.to_string())
    }
}

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
