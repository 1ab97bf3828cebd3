//! The shifter of every ingress: it counts arrivals, and the leading one publishes the gear.

use super::ingress::{Ingress, TICK_US};
use super::messages::{Message, Timer};
use super::oracle::Oracle;
use super::sabotage::Sabotage;
use super::scenario::{SETTLED_US, STOP_US};
use super::world::World;

/// Ticks after which the leader repeats the gear.
const SAY_AGAIN: u64 = 10;

/// Queue lengths older than this are stale, microseconds.
const STALE_QUEUE_US: u64 = 500_000;

impl Ingress {
    /// Requests that wait for the first stage, over the workers with a recent heartbeat.
    fn first_queue(&mut self, variant: &str, now: u64) -> usize {
        self.queues
            .retain(|_, (heard, _)| now.saturating_sub(*heard) < STALE_QUEUE_US);
        let replicas = self.queues.values().flat_map(|(_, beat)| beat.replicas.iter());
        replicas
            .filter(|(_, running, _)| **running == *variant)
            .map(|(_, _, waiting)| waiting)
            .sum()
    }
}

impl World {
    pub(crate) fn tick(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, TICK_US, Timer::Tick);
        }
        self.publish_own_count(of);
        let (now, everyone) = (self.now, self.sabotage == Some(Sabotage::EveryoneLeads));
        let (all, twice) = (self.arrivals, self.sabotage == Some(Sabotage::CountsTwice));
        let process = &mut self.processes[of];
        let Some(ingress) = process.ingress.as_mut() else {
            return;
        };
        let elapsed = now.saturating_sub(ingress.last_tick).max(1);
        ingress.last_tick = now;
        let arrivals = ingress.load.take(now);
        ingress.counted += if twice { 2 * arrivals } else { arrivals };
        let counted = ingress.counted;
        self.judge.demand(Oracle::CountedOnce, counted <= all, || {
            format!("p{of} has taken {counted} arrivals for load, {all} came")
        });
        let Some((epoch, plan, gear)) = process.adoption.current() else {
            return;
        };
        if ingress.epoch != epoch {
            ingress.epoch = epoch;
            ingress.policy.adopt(&plan.gears);
            ingress.policy.set_scale(1.0);
        }
        let count = (arrivals as f64 * TICK_US as f64 / elapsed as f64).round() as u64;
        if !everyone && !ingress.load.leads(&ingress.id, now) {
            ingress.policy.count(count);
            return ingress.policy.set_gear(gear);
        }
        let wiring = plan.gears.get(gear as usize).map(|gear| &gear.wiring);
        let entry = wiring.and_then(|wiring| {
            let first = wiring
                .stages
                .iter()
                .find(|stage| stage.name == wiring.entry.stage);
            first.map(|stage| stage.variant.as_str())
        });
        let first_queue = entry.map_or(0, |stage| ingress.first_queue(stage, now));
        let shifted = ingress.policy.tick(now, count, first_queue);
        ingress.ticks += 1;
        let again = ingress.ticks.is_multiple_of(SAY_AGAIN) && plan.gears.len() > 1;
        if now >= SETTLED_US {
            *self.leaders.entry(of).or_default() += 1;
        }
        self.lead(of, epoch, shifted, again);
    }

    fn lead(&mut self, of: usize, epoch: u64, shifted: Option<u32>, again: bool) {
        // This process shifts first: its ingress admits by the new gear from here on.
        if let Some(to) = shifted {
            self.note(format_args!("p{of} leads into gear {to} of epoch {epoch}"));
            if self.processes[of].adoption.shift(epoch, to).is_err() {
                return;
            }
            self.rebatch(of);
        }
        let gear = self.processes[of]
            .ingress
            .as_ref()
            .map_or(0, |ingress| ingress.policy.gear());
        for _ in 0..usize::from(shifted.is_some()) + usize::from(again) {
            self.broadcast(of, &Message::Gear { epoch, gear });
        }
    }

    fn publish_own_count(&mut self, of: usize) {
        let now = self.now;
        let Some(ingress) = self.processes[of].ingress.as_mut() else {
            return;
        };
        let (id, total) = (ingress.id.clone(), ingress.arrivals);
        ingress.load.record(&id, total, now);
        for to in 0..self.scenario.ingresses {
            if to != of && self.processes[to].up {
                let message = Message::Load {
                    ingress: id.clone(),
                    total,
                };
                self.post(of, to, message);
            }
        }
    }

    pub(crate) fn receive_load(&mut self, of: usize, from: &str, total: u64) {
        let now = self.now;
        if let Some(ingress) = &mut self.processes[of].ingress {
            ingress.load.record(from, total, now);
        }
    }
}
