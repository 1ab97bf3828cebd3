//! Position of a client in the stream of partial answers.

use std::collections::BTreeSet;

/// The position up to which a client has read. If a replica is lost in the middle of an answer, the request is sent again and its
/// answer starts again; the parts that the client has are not sent twice. Greedy decoding, or the request's seed, makes the new answer
/// begin like the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOffset {
    read: u32,
}

impl StreamOffset {
    /// Returns whether the client has a part of the answer.
    pub const fn has_begun(&self) -> bool {
        self.read > 0
    }

    /// Returns whether to send the part from piece `from` up to piece `until`: if it belongs to the `newest` attempt and starts
    /// where the last one ended. Parts after a lost one are not sent: the whole answer comes at the end in any case.
    pub fn take(&mut self, newest: bool, from: u32, until: u32) -> bool {
        let continues = newest && from == self.read && until > from;
        if continues {
            self.read = until;
        }
        continues
    }
}

/// Selects the parts that a client gets if stages that may still defer send theirs too: those of the newest stage. Once a later stage has
/// started its answer, the parts of an earlier one are void, and they may arrive late, because two replicas send them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptimisticOffset {
    stage: Option<String>,
    passed: BTreeSet<String>,
    offset: StreamOffset,
}

impl OptimisticOffset {
    /// Returns whether the parts that the client has are those of that stage.
    pub fn has_begun(&self, stage: &str) -> bool {
        self.stage.as_deref() == Some(stage)
    }

    /// Returns whether to send the part of a stage from piece `from` up to piece `until`: as [`StreamOffset::take`] within a stage.
    /// A stage that begins its answer takes the place of the one before.
    pub fn take(&mut self, stage: &str, newest: bool, from: u32, until: u32) -> bool {
        if self.stage.as_deref() == Some(stage) {
            return self.offset.take(newest, from, until);
        }
        let mut anew = StreamOffset::default();
        if self.passed.contains(stage) || !anew.take(newest, from, until) {
            return false;
        }
        self.offset = anew;
        self.passed.extend(self.stage.replace(stage.to_owned()));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_read_once_and_in_order() {
        let mut reading = StreamOffset::default();
        assert!(!reading.has_begun());
        assert!(reading.take(true, 0, 2) && reading.has_begun());
        assert!(reading.take(true, 2, 3));
        assert!(!reading.take(true, 0, 2), "the second attempt begins anew");
        assert!(!reading.take(true, 2, 3));
        assert!(!reading.take(false, 3, 4), "an older attempt is late with it");
        assert!(reading.take(true, 3, 4), "and has not taken its place");
        assert!(!reading.take(true, 5, 6), "a part between was lost");
        assert!(!reading.take(true, 4, 4), "nothing is no part");
    }

    #[test]
    fn a_later_stage_takes_the_place_of_an_earlier_one() {
        let mut reading = OptimisticOffset::default();
        assert!(reading.take("small", true, 0, 1));
        assert!(!reading.take("large", true, 1, 2), "its beginning was lost");
        assert!(reading.take("small", true, 1, 2));
        assert!(reading.has_begun("small") && !reading.has_begun("large"));
        assert!(reading.take("large", true, 0, 1));
        assert!(reading.has_begun("large") && !reading.has_begun("small"));
        assert!(!reading.take("small", true, 2, 3), "it is late");
        assert!(!reading.take("small", true, 0, 1), "another attempt begins anew");
        assert!(!reading.take("large", false, 1, 2), "an older attempt");
        assert!(reading.take("large", true, 1, 2));
    }

    proptest! {
        #[test]
        fn what_is_read_last_is_the_beginning_of_one_stage_s_answer(
            parts in prop::collection::vec((0_usize..3, 0_u32..6, 1_u32..3), 0..60),
        ) {
            let mut reading = OptimisticOffset::default();
            let mut read: Vec<(usize, u32)> = Vec::new();
            for (stage, from, length) in parts {
                if reading.take(&stage.to_string(), true, from, from + length) {
                    if read.last().is_some_and(|(last, _)| *last != stage) {
                        read.clear();
                    }
                    read.extend((from..from + length).map(|piece| (stage, piece)));
                }
            }
            let pieces = read.iter().map(|(_, piece)| *piece);
            prop_assert!(pieces.eq(0..read.len() as u32));
            prop_assert!(read.windows(2).all(|two| two[0].0 == two[1].0));
        }

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
