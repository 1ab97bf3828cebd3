//! The plan store, its writers, and the distribution of plans. Also the end of a run.

use std::rc::Rc;

use kaskade_policy::epochs::{self, StoreAction, StoreContent};
use kaskade_policy::plan::Plan;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::messages::{Event, Timer};
use super::oracle::Oracle;
use super::plans;
use super::sabotage::Sabotage;
use super::scenario::{LAST_PLAN_US, STOP_US, Scenario};
use super::world::World;

/// Interval at which a process reads the store besides being told of plans, microseconds. Shorter than in the actors, because a run
/// is short.
pub(crate) const READ_US: u64 = 250_000;
/// Time after a write in which every process of a calm network has heard of it, microseconds.
const HEARD_US: u64 = 1_000;

/// All plans ever written; the epoch of one is its place, from 1.
pub(crate) struct Store {
    plans: Vec<Rc<Plan>>,
    /// The epoch that it holds; `None` once it has been created again, from nothing.
    stored: Option<u64>,
    written_at: u64,
}

impl Store {
    /// A store with a first plan.
    pub(crate) fn new(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Self {
        let plan = plans::draw(scenario, rng);
        assert_eq!(plan.validate(), Ok(()), "only sound plans are written");
        Self {
            plans: vec![Rc::new(plan)],
            stored: Some(1),
            written_at: 0,
        }
    }

    pub(crate) fn newest(&self) -> u64 {
        self.plans.len() as u64
    }

    pub(crate) fn at(&self, epoch: u64) -> Rc<Plan> {
        Rc::clone(&self.plans[epoch as usize - 1])
    }
}

impl World {
    /// A planner reads the running epoch of its process and plans. Two planners are in two processes, and know of different epochs
    /// for a while.
    pub(crate) fn plan(&mut self, number: usize) {
        let pause = self.rng.random_range(80_000..600_000);
        if self.now + pause < LAST_PLAN_US {
            self.at(self.now + pause, Event::Planner { number });
        }
        let home = &self.processes[(number * 2) % self.processes.len()];
        if !home.up || home.paused_until > self.now || home.cut_until > self.now {
            return;
        }
        let expected = home.newest();
        let plan = plans::draw(&self.scenario, &mut self.rng);
        assert_eq!(plan.validate(), Ok(()), "only sound plans are written");
        let plan = Rc::new(plan);
        let network = self.network();
        if self.chance(network.loss) {
            return;
        }
        for _ in 0..=usize::from(self.chance(network.twice)) {
            let thinks = self.rng.random_range(1_000..60_000);
            let at = self.now + thinks + self.delay(network);
            let plan = Rc::clone(&plan);
            self.at(
                at,
                Event::Write {
                    number,
                    expected,
                    plan,
                },
            );
        }
    }

    /// Compare and set.
    pub(crate) fn write(&mut self, number: usize, expected: u64, plan: Rc<Plan>) {
        let newest = self.store.newest();
        let stored = self.store.stored;
        let blindly = self.sabotage == Some(Sabotage::WritesBlindly);
        if stored != Some(expected) && !blindly {
            return self.note(format_args!(
                "planner {number} is refused: it read epoch {expected}, the store holds {stored:?}"
            ));
        }
        self.store.plans.push(plan);
        let epoch = self.store.newest();
        self.store.stored = Some(epoch);
        self.store.written_at = self.now;
        self.note(format_args!("planner {number} writes epoch {epoch}"));
        self.judge.demand(Oracle::StaleWrite, expected == newest, || {
            format!("planner {number} read epoch {expected} and replaces epoch {newest}")
        });
        for to in 0..self.processes.len() {
            self.notify(to, epoch);
        }
    }

    /// The store is deleted and created again, at a moment at which no word of a plan is on its way.
    pub(crate) fn recreate_store(&mut self) {
        let heard = self.store.written_at + HEARD_US;
        if heard > self.now {
            return self.at(heard, Event::StoreRecreated);
        }
        self.store.stored = None;
        self.note(format_args!("the store is created again, from nothing"));
    }

