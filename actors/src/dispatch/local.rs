//! The replicas of this process, by the stages that they serve.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::actor::Recipient;
use dashmap::DashMap;
use kaskade_policy::adoption::arrival;
use kaskade_policy::plan::Replica;
use tokio::sync::Semaphore;

use super::delivery::Delivery;
use crate::plan::versions::PlanVersion;

/// A replica of this process, as other actors of the process see it.
#[derive(Clone)]
pub struct LocalReplica {
    /// Its id.
    pub id: String,
    /// What a plan places, if a plan does: it is then given only requests of epochs whose plan places exactly this. `None`
    /// serves every epoch.
    pub placed: Option<Arc<Replica>>,
    /// Its mailbox.
    pub mailbox: Recipient<Delivery>,
    /// Permits of its queue.
    pub permits: Arc<Semaphore>,
    /// Requests that wait in its queue.
    pub depth: Arc<AtomicUsize>,
    /// Its largest batch.
    pub max_batch: u32,
}

impl LocalReplica {
    /// Returns whether it runs the stage under that plan.
    pub(super) fn serves(&self, version: &PlanVersion, gear: u32, stage: &str) -> bool {
        let placed = self.placed.as_ref();
        placed.is_none_or(|placed| arrival::serves(&version.plan, gear, stage, placed))
    }

    /// Returns whether the plan places it.
    fn is_placed_by(&self, version: &PlanVersion) -> bool {
        let placed = self.placed.as_deref();
        placed.is_none_or(|placed| version.plan.placement.contains(placed))
    }

    /// Returns whether both are the same running replica. Two epochs may give one id to different replicas.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.permits, &other.permits)
    }
}

/// Replicas of this process by stage.
#[derive(Default)]
pub(super) struct LocalReplicas {
    by_stage: DashMap<String, Vec<LocalReplica>>,
    by_id: DashMap<String, Vec<LocalReplica>>,
}

impl LocalReplicas {
    pub(super) fn register(&self, stage: &str, replica: LocalReplica) {
        self.by_id
            .entry(replica.id.clone())
            .or_default()
            .push(replica.clone());
        self.by_stage.entry(stage.to_owned()).or_default().push(replica);
    }

    pub(super) fn unregister(&self, replica: &LocalReplica) {
        for registered in [&self.by_stage, &self.by_id] {
            for mut replicas in registered.iter_mut() {
                replicas.retain(|local| !local.is(replica));
            }
        }
    }

    pub(super) fn unregister_from(&self, stage: &str, replica: &LocalReplica) {
        if let Some(mut replicas) = self.by_stage.get_mut(stage) {
            replicas.retain(|local| !local.is(replica));
        }
    }

    /// Returns what plans place of them.
    pub(super) fn placed(&self) -> Vec<Arc<Replica>> {
        let mut placed = Vec::new();
        for replicas in &self.by_stage {
            placed.extend(replicas.iter().filter_map(|local| local.placed.clone()));
        }
        placed
    }

    /// Returns the running replica that a plan places so.
    pub(super) fn of(&self, placed: &Replica) -> Option<LocalReplica> {
        let is_it = |local: &&LocalReplica| local.placed.as_deref() == Some(placed);
        self.by_stage
            .iter()
            .find_map(|replicas| replicas.iter().find(is_it).cloned())
    }

    /// Returns the shortest queue among the replicas of a stage that pass the test.
    pub(super) fn shortest(
        &self,
        stage: &str,
        passes: impl Fn(&LocalReplica) -> bool,
    ) -> Option<LocalReplica> {
        let replicas = self.by_stage.get(stage)?;
        let candidates = replicas.iter().filter(|replica| passes(replica));
        candidates
            .min_by_key(|replica| replica.depth.load(Ordering::Relaxed))
            .cloned()
    }

    /// Returns whether a replica of this process, placed by that plan, has the id.
    pub(super) fn has(&self, version: &PlanVersion, replica: &str) -> bool {
        let named = self.by_id.get(replica);
        named.is_some_and(|named| named.iter().any(|local| local.is_placed_by(version)))
    }
}
