//! The replicas of this process, by the stages that they serve.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::actor::Recipient;
use dashmap::{DashMap, DashSet};
use tokio::sync::Semaphore;

use super::delivery::Delivery;

/// A replica of this process, as other actors of the process see it.
#[derive(Clone)]
pub struct LocalReplica {
    /// Its id.
    pub id: String,
    /// Its mailbox.
    pub mailbox: Recipient<Delivery>,
    /// Permits of its queue.
    pub permits: Arc<Semaphore>,
    /// Requests that wait in its queue.
    pub depth: Arc<AtomicUsize>,
    /// Its largest batch.
    pub max_batch: u32,
}

/// Replicas of this process by stage.
#[derive(Default)]
pub(super) struct LocalReplicas {
    by_stage: DashMap<String, Vec<LocalReplica>>,
    ids: DashSet<String>,
}

impl LocalReplicas {
    pub(super) fn register(&self, stage: &str, replica: LocalReplica) {
        self.ids.insert(replica.id.clone());
        self.by_stage.entry(stage.to_owned()).or_default().push(replica);
    }

    pub(super) fn unregister(&self, replica: &str) {
        self.ids.remove(replica);
        for mut replicas in self.by_stage.iter_mut() {
            replicas.retain(|local| local.id != replica);
        }
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

    /// Returns whether a replica of this process serves any stage, in constant time.
    pub(super) fn has(&self, replica: &str) -> bool {
        self.ids.contains(replica)
    }
}
