//! A pool of read buffers.
//!
//! Pure. A large payload is forwarded inside the buffer that it was read into. Freeing that buffer after each message
//! and allocating a new one would cost as much as moving the bytes.

use bytes::{Bytes, BytesMut};

/// Size of one read; the smallest capacity of a buffer.
pub(super) const READ: usize = 64 << 10;
/// Largest total size of pooled buffers.
const KEEP: usize = 16 << 20;
/// A pooled buffer must be smaller than this multiple of the requested capacity.
const WASTE: usize = 4;

/// The unused buffers of all connections.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Vec<BytesMut>,
    bytes: usize,
}

impl Buffers {
    /// Makes room for `needed` more bytes at the end of `buffer`, moving its content if necessary. Returns the
    /// capacity of the buffer if it was replaced.
    pub(super) fn make_room(&mut self, buffer: &mut BytesMut, needed: usize) -> Option<usize> {
        if buffer.capacity() - buffer.len() >= needed || buffer.try_reclaim(needed.max(READ)) {
            return None;
        }
        let mut larger = self.take(buffer.len() + needed.max(READ));
        larger.extend_from_slice(buffer);
        self.give_back(std::mem::replace(buffer, larger).freeze());
        Some(buffer.capacity())
    }

    fn take(&mut self, capacity: usize) -> BytesMut {
        let fits = |free: &BytesMut| (capacity..capacity * WASTE).contains(&free.capacity());
        let Some(at) = self.free.iter().rposition(fits) else {
            return BytesMut::with_capacity(capacity.next_multiple_of(READ));
        };
        let buffer = self.free.swap_remove(at);
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Returns the buffer of `bytes` to the pool unless other parts of it are still referenced.
    pub(super) fn give_back(&mut self, bytes: Bytes) {
        let Ok(mut buffer) = bytes.try_into_mut() else {
            return;
        };
        buffer.clear();
        // Reclaim what was split off its front.
        let _ = buffer.try_reclaim(buffer.capacity() + 1);
        if buffer.capacity() >= READ && self.bytes + buffer.capacity() <= KEEP {
            self.bytes += buffer.capacity();
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreferenced_buffer_is_reused() {
        let (mut buffers, mut buffer) = (Buffers::default(), BytesMut::new());
        assert_eq!(buffers.make_room(&mut buffer, 10 * READ), Some(10 * READ));
        buffer.extend_from_slice(&vec![7; 9 * READ]);
        let place = buffer.as_ptr();
        let (first, second) = (buffer.split_to(READ).freeze(), buffer.split().freeze());
        drop(buffer);
        buffers.give_back(second);
        assert!(buffers.free.is_empty(), "the first part is still held");
        buffers.give_back(first);
        let mut next = BytesMut::from(&b"begun"[..]);
        assert_eq!(buffers.make_room(&mut next, 5 * READ), Some(10 * READ));
        assert_eq!((&next[..], next.as_ptr()), (&b"begun"[..], place));
        assert_eq!(buffers.make_room(&mut next, 9 * READ), None);
        assert_eq!(buffers.bytes, 0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_not_wasted_on_small_reads() {
        let mut buffers = Buffers::default();
        for _ in 0..100 {
            buffers.give_back(BytesMut::with_capacity(8 * READ).freeze());
            buffers.give_back(BytesMut::with_capacity(100).freeze());
        }
        assert_eq!(buffers.bytes, KEEP);
        let mut small = BytesMut::new();
        assert_eq!(buffers.make_room(&mut small, 10), Some(READ));
        assert_eq!(buffers.bytes, KEEP);
    }
}
