//! Subscriptions of an ingress: requests, results and cancellations become messages to the ingress actor.

use std::sync::Arc;

use crate::actor::Addr;
use async_nats::{Message, StatusCode};
use futures::StreamExt;
use kaskade_policy::gather::Branch;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::in_flight::{Cancel, Client, Inbound, Ingress, IngressConfig, Reconnected, To, Undeliverable};
use super::reply;
use crate::{
    bus::{Bus, BusError, Link, Subscription},
    dispatch::dispatcher::{Dispatcher, Finished},
    dispatch::subscribe,
    error::{Code, Fault},
    metrics::Metrics,
    subjects,
    wire::headers,
    wire::{Done, DoneResult, Message as _, chunks::Assembler},
};

/// The running intake of an ingress.
pub struct Intake {
    /// Permits for requests in flight; all free means that nothing is in flight.
    pub permits: Arc<Semaphore>,
    /// The task that takes requests. Once it has ended, no further request is taken.
    pub taking: JoinHandle<()>,
}

/// Subscribes to requests in the app's queue group and to results on `done.<ingress>.*`. The first subscription ends
/// when `stop` turns true; the second stays, for the requests still in flight.
///
/// # Errors
/// [`BusError`] if a subscription fails.
pub async fn open(
    bus: &Bus,
    dispatcher: &Dispatcher,
    ingress: &Addr<Ingress>,
    id: &str,
    config: &IngressConfig,
    metrics: Arc<Metrics>,
    stop: watch::Receiver<bool>,
) -> Result<Intake, BusError> {
    let (app, supervisor) = (dispatcher.app(), dispatcher.supervisor());
    let answers = bus.subscribe(app.done_all(id)?, None).await?;
    let wanted_us = config.max_budget.as_micros() as u64;
    let pump = pump_answers(answers, dispatcher.clone(), ingress.clone(), wanted_us);
    supervisor.spawn("subscription to results", pump);
    let permits = Arc::new(Semaphore::new(config.max_in_flight));
    let group = Some(subjects::INGRESS_GROUP.to_owned());
    let requests = Subscription::open(bus, app.infer(), group).await?;
    let pump = pump_requests(
        requests,
        ingress.clone(),
        dispatcher.clone(),
        metrics,
        Arc::clone(&permits),
        stop,
    );
    let taking = supervisor.spawn("subscription to requests", pump);
    let cancelled = bus.subscribe(app.cancel(), None).await?;
    let pump = pump_cancellations(cancelled, ingress.clone());
    supervisor.spawn("subscription to cancellations", pump);
    let watch = watch_link(bus.connection().link(), ingress.clone());
    supervisor.spawn("watch of the connection", watch);
    bus.barrier().await?;
    Ok(Intake { permits, taking })
}

/// Core NATS stores nothing: messages in transit when a connection broke are lost without notice.
async fn watch_link(mut link: watch::Receiver<Link>, ingress: Addr<Ingress>) {
    let mut down = false;
    loop {
        let now = *link.borrow_and_update();
        match now {
            Link::Down => down = true,
            Link::Up if down => {
                down = false;
                ingress.do_send(Reconnected);
            }
            Link::Up => {}
            Link::Closed => return,
        }
        if link.changed().await.is_err() {
            return;
        }
    }
}

async fn pump_requests(
    mut requests: Subscription,
    ingress: Addr<Ingress>,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    permits: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    let take = |message: Message| {
        metrics.arrived();
        match Arc::clone(&permits).try_acquire_owned() {
            // An actor that has ended swallows its messages.
            _ if !ingress.connected() => refuse(&dispatcher, &metrics, &message, &ended()),
            Ok(permit) => ingress.do_send(Inbound { message, permit }),
            Err(_) => refuse(&dispatcher, &metrics, &message, &full()),
        }
    };
    loop {
        tokio::select! {
            message = requests.next() => match message {
                Some(message) => take(message),
                None => return,
            },
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    requests.finish(take).await;
}

/// Refuses a request immediately.
fn refuse(dispatcher: &Dispatcher, metrics: &Metrics, message: &Message, fault: &Fault) {
    let client = Client::of(message, To::inbox(message, None));
    reply::refuse(dispatcher, metrics, client, fault);
}

fn full() -> Fault {
    let reason = "the ingress is at its limit of requests in flight; try again later";
    Fault::new(Code::Overloaded, reason)
}

fn ended() -> Fault {
    let reason = "this ingress has failed and ends; send the request again";
    Fault::new(Code::Draining, reason)
}

/// Every ingress receives every cancellation; only the owner of the request acts on it.
async fn pump_cancellations(mut cancelled: async_nats::Subscriber, ingress: Addr<Ingress>) {
    while let Some(message) = cancelled.next().await {
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers::request_id(headers).ok().flatten());
        if let Some(id) = id {
            ingress.do_send(Cancel { id: id.to_owned() });
        } else {
            tracing::warn!("a cancellation lacks the header Kaskade-Request-Id");
        }
    }
}

/// `wanted_us` is the longest time that a partial message is kept, microseconds.
async fn pump_answers(
    mut answers: async_nats::Subscriber,
    dispatcher: Dispatcher,
    ingress: Addr<Ingress>,
    wanted_us: u64,
) {
    let mut assembler = Assembler::default();
    while let Some(message) = answers.next().await {
        let Some(id) = dispatcher.app().parse_done(&message.subject) else {
            continue;
        };
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            ingress.do_send(Undeliverable { id });
            continue;
        }
        let now = dispatcher.clock().now();
        let done = match subscribe::whole(&mut assembler, &message, now, now.saturating_add(wanted_us)) {
            Ok(None) => continue,
            Ok(Some(payload)) => Done::decode(&payload).map_err(|error| {
                let reason = format!("the stage's result could not be decoded: {error}");
                Fault::new(Code::BadOutput, reason)
            }),
            Err(unreadable) => Err(unreadable.fault),
        };
        let done = done.unwrap_or_else(|fault| Done {
            id,
            attempt: 0,
            branch: Branch::ROOT,
            stage: String::new(),
            replica: String::new(),
            hops: Vec::new(),
            result: DoneResult::Fault(fault),
        });
        // The subject identifies the request: a worker may omit the id, or get it wrong.
        ingress.do_send(Finished(Done { id, ..done }));
    }
}
