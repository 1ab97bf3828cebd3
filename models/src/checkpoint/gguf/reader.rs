//! Reads the header of a file value by value. Checks every length against the file size before allocating memory.

use crate::checkpoint::weights::Source;

/// Bytes to read from the file at a time.
const CHUNK: u64 = 1 << 20;
/// Maximum length of a string, bytes; chat templates are the longest.
const MAX_TEXT: u64 = 4 << 20;

/// A position in the header of a file.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    source: &'a Source,
    /// Length of the file, bytes.
    length: u64,
    /// Offset of the first byte after `buffer`.
    offset: u64,
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that have been consumed.
    taken: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of a file of `length` bytes.
    pub(super) fn new(source: &'a Source, length: u64) -> Self {
        Self {
            source,
            length,
            offset: 0,
            buffer: Vec::new(),
            taken: 0,
        }
    }

    /// Returns the offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.offset - (self.buffer.len() - self.taken) as u64
    }

    /// Returns the number of bytes up to the end of the file.
    fn remaining(&self) -> u64 {
        self.length.saturating_sub(self.position())
    }

    /// Returns the next `count` bytes. The error is the reason.
    fn bytes(&mut self, count: u64) -> Result<&[u8], String> {
        if count > self.remaining() {
            return Err("it ends within its header; the file may be incomplete".into());
        }
        let buffered = (self.buffer.len() - self.taken) as u64;
        if buffered < count {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            let rest = self.length - self.offset;
            let more = (count - buffered).max(CHUNK.min(rest));
            let read = self.source.read(self.offset, more)?;
            self.offset += read.len() as u64;
            self.buffer.extend(read);
        }
        let from = self.taken;
        self.taken += count as usize;
        self.buffer
            .get(from..self.taken)
            .ok_or_else(|| "it ends within its header; the file may be incomplete".into())
    }

    /// Returns the bytes of the next number.
    pub(super) fn number<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.bytes(N as u64)?;
        bytes
            .try_into()
            .map_err(|_| "it ends within its header; the file may be incomplete".to_owned())
    }

    /// Returns the next u32.
    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.number().map(u32::from_le_bytes)
    }

    /// Returns the next u64.
    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.number().map(u64::from_le_bytes)
    }

    /// Returns the next string.
    pub(super) fn text(&mut self) -> Result<String, String> {
        let (position, length) = (self.position(), self.u64()?);
        if length > MAX_TEXT {
            return Err(format!(
                "the text at byte {position} has {length} bytes; at most {MAX_TEXT} are possible"
            ));
        }
        let bytes = self.bytes(length)?.to_vec();
        String::from_utf8(bytes).map_err(|_| format!("the text at byte {position} is not UTF-8"))
    }

    /// Returns the next count of entries, each of which takes at least `least` bytes.
    pub(super) fn count(&mut self, least: u64) -> Result<usize, String> {
        let (position, count) = (self.position(), self.u64()?);
        if count > self.remaining() / least.max(1) {
            return Err(format!(
                "byte {position} states {count} entries; the {} bytes after it cannot hold them; the file may be incomplete",
                self.remaining()
            ));
        }
        Ok(count as usize)
    }
}
