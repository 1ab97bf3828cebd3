//! Scenarios: a seed determines the processes, the faults and their times.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Interval of checks for expiries and resends, microseconds, as in the ingress.
pub(crate) const SWEEP_US: u64 = 5_000;
/// Time from which on no fault occurs.
pub(crate) const HEAL_US: u64 = 2_000_000;
/// Planners write no more. Late enough that the last plan meets a healthy network, so that it must reach all processes.
pub(crate) const LAST_PLAN_US: u64 = 2_600_000;
/// Time from which on the effects of faults are over: late messages have come, budgets have ended, silence has been noticed, and
/// the leader has repeated its gear.
pub(crate) const SETTLED_US: u64 = 4_500_000;
/// The last request.
pub(crate) const LAST_REQUEST_US: u64 = 5_500_000;
/// No timer begins anew, apart from sweeps of ledgers that hold something.
pub(crate) const STOP_US: u64 = 7_000_000;

/// Longest delay of a message while workers leave, microseconds.
pub(crate) const LATE_US: u64 = 50_000;

/// Kinds of faults that may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    /// No fault, but the plan store may be lost.
    Calm,
    /// Workers die in mid-batch and come back, never two at once; the network is perfect and the plan stays.
    Crashes,
    /// Workers leave in good order and come back, never two at once; messages are late, none is lost, and the plan stays.
    Leaves,
    /// Connections break in mid-batch and come back, one at a time; what is on its way over one is lost, and both of its ends notice.
    Reconnects,
    /// Everything that the scenario draws.
    Storm,
}

/// Faults of the network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Network {
    /// Probability that a message is lost.
    pub(crate) loss: f64,
    /// Probability that it comes twice.
    pub(crate) twice: f64,
    /// Probability that it is held up, by up to [`Network::held_up_us`].
    pub(crate) slow: f64,
    pub(crate) held_up_us: u64,
    /// Whether messages of one sender may overtake each other.
    pub(crate) reorders: bool,
}

/// A network that does what it should.
pub(crate) const PERFECT: Network = Network {
    loss: 0.0,
    twice: 0.0,
    slow: 0.0,
    held_up_us: 0,
    reorders: false,
};

/// A fault of a process, and its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The process dies, and comes back without memory.
    Crash,
    /// The process shuts down gracefully, and comes back without memory.
    Leave,
    /// The process stops and later continues, as under SIGSTOP.
    Pause,
    /// The process is cut off in both directions; the broker has not noticed.
    Cut,
    /// The connection breaks, and is restored later.
    Disconnect,
}

/// A blow, its victim and its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strike {
    pub(crate) at: u64,
    pub(crate) process: usize,
    pub(crate) blow: Blow,
    pub(crate) for_us: u64,
}

/// Choices that the wire protocol and the configuration leave open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glue {
    /// Whether a no-responders notice contains the attempt. It does: its subject is
    /// `done.<ingress>.<id>.<attempt>.<token>`.
    pub(crate) notices_name_attempts: bool,
    /// Whether a heartbeat identifies the life of its process. It does, by its number, which restarts.
    pub(crate) beats_name_lives: bool,
    /// Attempts per request, the first included.
    pub(crate) max_attempts: u32,
}

impl Glue {
    /// The choices of the actors.
    pub(crate) const SERVING: Self = Self {
        notices_name_attempts: true,
        beats_name_lives: true,
        max_attempts: 16,
    };
}

/// Everything that is fixed before a run begins.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent properties of a run, which no enum would join"
)]
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) glue: Glue,
    pub(crate) network: Network,
    /// Processes with an ingress come first, then those with nothing but a worker.
    pub(crate) ingresses: usize,
    pub(crate) workers: usize,
    /// Whether the first ingress has replicas in its own process.
    pub(crate) near: bool,
    /// Whether the smallest variant is a program that returns its results to the ingress, instead of routing them.
    pub(crate) foreign: bool,
    /// Whether there is a third variant between the smallest and the largest.
    pub(crate) skips: bool,
    pub(crate) planners: usize,
    /// Whether plans move replicas between workers, and give stages and ids to other variants.
    pub(crate) moves: bool,
    /// Longest time to load a replica, microseconds, if plans move any.
    pub(crate) load_us: u64,
    pub(crate) capacity: usize,
    /// Mean requests per second, apart from a surge.
    pub(crate) qps: f64,
    pub(crate) surge: f64,
    pub(crate) budget_us: (u64, u64),
    /// Probability that a batch's request makes the model fail.
    pub(crate) model_fails: f64,
    /// Probability that a timer comes late, and by how much at most.
    pub(crate) late: f64,
    pub(crate) late_us: u64,
    pub(crate) strikes: Vec<Strike>,
    /// When the plan store is deleted and created again.
    pub(crate) store_recreated: Option<u64>,
}

