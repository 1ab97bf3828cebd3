//! Adopts plans in a worker: loads the replicas that the newest plan places here, reports the plan in place, and
//! unloads what only past epochs need once they have drained ([`kaskade_policy::adoption::retention`]).
//!
//! Loading a replica is retried after growing pauses ([`kaskade_policy::load_retry`]); meanwhile the epoch is in place
//! without it.
//!
//! A replica that is unloaded first answers all its accepted requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, atomic::Ordering};

use futures::future::join_all;
use kaskade_models::Executor;
use kaskade_policy::plan::{Replica, Sharing};
use tokio::sync::watch;

use super::batcher::SetBatching;
use super::model_thread;
use super::replica::{Hosted, ReplicaActor};
use super::worker::{FailedLoad, InPlace, Loaded, Readiness, Worker};
use crate::{
    actor::{AsyncContext, Context},
    bus::Bus,
    plan::versions::PlanVersion,
    subjects,
};

impl FailedLoad {
    fn is_due(&self, now: u64) -> bool {
        self.retry_at.is_some_and(|at| at <= now)
    }
}

impl Worker {
    /// Loads missing replicas of the newest plan, unloads replicas that no plan needs, and starts serving once all are
    /// loaded.
    pub(super) fn reconcile(&mut self, ctx: &mut Context<Self>) {
        if self.leaving {
            return;
        }
        let Some(newest) = self.shared.plans.newest() else {
            return;
        };
        if self.newest != newest.epoch {
            self.newest = newest.epoch;
            // A new plan resets the retries.
            self.failed.clear();
        }
        let now = self.shared.dispatcher.clock().now();
        let mut complete = true;
        for replica in newest.placed_on(&self.config.name) {
            if self.replicas.contains_key(replica) {
                continue;
            }
            // The epoch does not wait for a replica that failed to load.
            match self.failed.get_mut(replica) {
                Some(failed) if !failed.is_due(now) => continue,
                Some(failed) => failed.retry_at = None,
                None => complete = false,
            }
            if self.loading.insert(replica.clone()) {
                self.load(replica.clone(), ctx);
            }
        }
        self.release();
        self.set_batching();
        if complete && self.loaded < newest.epoch {
            self.loaded = newest.epoch;
            self.serve_stages(&newest, ctx);
        }
    }

    /// Returns whether a retry of a failed load is due.
    pub(super) fn has_loads_to_retry(&self) -> bool {
        let now = self.shared.dispatcher.clock().now();
        !self.leaving && self.failed.values().any(|failed| failed.is_due(now))
    }

    fn load(&self, replica: Replica, ctx: &mut Context<Self>) {
        let (loader, worker) = (Arc::clone(&self.loader), ctx.address());
        let supervisor = self.shared.dispatcher.supervisor();
        supervisor.spawn_finite("loading of a replica", async move {
            let wanted = replica.clone();
            let executor = tokio::task::spawn_blocking(move || {
                Executor::spawn(&wanted.id.clone(), move || loader(&wanted))
                    .map_err(|error| error.to_string())
            });
            let executor = executor
                .await
                .unwrap_or_else(|_| Err("loading the model panicked".to_owned()));
            worker.do_send(Loaded { replica, executor });
        });
    }

    /// Starts the actors of a loaded replica, if a plan still needs it.
    pub(super) fn host(&mut self, replica: Replica, mut executor: Executor) {
        let Some((version, gear)) = self.version_for(&replica, &self.versions()) else {
            return model_thread::end(&mut executor);
        };
        let batching = version.batching(gear, &replica.variant).unwrap_or_default();
        let capacity = self.config.queue_capacity;
        let shard = self.next_shard();
        let hosted = Hosted::start(replica.clone(), executor, batching, capacity, shard);
        self.subscribing.extend(hosted.listen_for_cancels());
        let (subject, stop) = (
            self.shared.dispatcher.app().replica(&replica.id),
            hosted.stop.subscribe(),
        );
        self.subscribing.extend(hosted.bind(subject, None, stop));
        self.replicas.insert(replica, hosted);
    }

    /// Subscribes every replica to every stage that any gear of the plan assigns to it, and reports the plan in place
    /// once the subscriptions are active.
    fn serve_stages(&mut self, version: &PlanVersion, ctx: &mut Context<Self>) {
        for (replica, hosted) in &mut self.replicas {
            if !version.plan.placement.contains(replica) {
                continue;
            }
            for stage in version.stages_of(replica) {
                if hosted.stages.contains_key(&stage) {
                    continue;
                }
                let (stop, stopped) = watch::channel(false);
                let subject = self.shared.dispatcher.app().stage(&stage);
                let group = Some(subjects::STAGE_GROUP.to_owned());
                self.subscribing.extend(hosted.bind(subject, group, stopped));
                self.shared
                    .dispatcher
                    .register_replica(&stage, hosted.local.clone());
                hosted.stages.insert(stage, stop);
            }
        }
        let failed: BTreeMap<_, _> = (self.failed.iter())
            .map(|(replica, failed)| (replica.id.clone(), failed.reason.clone()))
            .collect();
        let ready = Readiness {
            epoch: version.epoch,
            complete: if failed.is_empty() {
                version.epoch
            } else {
                self.readiness.borrow().complete
            },
            failed,
        };
        let buses: Vec<Bus> = self.shards.iter().map(|shard| shard.bus.clone()).collect();
        let worker = ctx.address();
        let subscribing = std::mem::take(&mut self.subscribing);
        let supervisor = self.shared.dispatcher.supervisor();
        supervisor.spawn_finite("adoption of a plan", async move {
            join_all(subscribing).await;
            // Only a round trip proves that the subscriptions are active.
            join_all(buses.iter().map(Bus::barrier)).await;
            worker.do_send(InPlace(ready));
        });
    }

