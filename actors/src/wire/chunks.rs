//! Sends messages that exceed the broker's `max_payload` in chunks.
//!
//! Hidden states of a long context, or an image on its way through a cascade, may exceed `max_payload`. Chunks go to
//! one reader (a replica's or an ingress's own subject), never to a queue group, whose members would each receive some
//! of them. A connection preserves the order of messages and thus of chunks. If a chunk is lost, for instance with a
//! broken connection, the next chunk reveals it and a fault is sent to the reply subject; if no chunk follows, the
//! request waits until its budget ends.

use std::collections::BTreeMap;

use async_nats::Subject;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::error::{Code, Fault};

/// Position of a chunk: the header `Kaskade-Chunk`, `<message, 16 hex digits>/<index>/<count>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Unique id of the message.
    pub message: u64,
    /// Index of the chunk, from 0.
    pub index: u32,
    /// Number of chunks.
    pub count: u32,
}

impl Chunk {
    /// Parses a header value; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('/');
        let digits = fields.next().filter(|digits| digits.len() == 16)?;
        // Accepts only the form that `Display` writes: `parse` would also accept signs.
        if !text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'/'))
        {
            return None;
        }
        let chunk = Self {
            message: u64::from_str_radix(digits, 16).ok()?,
            index: fields.next()?.parse().ok()?,
            count: fields.next()?.parse().ok()?,
        };
        (fields.next().is_none() && chunk.index < chunk.count).then_some(chunk)
    }
}

impl std::fmt::Display for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}/{}/{}", self.message, self.index, self.count)
    }
}

/// Splits a message into chunks of at most `limit` bytes (at least 1). The chunks share its memory.
pub fn split(message: u64, payload: &Bytes, limit: usize) -> impl Iterator<Item = (Chunk, Bytes)> + use<> {
    let limit = limit.max(1);
    let payload = payload.clone();
    let count = u32::try_from(payload.len().div_ceil(limit)).unwrap_or(u32::MAX);
    (0..count).map(move |index| {
        let start = index as usize * limit;
        let end = payload.len().min(start + limit);
        let chunk = Chunk {
            message,
            index,
            count,
        };
        (chunk, payload.slice(start..end))
    })
}

/// Error of assembling chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// The message exceeds the codec's limit.
    #[error("its {count} chunks exceed the limit of {limit} bytes")]
    TooLarge {
        /// Number of chunks.
        count: u32,
        /// Largest message, bytes.
        limit: usize,
    },
    /// Incomplete messages hold too much memory.
    #[error("incomplete messages hold {held} bytes of at most {limit}; try again later")]
    Full {
        /// Memory in use, bytes.
        held: usize,
        /// Limit, bytes.
        limit: usize,
    },
    /// A chunk of a message of several chunks is empty.
    #[error("chunk {index} is empty")]
    Empty {
        /// Index of the chunk.
        index: u32,
    },
    /// A preceding chunk was lost.
    #[error("chunk {index} arrived instead of chunk {expected}: a chunk is lost")]
    Gap {
        /// Index of the chunk received.
        index: u32,
        /// Index of the chunk expected.
        expected: u32,
    },
}

impl From<ChunkError> for Fault {
    fn from(error: ChunkError) -> Self {
        let code = match error {
            ChunkError::TooLarge { .. } => Code::TooLarge,
            ChunkError::Empty { .. } => Code::Malformed,
            ChunkError::Full { .. } => Code::Overloaded,
            // The message is valid, and may arrive complete at a retry.
            ChunkError::Gap { .. } => Code::Unavailable,
        };
        Self::new(
            code,
            format!("assembling the message from chunks failed: {error}"),
        )
    }
}

/// Error of a message that cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyError {
    /// The reason.
    pub error: ChunkError,
    /// Reply subject of the first chunk, if it has arrived.
    pub reply: Option<Subject>,
}

/// Assembles messages from chunks. Its memory is bounded, and messages past their deadline are dropped.
#[derive(Debug)]
pub struct Assembler {
    partial: BTreeMap<u64, Partial>,
    held: usize,
    largest: usize,
    max_held: usize,
}

#[derive(Debug)]
struct Partial {
    parts: Vec<Bytes>,
    count: u32,
    bytes: usize,
    reply: Option<Subject>,
    until: u64,
}

