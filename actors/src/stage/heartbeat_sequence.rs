//! Sequence numbers of a process's heartbeats.

/// Numbers the heartbeats of a process from 1, and restarts at 1 after a connection broke. Messages to the process are
/// then lost as after a restart, and ingresses retry them when the numbers restart.
#[derive(Debug, Default)]
pub(crate) struct HeartbeatSequence {
    beats: u64,
    /// Lost connections already accounted for.
    disconnects: u64,
}

impl HeartbeatSequence {
    /// Returns the number of the next heartbeat. `disconnects` is the number of lost connections so far. A heartbeat
    /// that is not sent because a connection is down does not count; otherwise the numbers after a long outage would
    /// exceed those before it.
    pub(crate) fn next(&mut self, disconnects: u64, is_sent: bool) -> u64 {
        if disconnects > std::mem::replace(&mut self.disconnects, disconnects) {
            self.beats = 0;
        }
        self.beats += u64::from(is_sent);
        self.beats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_broke_restarts_the_numbers() {
        let mut sequence = HeartbeatSequence::default();
        let numbers = [0, 0, 0, 1, 1, 3].map(|disconnects| sequence.next(disconnects, true));
        assert_eq!(numbers, [1, 2, 3, 1, 2, 1]);
    }

    /// Regression: after an outage longer than the time before it, the numbers seemed to continue.
    #[test]
    fn an_outage_does_not_hide_the_restart_of_the_numbers() {
        let mut sequence = HeartbeatSequence::default();
        let before = [true; 3].map(|is_sent| sequence.next(0, is_sent));
        let _ = [false; 9].map(|is_sent| sequence.next(1, is_sent));
        assert!(sequence.next(1, true) < before[2]);
    }
}
