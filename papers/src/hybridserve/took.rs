//! Time of planning, independent of other processes on the machine.

use std::time::Duration;

use kaskade_app::report::progress::timed;
use kaskade_app::report::units;

/// Time that a piece of work took. Planners run on one thread.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Took {
    /// Wall-clock time.
    wall: Duration,
    /// Time that the thread had a processor; `None` if the kernel does not report it.
    processor: Option<Duration>,
}

impl Took {
    /// Returns the result of work, and its duration.
    pub(super) fn by<T>(work: impl FnOnce() -> T) -> (T, Self) {
        let before = on_processor();
        let (done, wall) = timed(work);
        let processor = before
            .zip(on_processor())
            .map(|(before, after)| after.saturating_sub(before));
        (done, Self { wall, processor })
    }

    /// Returns the sum of both times.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            wall: self.wall + other.wall,
            processor: self
                .processor
                .zip(other.processor)
                .map(|(one, other)| one + other),
        }
    }

    /// The longer of two.
    pub(super) fn max(self, other: Self) -> Self {
        if self.seconds() < other.seconds() {
            other
        } else {
            self
        }
    }

    /// Returns the processor time, or the wall-clock time if that is unknown, seconds.
    pub(super) fn seconds(self) -> f64 {
        self.processor.unwrap_or(self.wall).as_secs_f64()
    }

    /// Formats the time for people.
    pub(super) fn text(self) -> String {
        let wall = units::seconds(self.wall.as_secs_f64());
        match self.processor {
            Some(processor) => format!("{} ({wall} on the wall)", units::seconds(processor.as_secs_f64())),
            None => wall,
        }
    }
}

/// Time that this thread has had a processor, by the kernel's scheduler (Linux).
fn on_processor() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_processor_for_no_longer_than_time_passes() {
        let (sum, took) = Took::by(|| (0..1_000_000_u64).fold(0, |sum, one| std::hint::black_box(sum ^ one)));
        assert_eq!(sum, 0);
        // The kernel counts by its ticks.
        assert!(took.seconds() <= took.wall.as_secs_f64() + 0.02, "{took:?}");
        assert!(took.wall > Duration::ZERO);
    }

    #[test]
    fn times_add_up() {
        let took = |wall, processor| Took {
            wall: Duration::from_secs(wall),
            processor: Some(Duration::from_secs(processor)),
        };
        let both = took(3, 1).and(took(4, 2));
        assert_eq!(both, took(7, 3));
        assert_eq!(took(9, 1).max(took(2, 2)), took(2, 2));
        assert_eq!(both.text(), "3.00 s (7.00 s on the wall)");
    }
}
