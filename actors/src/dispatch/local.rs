//! The replicas of this process, by the stages that they serve.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use crate::actor::Recipient;
use dashmap::DashMap;
use kaskade_policy::adoption::arrival;
use kaskade_policy::plan::Replica;
use kaskade_policy::routing;
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
    /// Permits of its queue and its running batch. Each is taken when a request is handed over.
    pub permits: Arc<Semaphore>,
    /// The number of all permits.
    pub capacity: usize,
    /// Requests that wait in its queue, as its heartbeat reports them.
    pub depth: Arc<AtomicUsize>,
    /// Requests in its running batch.
    pub running: Arc<AtomicUsize>,
    /// Its largest batch in the current gear.
    pub max_batch: Arc<AtomicU32>,
}

impl LocalReplica {
    /// Returns how many requests it has taken and not answered.
    pub fn taken(&self) -> usize {
        self.capacity.saturating_sub(self.permits.available_permits())
    }

    /// Returns whether a request that is handed over now joins its next batch ([`routing::prefer_local`]).
    pub fn has_room_in_next_batch(&self) -> bool {
        routing::prefer_local(self.waiting(), self.max_batch.load(Ordering::Relaxed))
    }

    /// Returns whether a request is handed over if no replica of its stage is elsewhere ([`routing::prefer_local_alone`]).
    pub fn has_room_alone(&self) -> bool {
        routing::prefer_local_alone(self.waiting(), self.max_batch.load(Ordering::Relaxed))
    }

    /// Returns how many requests it has taken that are not in its running batch.
    fn waiting(&self) -> usize {
        self.taken().saturating_sub(self.running.load(Ordering::Relaxed))
    }
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
    /// Rotates the choice among equally busy replicas.
    turn: AtomicUsize,
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

    /// Returns the replica with the fewest unanswered requests among those of a stage that pass the test.
    pub(super) fn least_busy(
        &self,
        stage: &str,
        passes: impl Fn(&LocalReplica) -> bool,
    ) -> Option<LocalReplica> {
        let replicas = self.by_stage.get(stage)?;
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % replicas.len().max(1);
        let (last, from_first) = replicas.split_at_checked(first)?;
        let in_turn = from_first.iter().chain(last);
        let candidates = in_turn.filter(|replica| passes(replica));
        candidates.min_by_key(|replica| replica.taken()).cloned()
    }

    /// Returns whether a replica of this process, placed by that plan, has the id.
    pub(super) fn has(&self, version: &PlanVersion, replica: &str) -> bool {
        let named = self.by_id.get(replica);
        named.is_some_and(|named| named.iter().any(|local| local.is_placed_by(version)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::{Actor, Context, Handler, System};

    struct Idle;

    impl Actor for Idle {
        type Context = Context<Self>;
    }

    impl Handler<Delivery> for Idle {
        type Result = ();

        fn handle(&mut self, _: Delivery, _: &mut Context<Self>) {}
    }

    fn replica(id: &str) -> LocalReplica {
        LocalReplica {
            id: id.to_owned(),
            placed: None,
            mailbox: Idle.start().recipient(),
            permits: Arc::new(Semaphore::new(10)),
            capacity: 10,
            depth: Arc::default(),
            running: Arc::default(),
            max_batch: Arc::new(AtomicU32::new(4)),
        }
    }

    #[test]
    fn a_request_goes_to_the_replica_with_the_fewest_unanswered_ones_and_ties_rotate() {
        System::new().block_on(async {
            let (a, b) = (replica("a"), replica("b"));
            let replicas = LocalReplicas::default();
            replicas.register("stage", a.clone());
            replicas.register("stage", b.clone());
            let choose = || replicas.least_busy("stage", |_| true).unwrap().id;
            assert_ne!(choose(), choose(), "equally busy replicas take turns");
            // A running batch counts although no request waits.
            let running = Arc::clone(&a.permits).try_acquire_owned().unwrap();
            assert_eq!([choose(), choose(), choose()], ["b", "b", "b"]);
            drop(running);
            assert_ne!(choose(), choose());
            assert!(replicas.least_busy("other", |_| true).is_none());
        });
    }

    #[test]
    fn a_replica_is_preferred_while_a_request_joins_its_next_batch() {
        System::new().block_on(async {
            let replica = replica("a");
            let taken = Arc::clone(&replica.permits).try_acquire_many_owned(4).unwrap();
            assert!(!replica.has_room_in_next_batch(), "a whole batch waits");
            replica.running.store(4, Ordering::Relaxed);
            assert!(replica.has_room_in_next_batch(), "they run");
            replica.running.store(0, Ordering::Relaxed);
            assert!(replica.has_room_alone(), "no other replica would run it sooner");
            replica.max_batch.store(5, Ordering::Relaxed);
            assert!(replica.has_room_in_next_batch(), "the gear allows larger batches");
            drop(taken);
        });
    }
}
