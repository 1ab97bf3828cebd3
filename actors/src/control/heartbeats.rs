//! Receives the heartbeats of an app for one process: one subscription, each heartbeat decoded once.
//!
//! Only a process with an ingress or an observing planner subscribes. Workers learn the state of other workers from the
//! ingresses ([`super::ingress_states`]).

use std::{sync::Arc, time::Duration};

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_policy::liveness::CHECK_PERIOD_US;
use tokio::time::{MissedTickBehavior, interval};

use super::failure_detector::FailureDetector;
use crate::{
    bus::{Bus, BusError},
    control::heartbeat_filter,
    dispatch::dispatcher::Dispatcher,
    plan::versions::PlanVersions,
    subjects::App,
    wire::Heartbeat,
};

type Listener = Box<dyn FnMut(&Arc<Heartbeat>)>;

/// Listeners of a process for heartbeats.
#[derive(Default)]
pub(crate) struct Heartbeats {
    detector: Option<FailureDetector>,
    listeners: Vec<Listener>,
}

impl Heartbeats {
    /// Passes every heartbeat to `listener`.
    pub(crate) fn listen(&mut self, listener: impl FnMut(&Arc<Heartbeat>) + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// Passes every heartbeat to the failure detector, and lets it check for silent replicas.
    pub(crate) fn detect(&mut self, detector: FailureDetector) {
        self.detector = Some(detector);
    }

    /// Subscribes, unless there are no listeners. Returns once the subscription is active.
    ///
    /// # Errors
    /// [`BusError`] if the subscription fails.
    pub(crate) async fn start(
        self,
        bus: &Bus,
        dispatcher: &Dispatcher,
        plans: &PlanVersions,
    ) -> Result<(), BusError> {
        if self.detector.is_none() && self.listeners.is_empty() {
            return Ok(());
        }
        let beats = bus.control().subscribe(dispatcher.app().beats(), None).await?;
        // Only a round trip proves that the subscription is active.
        bus.control().barrier().await?;
        let supervisor = dispatcher.supervisor().clone();
        supervisor.spawn(
            "heartbeats",
            self.run(beats, dispatcher.app().clone(), plans.clone()),
        );
        Ok(())
    }

    async fn run(mut self, mut heartbeats: Subscriber, app: App, plans: PlanVersions) {
        let mut checks = interval(Duration::from_micros(CHECK_PERIOD_US));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Read waiting heartbeats before checking for silent senders.
            tokio::select! {
                biased;
                message = heartbeats.next() => match message.map(|message| heartbeat_filter::read(&app, &plans, &message)) {
                    Some(Ok(Some(beat))) => self.record(&Arc::new(beat)),
                    Some(Ok(None)) => {}
                    Some(Err(error)) => tracing::warn!(%error, "a heartbeat could not be decoded"),
                    None => return,
                },
                _ = checks.tick() => {
                    if let Some(detector) = &mut self.detector {
                        detector.check(&plans);
                    }
                }
            }
        }
    }

    fn record(&mut self, beat: &Arc<Heartbeat>) {
        if let Some(detector) = &mut self.detector {
            detector.record(beat);
        }
        for listener in &mut self.listeners {
            listener(beat);
        }
    }
}
