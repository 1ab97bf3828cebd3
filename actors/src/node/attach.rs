//! Connects a custom actor to a running app: any actor with `Handler<Delivery>` can serve a stage.
//!
//! For asynchronous code without actors, use [`crate::node::stage`].

use std::{sync::Arc, time::Duration};

use crate::actor::{self, Recipient};
use kaskade_policy::liveness::HEARTBEAT_PERIOD_US;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    bus::{Bus, BusConfig},
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::dispatcher::Dispatcher,
    dispatch::subscribe::{self, Binding},
    ids,
    node::NodeError,
    node::drain::Senders,
    stage::heartbeat_sequence::HeartbeatSequence,
    subjects::{self, App},
    wire::{Heartbeat, Message as _, ReplicaBeat},
};

/// The stage to serve, and the limits of its queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttachConfig {
    /// Name of the app.
    pub app: String,
    /// Name of the stage in the plan's wiring.
    pub stage: String,
    /// Id of this replica, unique in the app.
    pub replica: String,
    /// Largest number of unanswered deliveries; above it senders are refused.
    pub max_in_flight: usize,
    /// Largest number of deliveries that [`crate::node::stage::attach_stage`] runs concurrently; others in flight wait.
    /// `None` runs all of them. Attached actors limit themselves.
    pub concurrency: Option<usize>,
}

impl AttachConfig {
    /// Creates the configuration of a replica that serves `stage` of `app`, with at most 64 unanswered deliveries.
    pub fn new(app: impl Into<String>, stage: impl Into<String>, replica: impl Into<String>) -> Self {
        Self {
            app: app.into(),
            stage: stage.into(),
            replica: replica.into(),
            max_in_flight: 64,
            concurrency: None,
        }
    }

    /// Sets the largest number of unanswered deliveries, at least one; above it senders are refused.
    #[must_use]
    pub fn max_in_flight(mut self, deliveries: usize) -> Self {
        self.max_in_flight = deliveries.max(1);
        self
    }

    /// Sets the largest number of deliveries that [`crate::node::stage::attach_stage`] runs concurrently, at least one; others wait.
    #[must_use]
    pub fn concurrency(mut self, deliveries: usize) -> Self {
        self.concurrency = Some(deliveries.max(1));
        self
    }
}

/// An attached actor. Dropping it detaches the actor.
pub struct Attached {
    replica: String,
    stop: watch::Sender<bool>,
    presence: watch::Sender<Presence>,
    permits: Arc<Semaphore>,
    capacity: usize,
    bus: Bus,
    dispatcher: Dispatcher,
    beat: JoinHandle<()>,
    subscriptions: Vec<JoinHandle<()>>,
}

/// Serves a stage with the actor behind `mailbox`, and returns once the subscriptions are active. Call it inside an
/// actix system.
///
/// The actor answers a delivery with [`Delivery::answer`], which applies the plan's exit to the confidence, or with
/// [`Delivery::reply`], which is final.
///
/// # Errors
/// [`NodeError`] if the broker fails or a name is invalid.
pub async fn attach(
    bus: BusConfig,
    config: &AttachConfig,
    mailbox: Recipient<Delivery>,
) -> Result<Attached, NodeError> {
    let app = App::new(&config.app)?;
    let bus = Bus::connect_with_control(bus).await?;
    let dispatcher = Dispatcher::new(&bus, app.clone(), Clock::start());
    let permits = Arc::new(Semaphore::new(config.max_in_flight));
    let (stop, stopped) = watch::channel(false);
    let (presence, present) = watch::channel(Presence::Serving);
    let subjects = [
        (app.stage(&config.stage)?, Some(subjects::STAGE_GROUP.to_owned())),
        (app.replica(&config.replica)?, None),
    ];
    let serving = mailbox.clone();
    let binding = Binding {
        replica: config.replica.clone(),
        mailbox,
        permits: Arc::clone(&permits),
        check: None,
    };
    let mut subscriptions = Vec::new();
    for (subject, group) in subjects {
        let subscription = subscribe::bind(
            &bus,
            &dispatcher,
            subject,
            group,
            binding.clone(),
            stopped.clone(),
        );
        subscriptions.push(subscription.await?);
    }
    bus.barrier().await?;
    let beat = actor::spawn(beat(
        bus.clone(),
        dispatcher.clone(),
        config.clone(),
        (Arc::clone(&permits), serving),
        present,
    ));
    Ok(Attached {
        replica: config.replica.clone(),
        stop,
        presence,
        permits,
        capacity: config.max_in_flight,
        bus,
        dispatcher,
        beat,
        subscriptions,
    })
}

