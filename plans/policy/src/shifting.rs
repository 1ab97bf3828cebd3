//! The gear for a measured load (CascadeServe §5).
//!
//! Load is counted in short ticks, and the count of a tick is noisy: at 50 requests/s a tick of 100 ms has 5 ± 2 requests, and a
//! service that used single ticks would shift constantly. The mean of a fixed number of ticks has the same problem at low loads:
//! half a second of 40 requests/s is 20 ± 4.5 requests, and because a shift up is immediate and a shift down is not, the service
//! would spend most of its time in gears of higher loads. So the load is the mean of as many recent ticks as hold enough
//! requests, within bounds.
//!
//! A long mean would be late when the load changes. So the shifter also tests, at every tick, whether the newest ticks differ
//! significantly from the ones before, by the likelihood ratio of one Poisson rate against two. If they do, it forgets the ones
//! before. A rise counts from its first tick, because averaging it would let the queue grow. A fall counts when it has lasted for
//! the shortest mean, so that the pauses between bursts are part of the load.
//!
//! Shifting up has no minimum interval. Shifting down waits for the queue of the first stage to be served (the paper's `alpha`),
//! and for some time since the last shift up, which bounds the shifts of an oscillating load.

use std::collections::VecDeque;

use crate::plan::Gear;

/// Parameters by which a shifter weighs what it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShiftConfig {
    /// Length of a tick, microseconds; the paper's producer counts every 100 ms.
    pub tick_us: u64,
    /// Fewest ticks whose mean is the load. At least one.
    pub window: usize,
    /// Requests whose mean rate is the load: with fewer requests in the window, the mean is over more ticks.
    pub sample: u64,
    /// Most ticks whose mean is the load.
    pub longest: usize,
    /// No shift down while the load, requests/s, is below `alpha` times the length of the first queue: while the backlog is
    /// more than `1 / alpha` seconds of arrivals. Per second.
    pub alpha: f64,
    /// No shift down for this long after a shift up, microseconds.
    pub hold_us: u64,
    /// How many standard deviations the newest ticks must differ from the ones before to be the load by themselves: the root of
    /// twice the logarithm of the likelihood ratio.
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
            sample: 200,
            longest: 50,
            alpha: 20.0,
            hold_us: 2_000_000,
            jump: 4.0,
            scale: 1.0,
        }
    }
}

/// Requests that came in a number of ticks.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requests: f64,
    ticks: f64,
}

impl Count {
    /// Logarithm of the likelihood ratio that a part of `all` had a rate of its own against one Poisson rate for all.
    fn evidence_of_change(self, all: Self) -> f64 {
        let rest = Self {
            requests: all.requests - self.requests,
            ticks: all.ticks - self.ticks,
        };
        let of = |part: Self| {
            let expected = all.requests * part.ticks / all.ticks;
            if part.requests > 0.0 {
                part.requests * (part.requests / expected).ln()
            } else {
                0.0
            }
        };
        of(self) + of(rest)
    }
}

/// Decides on the gear, tick by tick.
#[derive(Debug, Clone)]
pub struct Shifter {
    config: ShiftConfig,
    /// Lower end of each gear's range of load, requests/s, ascending.
    from_qps: Vec<f64>,
    /// Counts of the ticks whose mean is the load, the newest last.
    ticks: VecDeque<u64>,
    gear: u32,
    last_up: Option<u64>,
}

impl Shifter {
    /// A shifter in the first gear.
    pub fn new(gears: &[Gear], config: ShiftConfig) -> Self {
        Self::with_bounds(gears.iter().map(|gear| gear.load.from_qps).collect(), config)
    }

    /// Creates a shifter from the lower ends of the gears' ranges of load alone, requests/s, ascending.
    pub fn with_bounds(from_qps: Vec<f64>, config: ShiftConfig) -> Self {
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
        let counted = self.counted();
        counted.requests / counted.ticks.max(1.0) / (self.config.tick_us.max(1) as f64 / 1e6)
    }

