//! Forms batches from queues, on devices that run batches concurrently or one at a time.

use super::Engine;
use crate::events::{Event, FAR, NEVER, Task};
use crate::fleet::{Health, Running};
use crate::observer::{Loss, Observer, Run};
use kaskade_policy::batching::Step;
use kaskade_policy::plan::{Dropping, Sharing};
use kaskade_policy::profile::LatencyQuantiles;

impl<O: Observer> Engine<'_, O> {
    /// Polls a replica's batching policy and acts on the result: after every arrival, as the batcher does.
    pub(super) fn pump(&mut self, replica: u32) {
        match self.fleet.sharing {
            Sharing::Concurrent => self.pump_alone(replica),
            Sharing::Exclusive => self.pump_in_turn(replica),
        }
        self.expire_late();
    }

    /// Whether a request in a queue can be late: it has a budget, or an objective by which its plan drops.
    fn times_queues(&self) -> bool {
        let by_slack =
            || self.config.slo_us.is_some() && self.epochs.current().plan.dropping == Dropping::Slack;
        self.config.budget_us.is_some() || by_slack()
    }

    fn pump_alone(&mut self, number: u32) {
        let (now, timed) = (self.now, self.times_queues());
        let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
            return;
        };
        let idle = replica.run.is_none();
        if !idle && !timed {
            // Nothing can be late, and nothing can start.
            return;
        }
        let step = if idle {
            replica
                .queue
                .poll_into(now, true, &mut self.late, &mut replica.batch)
        } else {
            replica
                .queue
                .poll_into(now, false, &mut self.late, &mut self.spare)
        };
        match step {
            Step::Run => self.start(number),
            Step::WaitUntil(at) => self.wake_at(number, at),
            Step::Wait => {}
        }
    }

    fn pump_in_turn(&mut self, number: u32) {
        let (now, timed) = (self.now, self.times_queues());
        let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
            return;
        };
        if timed {
            let step = replica
                .queue
                .poll_into(now, false, &mut self.late, &mut self.spare);
            if let Step::WaitUntil(at) = step {
                self.wake_at(number, at);
            }
        }
        self.line_up(number);
    }

    /// Requests the device for a queue that has fallen due; schedules a timer for one that has not.
    fn line_up(&mut self, number: u32) {
        let now = self.now;
        let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
            return;
        };
        if replica.in_line {
            return;
        }
        match replica.queue.due_at(now) {
            Some(at) if at <= now => {
                let device = self.fleet.devices.get_mut(replica.device as usize);
                if device.is_some_and(|device| device.turns.request(number, now)) {
                    self.take_turn(number);
                } else {
                    replica.in_line = true;
                }
            }
            Some(at) => self.wake_at(number, at),
            None => {}
        }
    }

    /// A replica holds the device: it starts a batch, or releases the device if it has none any more.
    pub(super) fn take_turn(&mut self, number: u32) {
        let mut turn = Some(number);
        while let Some(number) = turn.take() {
            let now = self.now;
            let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
                return;
            };
            replica.in_line = false;
            let step = replica
                .queue
                .poll_into(now, true, &mut self.late, &mut replica.batch);
            let device = replica.device;
            if step == Step::Run {
                self.start(number);
                self.line_up(number);
            } else {
                let device = self.fleet.devices.get_mut(device as usize);
                turn = device.and_then(|device| device.turns.release(number));
                if let Step::WaitUntil(at) = step {
                    self.wake_at(number, at);
                }
            }
        }
        self.expire_late();
    }

    /// Starts the batch that a poll has put together.
    fn start(&mut self, number: u32) {
        let now = self.now;
        let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
            return;
        };
        let size = replica.batch.len();
        let times = self.tables.run_times.get(replica.run_times as usize);
        let cost = times.map(|times| times.of(size)).unwrap_or_default();
        let device = self.fleet.devices.get_mut(replica.device as usize);
        let follows = device.is_some_and(|device| device.batch_starts(now));
        let turnaround_us = if follows { self.config.turnaround_us } else { 0 };
        let varied = |quantiles: LatencyQuantiles| {
            let multiple = quantiles.at(rand::Rng::random(&mut self.rng));
            ((cost.run_us as f64 * multiple) as u64).max(1)
        };
        let run_us = cost.quantiles.map_or(cost.run_us, varied) + turnaround_us;
        let until = now.saturating_add(run_us);
        replica.run = Some(Running { from: now, until });
        let on = replica.device;
        if let Some(variant) = self.report.variants.get_mut(replica.variant as usize) {
            variant.batches += 1;
            variant.runs += size as u64;
        }
        if let Some(device) = self.fleet.devices.get_mut(on as usize) {
            device.batches_j += cost.energy_j;
        }
        if self.config.contention {
            self.joins_others(number, on, run_us, cost.kernel);
        } else {
            self.events.add(until, Event::RunEnds(number));
        }
    }

    /// A batch has run: the next one starts, then the results are forwarded, in the same order as in the actors.
    pub(super) fn run_ends(&mut self, number: u32, at: u64) {
        let timed = self.times_queues();
        let spare = std::mem::take(&mut self.spare);
        let Some(replica) = self.fleet.replicas.get_mut(number as usize) else {
            return;
        };
        let Some(run) = replica.run.take_if(|run| run.until == at) else {
            // The replica that ran it has failed.
            self.spare = spare;
            return;
        };
        let mut batch = std::mem::replace(&mut replica.batch, spare);
        let (variant, draining) = (replica.variant, replica.health == Health::Draining);
        if timed {
            replica.learned.observe(batch.len(), run.until - run.from);
            replica.queue.set_expected_run(replica.learned.line());
        }
        if let Some(replanning) = &mut self.replanning {
            replanning.ran(variant, batch.len(), run.until - run.from);
        }
        self.device_is_free(number, run, batch.len());
        self.pump(number);
        for task in &batch {
            self.resolve(*task, number, variant);
        }
        batch.clear();
        self.spare = batch;
        if draining {
            self.settle(number);
        }
    }

    /// A batch has ended or failed: the device goes to the next replica in its queue.
    pub(super) fn device_is_free(&mut self, number: u32, run: Running, batch: usize) {
        let (now, sharing) = (self.now, self.fleet.sharing);
        let Some(replica) = self.fleet.replicas.get(number as usize) else {
            return;
        };
        self.observer.ran(&Run {
            from_us: run.from,
            to_us: now,
            replica: number,
            device: replica.device,
            batch,
        });
        let Some(device) = self.fleet.devices.get_mut(replica.device as usize) else {
            return;
        };
        device.batch_ends(now);
        if self.config.contention {
            let on = replica.device;
            self.leaves_others(number, on);
        }
        let Some(replica) = self.fleet.replicas.get(number as usize) else {
            return;
        };
        let Some(device) = self.fleet.devices.get_mut(replica.device as usize) else {
            return;
        };
        if sharing == Sharing::Exclusive
            && let Some(next) = device.turns.release(number)
        {
            self.take_turn(next);
        }
    }

    pub(super) fn timer(&mut self, number: u32, at: u64) {
        let Some(replica) = self.fleet.replica(number) else {
            return;
        };
        // One that was set for an earlier time has taken its place.
        if replica.timer == at {
            replica.timer = NEVER;
            self.pump(number);
            self.settle(number);
        }
    }

    /// Sets a replica's timer. One that goes off too early only finds that there is nothing to do yet, so a timer is never
    /// put off, and a replica has hardly ever more than one in the heap.
    fn wake_at(&mut self, number: u32, at: u64) {
        if at >= FAR {
            return;
        }
        if let Some(replica) = self.fleet.replica(number).filter(|replica| at < replica.timer) {
            replica.timer = at;
            self.events.add(at, Event::Timer(number));
        }
    }

    pub(super) fn expire_late(&mut self) {
        while let Some(task) = self.late.pop() {
            self.lose(task, Loss::Expired);
        }
    }

    /// Takes everything out of a replica: what waits and what runs.
    pub(super) fn empty(&mut self, number: u32) -> (Vec<Task>, Option<Running>, usize) {
        let Some(replica) = self.fleet.replica(number) else {
            return (Vec::new(), None, 0);
        };
        let running = replica.batch.len();
        let mut tasks = std::mem::take(&mut replica.batch);
        tasks.extend(replica.queue.drain());
        (tasks, replica.run.take(), running)
    }
}
