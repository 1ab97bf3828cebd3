//! Limits of decoding, and the errors of decoding and encoding a message.

use thiserror::Error;

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
