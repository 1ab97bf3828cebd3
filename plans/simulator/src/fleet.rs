//! The replicas and the devices, with their liveness.

use super::config::SimConfig;
use super::contention::DeviceContention;
use super::events::{NEVER, Task};
use super::run_tables::{KnownReplica, RunTables};
use kaskade_policy::batching::BatchQueue;
use kaskade_policy::device_queue::DeviceQueue;
use kaskade_policy::plan::{Batching, Sharing};
use kaskade_policy::routing::{self, LocalLoad};
use kaskade_policy::run_time::RunTimeEstimate;

/// The state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// The replica's model is being loaded.
    Loading,
    /// The replica takes requests.
    Up,
    /// The replica takes no new requests and answers those that it has.
    Draining,
    /// The replica has failed, and only the broker has noticed.
    Failed,
    /// The replica is absent, and all processes have noticed.
    Down,
}

impl Health {
    /// Whether the shares of edges lead there.
    pub(super) fn believed_alive(self) -> bool {
        matches!(self, Self::Up | Self::Failed)
    }

    /// Whether it occupies its device: its model is loaded or loading.
    fn hosted(self) -> bool {
        matches!(self, Self::Loading | Self::Up | Self::Draining)
    }
}

/// A replica at work.
#[derive(Debug)]
pub(super) struct ReplicaState {
    pub(super) variant: u32,
    pub(super) device: u32,
    pub(super) worker: u32,
    pub(super) kind: u32,
    pub(super) run_times: u32,
    pub(super) health: Health,
    pub(super) queue: BatchQueue<Task>,
    pub(super) batch: Vec<Task>,
    pub(super) run: Option<Running>,
    /// When its timer goes off; [`NEVER`] if none is set.
    pub(super) timer: u64,
    /// Whether it is in the queue of its device.
    pub(super) in_line: bool,
    pub(super) learned: RunTimeEstimate,
    /// The requests that it held when it failed.
    pub(super) lost: Vec<Task>,
    /// Whether it failed or was stopped from outside: no plan brings it back, only [`Change::Starts`](super::Change::Starts).
    pub(super) out: bool,
    /// When its model will have been loaded.
    pub(super) loaded_at: u64,
    /// Draws that it has made to send a pipeline's requests on.
    pub(super) draws: u64,
}

/// A batch that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub(super) from: u64,
    pub(super) until: u64,
}

/// A device at work.
#[derive(Debug, Default)]
pub(super) struct DeviceState {
    pub(super) turns: DeviceQueue<u32>,
    /// When a batch ended last.
    ended: Option<u64>,
    /// Joules of its batches; NaN once one of them is unknown.
    pub(super) batches_j: f64,
    /// The replicas that run on it at once, if concurrent batches slow each other down.
    pub(super) sharers: DeviceContention,
    busy: Meter,
    up: Meter,
}

impl DeviceState {
    /// True if it follows another one without a pause.
    pub(super) fn batch_starts(&mut self, now: u64) -> bool {
        self.busy.start(now);
        self.ended == Some(now)
    }

    pub(super) fn batch_ends(&mut self, now: u64) {
        self.busy.stop(now);
        self.ended = Some(now);
    }

    /// Time with a batch running, and with a replica loaded or loading, until `now`.
    pub(super) fn times(&self, now: u64) -> (u64, u64) {
        (self.busy.total(now), self.up.total(now))
    }
}

/// Total time with at least one item present.
#[derive(Debug, Default)]
struct Meter {
    count: u32,
    since: u64,
    total: u64,
}

impl Meter {
    /// True if this is the first.
    fn start(&mut self, now: u64) -> bool {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
        self.count == 1
    }

    /// True if this was the last.
    fn stop(&mut self, now: u64) -> bool {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.total += now.saturating_sub(self.since);
        }
        self.count == 0
    }

    fn total(&self, now: u64) -> u64 {
        let current = if self.count > 0 {
            now.saturating_sub(self.since)
        } else {
            0
        };
        self.total + current
    }
}

/// The replicas and the devices.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) replicas: Vec<ReplicaState>,
    pub(super) devices: Vec<DeviceState>,
    pub(super) sharing: Sharing,
    /// Devices that host something.
    pub(super) active: usize,
}

impl ReplicaState {
    fn load(&self) -> LocalLoad {
        LocalLoad {
            waiting: self.queue.len(),
            taken: self.queue.len() + self.batch.len(),
            max_batch: self.queue.batching().max_batch,
        }
    }
}

impl Fleet {
    /// The replica of a queue group to which an actor of that worker's process gives a request ([`routing::local_replica`]). `None`
    /// leaves the choice to the broker. Equally busy ones take turns.
    pub(super) fn near(&self, group: &[u32], worker: u32, alone: bool, turn: u64) -> Option<u32> {
        let first = (turn % group.len().max(1) as u64) as usize;
        let (last, from_first) = group.split_at_checked(first)?;
        let in_turn = from_first.iter().chain(last).copied();
        let near = in_turn.filter_map(|number| Some((number, self.replicas.get(number as usize)?)));
        let near = near.filter(|(_, replica)| replica.worker == worker);
        routing::local_replica(near.map(|(number, replica)| (number, replica.load())), || alone)
    }

    /// Creates an empty fleet with this sharing.
    pub(super) fn new(sharing: Sharing) -> Self {
        Self {
            replicas: Vec::new(),
            devices: Vec::new(),
            sharing,
            active: 0,
        }
    }

    /// Adds what has been numbered since: replicas that do not run yet, and their devices.
    pub(super) fn grow(&mut self, tables: &RunTables, config: &SimConfig) {
        let known = self.replicas.len();
        let new = (0..).zip(&tables.replicas).skip(known);
        self.replicas
            .extend(new.map(|(number, replica)| absent(number, replica, config)));
        let devices = tables.devices.list.len();
        self.devices.resize_with(devices, DeviceState::default);
    }

    pub(super) fn replica(&mut self, replica: u32) -> Option<&mut ReplicaState> {
        self.replicas.get_mut(replica as usize)
    }

    pub(super) fn health(&self, replica: u32) -> Health {
        self.replicas
            .get(replica as usize)
            .map_or(Health::Down, |replica| replica.health)
    }

    /// Sets a replica's health; [`Epochs::learn_who_lives`](super::epochs::Epochs::learn_who_lives) spreads the news.
    pub(super) fn set_health(&mut self, replica: u32, health: Health, now: u64) {
        let Some(state) = self.replicas.get_mut(replica as usize) else {
            return;
        };
        let before = std::mem::replace(&mut state.health, health);
        let Some(device) = self.devices.get_mut(state.device as usize) else {
            return;
        };
        match (before.hosted(), health.hosted()) {
            (false, true) => self.active += usize::from(device.up.start(now)),
            (true, false) => self.active -= usize::from(device.up.stop(now)),
            _ => {}
        }
    }
}

fn absent(number: u64, replica: &KnownReplica, config: &SimConfig) -> ReplicaState {
    ReplicaState {
        variant: replica.variant,
        device: replica.device,
        worker: replica.worker,
        kind: replica.kind,
        run_times: replica.run_times,
        health: Health::Down,
        queue: BatchQueue::new(Batching::default(), config.queue_capacity),
        batch: Vec::new(),
        run: None,
        timer: NEVER,
        in_line: false,
        learned: RunTimeEstimate::default(),
        lost: Vec::new(),
        out: false,
        loaded_at: NEVER,
        // Senders are not in step with each other.
        draws: number << 32,
    }
}
