//! Following the plan store and the gear shifts, and the health of both subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures::StreamExt;
use kaskade_policy::epochs::{self, StoreAction, StoreContent};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bus::Bus;
use crate::dispatch::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::ops::health::Interruption;
use crate::plan::store::{PlanStore, StoreError, StoredPlan};
use crate::plan::versions::{AdoptError, PlanVersions};
use crate::wire::{GearShift, Message as _};

/// Pause before a subscription is opened again after an error or its end.
pub(super) const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// Interval at which the store is read besides being watched: a watch of a bucket that was deleted and created again
/// stays silent.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// Reports whether one subscription is interrupted.
#[derive(Clone)]
pub(super) struct Link {
    state: watch::Sender<Option<Interruption>>,
    was_open: Arc<AtomicBool>,
}

/// The two subscriptions that a node follows.
pub(super) struct Followed {
    pub(super) store: Link,
    pub(super) gears: Link,
}

impl Followed {
    pub(super) fn new() -> Self {
        Self {
            store: Link::new(),
            gears: Link::new(),
        }
    }

    /// Returns the state of both, for the node's health.
    pub(super) fn interruptions(&self) -> Vec<watch::Receiver<Option<Interruption>>> {
        [&self.store, &self.gears]
            .map(|link| link.state.subscribe())
            .to_vec()
    }
}

impl Link {
    fn new() -> Self {
        Self {
            state: watch::Sender::new(None),
            was_open: Arc::default(),
        }
    }

    fn up(&self) {
        self.was_open.store(true, Relaxed);
        self.state.send_replace(None);
    }

    /// Records the reason; the time of the first failure stays.
    fn down(&self, what: &'static str, reason: &str) {
        let since = self
            .state
            .borrow()
            .as_ref()
            .map_or_else(Instant::now, |before| before.since);
        self.state.send_replace(Some(Interruption {
            was_open: self.was_open.load(Relaxed),
            what,
            reason: reason.to_owned(),
            since,
        }));
        tracing::error!(reason, "{what} failed; retrying");
    }
}

/// Adopts every plan that appears in the store, and restores the running plan if the store has lost it. A refused plan
/// changes nothing.
pub(super) async fn store(store: Arc<dyn PlanStore>, plans: PlanVersions, link: Link) {
    let mut follower = Follower {
        store,
        plans,
        refused: None,
    };
    loop {
        match follower.until_lost(&link).await {
            Ok(()) => link.down("watching the plan store", "the watch ended"),
            Err(error) => link.down("watching the plan store", &error.to_string()),
        }
        tokio::time::sleep(OPEN_AGAIN).await;
    }
}

struct Follower {
    store: Arc<dyn PlanStore>,
    plans: PlanVersions,
    /// The epoch that was refused last, so that it is reported once.
    refused: Option<u64>,
}

