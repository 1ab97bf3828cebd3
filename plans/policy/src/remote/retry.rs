//! Whether a failed call to an endpoint is repeated, and after which pause.
//!
//! A call is repeated only within its request's budget, and only if the time that remains after the pause is worth it.

/// Longest pause of a request without a deadline, microseconds.
const LONGEST_PAUSE_US: u64 = 60_000_000;

/// Parameters of repeated calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// Repetitions of a call, at most.
    pub retries: u32,
    /// First pause, microseconds; it doubles with every repetition. A server's `retry-after` is added.
    pub pause_us: u64,
    /// Maximum pause without a `retry-after`, microseconds.
    pub max_pause_us: u64,
}

impl Default for RetryConfig {
    /// Two repetitions; 100 ms, doubled up to two seconds.
    fn default() -> Self {
        Self {
            retries: 2,
            pause_us: 100_000,
            max_pause_us: 2_000_000,
        }
    }
}

/// Failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedCall {
    /// Calls before it for the same request.
    pub repeated: u32,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// The server's `retry-after`, microseconds.
    pub retry_after_us: Option<u64>,
    /// Whether a part of the answer was passed on already: a repetition would begin it again.
    pub streamed: bool,
}

/// Returns the pause before a call is repeated, microseconds; `None` if it is not. `remaining_us` is what is left of the
/// request's time, the largest number for a request without a deadline, which waits for a minute at most. `draw` is a random number in
/// [0, 1) that spreads the own pauses of many requests over their second half; a pause that the server asks for comes before the own
/// one, so that requests do not return at the same moment.
pub fn pause(config: &RetryConfig, call: FailedCall, remaining_us: u64, draw: f64) -> Option<u64> {
    if !call.retryable || call.streamed || call.repeated >= config.retries {
        return None;
    }
    spread(
        config,
        call.repeated,
        call.retry_after_us.unwrap_or(0),
        remaining_us,
        draw,
    )
}

/// Returns how long a request waits before its first call, microseconds, if its endpoint gets no calls for another
/// `held_us` ([`Hold`](super::hold::Hold)); `None` if it does not wait. `remaining_us` and `draw` are those of [`pause`].
pub fn wait(config: &RetryConfig, held_us: u64, remaining_us: u64, draw: f64) -> Option<u64> {
    spread(config, 0, held_us, remaining_us, draw)
}

/// Adds the own pause after so many repetitions to the endpoint's; `None` if the sum does not fit the remaining time.
fn spread(
    config: &RetryConfig,
    repeated: u32,
    endpoint_us: u64,
    remaining_us: u64,
    draw: f64,
) -> Option<u64> {
    let doubled = config.pause_us.saturating_mul(1_u64 << repeated.min(20));
    let own = doubled.min(config.max_pause_us) as f64 * f64::midpoint(1.0, draw.clamp(0.0, 1.0));
    let pause = endpoint_us.saturating_add(own as u64);
    let is_in_time = match remaining_us {
        u64::MAX => pause <= LONGEST_PAUSE_US,
        remaining => pause < remaining,
    };
    is_in_time.then_some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: RetryConfig = RetryConfig {
        retries: 2,
        pause_us: 100,
        max_pause_us: 150,
    };

    const CALL: FailedCall = FailedCall {
        repeated: 0,
        retryable: true,
        retry_after_us: None,
        streamed: false,
    };

    #[test]
    fn pauses_double_and_end() {
        let after = |repeated| pause(&CONFIG, FailedCall { repeated, ..CALL }, 1_000, 0.0);
        assert_eq!([after(0), after(1), after(2)], [Some(50), Some(75), None]);
        assert_eq!(pause(&CONFIG, CALL, 1_000, 1.0), Some(100));
    }

    #[test]
    fn the_server_names_the_pause_and_the_budget_limits_it() {
        let told = FailedCall {
            retry_after_us: Some(700),
            ..CALL
        };
        assert_eq!(
            pause(&CONFIG, told, 1_000, 0.5),
            Some(775),
            "the own pause spreads the calls"
        );
        assert_eq!(pause(&CONFIG, told, 700, 0.5), None);
    }

    #[test]
    fn a_stated_pause_is_no_shorter_than_the_own_one_and_ends() {
        let told = |seconds: u64| {
            let call = FailedCall {
                retry_after_us: Some(seconds * 1_000_000),
                ..CALL
            };
            pause(&CONFIG, call, u64::MAX, 0.0)
        };
        assert_eq!(told(0), Some(50));
        assert_eq!(told(30), Some(30_000_050));
        assert_eq!(
            told(86_400),
            None,
            "a request without a deadline does not wait for a day"
        );
    }

    #[test]
    fn a_request_waits_out_a_hold_that_its_time_allows() {
        let wait = |held_us, remaining_us| wait(&CONFIG, held_us, remaining_us, 0.0);
        assert_eq!(wait(700, 1_000), Some(750));
        assert_eq!(wait(700, 750), None);
        assert_eq!(wait(30_000_000, u64::MAX), Some(30_000_050));
    }

    #[test]
    fn final_errors_and_begun_answers_are_not_repeated() {
        for call in [
            FailedCall {
                retryable: false,
                ..CALL
            },
            FailedCall {
                streamed: true,
                ..CALL
            },
        ] {
            assert_eq!(pause(&CONFIG, call, 1_000, 0.5), None);
        }
    }
}
