//! Reads a client's request: content type, size, budget, identity.

use std::{sync::Arc, time::Duration};

use async_nats::{Message, Subject};
use kaskade_policy::stream_offset::{OptimisticOffset, StreamOffset};

use super::config::IngressConfig;
use super::in_flight::StreamProgress;
use super::inputs::RetainedInputs;
use super::refusal::TOO_MANY_BYTES;
use super::reply_target::{Destination, ReplyTarget};
use super::reservation::RequestReservation;
use crate::{
    error::{Code, Fault},
    subjects,
    wire::headers::{self, Context, Trace},
    wire::{self, ContentType, InferRequest, RequestOptions, STREAM},
};

/// The checked fields of a request.
pub(super) struct CheckedRequest {
    content_type: ContentType,
    id: Option<String>,
    pub(super) inputs: RetainedInputs,
    pub(super) budget_us: u64,
    pub(super) trace: Trace,
    /// Which parts of a streamed answer the client requested.
    pub(super) stream: Streamed,
}

/// Which parts of its answer a client requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streamed {
    /// None.
    No,
    /// Parts of stages that always reply.
    Certain,
    /// Parts of every stage; those of a later stage replace them.
    Optimistic,
}

impl Streamed {
    /// Returns the initial progress of the streamed answer.
    pub(super) fn progress(self) -> Option<StreamProgress> {
        match self {
            Self::No => None,
            Self::Certain => Some(StreamProgress::Certain(StreamOffset::default())),
            Self::Optimistic => Some(StreamProgress::Optimistic(OptimisticOffset::default())),
        }
    }
}

impl CheckedRequest {
    /// Charges the request for its inputs, and checks that `to` can receive a reply: results of durable requests are
    /// stored under the request id, which must then be valid.
    pub(super) fn check(&self, to: &mut Destination) -> Result<(), Fault> {
        to.charge(self.inputs.size())?;
        match (to, &self.id) {
            (Destination::Stream(_), Some(id)) => headers::check_request_id(id),
            _ => Ok(()),
        }
    }

    /// Returns the reply target.
    pub(super) fn reply_target(&self, mut to: Destination) -> ReplyTarget {
        if let (Destination::Stream(submission), Some(id)) = (&mut to, &self.id) {
            submission.set_id(id);
        }
        ReplyTarget {
            destination: to,
            content_type: self.content_type,
            id: self.id.clone(),
            has_parts: false,
        }
    }
}

impl Destination {
    /// Returns the destination for the sender of a message, with the reservation of the request.
    pub(super) fn inbox(message: &Message, held: RequestReservation) -> Self {
        Self::Inbox {
            inbox: inbox_of(message),
            held,
        }
    }

    /// Charges the request for its inputs, which may be larger than its message.
    fn charge(&mut self, inputs: usize) -> Result<(), Fault> {
        let held = match self {
            Self::Inbox { held, .. } => held,
            Self::Stream(submission) => &mut submission.held,
            Self::Local(client) => &mut client.held,
        };
        if held.charge(inputs) {
            return Ok(());
        }
        Err(Fault::clone(TOO_MANY_BYTES.fault()))
    }
}

impl ReplyTarget {
    /// Returns the reply target of a message without decoding its body.
    pub(super) fn from_message(message: &Message, to: Destination) -> Self {
        // `read` refuses an invalid content type or id; that refusal uses the default format.
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers::request_id(headers).ok().flatten());
        Self {
            destination: to,
            content_type: headers::content_type_of(message.headers.as_ref(), &message.payload)
                .unwrap_or_default(),
            id: id.map(ToOwned::to_owned),
            has_parts: false,
        }
    }
}

/// Returns the client's reply subject; `None` if a reply to it could reach actors with the ingress's permissions.
fn inbox_of(message: &Message) -> Option<Subject> {
    let inbox = message.reply.clone()?;
    let may = subjects::is_reply_allowed(&inbox);
    if !may {
        tracing::warn!(reply = %inbox, "a request names a reserved subject for its reply; no reply is sent");
    }
    may.then_some(inbox)
}

/// A request as received by an ingress.
pub(super) enum Source<'a> {
    /// Over the bus, or from the stream of durable requests.
    Message(&'a Message),
    /// From a client in this process.
    Local(&'a Arc<InferRequest>, &'a RequestOptions),
}

impl Source<'_> {
    /// Reads and checks the request.
    pub(super) fn read(&self, config: &IngressConfig) -> Result<CheckedRequest, Fault> {
        match self {
            Self::Message(message) => read(message, config),
            Self::Local(request, options) => read_local(request, options, config),
        }
    }

    /// Returns the reply target without reading the request.
    pub(super) fn reply_target(&self, to: Destination) -> ReplyTarget {
        match self {
            Self::Message(message) => ReplyTarget::from_message(message, to),
            Self::Local(_, options) => ReplyTarget {
                destination: to,
                content_type: ContentType::default(),
                id: Some(options.id.clone()),
                has_parts: false,
            },
        }
    }
}

fn read_local(
    request: &Arc<InferRequest>,
    options: &RequestOptions,
    config: &IngressConfig,
) -> Result<CheckedRequest, Fault> {
    headers::check_request_id(&options.id)?;
    let budget = checked_budget(Some(options.budget), config)?;
    request.check()?;
    Ok(CheckedRequest {
        content_type: ContentType::default(),
        id: Some(options.id.clone()),
        stream: streamed(request)?,
        inputs: RetainedInputs::shared(Arc::clone(request)),
        budget_us: budget.as_micros() as u64,
        trace: options.trace,
    })
}

/// Reads a request: content type, size-limited body, budget.
fn read(message: &Message, config: &IngressConfig) -> Result<CheckedRequest, Fault> {
    let content_type = headers::content_type_of(message.headers.as_ref(), &message.payload)?;
    let Context {
        request_id,
        budget,
        trace,
        ..
    } = Context::read(message.headers.as_ref())?;
    let budget = checked_budget(budget, config)?;
    let request = wire::decode_infer(content_type, &message.payload)?;
    let stream = streamed(&request)?;
    Ok(CheckedRequest {
        content_type,
        id: request_id.or(request.id),
        inputs: RetainedInputs::new(request.inputs, content_type, message.payload.clone()),
        budget_us: budget.as_micros() as u64,
        trace,
        stream,
    })
}

/// Returns the budget of a request, limited to the largest one.
fn checked_budget(asked: Option<Duration>, config: &IngressConfig) -> Result<Duration, Fault> {
    let budget = asked.unwrap_or(config.default_budget).min(config.max_budget);
    if budget.is_zero() {
        return Err(Fault::new(
            Code::Expired,
            "the budget was used up before the request arrived",
        ));
    }
    Ok(budget)
}

/// Checks that a request has inputs, and returns which parts of its answer it requests.
fn streamed(request: &InferRequest) -> Result<Streamed, Fault> {
    if request.inputs.is_empty() {
        return Err(Fault::new(Code::InvalidInput, "the request has no inputs"));
    }
    match request.parameters.get(STREAM).map(String::as_str) {
        None | Some("false") => Ok(Streamed::No),
        Some("true") => Ok(Streamed::Certain),
        Some("optimistic") => Ok(Streamed::Optimistic),
        Some(other) => {
            let message =
                format!("the parameter `{STREAM}` is {other:?}; it is `true`, `optimistic` or `false`");
            Err(Fault::new(Code::Malformed, message))
        }
    }
}