    /// Unloads the replicas that no plan needs, and ends the subscriptions of replicas to stages that they no longer
    /// run.
    pub(super) fn release(&mut self) {
        let versions = self.keep_versions();
        let mut needed: BTreeMap<&Replica, BTreeSet<String>> = BTreeMap::new();
        for version in &versions {
            for replica in version.placed_on(&self.config.name) {
                let stages = needed.entry(replica).or_default();
                stages.extend(version.stages_of(replica));
            }
        }
        let unneeded: Vec<Replica> = self
            .replicas
            .keys()
            .filter(|replica| !needed.contains_key(replica))
            .cloned()
            .collect();
        for (replica, hosted) in &mut self.replicas {
            let Some(stages) = needed.get(replica) else {
                continue;
            };
            let (dispatcher, local) = (&self.shared.dispatcher, &hosted.local);
            hosted.stages.retain(|stage, _| {
                let stays = stages.contains(stage);
                if !stays {
                    dispatcher.unregister_replica_from(stage, local);
                }
                stays
            });
        }
        let unloads = !unneeded.is_empty();
        for replica in unneeded {
            tracing::info!(
                replica = replica.id,
                variant = replica.variant,
                "unloading a replica"
            );
            self.retire(&replica);
        }
        if unloads {
            self.beat();
        }
    }

    /// Stops serving with a replica. It ends once it has answered its accepted requests.
    pub(super) fn retire(&mut self, replica: &Replica) {
        if let Some(hosted) = self.replicas.remove(replica) {
            self.shared.dispatcher.unregister_replica(&hosted.local);
            hosted.end_subscriptions();
        }
    }

    /// Sets the batching of each replica, for the plan and gear under which it mostly serves.
    fn set_batching(&mut self) {
        let versions = self.versions();
        for (replica, hosted) in &self.replicas {
            // A generator forms a batch at every step; it has no batching parameters.
            let ReplicaActor::Batcher(batcher) = &hosted.actor else {
                continue;
            };
            let Some((version, gear)) = self.version_for(replica, &versions) else {
                continue;
            };
            let device = (version.plan.sharing == Sharing::Exclusive).then(|| {
                let device = self.devices.entry(replica.device.clone());
                device.or_default().clone()
            });
            if let Some(batching) = version.batching(gear, &replica.variant) {
                let max_batch = &hosted.local.max_batch;
                max_batch.store(batching.max_batch, Ordering::Relaxed);
                batcher.do_send(SetBatching { batching, device });
            }
        }
    }

    /// Returns the plan that determines a replica's batching, and its gear: the first of `versions` that places the
    /// replica.
    fn version_for(
        &self,
        replica: &Replica,
        versions: &[Arc<PlanVersion>],
    ) -> Option<(Arc<PlanVersion>, u32)> {
        let mut versions = versions.iter();
        let version = versions.find(|version| version.plan.placement.contains(replica))?;
        Some((Arc::clone(version), self.shared.plans.gear_of(version.epoch)?))
    }

    /// Returns the retained plans: first the one under which most requests are admitted, then the others, newest first.
    fn versions(&self) -> Vec<Arc<PlanVersion>> {
        let plans = &self.shared.plans;
        let admitted = self.retention.admitted().and_then(|epoch| plans.at(epoch));
        let admitted = admitted.or_else(|| plans.current().map(|(version, _)| version));
        let others = plans.all();
        admitted.into_iter().chain(others.into_iter().rev()).collect()
    }

    /// Returns the plans whose replicas must stay, and unpins the others.
    fn keep_versions(&mut self) -> Vec<Arc<PlanVersion>> {
        let now = self.shared.dispatcher.clock().now();
        let kept = self.retention.keeps(self.newest, now);
        let plans = &self.shared.plans;
        let versions = kept.iter().filter_map(|epoch| plans.at(*epoch)).collect();
        let mut pinned = kept;
        pinned.extend(self.retention.admitted());
        pinned.extend(self.retention.admitted_everywhere());
        plans.pin(pinned);
        versions
    }

    /// Returns the replicas that heartbeats list. A replica whose id belongs to another worker in the plan that every
    /// ingress uses is omitted: that worker's heartbeats report whether it is alive.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Hosted> {
        let admitted = self.retention.admitted_everywhere();
        let version = admitted.and_then(|epoch| self.shared.plans.at(epoch));
        let moved = move |replica: &Replica| {
            let placed = version.iter().flat_map(|version| &version.plan.placement);
            placed
                .filter(|placed| placed.id == replica.id)
                .any(|placed| placed.worker != replica.worker)
        };
        let replicas = self.replicas.iter();
        replicas
            .filter(move |(replica, _)| !moved(replica))
            .map(|(_, hosted)| hosted)
    }
}
