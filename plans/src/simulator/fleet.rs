//! The replicas and the devices, and who of them lives.

use super::compile::Compiled;
use super::config::SimConfig;
use super::events::{NEVER, Task};
use crate::batching::BatchQueue;
use crate::plan::{Batching, Sharing};
use crate::routing::{Destination, Living};
use crate::run_time::RunTimeEstimate;
use crate::turns::Turns;

/// How a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// It takes requests.
    Up,
    /// It takes nothing new and answers what it has.
    Draining,
    /// It is gone, and nobody but the broker has noticed.
    Failed,
    /// It is not there, and everybody knows.
    Down,
}

impl Health {
    /// Whether the shares of edges lead there.
    fn believed_alive(self) -> bool {
        matches!(self, Self::Up | Self::Failed)
    }

    /// Whether its model is loaded.
    pub(super) fn loaded(self) -> bool {
        matches!(self, Self::Up | Self::Draining)
    }
}

/// A replica at work.
#[derive(Debug)]
pub(super) struct ReplicaState {
    pub(super) variant: u32,
    pub(super) device: u32,
    pub(super) run_times: u32,
    pub(super) health: Health,
    pub(super) queue: BatchQueue<Task>,
    pub(super) batch: Vec<Task>,
    pub(super) run: Option<Running>,
    /// When its timer goes off; [`NEVER`] if none is set.
    pub(super) timer: u64,
    /// Whether it stands in line for its device.
    pub(super) in_line: bool,
    pub(super) learned: RunTimeEstimate,
    /// What it held when it failed.
    pub(super) lost: Vec<Task>,
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
    pub(super) turns: Turns<u32>,
    busy: Meter,
    up: Meter,
}

impl DeviceState {
    pub(super) fn batch_starts(&mut self, now: u64) {
        self.busy.start(now);
    }

    pub(super) fn batch_ends(&mut self, now: u64) {
        self.busy.stop(now);
    }

    /// Time with a batch running, and with a replica loaded, until `now`.
    pub(super) fn times(&self, now: u64) -> (u64, u64) {
        (self.busy.total(now), self.up.total(now))
    }
}

/// How long at least one of something was there.
#[derive(Debug, Default)]
struct Meter {
    count: u32,
    since: u64,
    total: u64,
}

impl Meter {
    fn start(&mut self, now: u64) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
    }

    fn stop(&mut self, now: u64) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.total += now.saturating_sub(self.since);
        }
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

/// The replicas, the devices, and where edges lead at present.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) replicas: Vec<ReplicaState>,
    pub(super) devices: Vec<DeviceState>,
    pub(super) sharing: Sharing,
    /// By edge.
    living: Vec<Living<u32>>,
    /// By variant, the replicas that the broker knows.
    groups: Vec<Vec<u32>>,
}

impl Fleet {
    /// All replicas up, but for those that are down at the start.
    pub(super) fn new(plan: &Compiled, config: &SimConfig, down: &[u32], sharing: Sharing) -> Self {
        let batching = plan
            .gears
            .get(config.start_gear as usize)
            .map(|gear| &gear.batching);
        let batching = |variant: u32| -> Batching {
            let set = batching.and_then(|batching| *batching.get(variant as usize)?);
            set.unwrap_or_default()
        };
        let replicas = plan.replicas.iter().map(|replica| ReplicaState {
            variant: replica.variant,
            device: replica.device,
            run_times: replica.run_times,
            health: Health::Down,
            queue: BatchQueue::new(batching(replica.variant), config.queue_capacity),
            batch: Vec::new(),
            run: None,
            timer: NEVER,
            in_line: false,
            learned: RunTimeEstimate::default(),
            lost: Vec::new(),
        });
        let mut fleet = Self {
            replicas: replicas.collect(),
            devices: plan.devices.iter().map(|_| DeviceState::default()).collect(),
            sharing,
            living: Vec::new(),
            groups: Vec::new(),
        };
        for replica in (0..plan.replicas.len() as u32).filter(|replica| !down.contains(replica)) {
            fleet.set_health(replica, Health::Up, 0);
        }
        fleet.learn_who_lives(plan);
        fleet
    }

    pub(super) fn replica(&mut self, replica: u32) -> Option<&mut ReplicaState> {
        self.replicas.get_mut(replica as usize)
    }

    pub(super) fn health(&self, replica: u32) -> Health {
        self.replicas
            .get(replica as usize)
            .map_or(Health::Down, |replica| replica.health)
    }

    /// Sets a replica's health; [`Fleet::learn_who_lives`] spreads the news.
    pub(super) fn set_health(&mut self, replica: u32, health: Health, now: u64) {
        let Some(state) = self.replicas.get_mut(replica as usize) else {
            return;
        };
        let before = std::mem::replace(&mut state.health, health);
        let Some(device) = self.devices.get_mut(state.device as usize) else {
            return;
        };
        match (before.loaded(), health.loaded()) {
            (false, true) => device.up.start(now),
            (true, false) => device.up.stop(now),
            _ => {}
        }
    }

    /// Brings what edges and queue groups know in line with who lives.
    pub(super) fn learn_who_lives(&mut self, plan: &Compiled) {
        let alive = |replica: u32| self.health(replica).believed_alive();
        let edges = plan.edges.iter();
        self.living = edges
            .map(|edge| Living::of(&edge.shares, &edge.backup, alive))
            .collect();
        self.groups = vec![Vec::new(); plan.variants.len()];
        for (number, replica) in (0..).zip(&self.replicas) {
            let group = self.groups.get_mut(replica.variant as usize);
            if let Some(group) = group.filter(|_| replica.health == Health::Up) {
                group.push(number);
            }
        }
    }

    /// Where an edge leads for this draw.
    pub(super) fn destination(&self, edge: u32, draw: f64) -> Destination<u32> {
        self.living
            .get(edge as usize)
            .map_or(Destination::QueueGroup, |living| living.destination(draw))
    }

    /// The replicas of a variant that the broker knows.
    pub(super) fn group(&self, variant: u32) -> &[u32] {
        self.groups.get(variant as usize).map_or(&[], Vec::as_slice)
    }
}
