//! Pulls durable requests from the stream to the ingress, limited by free permits and bytes. Other requests wait in the
//! stream.

use std::sync::Arc;
use std::time::Duration;

use crate::actor::{self, Recipient};
use async_nats::jetstream::consumer::PullConsumer;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::config::{DurableConfig, DurableError};
use super::streams::Streams;
use super::submission::{Submission, Submitted};
use crate::bus::{Bus, Link};
use crate::dispatch::dispatcher::Dispatcher;
use crate::error::{Code, Fault};
use crate::ingress::reservation::RequestReservation;
use crate::metrics::Metrics;
use crate::subjects;

/// Largest number of requests per pull; single pulls would cost a round trip each.
const BATCH: usize = 64;

/// Divisor: this part of the bytes of all requests in flight is reserved before pulling. The intake holds the
/// reservation even while the stream is empty, and `infer` requests need the rest.
const RESERVED_PART: usize = 4;

/// Expiry of a pull request. A pull lost with a broken connection is repeated after this time, or earlier once the
/// connection reports that it is up again.
const PULL_EXPIRES: Duration = Duration::from_secs(1);

/// Pause after a JetStream error.
const PAUSE: Duration = Duration::from_millis(500);

/// Handle of the running intake of durable requests.
pub(crate) struct DurableIntake {
    /// Permits for durable requests in flight.
    pub(crate) permits: Arc<Semaphore>,
    /// The total number of permits.
    pub(crate) capacity: usize,
}

/// Starts the intake of durable requests. Without a configuration, or on an embedded broker without JetStream,
/// submissions are refused with the reason. Requests in flight hold `bytes`. The intake stops when `stop` turns true.
///
/// # Errors
/// [`DurableError`] if a nats-server has no JetStream or refuses to create the streams.
pub(crate) async fn open(
    bus: &Bus,
    dispatcher: &Dispatcher,
    ingress: Recipient<Submitted>,
    config: Option<DurableConfig>,
    metrics: Arc<Metrics>,
    bytes: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
) -> Result<Option<DurableIntake>, DurableError> {
    let Some(config) = config else {
        if Streams::has_stream(bus, dispatcher.app()).await == Some(true) {
            warn_of_stream();
            return Ok(None);
        }
        let message = "this app accepts no durable requests; add a table `[durable]` to its file";
        refuse_all(bus, dispatcher, metrics, Fault::new(Code::NotDurable, message)).await?;
        return Ok(None);
    };
    if !bus.has_jetstream().await {
        let url = bus.url().to_owned();
        let error = DurableError::NeedsJetStream { url };
        if bus.embedded().is_none() {
            return Err(error);
        }
        tracing::warn!(%error, "durable requests are refused");
        refuse_all(bus, dispatcher, metrics, Fault::from(&error)).await?;
        return Ok(None);
    }
    let capacity = config.in_flight;
    let streams = Arc::new(Streams::new(bus, config, dispatcher.clone(), metrics));
    let consumer = streams.consumer().await?;
    let permits = Arc::new(Semaphore::new(capacity));
    let notices = send_in_progress(Arc::downgrade(&streams));
    let supervisor = dispatcher.supervisor();
    supervisor.spawn_finite("progress of durable requests", notices);
    let reservation = Reservation::new(bytes.available_permits(), bus.max_payload());
    let pump = Pump {
        streams,
        ingress,
        permits: Arc::clone(&permits),
        bytes,
        reservation,
    };
    supervisor.spawn("durable requests", pump.run(consumer, stop));
    Ok(Some(DurableIntake { permits, capacity }))
}

/// Warns that this ingress does not take the requests in the stream. The stream accepts requests regardless, and keeps
/// them until an ingress with `[durable]` takes them.
fn warn_of_stream() {
    tracing::warn!(
        "this app has a stream of durable requests, but this ingress is not configured to take them"
    );
}

/// Answers every submission with `fault` until a stream that accepts them exists, which another process may create.
/// While JetStream does not report whether the stream exists, submissions are not answered.
async fn refuse_all(
    bus: &Bus,
    dispatcher: &Dispatcher,
    metrics: Arc<Metrics>,
    fault: Fault,
) -> Result<(), DurableError> {
    let group = Some(subjects::INGRESS_GROUP.to_owned());
    let mut submitted = bus.subscribe(dispatcher.app().submit(), group).await?;
    let (bus, dispatcher) = (bus.clone(), dispatcher.clone());
    let supervisor = dispatcher.supervisor().clone();
    supervisor.spawn_finite("refusal of durable requests", async move {
        while let Some(message) = submitted.next().await {
            match Streams::has_stream(&bus, dispatcher.app()).await {
                Some(true) => return warn_of_stream(),
                Some(false) => {
                    metrics.fault(&fault);
                    dispatcher.refuse_message(&message, &fault);
                }
                None => tracing::warn!("whether this app has a stream of durable requests is unknown"),
            }
        }
    });
    Ok(())
}

async fn send_in_progress(streams: std::sync::Weak<Streams>) {
    while let Some(every) = streams.upgrade().map(|streams| streams.in_progress_period()) {
        tokio::time::sleep(every).await;
        if let Some(streams) = streams.upgrade() {
            streams.send_in_progress();
        }
    }
}

