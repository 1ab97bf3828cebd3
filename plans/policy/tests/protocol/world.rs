//! Time, events, and the processes that they happen to.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::control::Store;
use super::log::Log;
use super::messages::{Event, Mail, Message, Timer};
use super::oracle::{Judge, Oracle};
use super::process::Process;
use super::sabotage::Sabotage;
use super::scenario::{HEAL_US, LAST_REQUEST_US, Network, PERFECT, Scenario, Weather};

/// More events than any sound run has.
const MAX_EVENTS: u64 = 1_000_000;

/// The broker as the sender of a message.
const BROKER: usize = usize::MAX;

struct Entry {
    at: u64,
    sequence: u64,
    event: Event,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// A run of one scenario.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) scenario: Scenario,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) log: Log,
    pub(crate) judge: Judge,
    pub(crate) processes: Vec<Process>,
    pub(crate) store: Store,
    /// Processes that acted as leader after the network settled.
    pub(crate) leaders: BTreeMap<usize, u64>,
    /// Requests that arrived at all ingresses.
    pub(crate) arrivals: u64,
    serial: u64,
    sequence: u64,
    agenda: BinaryHeap<Reverse<Entry>>,
    /// When the last message from one process to another arrives.
    links: BTreeMap<(usize, usize), u64>,
}

