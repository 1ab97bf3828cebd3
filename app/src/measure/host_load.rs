//! Processor time that other processes used during a measurement: times of a busy host are too long, and vary.
//!
//! It is read from Linux's `/proc`; elsewhere it is unknown. In a virtual machine it includes the time that the host took.

use std::fs;

use crate::report::units;

/// Share of the processors' time from which other processes distort a measurement.
const BUSY: f64 = 0.1;

/// The counters at the beginning of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct HostLoad(Option<Counters>);

/// Processor time since the start of the host, in ticks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counters {
    /// Of all processors, idle or not.
    all: u64,
    /// Of all processors, not idle.
    busy: u64,
    /// Of this process and the processes that it has started and waited for.
    own: u64,
}

impl HostLoad {
    /// Reads the counters now.
    pub fn begin() -> Self {
        Self(read())
    }

    /// Returns the share of the processors' time since the beginning that other processes used, in [0, 1]; `None` if it is unknown.
    pub fn other_processes_share(self) -> Option<f64> {
        share(self.0?, read()?)
    }
}

/// Returns a warning if other processes used so much of the processors' time that they distort a measurement.
pub fn warning(others: Option<f64>) -> Option<String> {
    let others = others.filter(|others| *others > BUSY)?;
    Some(format!(
        "warning: other processes used {} of the processors' time during the measurement, so times may be too long and vary; measure on an idle \
         host",
        units::percent(others)
    ))
}

fn share(begin: Counters, end: Counters) -> Option<f64> {
    let all = end.all.checked_sub(begin.all).filter(|all| *all > 0)?;
    let own = end.own.saturating_sub(begin.own);
    let others = end.busy.saturating_sub(begin.busy).saturating_sub(own);
    Some((others as f64 / all as f64).min(1.0))
}

fn read() -> Option<Counters> {
    let (all, busy) = of_host(&fs::read_to_string("/proc/stat").ok()?)?;
    let own = of_process(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(Counters { all, busy, own })
}

/// Returns the time of all processors, and that in which they were not idle, from the first line of `/proc/stat`: user, nice, system, idle,
/// iowait, irq, softirq, steal. Further fields are parts of these.
fn of_host(text: &str) -> Option<(u64, u64)> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let all: u64 = times.iter().sum();
    let idle: u64 = times.get(3..5)?.iter().sum();
    Some((all, all - idle))
}

/// Returns the time of a process and its children from `/proc/PID/stat`: utime, stime, cutime and cstime. The name before them may contain
/// spaces and brackets.
fn of_process(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    let times: Vec<u64> = times.map(str::parse).collect::<Result<_, _>>().ok()?;
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_other_processes_is_that_which_is_neither_idle_nor_own() {
        let host = of_host("cpu  100 10 40 800 50 0 0 20 5 0\ncpu0 1 2 3 4\n");
        assert_eq!(host, Some((1_020, 170)));
        let process = "7 (a (b) c) R 1 7 7 0 -1 4194304 1 2 3 4 30 12 5 3 20 0 8 0 1 2 3";
        assert_eq!(of_process(process), Some(50));
        assert_eq!((of_host("intr 1"), of_process("7 (a) R 1")), (None, None));
        let at = |all, busy, own| Counters { all, busy, own };
        assert_eq!(share(at(0, 0, 0), at(200, 100, 60)), Some(0.2));
        assert_eq!(share(at(5, 1, 1), at(5, 1, 1)), None, "no time has passed");
        let said = warning(Some(0.2)).unwrap();
        assert!(said.contains("20.00 %"), "{said}");
        assert_eq!((warning(Some(0.05)), warning(None)), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_counters_of_this_host_are_read() {
        let now = read().unwrap();
        assert!(now.busy <= now.all && now.own <= now.busy, "{now:?}");
    }
}
