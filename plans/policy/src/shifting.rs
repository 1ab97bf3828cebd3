//! The gear for a measured load (CascadeServe §5).
//!
//! Load is counted in short ticks, and the count of a tick is noisy: at 50 requests/s a tick of 100 ms has 5 ± 2 requests, and a
//! service that used single ticks would shift constantly. So the load is the mean of the last few ticks. If the newest tick alone
//! is significantly higher, it is the load: averaging a sudden rise would let the queue grow.
//!
//! Shifting up has no minimum interval. Shifting down waits for the queue of the first stage to be served (the paper's `alpha`),
//! and for some time since the last shift up, which bounds the shifts of an oscillating load.

use std::collections::VecDeque;

use crate::plan::Gear;

/// How a shifter weighs what it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShiftConfig {
    /// Length of a tick, microseconds; the paper's producer counts every 100 ms.
    pub tick_us: u64,
    /// Ticks whose mean is the load. At least one.
    pub window: usize,
    /// No shift down while the load, requests/s, is below `alpha` times the length of the first queue: while the backlog is
    /// more than `1 / alpha` seconds of arrivals. Per second.
    pub alpha: f64,
    /// No shift down for this long after a shift up, microseconds.
    pub hold_us: u64,
    /// How many standard deviations of a Poisson count the newest tick must lie above the mean to count by itself.
    pub jump: f64,
    /// Factor that multiplies a measured load before the lookup: the linear map of a measured distribution of loads
    /// onto the planned one, for accuracy objectives (appendix C.2). 1 for others.
    pub scale: f64,
}

impl Default for ShiftConfig {
    fn default() -> Self {
        Self {
            tick_us: 100_000,
            window: 5,
            alpha: 20.0,
            hold_us: 2_000_000,
            jump: 4.0,
            scale: 1.0,
        }
    }
}

/// Decides on the gear, tick by tick.
#[derive(Debug, Clone)]
pub struct Shifter {
    config: ShiftConfig,
    /// Where each gear's load begins, requests/s, ascending.
    from_qps: Vec<f64>,
    ticks: VecDeque<u64>,
    gear: u32,
    last_up: Option<u64>,
}

impl Shifter {
    /// A shifter in the first gear.
    pub fn new(gears: &[Gear], config: ShiftConfig) -> Self {
        Self::between(gears.iter().map(|gear| gear.load.from_qps).collect(), config)
    }

    /// The same for gears of which only the loads are known where they begin, requests/s, ascending.
    pub fn between(from_qps: Vec<f64>, config: ShiftConfig) -> Self {
        Self {
            config,
            from_qps,
            ticks: VecDeque::new(),
            gear: 0,
            last_up: None,
        }
    }

    /// Adopts another plan's gears and keeps the counted load: the load does not change with the plan.
    pub fn adopt(&mut self, gears: &[Gear]) {
        self.from_qps = gears.iter().map(|gear| gear.load.from_qps).collect();
        self.gear = 0;
        self.last_up = None;
    }

    /// The gear it is in.
    pub fn gear(&self) -> u32 {
        self.gear
    }

    /// Adopts a gear that another process set.
    pub fn set_gear(&mut self, gear: u32) {
        self.gear = gear.min((self.from_qps.len() as u32).saturating_sub(1));
    }

    /// Changes the map of measured loads onto planned ones.
    pub fn set_scale(&mut self, scale: f64) {
        if scale.is_finite() && scale > 0.0 {
            self.config.scale = scale;
        }
    }

    /// The measured load, requests/s.
    pub fn qps(&self) -> f64 {
        let (Some(newest), counted) = (self.ticks.back(), self.ticks.len()) else {
            return 0.0;
        };
        let mean = self.ticks.iter().sum::<u64>() as f64 / counted as f64;
        let newest = *newest as f64;
        // One request where none was expected is not a sudden rise: the deviation of a count is at least 1.
        let jumped = newest > mean + self.config.jump * mean.sqrt().max(1.0);
        let count = if jumped { newest } else { mean };
        count / (self.config.tick_us.max(1) as f64 / 1e6)
    }

    /// Takes the count of the tick that ends at `now` (microseconds) and the length of the first stage's queues; gives the
    /// gear to shift to, if any.
    pub fn tick(&mut self, now: u64, arrivals: u64, first_queue: usize) -> Option<u32> {
        self.ticks.push_back(arrivals);
        while self.ticks.len() > self.config.window.max(1) {
            self.ticks.pop_front();
        }
        let qps = self.qps();
        let wanted = self.gear_for(qps * self.config.scale);
        let up = wanted > self.gear;
        if wanted == self.gear || (!up && !self.may_shift_down(now, qps, first_queue)) {
            return None;
        }
        if up {
            self.last_up = Some(now);
        }
        self.gear = wanted;
        Some(wanted)
    }

    /// The gear whose range holds this load, requests/s; the last one beyond all ranges.
    pub fn gear_for(&self, qps: f64) -> u32 {
        let above = self.from_qps.partition_point(|from| *from <= qps);
        (above as u32).saturating_sub(1)
    }