impl Follower {
    /// Follows one watch. Returns when it ends, or misses what the store holds.
    async fn until_lost(&mut self, link: &Link) -> Result<(), StoreError> {
        let mut stored = match self.store.watch().await {
            Ok(stored) => stored,
            Err(error) => {
                // A deleted bucket cannot be watched, and restoring the plan creates it again.
                if let Ok(found) = self.store.get().await {
                    self.take(found).await?;
                }
                return Err(error);
            }
        };
        link.up();
        let mut read = tokio::time::interval_at(Instant::now() + READ_AGAIN, READ_AGAIN);
        read.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // What the watch delivers first: it has not ended if a read finds the same.
                biased;
                change = stored.next() => match change {
                    Some(Ok(stored)) => { self.take(Some(stored)).await?; }
                    Some(Err(error)) => self.report(&error),
                    None => return Ok(()),
                },
                _ = read.tick() => match self.store.get().await {
                    Ok(found) => {
                        link.up();
                        // The watch has not delivered it.
                        if self.take(found).await? {
                            return Ok(());
                        }
                    }
                    Err(error @ StoreError::Malformed { .. }) => {
                        link.up();
                        self.report(&error);
                    }
                    // The watch of a store that is away stays silent.
                    Err(error) => link.down("reading the plan store", &error.to_string()),
                },
            }
        }
    }

    /// Reports a value that is not a plan, once, or an unreachable store.
    fn report(&mut self, error: &StoreError) {
        if let StoreError::Malformed { epoch, .. } = error
            && self.refused.replace(*epoch) == Some(*epoch)
        {
            return;
        }
        tracing::error!(%error, "the plan store could not be read; the running plan stays");
    }

    /// Adopts what was found, or restores the running plan. Returns whether anything changed.
    async fn take(&mut self, stored: Option<StoredPlan>) -> Result<bool, StoreError> {
        let running = self.plans.newest();
        let found = StoreContent {
            stored: stored.as_ref().map(|stored| stored.epoch),
            running: running.as_ref().map(|version| version.epoch),
            same_plan: stored.as_ref().map(|stored| &stored.plan)
                == running.as_ref().map(|version| &version.plan),
        };
        match (epochs::step(found), stored, running) {
            (StoreAction::Adopt, Some(stored), _) => Ok(self.adopt(stored)),
            (StoreAction::Restore { epoch }, _, Some(running)) => {
                tracing::warn!(
                    stored = found.stored,
                    epoch,
                    "the plan store has lost the running plan; restoring it"
                );
                match self.store.write(&running.plan, epoch, found.stored).await {
                    // Another process was first; its plan is read next.
                    Ok(()) | Err(StoreError::Stale { .. }) => Ok(true),
                    Err(error) => Err(error),
                }
            }
            _ => Ok(false),
        }
    }

    fn adopt(&mut self, StoredPlan { plan, epoch }: StoredPlan) -> bool {
        if self.refused == Some(epoch) {
            return false;
        }
        match self.plans.adopt_stored(epoch, plan) {
            Ok(()) => true,
            Err(AdoptError::Stale { .. }) => false,
            Err(error) => {
                self.refused = Some(epoch);
                tracing::error!(%error, "a plan was refused; the running plan stays");
                false
            }
        }
    }
}

/// Follows published gear shifts.
pub(super) async fn gears(
    bus: Bus,
    dispatcher: Dispatcher,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
    link: Link,
) {
    loop {
        match bus.control().subscribe(dispatcher.app().gear(), None).await {
            Ok(mut shifts) => {
                link.up();
                while let Some(message) = shifts.next().await {
                    shift(&message, &plans, &metrics);
                }
                link.down("following gear shifts", "the subscription ended");
            }
            Err(error) => link.down("following gear shifts", &error.to_string()),
        }
        tokio::time::sleep(OPEN_AGAIN).await;
    }
}

