//! Connects a custom actor to a running app: any actor with `Handler<Delivery>` can serve a stage.

use std::{sync::Arc, time::Duration};

use crate::actor::{self, Recipient};
use kaskade_policy::liveness::BEAT_PERIOD_US;
use tokio::sync::{Semaphore, watch};

use crate::{
    bus::{Bus, BusConfig},
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::dispatcher::Dispatcher,
    dispatch::subscribe::{self, Binding},
    node::NodeError,
    subjects::{self, App},
    wire::{Beat, Message as _, ReplicaBeat},
};

/// The stage to serve, and the limit of concurrent deliveries.
#[derive(Debug, Clone)]
pub struct AttachConfig {
    /// The app.
    pub app: String,
    /// The stage, as the plan's wiring names it.
    pub stage: String,
    /// An id for this replica, unique in the app.
    pub replica: String,
    /// Largest number of unanswered deliveries; beyond it senders are refused.
    pub max_in_flight: usize,
}

/// An attached actor. Dropping it detaches the actor.
pub struct Attached {
    stop: watch::Sender<bool>,
    permits: Arc<Semaphore>,
    capacity: usize,
    bus: Bus,
    dispatcher: Dispatcher,
}

/// Serves a stage with the actor behind `mailbox`. Call it inside an actix system; it returns once the subscriptions
/// are active.
///
/// The actor answers a delivery by [`Delivery::answer`], which lets the plan judge the confidence, or by
/// [`Delivery::reply`], which is final.
///
/// # Errors
/// [`NodeError`]: the broker or an invalid name.
pub async fn attach(
    bus: BusConfig,
    config: &AttachConfig,
    mailbox: Recipient<Delivery>,
) -> Result<Attached, NodeError> {
    let app = App::new(&config.app)?;
    let bus = Bus::connect(bus).await?;
    let dispatcher = Dispatcher::new(&bus, app.clone(), Clock::start());
    let permits = Arc::new(Semaphore::new(config.max_in_flight));
    let (stop, stopped) = watch::channel(false);
    let subjects = [
        (app.stage(&config.stage)?, Some(subjects::STAGE_GROUP.to_owned())),
        (app.replica(&config.replica)?, None),
    ];
    let binding = Binding {
        replica: config.replica.clone(),
        mailbox,
        permits: Arc::clone(&permits),
    };
    for (subject, group) in subjects {
        subscribe::bind(
            &bus,
            &dispatcher,
            subject,
            group,
            binding.clone(),
            stopped.clone(),
        )
        .await?;
    }
    bus.barrier().await?;
    actor::spawn(beat(
        dispatcher.clone(),
        config.clone(),
        Arc::clone(&permits),
        stopped,
    ));
    Ok(Attached {
        stop,
        permits,
        capacity: config.max_in_flight,
        bus,
        dispatcher,
    })
}

/// Sends heartbeats until it is stopped. The last heartbeat lists no replica, which announces a leave in good order.
async fn beat(
    dispatcher: Dispatcher,
    config: AttachConfig,
    permits: Arc<Semaphore>,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(subject) = dispatcher.app().beat(&config.replica) else {
        return;
    };
    let mut period = tokio::time::interval(Duration::from_micros(BEAT_PERIOD_US));
    let mut sequence = 0;
    loop {
        let leaving = tokio::select! {
            _ = period.tick() => false,
            _ = stopped.wait_for(|stop| *stop) => true,
        };
        sequence += 1;
        let in_flight = u32::try_from(config.max_in_flight.saturating_sub(permits.available_permits()))
            .unwrap_or(u32::MAX);
        let replica = ReplicaBeat {
            id: config.replica.clone(),
            stage: config.stage.clone(),
            in_flight,
            ..ReplicaBeat::default()
        };
        let beat = Beat {
            actor: config.replica.clone(),
            kind: "custom".to_owned(),
            sequence,
            replicas: if leaving { Vec::new() } else { vec![replica] },
            ..Beat::default()
        };
        if let Ok(payload) = beat.encode() {
            dispatcher.publish(subject.clone(), None, None, payload);
        }
        if leaving {
            return;
        }
    }
}

impl Attached {
    /// Stops taking deliveries, and waits at most `grace` until the taken ones are answered.
    pub async fn detach(self, grace: Duration) {
        self.stop.send_replace(true);
        let _ = tokio::time::timeout(
            grace,
            self.permits
                .acquire_many(u32::try_from(self.capacity).unwrap_or(u32::MAX)),
        )
        .await;
        self.dispatcher.flush().await;
        self.bus.close().await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
