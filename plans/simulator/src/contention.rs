//! Contention: batches that run on one device at once and together need more than the whole device (HybridServe §V-B).
//!
//! Kernels run one after the other, so the kernel time of all batches together is at most the elapsed time. Batches that need less
//! do not affect each other. Beyond it, each gets its part and all of them end later, as with the device's own scheduler. Whenever a
//! batch starts or ends, the remaining times of the others are computed again.

/// The batches that run on a device at once.
#[derive(Debug, Default)]
pub(super) struct DeviceContention {
    running: Vec<Sharer>,
    /// When `left` was true last.
    since: u64,
    /// Time weighed by the share of the device in use.
    used_us: f64,
}

#[derive(Debug, Clone, Copy)]
struct Sharer {
    replica: u32,
    /// The share of the device that it needs.
    kernel: f64,
    /// Microseconds that it would still take if it ran alone.
    left: f64,
}

impl DeviceContention {
    /// Time weighed by the share of the device in use, until the last batch began or ended, microseconds.
    pub(super) fn used_us(&self) -> f64 {
        self.used_us
    }

    /// The sum of the needed shares of the device.
    fn wanted(&self) -> f64 {
        self.running.iter().map(|sharer| sharer.kernel).sum()
    }

    /// Speed of the batches, in (0, 1].
    pub(super) fn pace(&self) -> f64 {
        1.0 / self.wanted().max(1.0)
    }

    /// Advances the batches to now.
    pub(super) fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.since) as f64;
        let pace = self.pace();
        self.used_us += passed * self.wanted().min(1.0);
        for sharer in &mut self.running {
            sharer.left = (sharer.left - passed * pace).max(0.0);
        }
        self.since = now;
    }

    /// Starts a batch that would take this long if it ran alone.
    pub(super) fn add(&mut self, replica: u32, run_us: u64, kernel: f64) {
        self.running.push(Sharer {
            replica,
            kernel,
            left: run_us as f64,
        });
    }

    /// A batch has ended.
    pub(super) fn remove(&mut self, replica: u32) {
        self.running.retain(|sharer| sharer.replica != replica);
    }

    /// When each of them ends if no other starts or ends before.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u32, u64)> {
        let (pace, since) = (self.pace(), self.since);
        self.running.iter().map(move |sharer| {
            let left = (sharer.left / pace - 1e-6).ceil().max(0.0);
            (sharer.replica, since.saturating_add(left as u64))
        })
    }
}
