//! Schedule of events outside the stream of requests: shifter ticks, controller calls, replicas that start, leave and fail.

use super::config::{Change, SimConfig};
use super::events::NEVER;
use kaskade_policy::plan::Plan;
use kaskade_policy::shifting::Shifter;

/// A [`ReplicaEvent`](super::ReplicaEvent) by number.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexedReplicaEvent {
    pub(super) at: u64,
    pub(super) replica: u32,
    pub(super) change: Change,
}

/// Scheduled external events, and the gear.
#[derive(Debug)]
pub(super) struct Control<'a> {
    pub(super) gear: u32,
    /// Requests that came since the last tick.
    pub(super) arrivals: u64,
    pub(super) shifter: Shifter,
    pub(super) shifts: bool,
    tick_us: u64,
    next_tick: u64,
    /// Time of the controller's next call; [`NEVER`] if there is none.
    next_decision: u64,
    /// The earlier of the two.
    next_alarm: u64,
    /// Future events, in order of time.
    pub(super) timeline: &'a [IndexedReplicaEvent],
}

impl<'a> Control<'a> {
    /// Starts in the configured gear. Without shifting the shifter still measures the load, at ticks; without `ticks`, nothing does.
    pub(super) fn new(
        shifter: Shifter,
        config: &SimConfig,
        timeline: &'a [IndexedReplicaEvent],
        first_decision: u64,
        ticks: bool,
    ) -> Self {
        let tick_us = config.shift.unwrap_or_default().tick_us;
        let next_tick = if ticks { tick_us } else { NEVER };
        Self {
            gear: config.start_gear,
            arrivals: 0,
            shifter,
            shifts: config.shift.is_some(),
            tick_us,
            next_tick,
            next_decision: first_decision,
            next_alarm: next_tick.min(first_decision),
            timeline,
        }
    }

    /// Adopts another plan's gears, and returns the one to start in.
    pub(super) fn adopt(&mut self, plan: &Plan) -> u32 {
        self.shifter.adopt(&plan.gears);
        if self.shifts {
            self.shifter.set_gear(self.shifter.gear_for(self.shifter.qps()));
        }
        self.shifter.gear()
    }

    /// Time of the next tick or controller call, and whether it is a tick. If both are due at once the tick comes first.
    pub(super) fn alarm(&self) -> (u64, bool) {
        (self.next_alarm, self.next_tick <= self.next_decision)
    }

    pub(super) fn set_next_alarm(&mut self, control_interval_us: u64) {
        if self.next_tick <= self.next_decision {
            self.next_tick += self.tick_us;
        } else {
            self.next_decision += control_interval_us;
        }
        self.next_alarm = self.next_tick.min(self.next_decision);
    }

    pub(super) fn next_happening(&self) -> u64 {
        self.timeline.first().map_or(NEVER, |next| next.at)
    }

    /// Whether there is something to do before the requests' events of this time. Replicas change before them, and ticks and
    /// controller calls count them.
    #[inline]
    pub(super) fn is_due_before(&self, at: u64) -> bool {
        self.next_alarm < at || self.next_happening() <= at
    }
}
