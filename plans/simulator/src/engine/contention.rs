//! Batches that begin and end beside others on one device.

use super::Engine;
use crate::events::Event;
use crate::observer::Observer;

impl<O: Observer> Engine<'_, O> {
    /// Starts a batch that would take this long if it ran alone, beside others.
    pub(super) fn joins_others(&mut self, replica: u32, device: u32, run_us: u64, kernel: f64) {
        let now = self.now;
        let Some(device) = self.fleet.devices.get_mut(device as usize) else {
            return;
        };
        let sharers = &mut device.sharers;
        sharers.advance(now);
        let before = sharers.pace();
        sharers.add(replica, run_us, kernel);
        let all = sharers.pace() < before;
        let ends: Vec<(u32, u64)> = sharers
            .ends()
            .filter(|(sharer, _)| all || *sharer == replica)
            .collect();
        self.end_at(&ends);
    }

    /// A batch has ended or failed.
    pub(super) fn leaves_others(&mut self, replica: u32, device: u32) {
        let now = self.now;
        let Some(device) = self.fleet.devices.get_mut(device as usize) else {
            return;
        };
        let sharers = &mut device.sharers;
        sharers.advance(now);
        let before = sharers.pace();
        sharers.remove(replica);
        if sharers.pace() > before {
            let ends: Vec<(u32, u64)> = sharers.ends().collect();
            self.end_at(&ends);
        }
    }

    /// Schedules the new ends of batches. The events of the earlier ends find that it is too early or too late, and do nothing.
    fn end_at(&mut self, ends: &[(u32, u64)]) {
        for (replica, until) in ends {
            let run = self
                .fleet
                .replica(*replica)
                .and_then(|replica| replica.run.as_mut());
            if let Some(run) = run {
                run.until = *until;
                self.events.add(*until, Event::RunEnds(*replica));
            }
        }
    }
}
