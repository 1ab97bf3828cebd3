//! The replicas of this process, by the stages that they serve.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::actor::Recipient;
use dashmap::DashMap;
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
pub(super) struct LocalReplicas(DashMap<String, Vec<LocalReplica>>);

impl LocalReplicas {
    pub(super) fn register(&self, stage: &str, replica: LocalReplica) {
        self.0.entry(stage.to_owned()).or_default().push(replica);
    }

    pub(super) fn unregister(&self, replica: &str) {
        for mut replicas in self.0.iter_mut() {
            replicas.retain(|local| local.id != replica);
        }
    }

    /// Returns the shortest queue among the replicas of a stage that pass the test.
    pub(super) fn shortest(
        &self,
        stage: &str,
        passes: impl Fn(&LocalReplica) -> bool,
    ) -> Option<LocalReplica> {
        let replicas = self.0.get(stage)?;
        let candidates = replicas.iter().filter(|replica| passes(replica));
        candidates
            .min_by_key(|replica| replica.depth.load(Ordering::Relaxed))
            .cloned()
    }

    pub(super) fn has(&self, replica: &str) -> bool {
        let mut stages = self.0.iter();
        stages.any(|replicas| replicas.iter().any(|local| local.id == replica))
    }
}
