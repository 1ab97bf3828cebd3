//! Limits a model to a share of a CPU core.
//!
//! Replicas on one processor slow each other down: a batch takes longer while others compute. A limited model sleeps
//! after every batch until its CPU use is at most its share. Replicas whose shares sum to at most the number of cores
//! therefore behave like separate devices: each runs as slowly as it was profiled. A container's CPU limit has the
//! same effect, per scheduler period instead of per batch.

use std::thread;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::runtime::model::{Availability, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::model::{Continuous, Progress};

/// The share of one core that a model may use, above 0 and up to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct CoreShare(f64);

/// The number is not a valid share of a core.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{0} is not a share of a core; give a number above 0 and up to 1, such as 0.25")]
pub struct InvalidCoreShare(f64);

impl CoreShare {
    /// A whole core; the model never sleeps.
    pub const WHOLE: Self = Self(1.0);

    /// Returns the share, in (0, 1].
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns the time to sleep after a batch that took `cpu` CPU time and `wall` time.
    fn rest(self, cpu: Duration, wall: Duration) -> Duration {
        cpu.div_f64(self.0).saturating_sub(wall)
    }
}

impl TryFrom<f64> for CoreShare {
    type Error = InvalidCoreShare;

    fn try_from(share: f64) -> Result<Self, InvalidCoreShare> {
        // No latency objective can be met with less than a thousandth of a core.
        if (0.001..=1.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(InvalidCoreShare(share))
        }
    }
}

impl From<CoreShare> for f64 {
    fn from(share: CoreShare) -> Self {
        share.0
    }
}

/// A model limited to a share of a core. Returns the results of a batch after the sleep.
///
/// The model computes on its own thread only, so that the thread's CPU clock measures all of its work: work that
/// kernels would distribute over other cores stays on this thread.
pub struct Throttled {
    model: Box<dyn Model>,
    share: CoreShare,
    /// Thread pool that contains only the model's own thread, and is created on it; `None` until the first batch.
    pool: Option<ThreadPool>,
}

impl Throttled {
    /// Limits a model to a share.
    pub fn new(model: Box<dyn Model>, share: CoreShare) -> Self {
        Self {
            model,
            share,
            pool: None,
        }
    }

    fn ensure_single_thread(&mut self) {
        if self.pool.is_none() {
            // Fails only on a thread of another pool; the work then stays within that pool.
            let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread();
            self.pool = pool.build().ok();
        }
    }
}

impl Throttled {
    /// Computes, then sleeps to keep CPU use at the share.
    fn run_paced<T>(&mut self, compute: impl FnOnce(&mut dyn Model) -> T) -> T {
        self.ensure_single_thread();
        let (started, used) = (Instant::now(), thread_time());
        let computed = compute(self.model.as_mut());
        let used = thread_time().saturating_sub(used);
        thread::sleep(self.share.rest(used, started.elapsed()));
        computed
    }
}

impl Model for Throttled {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        self.model.check_request(inputs)
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.run_paced(|model| model.run(batch))
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        self.model.continuous().is_some().then_some(self)
    }

    fn availability(&self) -> Option<Availability> {
        self.model.availability()
    }
}

impl Continuous for Throttled {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        match self.model.continuous() {
            Some(model) => model.submit(number, inputs),
            None => Err(ModelError::Failed {
                reason: "it does not support continuous batching".into(),
            }),
        }
    }

    fn cancel(&mut self, number: u64) {
        if let Some(model) = self.model.continuous() {
            model.cancel(number);
        }
    }

    fn step(&mut self) -> Vec<Progress> {
        self.run_paced(|model| model.continuous().map(Continuous::step))
            .unwrap_or_default()
    }
}

/// Returns the CPU time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    whole + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tensor::Tensor;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_sleep_follows_from_processor_time_and_share() {
        let quarter = CoreShare::try_from(0.25).unwrap();
        assert_eq!(quarter.rest(2 * MS, 2 * MS), 6 * MS);
        assert_eq!(
            quarter.rest(2 * MS, 5 * MS),
            3 * MS,
            "other threads used the core for a while"
        );
        assert_eq!(quarter.rest(2 * MS, 9 * MS), Duration::ZERO);
        assert_eq!(CoreShare::WHOLE.rest(2 * MS, 2 * MS), Duration::ZERO);
    }

    #[test]
    fn shares_are_above_zero_and_at_most_one() {
        for share in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY, 1e-9] {
            let error = CoreShare::try_from(share).unwrap_err();
            assert!(error.to_string().contains("up to 1"), "{error}");
        }
        let read: CoreShare = serde_json::from_str("0.1").unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), "0.1");
    }

    /// Test model: returns the number of threads it may use, and keeps the CPU busy for a while.
    struct Spin(Duration);

    impl Model for Spin {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let begun = thread_time();
            while thread_time().saturating_sub(begun) < self.0 {
                std::hint::spin_loop();
            }
            let threads = rayon::current_num_threads() as f32;
            batch
                .iter()
                .map(|_| Ok(vec![Tensor::from_f32("threads", &[1], &[threads])?]))
                .collect()
        }
    }

    #[test]
    fn it_computes_on_its_own_thread_and_sleeps() {
        let run = || {
            let mut paced = Throttled::new(Box::new(Spin(4 * MS)), CoreShare::try_from(0.5).unwrap());
            let started = Instant::now();
            let outputs = paced.run(&[Vec::new()]);
            (
                started.elapsed(),
                outputs[0].as_ref().unwrap()[0].to_f32().unwrap(),
            )
        };
        let (took, threads) = thread::spawn(run).join().unwrap();
        assert!(took >= 8 * MS, "{took:?}");
        assert_eq!(threads, [1.0]);
    }
}