/// Presence of an attached replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Serving,
    Leaving,
    Gone,
}

/// Sends heartbeats periodically, and immediately when the presence changes. The last heartbeat, also after the actor
/// has ended, lists no replica: the replica is gone.
async fn beat(
    bus: Bus,
    dispatcher: Dispatcher,
    config: AttachConfig,
    (permits, mailbox): (Arc<Semaphore>, Recipient<Delivery>),
    mut presence: watch::Receiver<Presence>,
) {
    let Ok(subject) = dispatcher.app().beat(&config.replica) else {
        return;
    };
    let mut period = tokio::time::interval(Duration::from_micros(HEARTBEAT_PERIOD_US));
    let (mut sequence, instance) = (HeartbeatSequence::default(), ids::unique());
    loop {
        let detached = tokio::select! {
            _ = period.tick() => false,
            changed = presence.changed() => changed.is_err(),
        };
        let now = if detached || !mailbox.connected() {
            Presence::Gone
        } else {
            *presence.borrow()
        };
        let in_flight = u32::try_from(config.max_in_flight.saturating_sub(permits.available_permits()))
            .unwrap_or(u32::MAX);
        let replica = ReplicaBeat {
            id: config.replica.clone(),
            stage: config.stage.clone(),
            in_flight,
            ..ReplicaBeat::default()
        };
        // A heartbeat states that the connection on which requests arrive is up, not only its own.
        let is_sent = bus.connection().is_up();
        let beat = Heartbeat {
            actor: config.replica.clone(),
            kind: "custom".to_owned(),
            sequence: sequence.next(bus.connection().counts().disconnects, is_sent),
            instance,
            leaving: now != Presence::Serving,
            replicas: if now == Presence::Gone {
                Vec::new()
            } else {
                vec![replica]
            },
            ..Heartbeat::default()
        };
        if let (true, Ok(payload)) = (is_sent, beat.encode()) {
            dispatcher.publish_control(subject.clone(), payload);
        }
        if now == Presence::Gone {
            return;
        }
    }
}

impl Attached {
    /// Announces the departure, stops accepting deliveries once no ingress sends any, and waits at most `grace` until
    /// the accepted ones are answered.
    pub async fn detach(mut self, grace: Duration) {
        let end = Instant::now() + grace;
        let senders = Senders::listen(&self.bus, self.dispatcher.app()).await;
        self.presence.send_replace(Presence::Leaving);
        if let Ok(senders) = senders {
            senders.heed(std::slice::from_ref(&self.replica), end).await;
        }
        self.stop.send_replace(true);
        let answered = async {
            // An ending subscription still delivers what the server has sent.
            for subscription in &mut self.subscriptions {
                let _ = subscription.await;
            }
            let all = u32::try_from(self.capacity).unwrap_or(u32::MAX);
            let _ = self.permits.acquire_many(all).await;
        };
        if tokio::time::timeout_at(end, answered).await.is_err() {
            tracing::warn!("a custom stage detached with unanswered requests");
        }
        self.presence.send_replace(Presence::Gone);
        let _ = (&mut self.beat).await;
        self.dispatcher.flush().await;
        self.bus.close().await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