/// Waits until the connection is lost. Drops the value of `wait_for`, which holds a lock that the connection's task
/// needs.
async fn broken(link: &mut watch::Receiver<Link>) {
    drop(link.wait_for(|link| *link != Link::Up).await);
}

struct Pump {
    streams: Arc<Streams>,
    ingress: Recipient<Submitted>,
    permits: Arc<Semaphore>,
    /// Permits for the bytes of all requests of the ingress.
    bytes: Arc<Semaphore>,
    reservation: Reservation,
}

/// Room reserved before requests are pulled, since their sizes are known only afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reservation {
    /// Bytes reserved per request: the largest message, if the reserved part is that large. A larger request is charged
    /// for the difference after the pull.
    each: u32,
    /// Largest number of requests per pull.
    max_requests: usize,
}

impl Reservation {
    /// Divides the reserved part of `total` bytes into requests of at most `max_payload` bytes.
    fn new(total: usize, max_payload: usize) -> Self {
        let part = total / RESERVED_PART;
        let each = max_payload.min(part);
        Self {
            each: u32::try_from(each).unwrap_or(u32::MAX),
            max_requests: (part / each.max(1)).clamp(1, BATCH),
        }
    }
}

/// Room for one request: a permit and reserved bytes.
struct Room {
    permit: OwnedSemaphorePermit,
    bytes: OwnedSemaphorePermit,
}

impl Pump {
    async fn run(self, mut consumer: PullConsumer, mut stop: watch::Receiver<bool>) {
        loop {
            let room = tokio::select! {
                // Check for room first: there nearly always is some.
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                room = self.room() => room,
            };
            if let Err(error) = self.take_up_to(room, &consumer).await {
                tracing::warn!(%error, "pulling durable requests failed");
                tokio::time::sleep(PAUSE).await;
                // The stream or the consumer may be gone, for instance after a server lost its files.
                match self.streams.consumer().await {
                    Ok(found) => consumer = found,
                    Err(error) => {
                        tracing::warn!(%error, "opening the stream of durable requests failed; retrying");
                    }
                }
            }
        }
    }

    /// Acquires room for as many requests as fit into one pull; waits for the first.
    async fn room(&self) -> Vec<Room> {
        let mut room = Vec::new();
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let bytes = Arc::clone(&self.bytes)
            .acquire_many_owned(self.reservation.each)
            .await;
        if let (Ok(permit), Ok(bytes)) = (permit, bytes) {
            room.push(Room { permit, bytes });
        }
        while room.len() < self.reservation.max_requests {
            let permit = Arc::clone(&self.permits).try_acquire_owned();
            let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(self.reservation.each);
            let (Ok(permit), Ok(bytes)) = (permit, bytes) else {
                break;
            };
            room.push(Room { permit, bytes });
        }
        room
    }

    /// Delivers messages until all room is used, the pull expires, or the connection was lost and restored: the pull
    /// was lost with the old connection. Pulled requests are delivered even after `stop`; otherwise they would wait for
    /// `ack_wait`.
    async fn take_up_to(&self, mut room: Vec<Room>, consumer: &PullConsumer) -> Result<(), String> {
        let asked = consumer.batch().max_messages(room.len()).expires(PULL_EXPIRES);
        let mut delivered = asked.messages().await.map_err(|error| error.to_string())?;
        let mut link = self.streams.bus.connection().link();
        loop {
            let next = tokio::select! {
                next = delivered.next() => next,
                () = broken(&mut link) => return self.until_back().await,
            };
            let Some(message) = next else { return Ok(()) };
            let message = message.map_err(|error| error.to_string())?;
            let Some(room) = room.pop() else {
                return Ok(());
            };
            self.take(&message, room);
        }
    }

    /// Waits until the connection is up again.
    async fn until_back(&self) -> Result<(), String> {
        let mut link = self.streams.bus.connection().link();
        let back = link.wait_for(|link| *link != Link::Down).await;
        match back.map(|link| *link) {
            Ok(Link::Up) => Ok(()),
            _ => Err("the connection is closed".to_owned()),
        }
    }

    fn take(&self, message: &async_nats::jetstream::Message, room: Room) {
        self.streams.metrics.arrived();
        let held = RequestReservation::reserved(room.permit, &self.bytes, room.bytes, message.payload.len());
        let Some(mut submission) = Submission::of(&self.streams, message, held) else {
            return;
        };
        let (ingress, message) = (self.ingress.clone(), message.message.clone());
        if !submission.is_redelivery() {
            return ingress.do_send(Submitted { message, submission });
        }
        actor::spawn(async move {
            if !submission.ack_if_settled().await {
                ingress.do_send(Submitted { message, submission });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn at_most_a_quarter_of_the_bytes_is_reserved() {
        for (total, max_payload, each, max_requests) in [
            (1024 * MIB, MIB, MIB, BATCH),
            (64 * MIB, MIB, MIB, 16),
            (1024 * MIB, 64 * MIB, 64 * MIB, 4),
            (4 * MIB, MIB, MIB, 1),
            (2 * MIB, MIB, MIB / 2, 1),
            (0, MIB, 0, 1),
        ] {
            let each = u32::try_from(each).unwrap();
            let expected = Reservation { each, max_requests };
            assert_eq!(Reservation::new(total, max_payload), expected, "{total}");
        }
    }
}