impl Assembler {
    /// Creates an assembler for messages of at most `largest` bytes that holds at most `most` bytes.
    pub fn new(largest: usize, max_held: usize) -> Self {
        Self {
            partial: BTreeMap::new(),
            held: 0,
            largest,
            max_held,
        }
    }

    /// Adds a chunk; returns the message with its last chunk. `reply` is the reply subject, which only the first chunk
    /// carries. `now` is the reader's clock and `until` the time after which the message is no longer needed,
    /// microseconds; expired messages are dropped to make room.
    ///
    /// # Errors
    /// [`AssemblyError`]; the chunks of the message are dropped.
    pub fn add(
        &mut self,
        chunk: Chunk,
        bytes: Bytes,
        reply: Option<Subject>,
        now: u64,
        until: u64,
    ) -> Result<Option<Bytes>, AssemblyError> {
        let partial = self.partial.remove(&chunk.message);
        self.held -= partial.as_ref().map_or(0, Partial::held);
        let mut partial = match partial {
            Some(partial) => partial,
            None => match self.begin(chunk, bytes.len(), now) {
                Ok(()) => Partial {
                    parts: Vec::new(),
                    count: chunk.count,
                    bytes: 0,
                    reply,
                    until,
                },
                Err(error) => return Err(AssemblyError { error, reply }),
            },
        };
        if let Err(error) = self.append(&mut partial, chunk, bytes) {
            let reply = partial.reply;
            return Err(AssemblyError { error, reply });
        }
        if chunk.index + 1 == chunk.count {
            return Ok(Some(partial.whole()));
        }
        self.held += partial.held();
        self.partial.insert(chunk.message, partial);
        Ok(None)
    }

    /// Returns the memory used by incomplete messages, bytes.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Starts a message with its first chunk. Refuses it if the claimed number of chunks would exceed the limit.
    fn begin(&mut self, chunk: Chunk, bytes: usize, now: u64) -> Result<(), ChunkError> {
        self.give_up(now);
        if chunk.index != 0 {
            return Err(ChunkError::Gap {
                index: chunk.index,
                expected: 0,
            });
        }
        // The last chunk may be short; the others are as long as the first.
        if bytes.saturating_mul(chunk.count as usize - 1) > self.largest {
            return Err(self.too_large(chunk.count));
        }
        Ok(())
    }

    fn append(&self, partial: &mut Partial, chunk: Chunk, bytes: Bytes) -> Result<(), ChunkError> {
        let expected = u32::try_from(partial.parts.len()).unwrap_or(u32::MAX);
        if chunk.index != expected || chunk.count != partial.count {
            return Err(ChunkError::Gap {
                index: chunk.index,
                expected,
            });
        }
        if bytes.is_empty() && chunk.count > 1 {
            return Err(ChunkError::Empty { index: chunk.index });
        }
        partial.bytes += bytes.len();
        if partial.bytes > self.largest {
            return Err(self.too_large(chunk.count));
        }
        partial.parts.push(bytes);
        if self.held + partial.held() > self.max_held {
            return Err(self.full());
        }
        Ok(())
    }

    fn give_up(&mut self, now: u64) {
        let held = &mut self.held;
        self.partial.retain(|_, partial| {
            let wanted = now < partial.until;
            if !wanted {
                *held -= partial.held();
            }
            wanted
        });
    }

    fn too_large(&self, count: u32) -> ChunkError {
        ChunkError::TooLarge {
            count,
            limit: self.largest,
        }
    }

    fn full(&self) -> ChunkError {
        ChunkError::Full {
            held: self.held,
            limit: self.max_held,
        }
    }
}

impl Default for Assembler {
    /// Returns an assembler for messages up to the codec's limit, four of them at once.
    fn default() -> Self {
        let largest = super::Limits::default().bytes;
        Self::new(largest, 4 * largest)
    }
}

/// Size accounted for each chunk and each message besides the data, bytes, so that many small chunks are not free.
const OVERHEAD: usize = 128;

impl Partial {
    /// Returns the memory in use, bytes.
    fn held(&self) -> usize {
        self.bytes + OVERHEAD * (self.parts.len() + 1)
    }

    fn whole(self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.bytes);
        for part in self.parts {
            whole.extend_from_slice(&part);
        }
        whole.freeze()
    }
}

#[cfg(test)]
mod tests;
