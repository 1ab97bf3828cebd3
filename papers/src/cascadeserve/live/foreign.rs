//! How busy other processes keep the processor, so that no comparison is of their load.

use std::fs;
use std::thread;
use std::time::Duration;

/// Longest wait for that.
const MAX_POLLS: u32 = 900;

/// Processor time since the machine and this process began, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    all: f64,
    busy: f64,
    own: f64,
}

impl Times {
    /// Reads them; `None` where the system does not tell.
    pub(super) fn now() -> Option<Self> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let fields = machine.lines().next()?.split_whitespace().skip(1).take(8);
        let fields: Vec<f64> = fields.map_while(|field| field.parse().ok()).collect();
        let all: f64 = fields.iter().sum();
        let idle = fields.get(3)? + fields.get(4)?;
        let process = fs::read_to_string("/proc/self/stat").ok()?;
        // The name before the parenthesis may contain spaces.
        let (_, fields) = process.rsplit_once(')')?;
        let mut own = fields.split_whitespace().skip(11).take(2);
        let mut ticks = || own.next()?.parse::<f64>().ok();
        Some(Self {
            all,
            busy: all - idle,
            own: ticks()? + ticks()?,
        })
    }

    /// Share of the processor that others took since then, in [0, 1].
    pub(super) fn foreign_until(&self, now: &Self) -> f64 {
        let others = (now.busy - self.busy) - (now.own - self.own);
        (others / (now.all - self.all).max(1.0)).clamp(0.0, 1.0)
    }
}

/// Waits until other processes take at most this share of all cores, for 15 minutes at most.
pub(super) fn wait_for_quiet(limit: f64) {
    if limit >= 1.0 {
        return;
    }
    for _ in 0..MAX_POLLS {
        let Some(before) = Times::now() else { return };
        thread::sleep(Duration::from_secs(1));
        let Some(now) = Times::now() else { return };
        if before.foreign_until(&now) <= limit {
            return;
        }
    }
}
