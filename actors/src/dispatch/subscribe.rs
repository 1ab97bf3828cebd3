//! Connects subjects to actors: each message becomes a [`Delivery`] in a mailbox.
//!
//! A message passes the subscription pump, a permit, the actor, the model thread and publication; the permit is
//! released last. Without a free permit the sender is refused immediately.

use std::{sync::Arc, time::Duration};

use crate::actor::Recipient;
use async_nats::{Message, Subject};
use bytes::Bytes;
use kaskade_policy::fan_in::Branch;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use crate::{
    bus::{Bus, BusError, Subscription},
    dispatch::delivery::Delivery,
    dispatch::dispatcher::{Dispatcher, full_queue},
    dispatch::epoch_check::EpochCheck,
    error::{Code, Fault},
    wire::headers::{self, Trace},
    wire::{Message as _, StageOutcome, StageReply, StageRequest, chunks::Assembler},
};

/// An actor that serves a replica, with its permits.
#[derive(Clone)]
pub struct Binding {
    /// Id of the replica.
    pub replica: String,
    /// The actor.
    pub mailbox: Recipient<Delivery>,
    /// Permits for unanswered deliveries.
    pub permits: Arc<Semaphore>,
    /// Passes only requests that the replica serves under their plan; `None` passes all.
    pub check: Option<EpochCheck>,
}

/// Serves `subject` with an actor: every message becomes a [`Delivery`] in its mailbox while permits are free;
/// otherwise the sender is refused immediately with `Overloaded`. The members of a queue group (`group`) share the
/// messages.
///
/// When `stop` turns true or the actor has ended, the subscription ends after delivering every message that the server
/// has sent. The returned task, which holds `stop`, ends with it.
///
/// # Errors
/// [`BusError`] if the subscription fails.
pub async fn bind(
    bus: &Bus,
    dispatcher: &Dispatcher,
    subject: Subject,
    group: Option<String>,
    binding: Binding,
    mut stop: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, BusError> {
    let addressed = group.is_none();
    let mut subscription = Subscription::open(bus, subject, group).await?;
    let dispatcher = dispatcher.clone();
    let supervisor = dispatcher.supervisor().clone();
    #[cfg(test)]
    let guard = supervisor.panic_guard(TASK);
    Ok(supervisor.spawn_finite(TASK, async move {
        let mut assembler = Assembler::default();
        while binding.mailbox.connected() {
            let message = tokio::select! {
                message = subscription.next() => message,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let Some(message) = message else { return };
            #[cfg(test)]
            guard.panic_if_scripted();
            receive(&dispatcher, &binding, addressed, &mut assembler, message);
        }
        let take = |message| receive(&dispatcher, &binding, addressed, &mut assembler, message);
        subscription.finish(take).await;
    }))
}

/// Task name of replica subscriptions.
pub(crate) const TASK: &str = "subscription of a replica";

/// Turns a message into a delivery, or answers it with a fault. A chunk waits for the remaining chunks.
fn receive(
    dispatcher: &Dispatcher,
    binding: &Binding,
    addressed: bool,
    assembler: &mut Assembler,
    message: Message,
) {
    let replica = binding.replica.as_str();
    let now = dispatcher.clock().now();
    let headers = message.headers.as_ref();
    let budget = headers
        .and_then(|headers| headers::budget(headers).ok().flatten())
        .unwrap_or(DEFAULT_BUDGET);
    let deadline = now.saturating_add(budget.as_micros() as u64);
    let trace = headers.and_then(Trace::read).unwrap_or_else(Trace::start);
    let payload = match whole(assembler, &message, now, deadline) {
        Ok(Some(payload)) => payload,
        Ok(None) => return,
        Err(Unreadable { fault, reply }) => {
            return refuse(dispatcher, replica, &message.subject, reply, fault);
        }
    };
    let request = match StageRequest::decode(&payload) {
        Ok(request) => request,
        Err(error) => {
            let reason = format!("the stage could not decode the request: {error}");
            let fault = Fault::new(Code::Unreadable, reason);
            return refuse(dispatcher, replica, &message.subject, message.reply, fault);
        }
    };
    let request = match &binding.check {
        Some(check) => check.pass(dispatcher, request, addressed, deadline, trace),
        None => Some(request),
    };
    let Some(request) = request else { return };
    let permit = Arc::clone(&binding.permits).try_acquire_owned().ok();
    let full = permit.is_none();
    let delivery = Delivery::new(request, deadline, trace, dispatcher.clone(), replica, permit);
    if !binding.mailbox.connected() {
        // A dead actor drops its messages silently.
        let message = format!("the actor of replica `{replica}` has ended");
        delivery.fail(Fault::new(Code::Unavailable, message));
    } else if full {
        delivery.fail(full_queue(replica));
    } else {
        binding.mailbox.do_send(delivery);
    }
}

/// Default budget of a stage request without one, such as a hand-written client's.
const DEFAULT_BUDGET: Duration = Duration::from_secs(30);

/// A message that could not be assembled: the fault and its reply subject.
pub(crate) struct Unreadable {
    pub(crate) fault: Fault,
    reply: Option<Subject>,
}

/// Returns the body of a message; for chunks, with the last chunk, and `None` before.
///
/// # Errors
/// The fault of an invalid chunk or message.
pub(crate) fn whole(
    assembler: &mut Assembler,
    message: &Message,
    now: u64,
    until: u64,
) -> Result<Option<Bytes>, Unreadable> {
    let reply = message.reply.clone();
    let chunk = match message.headers.as_ref().map_or(Ok(None), headers::chunk) {
        Ok(Some(chunk)) => chunk,
        Ok(None) => return Ok(Some(message.payload.clone())),
        Err(fault) => {
            let fault = unreadable(fault);
            return Err(Unreadable { fault, reply });
        }
    };
    let taken = assembler.add(chunk, message.payload.clone(), reply, now, until);
    taken.map_err(|failed| Unreadable {
        fault: unreadable(failed.error.into()),
        reply: failed.reply,
    })
}

/// Converts the fault of a malformed message between actors: the service is at fault, not the client.
fn unreadable(fault: Fault) -> Fault {
    match fault.code {
        Code::Malformed => Fault::new(Code::Unreadable, fault.message),
        _ => fault,
    }
}

/// Answers an unreadable request with a fault. Its reply subject identifies the request.
fn refuse(dispatcher: &Dispatcher, replica: &str, subject: &Subject, reply: Option<Subject>, fault: Fault) {
    tracing::warn!(%subject, %fault, "a stage request could not be decoded");
    let Some(reply) = reply else {
        return;
    };
    let result = StageOutcome::Fault(fault);
    let done = StageReply {
        id: 0,
        attempt: 0,
        branch: Branch::ROOT,
        stage: String::new(),
        replica: replica.to_owned(),
        hops: Vec::new(),
        result,
    };
    if let Ok(payload) = done.encode() {
        dispatcher.publish(reply, None, None, payload);
    }
}
