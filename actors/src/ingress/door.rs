//! The doors: how requests and answers reach the ingress, and what is read of a request before it is accepted.

use std::sync::Arc;

use actix::Addr;
use async_nats::{Message, StatusCode};
use futures::StreamExt;
use kaskade_models::Tensor;
use tokio::sync::{Semaphore, watch};

use super::{Client, Inbound, Ingress, IngressConfig, Undeliverable};
use crate::{
    bus::{Bus, BusError},
    exchange::{Exchange, Finished},
    fault::{Code, Fault},
    headers::{self, Trace},
    subjects,
    wire::{self, ContentType, Done, DoneResult},
};

/// What a request says of itself, read and checked.
pub(super) struct Read {
    pub(super) client: Client,
    pub(super) inputs: Vec<Tensor>,
    pub(super) budget_us: u64,
    pub(super) trace: Trace,
}

impl Client {
    /// As much of the client as can be told without reading the body.
    pub(super) fn of(message: &Message) -> Self {
        Self {
            inbox: message.reply.clone(),
            content_type: headers::content_type(message.headers.as_ref()),
            id: headers::request_id(message.headers.as_ref()),
        }
    }
}

/// Reads a request: content type, capped body, budget.
pub(super) fn read(message: &Message, config: &IngressConfig) -> Result<Read, Fault> {
    let mut client = Client::of(message);
    let default = config.default_budget.as_micros() as u64;
    let budget_us = headers::budget(message.headers.as_ref())?.unwrap_or(default);
    if budget_us == 0 {
        let message = "the budget was used up before the request arrived".to_owned();
        return Err(Fault { code: Code::Expired, message });
    }
    let request = wire::decode_infer(client.content_type, message.payload.clone())?;
    if request.inputs.is_empty() {
        return Err(Fault { code: Code::WrongInput, message: "the request has no inputs".to_owned() });
    }
    client.id = client.id.or(request.id);
    let trace = headers::trace(message.headers.as_ref());
    Ok(Read { client, inputs: request.inputs, budget_us: budget_us.min(config.max_budget.as_micros() as u64), trace })
}

/// The open doors of an ingress.
pub struct Door {
    /// Permits for requests in flight; all free means that nothing is in flight.
    pub room: Arc<Semaphore>,
}

/// Opens the doors: requests from the app's queue group, answers from `done.<ingress>.*`. The first closes when `stop`
/// turns true; the second stays open, for the requests that are still in flight.
///
/// # Errors
/// [`BusError`] when a subscription fails.
pub async fn open(
    bus: &Bus,
    exchange: &Exchange,
    ingress: &Addr<Ingress>,
    id: &str,
    config: &IngressConfig,
    stop: watch::Receiver<bool>,
) -> Result<Door, BusError> {
    let app = exchange.app().clone();
    let answers = bus.subscribe(app.done_all(id), None).await?;
    actix::spawn(pump_answers(answers, ingress.clone()));
    let room = Arc::new(Semaphore::new(config.max_in_flight));
    let requests = bus.subscribe(app.infer(), Some(subjects::INGRESS_GROUP.to_owned())).await?;
    actix::spawn(pump_requests(requests, ingress.clone(), exchange.clone(), Arc::clone(&room), stop));
    bus.barrier().await?;
    Ok(Door { room })
}

async fn pump_requests(
    mut requests: async_nats::Subscriber,
    ingress: Addr<Ingress>,
    exchange: Exchange,
    room: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) {
    let take = |message: Message| match Arc::clone(&room).try_acquire_owned() {
        Ok(permit) => ingress.do_send(Inbound { message, permit }),
        Err(_) => refuse_full(&exchange, &message),
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
    // Drain, not drop: a dropped subscription loses what it has buffered.
    let _ = requests.drain().await;
    while let Some(message) = requests.next().await {
        take(message);
    }
}

/// No permit: refused here and now, without a place in any queue.
fn refuse_full(exchange: &Exchange, message: &Message) {
    let client = Client::of(message);
    let Some(inbox) = client.inbox else { return };
    let message = "the ingress has as many requests in flight as it allows; try again later".to_owned();
    let fault = Fault { code: Code::Overloaded, message };
    let payload = wire::encode_fault(client.content_type, client.id.as_deref(), &fault);
    exchange.publish(inbox, None, Some(headers::fault(&fault)), payload);
}

async fn pump_answers(mut answers: async_nats::Subscriber, ingress: Addr<Ingress>) {
    while let Some(message) = answers.next().await {
        let Some(id) = subjects::parse_done(&message.subject) else { continue };
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            ingress.do_send(Undeliverable { id });
            continue;
        }
        match Done::decode(message.payload.clone()) {
            Ok(done) => ingress.do_send(Finished(Done { id, ..done })),
            Err(error) => {
                let message = format!("the stage's answer could not be read: {error}");
                let result = DoneResult::Fault(Fault { code: Code::BadOutput, message });
                ingress.do_send(Finished(Done { id, result, ..Done::default() }));
            }
        }
    }
}
