//! The replicas of this process, indexed by stage and by id.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use crate::actor::Recipient;
use dashmap::DashMap;
use kaskade_policy::adoption::arrival;
use kaskade_policy::plan::Replica;
use kaskade_policy::routing::{self, LocalLoad};
use tokio::sync::Semaphore;

use super::delivery::Delivery;
use crate::plan::versions::PlanVersion;

/// A replica of this process, as other actors of the process see it.
#[derive(Clone)]
pub struct LocalReplica {
    /// Id of the replica.
    pub id: String,
    /// Placement of the replica, if a plan places it: it then serves only requests of epochs whose plan has exactly
    /// this placement. `None` serves every epoch.
    pub placed: Option<Arc<Replica>>,
    /// Mailbox of the replica.
    pub mailbox: Recipient<Delivery>,
    /// Permits for the queue and the running batch; one is taken for each request handed over.
    pub permits: Arc<Semaphore>,
    /// Total number of permits.
    pub capacity: usize,
    /// Number of requests in the queue, as the heartbeat reports it.
    pub depth: Arc<AtomicUsize>,
    /// Number of requests in the running batch.
    pub running: Arc<AtomicUsize>,
    /// Largest batch in the current gear.
    pub max_batch: Arc<AtomicU32>,
}

impl LocalReplica {
    /// Returns the number of unanswered requests.
    pub fn unanswered(&self) -> usize {
        self.capacity.saturating_sub(self.permits.available_permits())
    }

    fn load(&self) -> LocalLoad {
        let taken = self.unanswered();
        LocalLoad {
            waiting: taken.saturating_sub(self.running.load(Ordering::Relaxed)),
            taken,
            max_batch: self.max_batch.load(Ordering::Relaxed),
        }
    }
}

impl LocalReplica {
    /// Returns whether the replica runs the stage under that plan.
    pub(super) fn serves(&self, version: &PlanVersion, gear: u32, stage: &str) -> bool {
        let placed = self.placed.as_ref();
        placed.is_none_or(|placed| arrival::serves(&version.plan, gear, stage, placed))
    }

    /// Returns whether the plan places the replica; true for a replica outside any plan.
    fn is_placed_by(&self, version: &PlanVersion) -> bool {
        let placed = self.placed.as_deref();
        placed.is_none_or(|placed| version.plan.placement.contains(placed))
    }

    /// Returns whether both are the same running replica. Two epochs may assign one id to different replicas.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.permits, &other.permits)
    }
}

/// Replicas of this process by stage.
#[derive(Default)]
pub(super) struct LocalReplicas {
    by_stage: DashMap<String, Vec<Arc<LocalReplica>>>,
    by_id: DashMap<String, Vec<Arc<LocalReplica>>>,
    /// Rotates the choice among equally busy replicas.
    turn: AtomicUsize,
}

impl LocalReplicas {
    pub(super) fn register(&self, stage: &str, replica: LocalReplica) {
        // Shared, because a clone of a mailbox allocates, and every request takes one.
        let replica = Arc::new(replica);
        let mut named = self.by_id.entry(replica.id.clone()).or_default();
        if !named.iter().any(|known| known.is(&replica)) {
            named.push(Arc::clone(&replica));
        }
        drop(named);
        self.by_stage.entry(stage.to_owned()).or_default().push(replica);
    }

    pub(super) fn unregister(&self, replica: &LocalReplica) {
        for registered in [&self.by_stage, &self.by_id] {
            registered.retain(|_, replicas| {
                replicas.retain(|local| !local.is(replica));
                !replicas.is_empty()
            });
        }
    }

    pub(super) fn unregister_from(&self, stage: &str, replica: &LocalReplica) {
        if let Some(mut replicas) = self.by_stage.get_mut(stage) {
            replicas.retain(|local| !local.is(replica));
        }
        self.by_stage.remove_if(stage, |_, replicas| replicas.is_empty());
    }

    /// Returns the placements of the replicas; replicas outside any plan are omitted.
    pub(super) fn placed(&self) -> Vec<Arc<Replica>> {
        let mut placed = Vec::new();
        for replicas in &self.by_stage {
            placed.extend(replicas.iter().filter_map(|local| local.placed.clone()));
        }
        placed
    }

