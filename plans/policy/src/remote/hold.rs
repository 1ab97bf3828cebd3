//! The pause that an endpoint asks for, kept by all requests.
//!
//! A request whose budget is shorter than the pause fails at once, and its sender may send it again a moment later.
//! Without a hold, each of these attempts would be a call.

/// Longest hold, microseconds: a wrong `retry-after` must not stop an endpoint for long.
const LONGEST_HOLD_US: u64 = 60_000_000;

/// When an endpoint gets calls again. Times are microseconds on the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hold {
    until: u64,
}

impl Hold {
    /// Notes that at `now` the endpoint asked for a pause that the request could not keep. The hold lasts for the pause,
    /// at most a minute, and never ends earlier than before.
    pub fn begin(&mut self, pause_us: u64, now: u64) {
        let pause_us = pause_us.min(LONGEST_HOLD_US);
        self.until = self.until.max(now.saturating_add(pause_us));
    }

    /// Returns how long the endpoint gets no calls, microseconds; `None` if it gets calls at `now`.
    pub fn remaining(&self, now: u64) -> Option<u64> {
        let left = self.until.saturating_sub(now);
        (left > 0).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_for_the_pause_and_at_most_a_minute() {
        let mut hold = Hold::default();
        assert_eq!(hold.remaining(0), None);
        hold.begin(100, 10);
        assert_eq!(
            [10, 109, 110].map(|now| hold.remaining(now)),
            [Some(100), Some(1), None]
        );
        hold.begin(u64::MAX, 110);
        assert_eq!(hold.remaining(110), Some(LONGEST_HOLD_US));
        hold.begin(5, 111);
        assert_eq!(
            hold.remaining(111),
            Some(LONGEST_HOLD_US - 1),
            "it does not end earlier"
        );
    }
}
