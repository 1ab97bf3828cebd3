//! Messages that the broker does not carry whole: cut into chunks by whoever sends, put together by whoever reads.
//!
//! Hidden states of a long context, or a picture on its way through a cascade, may exceed the server's `max_payload`. Chunks go to one
//! reader (a replica's own subject, or an ingress's), never to a queue group, whose members would each get some of them. A
//! connection keeps its messages in order, so chunks come in order. One that is lost, as by a broken connection, spoils its message:
//! whoever waits for it is told as soon as a later chunk comes, and otherwise waits until the budget ends.

use std::collections::BTreeMap;

use async_nats::Subject;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::error::{Code, Fault};

/// Which part of which message: what the header `Kaskade-Chunk` says, as `<message, 16 hex digits>/<index>/<count>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The message, unlike every other under way.
    pub message: u64,
    /// Its place, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
}

impl Chunk {
    /// What a header says; `None` where it says no chunk.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('/');
        let digits = fields.next().filter(|digits| digits.len() == 16)?;
        // Only the spelling that is written: `parse` would also take signs.
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

/// Cuts a message into chunks of at most `limit` bytes, at least 1. They share its memory.
pub fn cut(message: u64, payload: &Bytes, limit: usize) -> impl Iterator<Item = (Chunk, Bytes)> + use<> {
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

/// Why chunks do not become a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// The message would be too large to be decoded.
    #[error("its {count} chunks make up more than the {limit} bytes that are decoded")]
    TooLarge {
        /// How many chunks there are.
        count: u32,
        /// The most accepted, bytes.
        limit: usize,
    },
    /// Too much is under way.
    #[error(
        "messages in chunks that are not whole yet hold {held} bytes, of at most {limit}; try again later"
    )]
    Full {
        /// Held, bytes.
        held: usize,
        /// The most that is held, bytes.
        limit: usize,
    },
    /// A chunk of a message of several holds nothing.
    #[error("chunk {index} is empty")]
    Empty {
        /// The chunk.
        index: u32,
    },
    /// A chunk before it was lost.
    #[error("chunk {index} came where chunk {expected} was due: what was between is lost")]
    Gap {
        /// The chunk that came.
        index: u32,
        /// The chunk that was due.
        expected: u32,
    },
}

impl From<ChunkError> for Fault {
    fn from(error: ChunkError) -> Self {
        let code = match error {
            ChunkError::TooLarge { .. } => Code::TooLarge,
            ChunkError::Empty { .. } => Code::Malformed,
            ChunkError::Full { .. } => Code::Overloaded,
            // Nothing is wrong with the message; it may come whole when it is sent again.
            ChunkError::Gap { .. } => Code::Unavailable,
        };
        Self::new(code, format!("the message came in chunks, and {error}"))
    }
}

/// A message that will not become whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyError {
    /// Why.
    pub error: ChunkError,
    /// Who waits for it, as far as a chunk that came has said so.
    pub reply: Option<Subject>,
}

/// Puts messages together. What it holds is bounded, and given up when its time has passed.
#[derive(Debug)]
pub struct Assembler {
    partial: BTreeMap<u64, Partial>,
    held: usize,
    largest: usize,
    most: usize,
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
    /// One for messages of at most `largest` bytes that holds at most `most` in all.
    pub fn new(largest: usize, most: usize) -> Self {
        Self {
            partial: BTreeMap::new(),
            held: 0,
            largest,
            most,
        }
    }

    /// Takes a chunk in; with the last one of a message, the message. `reply` is the subject that the chunk says to answer to, as only
    /// the first one does. `now` is the reader's clock and `until` when nobody wants the message any more, microseconds: one whose first
    /// chunk said a time that has passed makes room for others.
    ///
    /// # Errors
    /// [`AssemblyError`]; nothing of the message is held any more.
    pub fn take(
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
        if let Err(error) = self.add(&mut partial, chunk, bytes) {
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

    /// What messages that are not whole take, bytes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Refuses at its first chunk what the claimed number of them would make too large, so that nothing is sent in vain for long.
    fn begin(&mut self, chunk: Chunk, bytes: usize, now: u64) -> Result<(), ChunkError> {
        self.give_up(now);
        if chunk.index != 0 {
            return Err(ChunkError::Gap {
                index: chunk.index,
                expected: 0,
            });
        }
        // The last chunk may be short, the others are as long as the first.
        if bytes.saturating_mul(chunk.count as usize - 1) > self.largest {
            return Err(self.too_large(chunk.count));
        }
        Ok(())
    }

    fn add(&self, partial: &mut Partial, chunk: Chunk, bytes: Bytes) -> Result<(), ChunkError> {
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
        if self.held + partial.held() > self.most {
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
            limit: self.most,
        }
    }
}

impl Default for Assembler {
    /// Messages as large as the codec decodes, four of them at once.
    fn default() -> Self {
        let largest = super::Limits::default().bytes;
        Self::new(largest, 4 * largest)
    }
}

/// What is kept beside the bytes of a chunk, and beside those of a message: small ones must not be free.
const OVERHEAD: usize = 128;

impl Partial {
    /// What it takes, bytes.
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
#[path = "chunks_tests.rs"]
mod tests;
