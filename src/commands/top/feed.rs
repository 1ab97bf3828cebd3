//! What the processes of an app publish at its broker.

use std::time::Duration;

use async_nats::Message;
use async_nats::service::Stats;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use kaskade_actors::bus::Bus;
use kaskade_actors::metrics::Snapshot;
use kaskade_actors::plan::store;
use kaskade_actors::wire::{
    CertificateNotice, CertificateReport, EnergyReport, GearShift, Heartbeat, IngressState, LoadDriftNotice,
    Message as _, ShiftReport,
};
use kaskade_actors::{App, Code, Fault, ids, subjects};
use kaskade_app::serving::overview::Counts;
use kaskade_policy::plan::Plan;

use crate::app_address::Target;

/// One message, decoded.
pub(super) enum Event {
    Beat(Heartbeat),
    Energy(EnergyReport),
    Gear(GearShift),
    Shifted(ShiftReport),
    LoadDrift(LoadDriftNotice),
    Certificates(CertificateReport),
    Finding(CertificateNotice),
    Ingress(IngressState),
    Stats(IngressStats),
    Plan(u64, Box<Plan>),
    /// It cannot be decoded, such as that of another version.
    Nothing,
}

/// The statistics of an ingress.
pub(super) struct IngressStats {
    pub(super) ingress: String,
    pub(super) counts: Counts,
    /// Errors since its start, by code.
    pub(super) faults: Vec<(String, u64)>,
    pub(super) last_error: Option<String>,
}

/// Decodes a message; `None` if it cannot be decoded.
type Read = fn(&Message) -> Option<Event>;

/// The subscriptions to an app.
pub(super) struct Feed {
    bus: Bus,
    news: SelectAll<BoxStream<'static, Event>>,
    question: async_nats::Subject,
    inbox: String,
    /// Resolves once the server refuses the heartbeats.
    refused: BoxFuture<'static, ()>,
}

impl Feed {
    /// Subscribes to everything that an app tells.
    ///
    /// # Errors
    /// When the broker cannot be reached.
    pub(super) async fn subscribe(target: &Target) -> anyhow::Result<Self> {
        let names = App::new(target.name())?;
        let bus = Bus::connect(target.client("top")).await?;
        let inbox = bus.client().new_inbox();
        let [_, question, _] = subjects::discovery("STATS", names.name(), &ids::unique_token())?;
        let mut news = SelectAll::new();
        let refused = bus.connection().refused_subscription(&names.beats()).boxed();
        let read: [(async_nats::Subject, Read); 9] = [
            (names.beats(), |message| {
                Some(Event::Beat(Heartbeat::decode(&message.payload).ok()?))
            }),
            (names.event(subjects::event::ENERGY)?, |message| {
                Some(Event::Energy(EnergyReport::decode(&message.payload).ok()?))
            }),
            (names.event(subjects::event::GEAR)?, |message| {
                Some(Event::Shifted(ShiftReport::decode(&message.payload).ok()?))
            }),
            (names.event(subjects::event::LOAD_DRIFT)?, |message| {
                Some(Event::LoadDrift(LoadDriftNotice::decode(&message.payload).ok()?))
            }),
            (names.event(subjects::event::CERTIFICATE_STATUS)?, |message| {
                Some(Event::Certificates(
                    CertificateReport::decode(&message.payload).ok()?,
                ))
            }),
            (names.event(subjects::event::CERTIFICATE)?, |message| {
                Some(Event::Finding(CertificateNotice::decode(&message.payload).ok()?))
            }),
            (names.gear(), |message| {
                Some(Event::Gear(GearShift::decode(&message.payload).ok()?))
            }),
            (names.ingresses(), |message| {
                Some(Event::Ingress(IngressState::decode(&message.payload).ok()?))
            }),
            (inbox.as_str().into(), |message| {
                Some(Event::Stats(stats(&message.payload)?))
            }),
        ];
        for (subject, read) in read {
            let messages = bus.subscribe(subject, None).await?;
            let event = messages.map(move |message| read(&message).unwrap_or(Event::Nothing));
            news.push(event.boxed());
        }
        news.push(plans(bus.clone(), names).boxed());
        Ok(Self {
            bus,
            news,
            question,
            inbox,
            refused,
        })
    }