    /// Returns the running replica with exactly that placement.
    pub(super) fn of(&self, placed: &Replica) -> Option<Arc<LocalReplica>> {
        let is_it = |local: &&Arc<LocalReplica>| local.placed.as_deref() == Some(placed);
        self.by_stage
            .iter()
            .find_map(|replicas| replicas.iter().find(is_it).cloned())
    }

    /// Returns the replica of a stage with the fewest unanswered requests among those that pass `passes`.
    pub(super) fn least_busy(
        &self,
        stage: &str,
        passes: impl Fn(&LocalReplica) -> bool,
    ) -> Option<Arc<LocalReplica>> {
        let replicas = self.by_stage.get(stage)?;
        let candidates = self.in_turn(&replicas).filter(|replica| passes(replica));
        candidates.min_by_key(|replica| replica.unanswered()).cloned()
    }

    /// Returns the replica of this process that gets a request instead of the stage's queue group
    /// ([`routing::local_replica`]), among those that pass `passes`. `alone` returns whether the plan places no replica
    /// of the stage in another process.
    pub(super) fn instead_of_group(
        &self,
        stage: &str,
        passes: impl Fn(&LocalReplica) -> bool,
        alone: impl FnOnce() -> bool,
    ) -> Option<Arc<LocalReplica>> {
        let replicas = self.by_stage.get(stage)?;
        let candidates = self.in_turn(&replicas).filter(|replica| passes(replica));
        routing::local_replica(candidates.map(|replica| (replica, replica.load())), alone).cloned()
    }

    /// Iterates over the replicas, starting with the next one at each call.
    fn in_turn<'a>(
        &self,
        replicas: &'a [Arc<LocalReplica>],
    ) -> impl Iterator<Item = &'a Arc<LocalReplica>> + Clone + use<'a> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % replicas.len().max(1);
        let (last, from_first) = replicas.split_at_checked(first).unwrap_or_default();
        from_first.iter().chain(last)
    }

    /// Returns whether this process runs a replica with that id which the plan places.
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
            let choose = || replicas.least_busy("stage", |_| true).unwrap().id.clone();
            assert_ne!(choose(), choose(), "equally busy replicas take turns");
            // The running batch counts even if no request is queued.
            let running = Arc::clone(&a.permits).try_acquire_owned().unwrap();
            assert_eq!([choose(), choose(), choose()], ["b", "b", "b"]);
            drop(running);
            assert_ne!(choose(), choose());
            assert!(replicas.least_busy("other", |_| true).is_none());
        });
    }

    /// Regression: every plan that moved a replica to another stage left an entry behind.
    #[test]
    fn a_replica_has_one_entry_however_many_stages_it_has_served() {
        System::new().block_on(async {
            let replica = replica("a");
            let replicas = LocalReplicas::default();
            for round in 0..1_000 {
                let stage = format!("stage-{round}");
                replicas.register(&stage, replica.clone());
                replicas.unregister_from(&stage, &replica);
            }
            assert!(replicas.by_stage.is_empty(), "plans may give stages other names");
            replicas.register("one", replica.clone());
            replicas.register("other", replica.clone());
            assert_eq!(replicas.by_id.get("a").unwrap().len(), 1);
            replicas.unregister(&replica);
            assert!(replicas.by_id.is_empty() && replicas.by_stage.is_empty());
        });
    }

    #[test]
    fn a_replica_is_preferred_while_a_request_joins_its_next_batch() {
        System::new().block_on(async {
            let replica = replica("a");
            let replicas = LocalReplicas::default();
            replicas.register("stage", replica.clone());
            let chosen = |alone| {
                let chosen = replicas.instead_of_group("stage", |_| true, || alone);
                chosen.is_some()
            };
            let taken = Arc::clone(&replica.permits).try_acquire_many_owned(4).unwrap();
            assert!(!chosen(false), "a whole batch waits");
            assert!(chosen(true), "no other replica would run it sooner");
            replica.running.store(4, Ordering::Relaxed);
            assert!(chosen(false), "they run");
            replica.running.store(0, Ordering::Relaxed);
            replica.max_batch.store(5, Ordering::Relaxed);
            assert!(chosen(false), "the gear allows larger batches");
            assert!(replicas.instead_of_group("stage", |_| false, || true).is_none());
            drop(taken);
        });
    }
}
