//! Clocks of processor time.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CPU time used so far by this thread and by the process, microseconds.
#[derive(Clone, Copy)]
pub(super) struct CpuClocks {
    pub(super) thread_us: u64,
    pub(super) process_us: u64,
}

impl CpuClocks {
    pub(super) fn now() -> Self {
        Self {
            thread_us: micros(clock_gettime(ClockId::ThreadCPUTime)),
            process_us: micros(clock_gettime(ClockId::ProcessCPUTime)),
        }
    }

    pub(super) fn since(self, earlier: Self) -> Self {
        let thread_us = self.thread_us.saturating_sub(earlier.thread_us);
        // The two clocks are read one after the other; the process has used at least as much as its thread.
        let process_us = self.process_us.saturating_sub(earlier.process_us).max(thread_us);
        Self {
            thread_us,
            process_us,
        }
    }
}

fn micros(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}
