//! Simulated annealing: single instances move, two of them or all of two devices change places, and what is worse is accepted less and
//! less (seeded).
//!
//! An overloaded device costs more than all transfers together, so that a start that violates equations 3 and 4 is repaired
//! first. Devices in use cost a trifle: of two placements that move as much, the one on fewer devices is kept.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::layout::Layout;
use super::problem::Problem;

/// Penalty for every device in use, as a multiple of the whole network cost.
const DEVICE: f64 = 1e-9;

/// Penalty for an overloaded device, and per unit of relative overload, as a multiple of the whole network cost.
const OVERLOADED: f64 = 2.0;
const OVERLOAD: f64 = 20.0;

/// How much colder it is at the end.
const COOLING: f64 = 1e-5;

/// Share of moves in which two devices of different hosts exchange all of their instances, so that instances that communicate get onto
/// one host. Without effect if every host has one device.
const EXCHANGES: f64 = 0.05;

/// Most instances that change places at once.
const CROWD: usize = 16;

/// Moves that are tried to learn how large a step is.
const PROBES: usize = 200;

/// Improves a placement by this number of moves. Returns the best placement found, by device.
pub(super) fn improve<'p>(start: Layout<'p>, problem: &'p Problem<'p>, moves: u64, seed: u64) -> Vec<usize> {
    let network: f64 = problem.edges().map(|(_, _, costs)| costs.network).sum();
    let mut walk = Walk {
        problem,
        scale: 1.0 / network.max(f64::MIN_POSITIVE),
        layout: start,
        rng: ChaCha8Rng::seed_from_u64(seed),
    };
    let mut now = walk.energy();
    let (mut best, mut least) = (walk.layout.placed().to_vec(), now);
    if problem.cluster.devices.len() < 2 || problem.instances.is_empty() {
        return best;
    }
    let hot = walk.typical_step();
    for step in 0..moves {
        let way = step as f64 / moves as f64;
        let temperature = hot * COOLING.powf(way);
        let Some(change) = walk.step(temperature) else {
            continue;
        };
        now += change;
        if now < least - 1e-12 {
            least = now;
            best.clear();
            best.extend_from_slice(walk.layout.placed());
        }
    }
    best
}

struct Walk<'p> {
    problem: &'p Problem<'p>,
    /// One over the whole network cost.
    scale: f64,
    layout: Layout<'p>,
    rng: ChaCha8Rng,
}

