//! The plans that requests are in flight under. A request finishes under the plan that admitted it, so a plan is kept until
//! the last of its requests has left, and no longer.

use std::sync::Arc;

use super::compile::Compiled;
use super::fleet::{Fleet, Health};
use kaskade_policy::routing::{Destination, EdgeCache};

/// An edge of a plan, and where it leads at present.
#[derive(Debug)]
struct EdgeNow {
    living: EdgeCache<u32>,
    /// The stage it names, and that stage's variant and partition.
    stage: u16,
    kind: u32,
}

/// The replicas of a variant and partition that are registered at the broker.
#[derive(Debug, Clone, Default)]
struct Group {
    replicas: Vec<u32>,
    /// The worker of all that the plan places, if they are registered and no other worker has one.
    alone: Option<u32>,
}

/// A plan that is or was in force, and where its edges lead at present.
#[derive(Debug)]
pub(super) struct Epoch {
    pub(super) plan: Arc<Compiled>,
    /// Requests that have a place and were admitted under it.
    flights: u32,
    edges: Vec<EdgeNow>,
    /// Groups of replicas, by variant and partition.
    groups: Vec<Group>,
    /// The workers with a registered replica.
    workers: Vec<u32>,
}

impl Epoch {
    fn new(plan: Arc<Compiled>, fleet: &Fleet) -> Self {
        let mut epoch = Self {
            plan,
            flights: 0,
            edges: Vec::new(),
            groups: Vec::new(),
            workers: Vec::new(),
        };
        epoch.learn(fleet);
        epoch
    }

    /// Where an edge leads for this draw, and the stage that it names.
    #[inline]
    pub(super) fn destination(&self, edge: u32, draw: f64) -> Option<(Destination<u32>, u16)> {
        let edge = self.edges.get(edge as usize)?;
        Some((edge.living.destination(draw), edge.stage))
    }

    /// The stage that an edge names, if it leads to the queue group.
    #[inline]
    pub(super) fn to_group(&self, edge: u32) -> Option<u16> {
        let edge = self.edges.get(edge as usize)?;
        edge.living.is_queue_group().then_some(edge.stage)
    }

    #[inline]
    fn group_of(&self, edge: u32) -> Option<&Group> {
        let edge = self.edges.get(edge as usize)?;
        self.groups.get(edge.kind as usize)
    }

    /// The replicas of an edge's stage that are registered at the broker.
    #[inline]
    pub(super) fn group(&self, edge: u32) -> &[u32] {
        self.group_of(edge).map_or(&[], |group| group.replicas.as_slice())
    }

    /// Whether the plan places replicas of an edge's stage on this worker alone.
    #[inline]
    pub(super) fn is_alone(&self, edge: u32, worker: u32) -> bool {
        self.group_of(edge)
            .is_some_and(|group| group.alone == Some(worker))
    }

    /// The workers with a registered replica: in the process of each is an ingress.
    #[inline]
    pub(super) fn workers(&self) -> &[u32] {
        &self.workers
    }

    fn learn(&mut self, fleet: &Fleet) {
        let alive = |replica: u32| fleet.health(replica).believed_alive();
        let edges = self.plan.edges.iter();
        self.edges = edges
            .map(|edge| EdgeNow {
                living: EdgeCache::new(&edge.shares, &edge.backup, alive),
                stage: edge.stage,
                kind: edge.kind,
            })
            .collect();
        self.groups.clear();
        self.workers.clear();
        let placed = self.plan.placement.iter();
        let placed = placed.filter_map(|number| Some((*number, fleet.replicas.get(*number as usize)?)));
        for (number, replica) in placed.clone() {
            let kind = replica.kind as usize;
            if self.groups.len() <= kind {
                self.groups.resize(kind + 1, Group::default());
            }
            let group = self.groups.get_mut(kind);
            if let Some(group) = group.filter(|_| replica.health == Health::Up) {
                group.replicas.push(number);
                group.alone = Some(replica.worker);
                if !self.workers.contains(&replica.worker) {
                    self.workers.push(replica.worker);
                }
            }
        }
        for (_, replica) in placed {
            if let Some(group) = self.groups.get_mut(replica.kind as usize) {
                let same = replica.health == Health::Up && group.alone == Some(replica.worker);
                group.alone = group.alone.filter(|_| same);
            }
        }
    }
}

/// The plans that requests are in flight under, each in a place that is used again.
#[derive(Debug)]
pub(super) struct Epochs {
    /// The plan that admits requests. A separate field, since almost every look-up is for it.
    current: Epoch,
    /// Place of the current plan.
    place: u32,
    /// Earlier plans, by place.
    older: Vec<Option<Epoch>>,
}

impl Epochs {
    pub(super) fn new(plan: Arc<Compiled>, fleet: &Fleet) -> Self {
        Self {
            current: Epoch::new(plan, fleet),
            place: 0,
            older: vec![None],
        }
    }

    /// The place of the plan that admits.
    #[inline]
    pub(super) fn current_place(&self) -> u32 {
        self.place
    }

    #[inline]
    pub(super) fn current(&self) -> &Epoch {
        &self.current
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&Epoch> {
        if place == self.place {
            return Some(&self.current);
        }
        self.older.get(place as usize)?.as_ref()
    }

    /// Makes this plan the one that admits requests. The previous plan is dropped if nothing is in flight under it.
    pub(super) fn begin(&mut self, plan: Arc<Compiled>, fleet: &Fleet) {
        let before = std::mem::replace(&mut self.current, Epoch::new(plan, fleet));
        if before.flights > 0
            && let Some(place) = self.older.get_mut(self.place as usize)
        {
            *place = Some(before);
        }
        let free = self.older.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.older.push(None);
            self.older.len() - 1
        });
        self.place = place as u32;
    }

    /// A request was admitted under the current plan.
    #[inline]
    pub(super) fn enter(&mut self) {
        self.current.flights += 1;
    }

    /// The place of a request that was admitted under this plan is free again. True if the plan is forgotten with it.
    #[inline]
    pub(super) fn leave(&mut self, place: u32) -> bool {
        if place == self.place {
            self.current.flights = self.current.flights.saturating_sub(1);
            return false;
        }
        let Some(kept) = self.older.get_mut(place as usize) else {
            return false;
        };
        let over = kept.take_if(|epoch| {
            epoch.flights = epoch.flights.saturating_sub(1);
            epoch.flights == 0
        });
        over.is_some()
    }

    /// The plans that are kept.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Compiled> {
        let older = self.older.iter().flatten();
        std::iter::once(&self.current)
            .chain(older)
            .map(|epoch| &*epoch.plan)
    }

    /// Whether a request may still be sent to this replica.
    pub(super) fn place(&self, replica: u32) -> bool {
        self.plans().any(|plan| plan.placement.contains(&replica))
    }

    /// Updates edges and queue groups to the live replicas.
    pub(super) fn learn_who_lives(&mut self, fleet: &Fleet) {
        self.current.learn(fleet);
        for epoch in self.older.iter_mut().flatten() {
            epoch.learn(fleet);
        }
    }

    /// Returns the number of plans.
    pub(super) fn count(&self) -> usize {
        self.plans().count()
    }
}