impl Scenario {
    /// The scenario of that seed.
    pub(crate) fn of(seed: u64, weather: Weather, glue: Glue) -> Self {
        // A separate generator: what a run draws later does not depend on how much was drawn here.
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5ce_a210);
        let rng = &mut rng;
        let ingresses = rng.random_range(1..=2);
        let mut scenario = Self {
            seed,
            weather,
            glue,
            network: PERFECT,
            ingresses,
            workers: rng.random_range(2..=3),
            near: rng.random_bool(0.4),
            foreign: false,
            skips: rng.random_bool(0.5),
            planners: rng.random_range(0..=2),
            moves: rng.random_bool(0.6),
            load_us: rng.random_range(1_000..700_000),
            capacity: rng.random_range(48..=96),
            qps: rng.random_range(30.0..110.0),
            surge: rng.random_range(1.0..2.0),
            budget_us: (400_000, 1_500_000),
            model_fails: 0.0,
            late: 0.0,
            late_us: 0,
            strikes: Vec::new(),
            store_recreated: None,
        };
        match weather {
            Weather::Calm => scenario.calm(rng),
            Weather::Crashes => scenario.crashes(rng),
            Weather::Leaves => scenario.leaves(rng),
            Weather::Reconnects => scenario.reconnects(rng),
            Weather::Storm => scenario.storm(rng),
        }
        scenario
    }

    pub(crate) fn processes(&self) -> usize {
        self.ingresses + self.workers
    }

    /// In half of the scenarios the plan store is lost, while planners write.
    fn calm(&mut self, rng: &mut ChaCha8Rng) {
        self.store_recreated = rng
            .random_bool(0.5)
            .then(|| rng.random_range(300_000..LAST_PLAN_US));
    }

    /// One worker after the other leaves and is back before the next one does; budgets are longer than all of this.
    fn crashes(&mut self, rng: &mut ChaCha8Rng) {
        self.planners = 0;
        self.moves = false;
        self.budget_us = (2_500_000, 3_500_000);
        let mut at = rng.random_range(300_000..700_000);
        while at < 1_400_000 {
            let strike = Strike {
                at,
                process: rng.random_range(self.ingresses..self.processes()),
                blow: Blow::Crash,
                for_us: rng.random_range(20_000..500_000),
            };
            at = strike.at + strike.for_us + rng.random_range(500_000..700_000);
            self.strikes.push(strike);
        }
    }

    /// One worker after the other, over a network that delays messages by up to [`LATE_US`].
    fn leaves(&mut self, rng: &mut ChaCha8Rng) {
        self.network = Network {
            slow: rng.random_range(0.1..1.0),
            held_up_us: LATE_US,
            ..PERFECT
        };
        self.crashes(rng);
        for strike in &mut self.strikes {
            strike.blow = Blow::Leave;
            // Time to leave comes on top.
            strike.for_us /= 4;
        }
    }

    /// One process after the other, the first one most often, for less time than silence takes to be noticed.
    fn reconnects(&mut self, rng: &mut ChaCha8Rng) {
        self.crashes(rng);
        self.strikes.clear();
        self.capacity = 96;
        self.near = rng.random_bool(0.75);
        self.skips = rng.random_bool(0.75);
        self.foreign = rng.random_bool(0.75);
        let mut at = rng.random_range(300_000..500_000);
        while at < 1_600_000 {
            let strike = Strike {
                at,
                process: [0, rng.random_range(0..self.processes())][rng.random_range(0..2)],
                blow: Blow::Disconnect,
                for_us: rng.random_range(20_000..125_000),
            };
            at = strike.at + strike.for_us + rng.random_range(200_000..400_000);
            self.strikes.push(strike);
        }
    }

    /// Each kind of fault is there in about half of the scenarios, so that many have few kinds.
    fn storm(&mut self, rng: &mut ChaCha8Rng) {
        self.network = Network {
            loss: some(rng, 0.15),
            twice: some(rng, 0.15),
            slow: some(rng, 0.2),
            held_up_us: rng.random_range(10_000..600_000),
            reorders: rng.random_bool(0.5),
        };
        self.capacity = rng.random_range(24..=64);
        self.surge = rng.random_range(1.0..6.0);
        self.budget_us = (rng.random_range(20_000..200_000), 1_500_000);
        self.model_fails = some(rng, 0.03);
        self.late = some(rng, 0.1);
        self.late_us = rng.random_range(1_000..700_000);
        for _ in 0..rng.random_range(0..6) {
            let blow = [Blow::Crash, Blow::Pause, Blow::Cut][rng.random_range(0..3)];
            let at = rng.random_range(100_000..HEAL_US - 50_000);
            let most = (HEAL_US - at).min(1_500_000);
            self.strikes.push(Strike {
                at,
                process: rng.random_range(0..self.processes()),
                blow,
                for_us: rng.random_range(10_000..most),
            });
        }
    }
}

fn some(rng: &mut ChaCha8Rng, most: f64) -> f64 {
    if rng.random_bool(0.5) {
        rng.random_range(0.0..most)
    } else {
        0.0
    }
}
