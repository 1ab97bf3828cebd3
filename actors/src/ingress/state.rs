//! Publishes the state of an ingress for the workers: which replicas to avoid, and which epochs are in use.

use std::{collections::BTreeSet, time::Duration};

use async_nats::Subject;
use kaskade_policy::liveness::HEARTBEAT_PERIOD_US;
use kaskade_policy::reachability::STATE_PERIOD_US;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::epochs::Epochs;
use crate::{
    dispatch::dispatcher::Dispatcher,
    plan::versions::PlanVersions,
    subjects::SubjectError,
    wire::{IngressState, MAX_REPLICAS, Message as _},
};

/// Interval of the checks for changes that come with time: replicas of a new plan, replicas that never sent a heartbeat.
const CHECK: Duration = Duration::from_micros(HEARTBEAT_PERIOD_US);

/// Pause after a message. Changes within it are published together: when many workers start at once, the number of
/// messages does not grow with the number of workers.
const PAUSE: Duration = Duration::from_millis(10);

/// Publishes the state of an ingress at every change and once per second, until it is closed.
pub(crate) struct StatePublisher {
    close: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl StatePublisher {
    /// Starts publishing the state of the ingress `id`. Call it inside an actix system.
    ///
    /// # Errors
    /// [`SubjectError`] if `id` is not a valid token.
    pub(crate) fn start(
        id: &str,
        dispatcher: &Dispatcher,
        plans: &PlanVersions,
        epochs: watch::Receiver<Epochs>,
    ) -> Result<Self, SubjectError> {
        let (close, closed) = watch::channel(false);
        let task = Task {
            id: id.to_owned(),
            subject: dispatcher.app().ingress(id)?,
            dispatcher: dispatcher.clone(),
            plans: plans.clone(),
            epochs,
            closed,
            sequence: 0,
            published: None,
        };
        let task = dispatcher.supervisor().spawn("state of the ingress", task.run());
        Ok(Self { close, task })
    }

    /// Publishes the last state: the ingress is gone.
    pub(crate) async fn close(self) {
        self.close.send_replace(true);
        let _ = self.task.await;
    }
}

struct Task {
    id: String,
    subject: Subject,
    dispatcher: Dispatcher,
    plans: PlanVersions,
    epochs: watch::Receiver<Epochs>,
    closed: watch::Receiver<bool>,
    sequence: u64,
    /// The last state, and when it was published.
    published: Option<(Instant, PublishedState)>,
}

/// The fields of a published state that change.
#[derive(PartialEq, Eq)]
struct PublishedState {
    starting: bool,
    unavailable: BTreeSet<String>,
    epochs: Epochs,
}

impl Task {
    async fn run(mut self) {
        let mut reachability = self.dispatcher.reachability();
        let mut checks = interval(CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut closed = self.closed.clone();
        loop {
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => return self.publish(true),
                changed = reachability.changed() => if changed.is_err() { return },
                changed = self.epochs.changed() => if changed.is_err() { return },
                _ = checks.tick() => {}
            }
            if self.is_due() {
                self.publish(false);
                sleep(PAUSE).await;
            }
        }
    }

    fn current(&self) -> PublishedState {
        let now = self.dispatcher.clock().now();
        let versions = self.plans.all();
        let placed = versions.iter().flat_map(|version| &version.plan.placement);
        let placed = placed.map(|replica| replica.id.as_str());
        self.dispatcher.liveness(|liveness| PublishedState {
            starting: liveness.is_starting(now),
            unavailable: liveness.unavailable(placed, now),
            epochs: *self.epochs.borrow(),
        })
    }

    /// Returns whether the state has changed, or the last one is a period old.
    fn is_due(&self) -> bool {
        self.published.as_ref().is_none_or(|(at, state)| {
            at.elapsed() >= Duration::from_micros(STATE_PERIOD_US) || *state != self.current()
        })
    }

    fn publish(&mut self, gone: bool) {
        let published = self.current();
        let state = IngressState {
            ingress: self.id.clone(),
            sequence: self.sequence,
            admits: published.epochs.admits,
            oldest: published.epochs.oldest,
            starting: published.starting,
            unavailable: published.unavailable.iter().take(MAX_REPLICAS).cloned().collect(),
            gone,
            served: self.plans.served(),
        };
        self.sequence += 1;
        self.published = Some((Instant::now(), published));
        match state.encode() {
            Ok(payload) => self.dispatcher.publish_control(self.subject.clone(), payload),
            Err(error) => tracing::error!(%error, "the state of the ingress could not be encoded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use async_nats::Subscriber;
    use futures::StreamExt;

    use super::*;
    use crate::actor::System;
    use crate::bus::{Bus, BusConfig, Embedded};
    use crate::clock::Clock;
    use crate::control::ingress_states;
    use crate::subjects::App;

    async fn next(states: &mut Subscriber) -> IngressState {
        IngressState::decode(&states.next().await.unwrap().payload).unwrap()
    }

    #[test]
    fn workers_follow_the_state_of_an_ingress_until_it_is_gone() {
        System::new().block_on(async {
            let embedded = Embedded::start(kaskade_broker::BrokerConfig::default()).unwrap();
            let app = App::new("told").unwrap();
            let connect = || Bus::connect(BusConfig::new("told").embedded(&embedded));
            let (ours, theirs) = (connect().await.unwrap(), connect().await.unwrap());
            let dispatcher = Dispatcher::new(&ours, app.clone(), Clock::start());
            let worker = Dispatcher::new(&theirs, app.clone(), Clock::start());
            ingress_states::follow(&theirs, &worker, true, |_| {})
                .await
                .unwrap();
            let mut view = worker.reachability();
            assert!(view.borrow().is_reachable("r"), "before any ingress is heard");
            assert!(!view.borrow().is_informed_by("i"));
            let mut states = theirs.subscribe(app.ingresses(), None).await.unwrap();
            theirs.barrier().await.unwrap();

            let (_epochs, used) = watch::channel(Epochs::default());
            let publisher =
                StatePublisher::start("i", &dispatcher, &PlanVersions::new("told"), used).unwrap();
            let first = next(&mut states).await;
            assert!(first.starting && first.unavailable.is_empty() && !first.gone);
            dispatcher.liveness(|liveness| {
                liveness.record_heartbeat("r", 0);
                liveness.declare_lost("r")
            });
            let lost = next(&mut states).await;
            assert_eq!(
                (lost.ingress.as_str(), lost.unavailable),
                ("i", vec!["r".to_owned()])
            );
            view.wait_for(|view| view.is_avoided("r")).await.unwrap();
            publisher.close().await;
            let mut newest = next(&mut states).await;
            while !newest.gone {
                newest = next(&mut states).await;
            }
            assert!(newest.sequence > lost.sequence);
            view.wait_for(|view| view.is_reachable("r")).await.unwrap();
        });
    }
}