impl Walk<'_> {
    fn energy(&self) -> f64 {
        let placed = self.layout.placed();
        let devices = 0..self.problem.cluster.devices.len();
        let overload: f64 = devices
            .map(|device| penalty(self.layout.excess(device, None, None)))
            .sum();
        self.problem.overhead(placed) * self.scale + overload + self.layout.used() as f64 * DEVICE
    }

    /// The mean size of a step in overhead, among those that change it.
    fn typical_step(&mut self) -> f64 {
        let (mut sum, mut count) = (0.0, 0);
        for _ in 0..PROBES {
            let Some((instance, to)) = self.draw() else {
                continue;
            };
            let Some(from) = self.layout.device(instance) else {
                continue;
            };
            self.layout.take(instance);
            let change = self.layout.cost(instance, to) - self.layout.cost(instance, from);
            self.layout.put(instance, from);
            if change.abs() > 0.0 {
                sum += change.abs() * self.scale;
                count += 1;
            }
        }
        if count > 0 { sum / f64::from(count) } else { 1e-6 }
    }

    /// An instance, and a device that it might go to: where a neighbour is, beside it, or anywhere.
    fn draw(&mut self) -> Option<(usize, usize)> {
        let instance = self.rng.random_range(0..self.problem.instances.len());
        let devices = self.problem.cluster.devices.len();
        let anywhere = self.rng.random_range(0..devices);
        let to = if self.rng.random::<f64>() < 0.3 {
            anywhere
        } else {
            self.neighbour(instance)
                .and_then(|neighbour| self.layout.device(neighbour))
                .unwrap_or(anywhere)
        };
        (self.layout.device(instance) != Some(to)).then_some((instance, to))
    }

    fn neighbour(&mut self, instance: usize) -> Option<usize> {
        let found = self.problem.instances.get(instance)?;
        let around = self.layout.around(found.kind);
        let chained = usize::from(found.before.is_some()) + usize::from(found.after.is_some());
        if around.len() + chained == 0 {
            return None;
        }
        let place = self.rng.random_range(0..around.len() + chained);
        match self.layout.around(found.kind).get(place) {
            Some((kind, _)) => {
                let of_kind = self.problem.of_kind(*kind);
                (!of_kind.is_empty()).then(|| self.rng.random_range(of_kind))
            }
            None if place == self.layout.around(found.kind).len() => found.before.or(found.after),
            None => found.after,
        }
    }

    /// One move, if it is accepted: how the energy changed.
    fn step(&mut self, temperature: f64) -> Option<f64> {
        if !self.problem.cluster.is_flat() && self.rng.random::<f64>() < EXCHANGES {
            return self.exchange(temperature);
        }
        let (instance, to) = self.draw()?;
        let crowded = self.layout.excess(to, Some(instance), None) > 0.0;
        let guests = self.layout.hosted(to).len();
        if crowded && guests > 0 && self.rng.random::<f64>() < 0.8 {
            let guest = self.rng.random_range(0..guests);
            let guest = self.layout.hosted(to).get(guest).copied()?;
            self.swap(instance, guest, temperature)
        } else {
            self.shift(instance, to, temperature)
        }
    }

    fn shift(&mut self, instance: usize, to: usize, temperature: f64) -> Option<f64> {
        let from = self.layout.device(instance)?;
        let overload = penalty(self.layout.excess(to, Some(instance), None))
            + penalty(self.layout.excess(from, None, Some(instance)))
            - penalty(self.layout.excess(to, None, None))
            - penalty(self.layout.excess(from, None, None));
        let before = self.layout.used();
        self.layout.take(instance);
        let moved = self.layout.cost(instance, to) - self.layout.cost(instance, from);
        self.layout.put(instance, to);
        let used = self.layout.used() as f64 - before as f64;
        let change = moved * self.scale + overload + used * DEVICE;
        if self.accepts(change, temperature) {
            return Some(change);
        }
        self.layout.take(instance);
        self.layout.put(instance, from);
        None
    }

    fn swap(&mut self, one: usize, other: usize, temperature: f64) -> Option<f64> {
        let (from, to) = (self.layout.device(one)?, self.layout.device(other)?);
        let overload = penalty(self.layout.excess(to, Some(one), Some(other)))
            + penalty(self.layout.excess(from, Some(other), Some(one)))
            - penalty(self.layout.excess(to, None, None))
            - penalty(self.layout.excess(from, None, None));
        self.change_places(&[(one, from, to), (other, to, from)], overload, temperature)
    }

    /// Exchanges all instances of two devices of different hosts.
    fn exchange(&mut self, temperature: f64) -> Option<f64> {
        let devices = &self.problem.cluster.devices;
        let (one, other) = (
            self.rng.random_range(0..devices.len()),
            self.rng.random_range(0..devices.len()),
        );
        let (here, there) = (devices.get(one)?, devices.get(other)?);
        let (guests, others) = (self.layout.hosted(one), self.layout.hosted(other));
        let like =
            here.memory.to_bits() == there.memory.to_bits() && here.work.to_bits() == there.work.to_bits();
        let crowd = guests.len() + others.len();
        if here.host == there.host || !like || crowd == 0 || crowd > CROWD {
            return None;
        }
        let moves = guests.iter().map(|instance| (*instance, one, other));
        let moves: Vec<(usize, usize, usize)> = moves
            .chain(others.iter().map(|instance| (*instance, other, one)))
            .collect();
        self.change_places(&moves, 0.0, temperature)
    }

    /// Instances with where they are and where they go.
    fn change_places(
        &mut self,
        moves: &[(usize, usize, usize)],
        overload: f64,
        temperature: f64,
    ) -> Option<f64> {
        for (instance, ..) in moves {
            self.layout.take(*instance);
        }
        let before = self.lay(moves.iter().map(|(instance, from, _)| (*instance, *from)));
        for (instance, ..) in moves {
            self.layout.take(*instance);
        }
        let after = self.lay(moves.iter().map(|(instance, _, to)| (*instance, *to)));
        let change = (after - before) * self.scale + overload;
        if self.accepts(change, temperature) {
            return Some(change);
        }
        for (instance, ..) in moves {
            self.layout.take(*instance);
        }
        for (instance, from, _) in moves {
            self.layout.put(*instance, *from);
        }
        None
    }

    /// Puts instances, which are nowhere, somewhere; what they cost there, together.
    fn lay(&mut self, places: impl Iterator<Item = (usize, usize)>) -> f64 {
        let mut cost = 0.0;
        for (instance, device) in places {
            cost += self.layout.cost(instance, device);
            self.layout.put(instance, device);
        }
        cost
    }

    fn accepts(&mut self, change: f64, temperature: f64) -> bool {
        change <= 0.0 || self.rng.random::<f64>() < (-change / temperature).exp()
    }
}

fn penalty(excess: f64) -> f64 {
    if excess > 0.0 {
        OVERLOADED + OVERLOAD * excess
    } else {
        0.0
    }
}
