//! Joins a running app with an actor of one's own: anything with `Handler<Delivery>` can serve a stage.

use std::{sync::Arc, time::Duration};

use actix::Recipient;
use kaskade_plans::liveness::BEAT_PERIOD_US;
use tokio::sync::{Semaphore, watch};

use crate::{
    bus::{Bus, BusConfig},
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::dispatcher::Exchange,
    dispatch::subscribe::{self, Seat},
    node::NodeError,
    subjects::{self, App},
    wire::{Beat, Message as _, ReplicaBeat},
};

/// Which stage of which app to serve, and how much at once.
#[derive(Debug, Clone)]
pub struct Place {
    /// The app.
    pub app: String,
    /// The stage, as the plan's wiring names it.
    pub stage: String,
    /// An id for this replica, unique in the app.
    pub replica: String,
    /// Deliveries that may be unanswered at once; beyond that senders are refused.
    pub room: usize,
}

/// An attached actor. Dropping it detaches.
pub struct Attached {
    stop: watch::Sender<bool>,
    room: Arc<Semaphore>,
    all: usize,
    bus: Bus,
    exchange: Exchange,
}

/// Serves a stage with the actor behind `mailbox`. Call it inside an actix system; it returns once requests arrive.
///
/// The actor answers a delivery by [`Delivery::answer`], which leaves it to the plan whether the answer is confident
/// enough, or by [`Delivery::reply`], which is final.
///
/// # Errors
/// [`NodeError`]: the broker or a name.
pub async fn attach(
    bus: BusConfig,
    place: &Place,
    mailbox: Recipient<Delivery>,
) -> Result<Attached, NodeError> {
    let app = App::new(&place.app)?;
    let bus = Bus::connect(bus).await?;
    let exchange = Exchange::new(&bus, app.clone(), Clock::start());
    let room = Arc::new(Semaphore::new(place.room));
    let (stop, stopped) = watch::channel(false);
    let subjects = [
        (app.stage(&place.stage)?, Some(subjects::STAGE_GROUP.to_owned())),
        (app.replica(&place.replica)?, None),
    ];
    let seat = Seat {
        replica: place.replica.clone(),
        mailbox,
        room: Arc::clone(&room),
    };
    for (subject, group) in subjects {
        subscribe::bind(&bus, &exchange, subject, group, seat.clone(), stopped.clone()).await?;
    }
    bus.barrier().await?;
    actix::spawn(beat(exchange.clone(), place.clone(), Arc::clone(&room), stopped));
    Ok(Attached {
        stop,
        room,
        all: place.room,
        bus,
        exchange,
    })
}

/// Beats until it is stopped; the last beat names nobody, which is how one leaves in good order.
async fn beat(exchange: Exchange, place: Place, room: Arc<Semaphore>, mut stopped: watch::Receiver<bool>) {
    let Ok(subject) = exchange.app().beat(&place.replica) else {
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
        let in_flight =
            u32::try_from(place.room.saturating_sub(room.available_permits())).unwrap_or(u32::MAX);
        let replica = ReplicaBeat {
            id: place.replica.clone(),
            stage: place.stage.clone(),
            in_flight,
            ..ReplicaBeat::default()
        };
        let beat = Beat {
            actor: place.replica.clone(),
            kind: "custom".to_owned(),
            sequence,
            replicas: if leaving { Vec::new() } else { vec![replica] },
            ..Beat::default()
        };
        if let Ok(payload) = beat.encode() {
            exchange.publish(subject.clone(), None, None, payload);
        }
        if leaving {
            return;
        }
    }
}

impl Attached {
    /// Takes nothing new, and waits until what was taken is answered, at most `grace`.
    pub async fn detach(self, grace: Duration) {
        self.stop.send_replace(true);
        let _ = tokio::time::timeout(
            grace,
            self.room
                .acquire_many(u32::try_from(self.all).unwrap_or(u32::MAX)),
        )
        .await;
        self.exchange.flush().await;
        self.bus.close().await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