    /// The next message; `None` once the connection is closed.
    ///
    /// # Errors
    /// [`Code::NotPermitted`] if the user may not subscribe to the heartbeats.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Fault> {
        tokio::select! {
            biased;
            () = &mut self.refused => Err(Fault::new(
                Code::NotPermitted,
                "this user may not subscribe to the heartbeats of the app; connect as the observer (`--nkey auth/observer/nkey`)",
            )),
            event = self.news.next() => Ok(event),
        }
    }

    /// Requests the statistics of every ingress.
    ///
    /// # Errors
    /// When the question cannot be sent.
    pub(super) async fn ask(&self) -> anyhow::Result<()> {
        let reply = Some(self.inbox.as_str().into());
        self.bus
            .publish(self.question.clone(), reply, None, "".into())
            .await?;
        Ok(())
    }

    pub(super) async fn close(self) {
        drop(self.news);
        self.bus.close().await;
    }
}

/// Interval at which a process with an embedded broker is asked for its plan.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// The plans of the app's store. Without a store that can be read, such as for want of a permission, the wiring stays unknown.
fn plans(bus: Bus, app: App) -> impl futures::Stream<Item = Event> + Send {
    let opened = async move {
        match store::find(&bus, &app).await {
            Ok(Some(store)) => Ok(match store.watch().await {
                Ok(plans) => stored(plans).boxed(),
                Err(_) => futures::stream::empty().boxed(),
            }),
            // The broker is embedded in a process of the app, which tells its plan.
            Err(store::StoreError::NeedsJetStream { .. }) => Ok(polled_plans(bus, app).boxed()),
            other => other.map(|_| futures::stream::empty().boxed()),
        }
    };
    // A failure ends the stream: `errors` shows what requests get, and this is none of theirs.
    futures::stream::once(opened)
        .filter_map(async |plans: Result<BoxStream<'static, Event>, store::StoreError>| plans.ok())
        .flatten()
}

/// The plans that a store is written.
fn stored(plans: store::Plans) -> impl futures::Stream<Item = Event> + Send {
    futures::stream::unfold(plans, async |mut plans| {
        let event = match plans.next().await? {
            Ok(stored) => Event::Plan(stored.epoch, Box::new(stored.plan)),
            Err(_) => Event::Nothing,
        };
        Some((event, plans))
    })
}

/// The plans that a process with an embedded broker tells, each once.
fn polled_plans(bus: Bus, app: App) -> impl futures::Stream<Item = Event> + Send {
    futures::stream::unfold((bus, app, 0), async |(bus, app, known)| {
        loop {
            // A plan of another version, or a process that does not answer: the wiring stays what it was.
            match store::ask(&bus, &app).await {
                Ok(Some(stored)) if stored.epoch != known => {
                    let epoch = stored.epoch;
                    return Some((Event::Plan(epoch, Box::new(stored.plan)), (bus, app, epoch)));
                }
                _ => tokio::time::sleep(ASK_AGAIN).await,
            }
        }
    })
}

/// Reads the statistics of an ingress as a NATS service.
fn stats(payload: &[u8]) -> Option<IngressStats> {
    let stats: Stats = serde_json::from_slice(payload).ok()?;
    let endpoint = stats.endpoints.into_iter().next()?;
    let reading: Snapshot = serde_json::from_value(endpoint.data?).ok()?;
    let counts = Counts {
        arrived: reading.arrived,
        answered: reading.answered,
        errors: reading.faults.values().sum(),
        retried: reading.retried,
        processing: endpoint.processing_time,
        latencies: reading.latencies,
    };
    Some(IngressStats {
        ingress: stats.id,
        counts,
        faults: reading.faults.into_iter().collect(),
        last_error: endpoint.last_error.map(|error| error.status),
    })
}
