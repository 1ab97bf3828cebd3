//! Position of a client in the stream of partial answers.

/// The position up to which a client has read. If a replica is lost in the middle of an answer, the request is sent again and its
/// answer starts again; the parts that the client has are not sent twice. Greedy decoding, or the request's seed, makes the new answer
/// begin like the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOffset {
    read: u32,
}

impl StreamOffset {
    /// Whether to send the part from piece `from` up to piece `until`: if it belongs to the `newest` attempt and starts where the
    /// last one ended. Parts after a lost one are not sent: the whole answer comes at the end in any case.
    pub fn take(&mut self, newest: bool, from: u32, until: u32) -> bool {
        let goes_on = newest && from == self.read && until > from;
        if goes_on {
            self.read = until;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_read_once_and_in_order() {
        let mut reading = StreamOffset::default();
        assert!(reading.take(true, 0, 2));
        assert!(reading.take(true, 2, 3));
        assert!(!reading.take(true, 0, 2), "the second attempt begins anew");
        assert!(!reading.take(true, 2, 3));
        assert!(!reading.take(false, 3, 4), "an older attempt is late with it");
        assert!(reading.take(true, 3, 4), "and has not taken its place");
        assert!(!reading.take(true, 5, 6), "a part between was lost");
        assert!(!reading.take(true, 4, 4), "nothing is no part");
    }

    proptest! {
        #[test]
        fn what_is_read_is_the_beginning_of_the_answer(parts in prop::collection::vec((0_u32..20, 1_u32..4), 0..60)) {
            let mut reading = StreamOffset::default();
            let mut read = Vec::new();
            for (from, length) in parts {
                if reading.take(true, from, from + length) {
                    read.extend(from..from + length);
                }
            }
            prop_assert!(read.iter().copied().eq(0..read.len() as u32));
        }
    }
}
