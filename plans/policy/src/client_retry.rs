//! When a client sends a request again, and how long it pauses before.
//!
//! A request or its reply is lost without a word when a connection or a nats-server fails: core NATS stores nothing. Only the client
//! can notice that, so it sends the request again, with the same id and the rest of its budget. The model may run twice; the caller
//! gets one answer.
//!
//! Resending adds load when there is least room for it. Pauses therefore grow, and what may find a service that is merely slow (a
//! refusal for want of capacity, a long silence) spends from an allowance that answered requests and time fill: in an overload, most
//! requests are sent once. A silent request that finds the allowance empty waits for it, because it may be one of many that were lost
//! together.

/// Pause before the first resend of a refused request, microseconds; it doubles with each resend.
const FIRST_PAUSE_US: u64 = 10_000;

/// Pause before the first resend of a request that found no capacity, microseconds.
const FIRST_OVERLOAD_PAUSE_US: u64 = 50_000;

/// Longest pause, microseconds.
const MAX_PAUSE_US: u64 = 500_000;

/// Shortest silence after which a request is sent again, microseconds.
const MIN_SILENCE_US: u64 = 250_000;

/// Silence after which a request is sent again, in multiples of the longest recent latency.
const SILENCE_FACTOR: f64 = 4.0;

/// Silence after which a request may be sent again once half of its budget is over, in multiples of the longest recent latency.
const LATE_SILENCE_FACTOR: f64 = 1.25;

/// Part by which the longest recent latency shrinks with each faster answer.
const DECAY: f64 = 0.02;

/// Most resends that may be saved up.
const RETRY_TOKENS: f64 = 200.0;

/// Resends that each answered request adds to the allowance.
const TOKENS_PER_ANSWER: f64 = 0.25;

/// Resends that each second adds to the allowance.
const TOKENS_PER_SECOND: f64 = 20.0;

/// Pause until a silent request that found the allowance empty asks again, microseconds.
const WAIT_US: u64 = 100_000;

/// Failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The connection was lost while the client waited, and is up again.
    Disconnected,
    /// No process subscribes to the app. `known` tells whether one did before, or the connection was lost.
    NoResponders {
        /// Whether the app has answered this client before, or the connection has been lost since the client's start.
        known: bool,
    },
    /// No reply for [`ClientRetry::silence_us`].
    Silence,
    /// The service refused for want of capacity.
    Overloaded,
    /// The service answered with another error that permits a retry.
    Retryable,
    /// The service answered with an error that does not permit a retry.
    Final,
}

/// Action of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// The client sends the request again after a pause.
    Again {
        /// The pause, microseconds.
        after_us: u64,
    },
    /// The client waits and asks for a decision on the same failure again. An answer to an earlier attempt still counts.
    Wait {
        /// The pause, microseconds.
        after_us: u64,
    },
    /// The client does not send the request again.
    End,
}

/// The state of one client, shared by its requests.
#[derive(Debug, Clone)]
pub struct ClientRetry {
    /// Longest recent latency, microseconds; `None` before the first answer.
    latency_us: Option<f64>,
    /// Resends that a slow service may get.
    allowance: f64,
    /// Time of the last decision, microseconds.
    now_us: u64,
}

impl Default for ClientRetry {
    fn default() -> Self {
        Self {
            latency_us: None,
            allowance: RETRY_TOKENS,
            now_us: 0,
        }
    }
}

impl ClientRetry {
    /// Records an answer, `latency_us` after its attempt was sent.
    pub fn answered(&mut self, latency_us: u64) {
        let latency = latency_us as f64;
        let before = self.latency_us.unwrap_or(latency);
        self.latency_us = Some(latency.max(before + (latency - before) * DECAY));
        self.earn(TOKENS_PER_ANSWER);
    }

    /// Returns the silence after which a request counts as lost that has been sent again `resends` times and has `left_us` of its
    /// budget, microseconds; `None` before the first answer, because the latency of the service is unknown. It doubles with each
    /// resend. It is at most half of the budget that is left, so that another attempt has time, unless recent requests took as long.
    pub fn silence_us(&self, resends: u32, left_us: u64) -> Option<u64> {
        let latency = self.latency_us?;
        let silence = (latency * SILENCE_FACTOR) as u64;
        let longest = (left_us / 2)
            .max((latency * LATE_SILENCE_FACTOR) as u64)
            .max(MIN_SILENCE_US);
        Some(doubled(silence.max(MIN_SILENCE_US), resends, longest))
    }