    fn may_shift_down(&self, now: u64, qps: f64, first_queue: usize) -> bool {
        let held = self
            .last_up
            .is_some_and(|up| now < up.saturating_add(self.config.hold_us));
        !held && qps >= self.config.alpha * first_queue as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Edge, LoadRange, Wiring};

    const TICK: u64 = 100_000;

    fn gears(bounds: &[f64]) -> Vec<Gear> {
        let gear = |(index, from): (usize, &f64)| Gear {
            name: format!("g{index}"),
            load: LoadRange {
                from_qps: *from,
                to_qps: bounds.get(index + 1).copied(),
            },
            expected: None,
            wiring: Wiring {
                entry: Edge::to("s"),
                ensemble: Vec::new(),
                stages: Vec::new(),
            },
        };
        bounds.iter().enumerate().map(gear).collect()
    }

    fn shifter(bounds: &[f64]) -> Shifter {
        Shifter::new(&gears(bounds), ShiftConfig::default())
    }

    /// Feeds the same count for some ticks, starting at tick `from`; gives the shifts.
    fn feed(shifter: &mut Shifter, from: u64, ticks: u64, count: u64, queue: usize) -> Vec<u32> {
        (from..from + ticks)
            .filter_map(|tick| shifter.tick(tick * TICK, count, queue))
            .collect()
    }

    #[test]
    fn a_jump_is_followed_at_its_first_tick() {
        let mut shifter = shifter(&[0.0, 500.0, 2000.0]);
        assert!(feed(&mut shifter, 0, 10, 10, 0).is_empty());
        assert_eq!(feed(&mut shifter, 10, 1, 300, 0), [2]);
    }

    #[test]
    fn noise_within_a_range_shifts_nothing() {
        let mut shifter = shifter(&[0.0, 80.0]);
        let counts = [5, 7, 3, 8, 2, 6, 9, 5, 4, 7, 8, 3, 5, 6];
        let shifts: Vec<u32> = (1..)
            .zip(counts)
            .filter_map(|(tick, count)| shifter.tick(tick * TICK, count, 0))
            .collect();
        assert!(shifts.is_empty(), "{shifts:?}");
    }

    #[test]
    fn down_waits_for_the_hold_and_for_the_queue() {
        let mut shifter = shifter(&[0.0, 500.0]);
        assert_eq!(feed(&mut shifter, 0, 5, 100, 0), [1]);
        // 100 requests/s, but 10 wait: more than a twentieth of a second of arrivals.
        assert!(feed(&mut shifter, 5, 40, 10, 10).is_empty());
        assert_eq!(feed(&mut shifter, 45, 1, 10, 5), [0]);
    }

    #[test]
    fn down_is_held_after_a_shift_up() {
        let mut shifter = shifter(&[0.0, 500.0]);
        assert_eq!(feed(&mut shifter, 0, 1, 100, 0), [1]);
        assert!(feed(&mut shifter, 1, 19, 1, 0).is_empty());
        assert_eq!(feed(&mut shifter, 20, 1, 1, 0), [0]);
    }

    #[test]
    fn an_oscillating_load_shifts_a_bounded_number_of_times() {
        let mut shifter = shifter(&[0.0, 500.0, 1000.0]);
        let minute: usize = (0..600_u64)
            .filter_map(|tick| {
                let count = if tick % 2 == 0 { 200 } else { 5 };
                shifter.tick(tick * TICK, count, 0)
            })
            .count();
        assert!(minute <= 60, "{minute}");
    }

    #[test]
    fn the_scale_maps_measured_loads_onto_planned_ones() {
        let mut shifter = shifter(&[0.0, 500.0]);
        shifter.set_scale(0.5);
        assert!(feed(&mut shifter, 0, 5, 90, 0).is_empty());
        shifter.set_scale(f64::NAN);
        shifter.set_scale(1.0);
        assert_eq!(feed(&mut shifter, 5, 1, 90, 0), [1]);
    }

    #[test]
    fn beyond_all_ranges_the_last_gear_serves() {
        let shifter = shifter(&[0.0, 10.0, 20.0]);
        assert_eq!(
            [0.0, 9.9, 10.0, 1e9].map(|qps| shifter.gear_for(qps)),
            [0, 0, 1, 2]
        );
    }

    proptest! {
        /// Whatever the load does, every shift up is followed by a hold, so shifts are at most two per hold plus one.
        #[test]
        fn shifts_are_bounded(counts in prop::collection::vec(0_u64..400, 1..400)) {
            let mut shifter = shifter(&[0.0, 1500.0]);
            let shifts = (1..).zip(&counts).filter_map(|(tick, count)| shifter.tick(tick * TICK, *count, 0)).count();
            let holds = counts.len() as u64 * TICK / ShiftConfig::default().hold_us + 1;
            prop_assert!(shifts as u64 <= 2 * holds + 1);
        }
    }
}