fn shift(message: &async_nats::Message, plans: &PlanVersions, metrics: &Metrics) {
    let shifted = GearShift::decode(&message.payload)
        .map_err(|error| error.to_string())
        .and_then(|shift| {
            plans
                .shift(shift.epoch, shift.gear)
                .map_err(|error| error.to_string())
        });
    match shifted {
        Ok(true) => metrics.shifted(),
        Ok(false) => {}
        Err(reason) => tracing::warn!(reason, "a gear shift was ignored"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use kaskade_policy::plan::Plan;

    use super::*;
    use crate::plan::store::{HistoryEntry, Plans};

    /// A store that cannot be watched.
    struct Denied;

    fn denied<T: Send + 'static>() -> BoxFuture<'static, Result<T, StoreError>> {
        let denied = StoreError::Unreachable {
            what: "watching the plan",
            reason: "denied".to_owned(),
        };
        futures::future::ready(Err(denied)).boxed()
    }

    impl PlanStore for Denied {
        fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>> {
            denied()
        }

        fn write<'a>(&'a self, _: &'a Plan, _: u64, _: Option<u64>) -> BoxFuture<'a, Result<(), StoreError>> {
            denied()
        }

        fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
            denied()
        }

        fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
            denied()
        }
    }

    /// A store without a plan, whose watch stays silent.
    struct Away(watch::Receiver<bool>);

    impl PlanStore for Away {
        fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>> {
            if *self.0.borrow() {
                return denied();
            }
            futures::future::ready(Ok(None)).boxed()
        }

        fn write<'a>(&'a self, _: &'a Plan, _: u64, _: Option<u64>) -> BoxFuture<'a, Result<(), StoreError>> {
            denied()
        }

        fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
            let silent = Plans(futures::stream::pending().boxed());
            futures::future::ready(Ok(silent)).boxed()
        }

        fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
            denied()
        }
    }

    /// A deleted bucket, which cannot be watched until a plan is written. The first write fails.
    #[derive(Default)]
    struct Deleted {
        written: Mutex<Option<StoredPlan>>,
        has_failed: AtomicBool,
    }

    impl Deleted {
        fn written(&self) -> Option<StoredPlan> {
            self.written.lock().unwrap().clone()
        }
    }

    impl PlanStore for Deleted {
        fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>> {
            futures::future::ready(Ok(self.written())).boxed()
        }

        fn write<'a>(
            &'a self,
            plan: &'a Plan,
            epoch: u64,
            _: Option<u64>,
        ) -> BoxFuture<'a, Result<(), StoreError>> {
            if !self.has_failed.swap(true, Relaxed) {
                return denied();
            }
            let plan = plan.clone();
            *self.written.lock().unwrap() = Some(StoredPlan { plan, epoch });
            futures::future::ready(Ok(())).boxed()
        }

        fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
            if self.written().is_none() {
                return denied();
            }
            let silent = Plans(futures::stream::pending().boxed());
            futures::future::ready(Ok(silent)).boxed()
        }

        fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
            denied()
        }
    }

    /// Regression: every later attempt ended at the watch, which needs the bucket.
    #[tokio::test(start_paused = true)]
    async fn the_plan_of_a_deleted_store_is_restored_after_a_failed_write() {
        let plans = PlanVersions::new("digits");
        let plan = Plan::cascade("digits").stage("only", "small").build().unwrap();
        plans.adopt(3, plan.clone()).unwrap();
        let (deleted, followed) = (Arc::new(Deleted::default()), Followed::new());
        let state = followed.interruptions().remove(0);
        let following = tokio::spawn(store(deleted.clone(), plans, followed.store.clone()));
        tokio::time::sleep(4 * OPEN_AGAIN).await;
        let restored = deleted.written().map(|stored| (stored.epoch, stored.plan));
        assert_eq!(restored, Some((3, plan)));
        assert!(state.borrow().is_none(), "it is watched again");
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_goes_away_is_reported_until_it_can_be_read_again() {
        let (away, is_away) = watch::channel(false);
        let followed = Followed::new();
        let mut state = followed.interruptions().remove(0);
        let following = store(
            Arc::new(Away(is_away)),
            PlanVersions::new("digits"),
            followed.store.clone(),
        );
        let following = tokio::spawn(following);
        tokio::time::sleep(3 * READ_AGAIN).await;
        assert!(state.borrow_and_update().is_none());
        let begun = Instant::now();
        away.send_replace(true);
        tokio::time::sleep(3 * READ_AGAIN).await;
        let interruption = state.borrow_and_update().clone().unwrap();
        assert!(interruption.was_open && interruption.reason.contains("denied"));
        assert!(
            interruption.since <= begun + READ_AGAIN,
            "since the first failure"
        );
        away.send_replace(false);
        tokio::time::sleep(2 * READ_AGAIN).await;
        assert!(state.borrow_and_update().is_none(), "it can be read again");
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_cannot_be_watched_is_reported_since_the_first_failure() {
        let followed = Followed::new();
        let mut state = followed.interruptions().remove(0);
        let begun = Instant::now();
        let following = store(
            Arc::new(Denied),
            PlanVersions::new("digits"),
            followed.store.clone(),
        );
        let later = begun + Duration::from_mins(1);
        assert!(
            tokio::time::timeout_at(later, following).await.is_err(),
            "it retries"
        );
        let interruption = state.borrow_and_update().clone().unwrap();
        assert!(!interruption.was_open && interruption.reason.contains("denied"));
        assert_eq!(interruption.since, begun);
    }
}
