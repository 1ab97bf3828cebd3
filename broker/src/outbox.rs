//! The queue of bytes to one client.
//!
//! Pure. Small messages are copied together into runs, so that many leave in one write; a large body is queued as a
//! slice of the buffer it arrived in, so that its subscribers share one copy. The total size is bounded.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Smallest body that is shared instead of copied.
const SHARE_FROM: usize = 16 << 10;
/// A shared body keeps its whole read buffer alive, so it must be at least this fraction of it; otherwise a client's
/// pending data would occupy many times its limit.
const SHARE_PART: usize = 4;
/// Size at which a run of small messages is closed, which bounds the copying while it grows.
const RUN: usize = 32 << 10;

/// Part of the byte stream to a client.
#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    /// Whether a message ends at its end.
    whole: bool,
}

/// A message on its way to a subscription.
#[derive(Debug, Clone)]
pub(super) struct Message<'a> {
    /// Subject of the message.
    pub(super) subject: &'a [u8],
    /// The reply subject.
    pub(super) reply: Option<&'a [u8]>,
    /// Bytes of the header block at the front of `body`.
    pub(super) header: Option<usize>,
    /// Header block, payload, line end.
    pub(super) body: Bytes,
    /// Size of the buffer that `body` is a part of.
    pub(super) buffer: usize,
}

const LINE_END: usize = 2;

impl Message<'_> {
    /// Bytes of header block and payload.
    pub(super) fn size(&self) -> usize {
        self.body.len().saturating_sub(LINE_END)
    }

    fn is_worth_sharing(&self) -> bool {
        self.body.len() >= SHARE_FROM && self.body.len() >= self.buffer / SHARE_PART
    }

    /// Returns the message for a client without header support.
    fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.body.advance(self.header.unwrap_or(0).min(plain.body.len()));
        plain.header = None;
        plain
    }
}

/// The client has too much pending data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow;

/// The bounded queue of bytes to one client.
#[derive(Debug)]
pub(super) struct Outbox {
    closed: VecDeque<Chunk>,
    run: BytesMut,
    /// Bytes queued, or taken and not yet written.
    pending: usize,
    limit: usize,
}

impl Outbox {
    /// Creates an empty queue of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            closed: VecDeque::new(),
            run: BytesMut::new(),
            pending: 0,
            limit,
        }
    }

    /// Queues a line of the protocol.
    pub(super) fn push_line(&mut self, line: &[u8]) -> Result<(), Overflow> {
        self.admit(line.len())?;
        self.run.put_slice(line);
        self.close_long_run();
        Ok(())
    }

    /// Queues a message for subscription `sid`; omits its headers for a client without header support.
    pub(super) fn push(&mut self, message: &Message<'_>, sid: &[u8], headers: bool) -> Result<(), Overflow> {
        if message.header.is_some() && !headers {
            return self.push(&message.plain(), sid, headers);
        }
        // Two numbers of at most twenty digits, the operation and the blanks take less than 64 bytes.
        let line = 64 + message.subject.len() + sid.len() + message.reply.map_or(0, <[u8]>::len);
        self.admit(line + message.body.len())?;
        let before = self.run.len();
        self.put_line(message, sid);
        // The admitted size was an upper bound.
        self.pending -= line - (self.run.len() - before);
        if message.is_worth_sharing() {
            self.close_run(false);
            self.closed.push_back(Chunk {
                bytes: message.body.clone(),
                whole: true,
            });
        } else {
            self.run.put_slice(&message.body);
            self.close_long_run();
        }
        Ok(())
    }

    fn put_line(&mut self, message: &Message<'_>, sid: &[u8]) {
        let run = &mut self.run;
        run.put_slice(if message.header.is_some() {
            b"HMSG "
        } else {
            b"MSG "
        });
        run.put_slice(message.subject);
        run.put_u8(b' ');
        run.put_slice(sid);
        run.put_u8(b' ');
        if let Some(reply) = message.reply {
            run.put_slice(reply);
            run.put_u8(b' ');
        }
        if let Some(header) = message.header {
            put_count(run, header);
            run.put_u8(b' ');
        }
        put_count(run, message.size());
        run.put_slice(b"\r\n");
    }

    fn admit(&mut self, bytes: usize) -> Result<(), Overflow> {
        let pending = self.pending.saturating_add(bytes);
        if pending > self.limit {
            return Err(Overflow);
        }
        self.pending = pending;
        Ok(())
    }

    fn close_long_run(&mut self) {
        if self.run.len() >= RUN {
            self.close_run(true);
        }
    }

    fn close_run(&mut self, whole: bool) {
        if !self.run.is_empty() {
            let bytes = self.run.split().freeze();
            self.closed.push_back(Chunk { bytes, whole });
        }
    }

    /// Returns whether nothing is queued (taken data does not count).
    pub(super) fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.run.is_empty()
    }

    /// Bytes queued, or taken and not yet written.
    #[cfg(test)]
    fn pending(&self) -> usize {
        self.pending
    }

    /// Returns whether publishers to it should pause.
    pub(super) fn is_congested(&self) -> bool {
        self.pending > self.limit / 4 * 3
    }

    /// Moves what is queued to the end of `batch`.
    pub(super) fn take(&mut self, batch: &mut Batch) {
        self.close_run(true);
        if batch.chunks.is_empty() {
            std::mem::swap(&mut batch.chunks, &mut self.closed);
        } else {
            batch.chunks.append(&mut self.closed);
        }
    }

    /// Releases `bytes` that were taken and have been written or dropped.
    pub(super) fn written(&mut self, bytes: usize) {
        self.pending = self.pending.saturating_sub(bytes);
    }
}

/// Writes decimal digits without the formatting machinery, which would cost more than the rest of a line.
fn put_count(run: &mut BytesMut, count: usize) {
    let mut digits = [b'0'; 20];
    let mut rest = count;
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    run.put_slice(digits.get(digits.len() - used..).unwrap_or_default());
}

/// The data being written to one client.
#[derive(Debug, Default)]
pub(super) struct Batch {
    chunks: VecDeque<Chunk>,
    /// Whether the last write ended inside a message.
    inside: bool,
}

impl Batch {
    /// Returns whether all of it is written.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Points `slices` at its front; returns the number of slices set.
    pub(super) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut set = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(&chunk.bytes);
            set += 1;
        }
        set
    }

    /// Removes `written` bytes from the front; calls `done` with each finished part.
    pub(super) fn advance(&mut self, written: usize, mut done: impl FnMut(Bytes)) {
        let mut rest = written;
        while let Some(front) = self.chunks.front_mut() {
            if rest < front.bytes.len() {
                front.bytes.advance(rest);
                self.inside |= rest > 0;
                return;
            }
            rest -= front.bytes.len();
            self.inside = !front.whole;
            self.chunks
                .pop_front()
                .into_iter()
                .for_each(|chunk| done(chunk.bytes));
        }
    }

    /// Appends a last line.
    pub(super) fn end_with(&mut self, line: String) {
        self.chunks.push_back(Chunk {
            bytes: line.into(),
            whole: true,
        });
    }

    /// Drops messages that have not begun, and ends with `line` instead.
    pub(super) fn cut_short(&mut self, line: String) {
        let begun = self.chunks.iter().take_while(|chunk| !chunk.whole).count() + 1;
        self.chunks.truncate(if self.inside { begun } else { 0 });
        self.end_with(line);
    }
}

#[cfg(test)]
mod tests;