impl World {
    pub(crate) fn new(scenario: Scenario, sabotage: Option<Sabotage>, echo: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed);
        let store = Store::new(&scenario, &mut rng);
        let mut world = Self {
            now: 0,
            rng,
            judge: Judge::new(&scenario),
            processes: Vec::new(),
            store,
            leaders: BTreeMap::new(),
            arrivals: 0,
            serial: 0,
            sequence: 0,
            agenda: BinaryHeap::new(),
            links: BTreeMap::new(),
            log: Log::new(echo),
            sabotage,
            scenario,
        };
        world.note(format_args!("{:?}", world.scenario.clone()));
        world.begin();
        world
    }

    fn begin(&mut self) {
        for index in 0..self.scenario.processes() {
            self.processes.push(Process::absent(index));
            self.start(index);
        }
        for number in 0..self.scenario.planners {
            let at = self.rng.random_range(50_000..500_000);
            self.at(at, Event::Planner { number });
        }
        for strike in self.scenario.strikes.clone() {
            self.at(strike.at, Event::Strike(strike));
        }
        if let Some(at) = self.scenario.store_recreated {
            self.at(at, Event::StoreRecreated);
        }
        self.at(100_000, Event::Arrival);
    }

    /// Runs until nothing more happens or a promise is broken.
    pub(crate) fn run(&mut self) {
        let mut events = 0;
        while let Some(Reverse(entry)) = self.agenda.pop() {
            self.now = entry.at;
            self.happen(entry.event);
            events += 1;
            if events > MAX_EVENTS {
                self.judge
                    .broken(Oracle::Ends, format!("{MAX_EVENTS} events and no end"));
            }
            if self.judge.violation().is_some() {
                return;
            }
        }
        self.close();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrival(),
            Event::Mail { to, life, mail } => {
                if let Some(mail) = self.gate(to, life, mail, |to, life, mail| Event::Mail { to, life, mail })
                {
                    self.open(to, mail);
                }
            }
            Event::Timer { of, life, timer } => {
                if let Some(timer) = self.gate(of, life, timer, |of, life, timer| Event::Timer {
                    of,
                    life,
                    timer,
                }) {
                    self.ring(of, timer);
                }
            }
            Event::Bus { to, message } => self.carry(to, message),
            Event::Notice { to, epoch } => self.receive_plan_notice(to, epoch),
            Event::StoreRecreated => self.recreate_store(),
            Event::Planner { number } => self.plan(number),
            Event::Write {
                number,
                expected,
                plan,
            } => self.write(number, expected, plan),
            Event::Strike(strike) => self.strike(strike),
            Event::Return { process, life } => self.come_back(process, life),
            Event::Reconnected { process, life } => self.reconnected(process, life),
        }
    }

    /// Drops events of a process that died; delays those of one that pauses.
    fn gate<T>(
        &mut self,
        process: usize,
        life: u32,
        what: T,
        again: impl Fn(usize, u32, T) -> Event,
    ) -> Option<T> {
        let there = &self.processes[process];
        if !there.up || there.life != life {
            return None;
        }
        if there.paused_until > self.now {
            let until = there.paused_until;
            self.at(until, again(process, life, what));
            return None;
        }
        Some(what)
    }

    fn open(&mut self, to: usize, mail: Mail) {
        match mail {
            Mail::Inbound { token, budget_us } => self.inbound(to, token, budget_us),
            Mail::Delivery { replica, delivery } => self.queue(to, &replica, delivery),
            Mail::Finished(done) => self.finished(to, &done),
        }
    }

    fn ring(&mut self, of: usize, timer: Timer) {
        match timer {
            Timer::Sweep => self.sweep_timer(of),
            Timer::Tick => self.tick(of),
            Timer::Observation => self.observe(of),
            Timer::Beat => self.beat(of),
            Timer::State => self.state(of),
            Timer::Expire => self.expire(of),
            Timer::Read => self.read_store(of),
            Timer::Unsubscribe => self.unsubscribe(of),
            Timer::Empty => self.end_when_empty(of),
            Timer::Wake { replica, number } => self.wake(of, &replica, number),
            Timer::BatchEnds { replica } => self.batch_ends(of, &replica),
            Timer::Loaded { replica } => self.loaded(of, &replica),
        }
    }

    fn carry(&mut self, to: usize, message: Message) {
        let there = &self.processes[to];
        if !there.up || there.cut_until > self.now {
            return self.note(format_args!("p{to} is not reached by {message:?}"));
        }
        if there.paused_until > self.now {
            return self.at(there.paused_until, Event::Bus { to, message });
        }
        self.record(to, message);
    }

    /// A client sends a request to one of the ingresses that listen, whichever the broker picks.
    fn arrival(&mut self) {
        let surging = (800_000..1_300_000).contains(&self.now);
        let qps = self.scenario.qps * if surging { self.scenario.surge } else { 1.0 };
        let draw: f64 = self.rng.random_range(f64::EPSILON..1.0);
        let next = self.now + (-draw.ln() * 1e6 / qps) as u64 + 1;
        if next < LAST_REQUEST_US {
            self.at(next, Event::Arrival);
        }
        let open = |index: &usize| {
            let process = &self.processes[*index];
            // Its own clients need no connection.
            let has_clients =
                self.scenario.weather == Weather::Reconnects && self.scenario.near && *index == 0;
            process.up && (has_clients || process.cut_until <= self.now)
        };
        let open_ingresses: Vec<usize> = (0..self.scenario.ingresses).filter(open).collect();
        if open_ingresses.is_empty() {
            return;
        }
        let to = open_ingresses[self.rng.random_range(0..open_ingresses.len())];
        let token = self.judge.asked();
        let (least, most) = self.scenario.budget_us;
        // A request that comes when all is well again has a budget that suffices.
        let least = if self.now >= HEAL_US {
            least.max(400_000)
        } else {
            least
        };
        let budget_us = self.rng.random_range(least..most);
        self.mail(to, Mail::Inbound { token, budget_us });
    }

    /// The network as it is now.
    pub(crate) fn network(&self) -> Network {
        if self.now < HEAL_US {
            self.scenario.network
        } else {
            PERFECT
        }
    }

    /// One message on its way to one process.
    pub(crate) fn post(&mut self, from: usize, to: usize, message: Message) {
        let network = self.network();
        if from != BROKER && self.processes[from].cut_until > self.now {
            return self.note(format_args!("p{from} is cut off and loses {message:?}"));
        }
        let secretly = self.sabotage == Some(Sabotage::LosesSecretly) && self.rng.random_bool(0.002);
        if secretly || self.chance(network.loss) {
            return self.note(format_args!("lost on its way to p{to}: {message:?}"));
        }
        if self.chance(network.twice) {
            self.note(format_args!("doubled on its way to p{to}: {message:?}"));
            self.launch(from, to, message.clone(), network);
        }
        self.launch(from, to, message, network);
    }

    /// Word from the broker itself.
    pub(crate) fn broker_says(&mut self, to: usize, message: Message) {
        self.post(BROKER, to, message);
    }

    fn launch(&mut self, from: usize, to: usize, message: Message, network: Network) {
        let mut at = self.now + self.delay(network);
        if !network.reorders {
            let last = self.links.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.at(at, Event::Bus { to, message });
    }

    /// How long a message takes, microseconds. In calm weather always the same.
    pub(crate) fn delay(&mut self, network: Network) -> u64 {
        let held_up = if self.chance(network.slow) {
            self.rng.random_range(0..network.held_up_us)
        } else {
            0
        };
        let jitter = match self.scenario.weather {
            Weather::Storm => self.rng.random_range(0..400),
            Weather::Calm | Weather::Crashes | Weather::Leaves | Weather::Reconnects => 0,
        };
        100 + jitter + held_up
    }

    /// Draws only where there is something to draw, so that a fault switched off leaves no trace.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability)
    }

    pub(crate) fn mail(&mut self, to: usize, mail: Mail) {
        let life = self.processes[to].life;
        self.at(self.now + 1, Event::Mail { to, life, mail });
    }

    /// Sets a timer; it may come late.
    pub(crate) fn timer(&mut self, of: usize, after_us: u64, timer: Timer) {
        let late = if self.now < HEAL_US && self.chance(self.scenario.late) {
            self.rng.random_range(0..self.scenario.late_us)
        } else {
            0
        };
        let life = self.processes[of].life;
        self.at(self.now + after_us + late, Event::Timer { of, life, timer });
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.agenda.push(Reverse(Entry {
            at: at.max(self.now),
            sequence: self.sequence,
            event,
        }));
    }

    pub(crate) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.log.note(self.now, what);
    }
}