    /// Decides at `now_us`, on a monotonic clock, about a request that has been sent again `resends` times and has `left_us` of
    /// its budget. `draw` is uniform in [0, 1): pauses are spread over their upper half, so that clients that failed together
    /// do not return together.
    pub fn decide(
        &mut self,
        failure: AttemptFailure,
        resends: u32,
        left_us: u64,
        now_us: u64,
        draw: f64,
    ) -> RetryDecision {
        let passed_us = now_us.saturating_sub(self.now_us);
        self.now_us = self.now_us.max(now_us);
        self.earn(passed_us as f64 / 1e6 * TOKENS_PER_SECOND);
        let first = match failure {
            AttemptFailure::Final | AttemptFailure::NoResponders { known: false } => {
                return RetryDecision::End;
            }
            // The connection is up again, or the wait is over already.
            AttemptFailure::Disconnected | AttemptFailure::Silence => 0,
            AttemptFailure::NoResponders { known: true } | AttemptFailure::Retryable => FIRST_PAUSE_US,
            AttemptFailure::Overloaded => FIRST_OVERLOAD_PAUSE_US,
        };
        let longest = doubled(first, resends, MAX_PAUSE_US);
        let after_us = longest / 2 + (longest as f64 / 2.0 * draw.clamp(0.0, 1.0)) as u64;
        if after_us >= left_us {
            return RetryDecision::End;
        }
        if matches!(failure, AttemptFailure::Silence | AttemptFailure::Overloaded) {
            if self.allowance < 1.0 {
                return match failure {
                    AttemptFailure::Silence if WAIT_US < left_us => RetryDecision::Wait { after_us: WAIT_US },
                    _ => RetryDecision::End,
                };
            }
            self.allowance -= 1.0;
        }
        RetryDecision::Again { after_us }
    }

    fn earn(&mut self, resends: f64) {
        self.allowance = (self.allowance + resends).min(RETRY_TOKENS);
    }
}