    /// A process compares what the store holds with what it runs.
    pub(crate) fn read_store(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, READ_US, Timer::Read);
        }
        let (stored, running) = (self.store.stored, self.processes[of].newest());
        let found = StoreContent {
            stored,
            running: Some(running),
            same_plan: stored == Some(running),
        };
        match (epochs::step(found), stored) {
            (StoreAction::Adopt, Some(epoch)) => self.adopt(of, epoch),
            (StoreAction::Restore { epoch }, _) if self.sabotage != Some(Sabotage::RestoresNothing) => {
                self.note(format_args!("p{of} finds {stored:?} and restores epoch {epoch}"));
                self.store.stored = Some(epoch);
                for to in 0..self.processes.len() {
                    self.notify(to, epoch);
                }
            }
            _ => {}
        }
    }

    /// Word of a plan may be late, doubled and out of order, but is never lost for good: a watch is taken up again.
    fn notify(&mut self, to: usize, epoch: u64) {
        let network = self.network();
        for _ in 0..=usize::from(self.chance(network.twice)) {
            let taken_up_again = if self.chance(network.loss) {
                self.rng.random_range(100_000..800_000)
            } else {
                0
            };
            // Sooner than requests that were admitted by it.
            let at = self.now + self.delay(network) / 2 + taken_up_again;
            self.at(at, Event::Notice { to, epoch });
        }
    }

    pub(crate) fn receive_plan_notice(&mut self, to: usize, epoch: u64) {
        let deaf = self.sabotage == Some(Sabotage::DeafToPlans) && to + 1 == self.processes.len();
        let there = &self.processes[to];
        // One that starts anew reads the store.
        if !there.up || deaf {
            return;
        }
        let until = there.cut_until.max(there.paused_until);
        if until > self.now {
            return self.at(until + 100, Event::Notice { to, epoch });
        }
        self.adopt(to, epoch);
    }

    /// Checks the end of a run: queues and ledgers are empty, and all processes agree.
    pub(crate) fn close(&mut self) {
        for of in 0..self.processes.len() {
            self.close_process(of);
        }
        self.judge.close();
        let leaders: Vec<usize> = self.leaders.keys().copied().collect();
        self.judge.demand(Oracle::OneLeader, leaders.len() == 1, || {
            format!("{leaders:?} lead")
        });
        let ingresses = self
            .processes
            .iter()
            .filter_map(|process| process.ingress.as_ref());
        let smallest = ingresses.map(|ingress| &ingress.id).min();
        let leader = leaders
            .first()
            .and_then(|leader| self.processes[*leader].ingress.as_ref());
        let leads = leader.map(|leader| &leader.id) == smallest;
        self.judge.demand(Oracle::OneLeader, leads, || {
            format!("{leaders:?} leads and has not the smallest id")
        });
        let (stored, newest) = (self.store.stored, self.store.newest());
        self.judge.demand(Oracle::Converges, stored == Some(newest), || {
            format!("the store holds {stored:?}, epoch {newest} is the newest")
        });
        let agreed = (newest, leader.map_or(0, |leader| leader.policy.gear()));
        for (of, process) in self.processes.iter().enumerate() {
            let newest = process.newest();
            let holds = (newest, process.adoption.gear_of(newest).unwrap_or_default());
            let admits = process.ingress.is_none() || process.epoch() == newest;
            self.judge
                .demand(Oracle::Converges, process.up && admits && holds == agreed, || {
                    let admitted = process.epoch();
                    format!("p{of} admits under epoch {admitted} and holds {holds:?}, agreed are {agreed:?}")
                });
        }
    }

    fn close_process(&mut self, of: usize) {
        let process = &mut self.processes[of];
        if let Some(ingress) = &mut process.ingress {
            let (left, wakes) = (ingress.ledger.len(), ingress.ledger.next_wake(self.now).is_some());
            self.judge.demand(Oracle::LedgerEmpties, left == 0 && !wakes, || {
                format!("p{of} still owes {left} replies")
            });
        }
        for replica in process.replicas.values() {
            self.judge.demand(Oracle::QueueKeeps, replica.is_at_rest(), || {
                format!("{} holds requests although no client waits", replica.id)
            });
        }
    }
}
