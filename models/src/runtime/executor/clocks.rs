//! CPU clock of a thread.

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that this thread has used so far, microseconds. Makes a system call.
pub(super) fn thread_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000 + time.tv_nsec / 1_000).unwrap_or_default()
}