fn doubled(first: u64, times: u32, longest: u64) -> u64 {
    first.saturating_mul(1 << times.min(20)).min(longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: [AttemptFailure; 7] = [
        AttemptFailure::Disconnected,
        AttemptFailure::NoResponders { known: true },
        AttemptFailure::NoResponders { known: false },
        AttemptFailure::Silence,
        AttemptFailure::Overloaded,
        AttemptFailure::Retryable,
        AttemptFailure::Final,
    ];

    fn again(failure: AttemptFailure, resends: u32, left_us: u64) -> Option<u64> {
        match ClientRetry::default().decide(failure, resends, left_us, 0, 1.0) {
            RetryDecision::Again { after_us } => Some(after_us),
            RetryDecision::Wait { .. } | RetryDecision::End => None,
        }
    }

    #[test]
    fn what_was_lost_is_sent_again_and_what_was_refused_for_good_is_not() {
        const SECOND: u64 = 1_000_000;
        assert_eq!(again(AttemptFailure::Disconnected, 0, SECOND), Some(0));
        assert_eq!(again(AttemptFailure::Silence, 0, SECOND), Some(0));
        assert_eq!(again(AttemptFailure::Retryable, 0, SECOND), Some(10_000));
        assert_eq!(again(AttemptFailure::Overloaded, 0, SECOND), Some(50_000));
        assert_eq!(
            again(AttemptFailure::NoResponders { known: true }, 2, SECOND),
            Some(40_000)
        );
        assert_eq!(
            again(AttemptFailure::NoResponders { known: false }, 0, SECOND),
            None,
            "a wrong name"
        );
        assert_eq!(again(AttemptFailure::Final, 0, SECOND), None);
        assert_eq!(again(AttemptFailure::Retryable, 30, 10 * SECOND), Some(500_000));
        assert_eq!(
            again(AttemptFailure::Disconnected, 0, 0),
            None,
            "no budget is left"
        );
        assert_eq!(again(AttemptFailure::Retryable, 0, 10_000), None);
    }

    #[test]
    fn silence_is_measured_by_the_latency_of_the_service() {
        const LEFT: u64 = 60_000_000;
        let mut client = ClientRetry::default();
        assert_eq!(client.silence_us(0, LEFT), None, "the first request may be slow");
        client.answered(5_000);
        assert_eq!(
            (client.silence_us(0, LEFT), client.silence_us(2, LEFT)),
            (Some(250_000), Some(1_000_000))
        );
        client.answered(2_000_000);
        assert_eq!(client.silence_us(0, LEFT), Some(8_000_000));
        for _ in 0..1_000 {
            client.answered(5_000);
        }
        assert_eq!(client.silence_us(0, LEFT), Some(250_000));
    }

    #[test]
    fn a_silent_request_keeps_half_of_its_budget_for_another_attempt() {
        let mut client = ClientRetry::default();
        client.answered(2_000_000);
        assert_eq!(client.silence_us(0, 10_000_000), Some(5_000_000));
        assert_eq!(client.silence_us(1, 6_000_000), Some(3_000_000));
        assert_eq!(
            client.silence_us(0, 3_000_000),
            Some(2_500_000),
            "requests that take most of their budget are not sent twice"
        );
        assert_eq!(
            client.silence_us(3, 100_000),
            Some(2_500_000),
            "and not after their budget"
        );
    }

    #[test]
    fn a_service_that_stays_overloaded_is_asked_once_per_request() {
        let mut client = ClientRetry::default();
        let resent = |client: &mut ClientRetry| {
            let decisions =
                (0..1_000).map(|_| client.decide(AttemptFailure::Overloaded, 0, 1_000_000, 0, 0.5));
            decisions
                .filter(|decision| *decision != RetryDecision::End)
                .count()
        };
        assert_eq!(resent(&mut client), 200);
        assert_eq!(resent(&mut client), 0);
        (0..100).for_each(|_| client.answered(5_000));
        assert_eq!(resent(&mut client), 25);
        let lost = client.decide(AttemptFailure::Disconnected, 0, 1_000_000, 0, 0.5);
        assert_eq!(
            lost,
            RetryDecision::Again { after_us: 0 },
            "what was lost is not load"
        );
    }

    #[test]
    fn requests_that_were_lost_together_are_all_sent_again() {
        let mut client = ClientRetry::default();
        let mut waiting: u32 = 1_000;
        let mut now_us = 0;
        let mut took = Vec::new();
        // Each resend is answered, and the budget of every request ends after 50 s.
        while waiting > 0 && now_us < 50_000_000 {
            let mut resent = 0;
            for _ in 0..waiting {
                match client.decide(AttemptFailure::Silence, 0, 50_000_000 - now_us, now_us, 0.5) {
                    RetryDecision::Again { .. } => resent += 1,
                    RetryDecision::Wait { after_us } => assert_eq!(after_us, WAIT_US),
                    RetryDecision::End => panic!("a request is given up {now_us} us after its loss"),
                }
            }
            (0..resent).for_each(|_| client.answered(5_000));
            waiting -= resent;
            took.push(resent);
            now_us += WAIT_US;
        }
        assert_eq!(waiting, 0, "{took:?}");
        assert_eq!(took.first(), Some(&200), "as many at once as the allowance has");
        let late = client.decide(AttemptFailure::Silence, 0, 1_000_000, now_us, 0.5);
        assert_ne!(late, RetryDecision::End);
    }

    #[test]
    fn a_service_that_stays_silent_gets_a_bounded_number_of_resends_per_second() {
        let mut client = ClientRetry::default();
        let mut resent = |second: u64| {
            let decisions = (0..1_000).map(|number| {
                let now_us = second * 1_000_000 + number * 1_000;
                client.decide(AttemptFailure::Silence, 0, 1_000_000, now_us, 0.5)
            });
            decisions
                .filter(|decision| matches!(decision, RetryDecision::Again { .. }))
                .count()
        };
        assert!(resent(0) <= 220);
        for second in 1..5 {
            assert!((19..=21).contains(&resent(second)), "second {second}");
        }
    }

    proptest! {
        #[test]
        fn a_resend_fits_the_budget(
            failure in prop::sample::select(&ANY[..]), resends in 0_u32..100, left in 0_u64..10_000_000, draw in -1.0..2.0_f64,
            now in 0_u64..10_000_000, allowance in 0.0..RETRY_TOKENS,
        ) {
            let mut client = ClientRetry { allowance, ..ClientRetry::default() };
            match client.decide(failure, resends, left, now, draw) {
                RetryDecision::Again { after_us } => prop_assert!(after_us < left && after_us <= MAX_PAUSE_US),
                RetryDecision::Wait { after_us } => prop_assert!(after_us < left && failure == AttemptFailure::Silence),
                RetryDecision::End => {}
            }
            prop_assert!((0.0..=RETRY_TOKENS).contains(&client.allowance));
        }
    }
}
