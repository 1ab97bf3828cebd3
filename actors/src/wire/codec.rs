//! Messages to bytes and back: capped before decoding, without copying tensor data.

use std::cell::RefCell;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::scan;
use crate::error::{Code, Fault};

/// What a message may claim before anything is decoded from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the whole message.
    pub bytes: usize,
    /// Maps and arrays inside each other, the message itself included.
    pub depth: usize,
    /// Values in it, keys and elements alike. Tensor data sent as bytes is one value; as an array, one each.
    pub items: usize,
}

impl Default for Limits {
    /// 64 MiB (the most that a nats-server lets through), 16 levels, one million values.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            depth: 16,
            items: 1 << 20,
        }
    }
}

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CodecError {
    /// Over [`Limits::bytes`].
    #[error("the message has {size} bytes; at most {limit} are decoded")]
    TooLarge {
        /// Its bytes.
        size: usize,
        /// The most accepted.
        limit: usize,
    },
    /// Over [`Limits::depth`].
    #[error("at byte {offset} the message nests deeper than {limit} levels")]
    TooDeep {
        /// The most accepted.
        limit: usize,
        /// Where it went too deep.
        offset: usize,
    },
    /// Over [`Limits::items`].
    #[error("the message holds more than {limit} values; send tensor data as bytes, not as an array")]
    TooManyItems {
        /// The most accepted.
        limit: usize,
    },
    /// It claims more than it holds.
    #[error(
        "at byte {offset} the message claims {claimed} more bytes or elements, but {left} bytes are left"
    )]
    Truncated {
        /// Where the claim stands.
        offset: usize,
        /// Bytes or elements claimed.
        claimed: u64,
        /// Bytes left.
        left: usize,
    },
    /// The one byte that MessagePack never uses.
    #[error("byte {offset} is 0xc1, which MessagePack does not use")]
    Reserved {
        /// Where it stands.
        offset: usize,
    },
    /// Bytes after the message.
    #[error("the message ends at byte {offset}, but {extra} bytes follow")]
    Trailing {
        /// Where the message ends.
        offset: usize,
        /// Bytes after it.
        extra: usize,
    },
    /// Whole, but not this message: a field is missing or of another type.
    #[error("not a valid {message}: {reason}")]
    Schema {
        /// The message expected.
        message: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// A value that the format cannot carry, such as NaN in JSON.
    #[error("the {message} cannot be written: {reason}")]
    Unwritable {
        /// The message.
        message: &'static str,
        /// What does not fit.
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

/// What travels: a MessagePack map with field names.
pub trait Message: Serialize + DeserializeOwned {
    /// Its name, for errors.
    const NAME: &'static str;

    /// Bytes that it will about take, so that it is written into one buffer.
    fn size_hint(&self) -> usize {
        256
    }

    /// The message as bytes.
    ///
    /// # Errors
    /// [`CodecError::Unwritable`], which no message of this crate can give.
    fn encode(&self) -> Result<Bytes, CodecError> {
        let mut buffer = Vec::with_capacity(self.size_hint());
        rmp_serde::encode::write_named(&mut buffer, self).map_err(|error| CodecError::Unwritable {
            message: Self::NAME,
            reason: error.to_string(),
        })?;
        Ok(buffer.into())
    }

    /// The message in `bytes`, under the default [`Limits`]. Its tensors share the memory of `bytes`.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Unwritable`.
    fn decode(bytes: &Bytes) -> Result<Self, CodecError> {
        Self::decode_within(bytes, &Limits::default())
    }

    /// The same under other limits.
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
    // serde gives a visitor no context. Passing the received buffer beside it is what lets tensor data be cut out of it
    // without a second set of message types that borrow.
    static BUFFER: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// Takes the buffer back when decoding ends, also by an error: a buffer left behind would be kept alive by its thread.
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

/// The part of the buffer being decoded that `slice` is, without a copy; a copy if it is not part of it.
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