    /// Takes the count of the tick that ends at `now` (microseconds) and the length of the first stage's queues; gives the
    /// gear to shift to, if any.
    pub fn tick(&mut self, now: u64, arrivals: u64, first_queue: usize) -> Option<u32> {
        self.count(arrivals);
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

    /// Takes the count of a tick without a decision: for a shifter that does not lead yet.
    pub fn count(&mut self, arrivals: u64) {
        self.ticks.push_back(arrivals);
        if let Some(newest) = self.change() {
            self.ticks.drain(..self.ticks.len().saturating_sub(newest));
        }
        let mut requests = self.counted().requests;
        while self.ticks.len() > self.config.window.max(1) {
            let oldest = self.ticks.front().map_or(0.0, |oldest| *oldest as f64);
            if requests - oldest < self.config.sample as f64 && self.ticks.len() <= self.config.longest {
                break;
            }
            requests -= oldest;
            self.ticks.pop_front();
        }
    }

    fn counted(&self) -> Count {
        Count {
            requests: self.ticks.iter().map(|arrivals| *arrivals as f64).sum(),
            ticks: self.ticks.len() as f64,
        }
    }

    /// The number of newest ticks whose rate differs most from that of the ones before, if one differs significantly.
    fn change(&self) -> Option<usize> {
        let all = self.counted();
        let mut newest = Count::default();
        let mut change = None;
        let mut most = self.config.jump.powi(2) / 2.0;
        for (ticks, arrivals) in (1..self.ticks.len()).zip(self.ticks.iter().rev()) {
            newest.requests += *arrivals as f64;
            newest.ticks += 1.0;
            let excess = newest.requests * all.ticks - all.requests * newest.ticks;
            // The evidence is at most this bound, Pearson's statistic, which takes no logarithm.
            let bound = excess.powi(2) / (all.requests * newest.ticks * (all.ticks - newest.ticks));
            if (excess < 0.0 && ticks < self.config.window) || bound.is_nan() || bound <= most {
                continue;
            }
            let evidence = newest.evidence_of_change(all);
            if evidence > most {
                most = evidence;
                change = Some(ticks);
            }
        }
        change
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
    use rand::{Rng as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

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

    /// The count of a tick of a Poisson process, by its interarrival times.
    fn poisson(qps: f64, rng: &mut ChaCha8Rng) -> u64 {
        let gaps = std::iter::repeat_with(|| -(1.0 - rng.random::<f64>()).ln() / qps);
        let arrivals = gaps.scan(0.0, |at, gap| {
            *at += gap;
            Some(*at)
        });
        arrivals.take_while(|at| *at < TICK as f64 / 1e6).count() as u64
    }

    /// Share of an hour that a Poisson load spends in each gear.
    fn time_in_gears(bounds: &[f64], qps: f64) -> Vec<f64> {
        const TICKS: u64 = 36_000;
        let (mut shifter, mut rng) = (shifter(bounds), ChaCha8Rng::seed_from_u64(1));
        let mut time = vec![0.0; bounds.len()];
        for tick in 1..=TICKS {
            shifter.tick(tick * TICK, poisson(qps, &mut rng), 0);
            time[shifter.gear() as usize] += 1.0 / TICKS as f64;
        }
        time
    }

    /// Ticks until a Poisson load that changed from `before` to `after` is in the gear beyond the bound: mean, and 95th percentile of
    /// 400 changes.
    fn delay(before: f64, after: f64, bound: f64) -> (f64, u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut delays: Vec<u64> = (0..400)
            .map(|_| {
                let mut shifter = shifter(&[0.0, bound]);
                for tick in 1..=120 {
                    shifter.tick(tick * TICK, poisson(before, &mut rng), 0);
                }
                let to = u32::from(after > bound);
                shifter.set_gear(1 - to);
                shifter.last_up = None;
                let noticed = |tick: &u64| {
                    shifter.tick(tick * TICK, poisson(after, &mut rng), 0);
                    shifter.gear() == to
                };
                (121_u64..100_000).find(noticed).unwrap() - 120
            })
            .collect();
        delays.sort_unstable();
        (delays.iter().sum::<u64>() as f64 / 400.0, delays[380])
    }

    #[test]
    fn few_requests_are_served_in_the_gear_of_their_load() {
        for qps in [10.0, 20.0, 40.0, 100.0, 200.0, 1000.0] {
            // Gears of four equal ranges of load, and the load in the middle of the second.
            let bounds = [0.0, 1.0, 2.0, 3.0].map(|range| range * qps / 1.5);
            let time = time_in_gears(&bounds, qps);
            assert!(time[1] > 0.95, "{qps} requests/s: {time:?}");
        }
    }

    #[test]
    fn a_large_jump_of_few_requests_is_noticed_within_half_a_second() {
        for (qps, mean, late) in [(20.0, 3.0, 5), (40.0, 2.0, 3), (100.0, 1.2, 2), (1000.0, 1.0, 1)] {
            let found = delay(qps, 4.0 * qps, 2.0 * qps);
            assert!(
                found.0 <= mean && found.1 <= late,
                "{qps} requests/s: {found:?} ticks"
            );
        }
    }

    #[test]
    fn a_doubled_load_is_noticed() {
        for (qps, mean, late) in [
            (40.0, 8.0, 18),
            (100.0, 3.5, 7),
            (200.0, 2.5, 5),
            (1000.0, 1.0, 1),
        ] {
            let found = delay(qps, 2.0 * qps, 1.5 * qps);
            assert!(
                found.0 <= mean && found.1 <= late,
                "{qps} requests/s: {found:?} ticks"
            );
        }
    }

    #[test]
    fn a_fall_is_noticed() {
        for (qps, mean, late) in [
            (40.0, 8.0, 12),
            (100.0, 5.0, 6),
            (200.0, 5.0, 5),
            (1000.0, 4.0, 5),
        ] {
            let found = delay(qps, qps / 4.0, qps / 2.0);
            assert!(
                found.0 <= mean && found.1 <= late,
                "{qps} requests/s: {found:?} ticks"
            );
        }
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
