//! Records trace spans of sampled requests for the process's exporter ([`kaskade_telemetry`]): one for the request at
//! its ingress, and below it one per stage, split into queue and run.

use kaskade_telemetry::{Kind, Span, Value, record, unix_nanos};

use crate::dispatch::delivery::Delivery;
use crate::error::Fault;
use crate::ids;
use crate::wire::InferReply;
use crate::wire::headers::Trace;

/// A request at its ingress.
pub(crate) struct Request<'a> {
    pub app: &'a str,
    pub trace: Trace,
    /// Span id of the client.
    pub parent: u64,
    /// Acceptance time and current time, on the process's clock, microseconds.
    pub accepted: u64,
    pub now: u64,
}

fn is_recorded(trace: &Trace) -> bool {
    kaskade_telemetry::is_on() && trace.sampled()
}

/// Returns a function that converts times of the process's clock (microseconds) to Unix time (nanoseconds), given the
/// current reading `now`.
fn on_the_wall(now: u64) -> impl Fn(u64) -> u64 {
    let wall = unix_nanos();
    move |at: u64| {
        let ago = now.saturating_sub(at).saturating_mul(1_000);
        wall.saturating_sub(ago)
    }
}

/// Records the span of a request with its terminal reply.
pub(crate) fn request(request: &Request<'_>, outcome: Result<&InferReply, &Fault>) {
    if !is_recorded(&request.trace) {
        return;
    }
    let wall = on_the_wall(request.now);
    let mut attributes: Vec<(&'static str, Value)> = vec![("kaskade.app", request.app.into())];
    let error = match outcome {
        Ok(reply) => {
            attributes.extend(reply_attributes(reply));
            None
        }
        Err(fault) => {
            attributes.push(("error.type", fault.code.id().into()));
            Some(fault.to_string())
        }
    };
    record(Span {
        trace_id: request.trace.trace_id,
        span_id: request.trace.span_id,
        parent_id: request.parent,
        name: format!("ingress {}", request.app),
        kind: Kind::Server,
        start: wall(request.accepted),
        end: wall(request.now),
        attributes,
        error,
    });
}

/// Returns the span attributes of a reply.
pub fn reply_attributes(reply: &InferReply) -> Vec<(&'static str, Value)> {
    let hops: Vec<&str> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
    let mut attributes: Vec<(&'static str, Value)> = vec![
        ("kaskade.variant", reply.variant.as_str().into()),
        ("kaskade.stage", reply.stage.as_str().into()),
        ("kaskade.hops", hops.join(">").into()),
        ("kaskade.degraded", reply.degraded.into()),
    ];
    if let Some(confidence) = reply.confidence {
        attributes.push(("kaskade.confidence", confidence.into()));
    }
    attributes
}

/// Records the spans of a stage that a request passed: the whole from its arrival, the queue until `started`, and the
/// run of `run_us` in a batch of size `batch`. Times are in microseconds.
pub(crate) fn hop(delivery: &Delivery, variant: &str, started: u64, run_us: u64, batch: usize) {
    if !is_recorded(&delivery.trace) {
        return;
    }
    let wall = on_the_wall(delivery.now());
    let stage = delivery.request.stage.as_str();
    let span = |parent_id: u64, name: String, from: u64, until: u64, more: Vec<(&'static str, Value)>| {
        let mut attributes: Vec<(&'static str, Value)> = vec![
            ("kaskade.stage", stage.into()),
            ("kaskade.variant", variant.into()),
        ];
        attributes.extend(more);
        Span {
            trace_id: delivery.trace.trace_id,
            span_id: ids::unique(),
            parent_id,
            name,
            kind: Kind::Internal,
            start: wall(from),
            end: wall(until),
            attributes,
            error: None,
        }
    };
    let ended = started.saturating_add(run_us);
    let attempt = ("kaskade.attempt", delivery.request.attempt.into());
    let whole = span(
        delivery.trace.span_id,
        format!("stage {stage}"),
        delivery.arrived,
        ended,
        vec![attempt],
    );
    let queue = span(
        whole.span_id,
        "queue".to_owned(),
        delivery.arrived,
        started,
        Vec::new(),
    );
    let size = i64::try_from(batch).unwrap_or(i64::MAX);
    let more = vec![
        ("kaskade.batch.size", size.into()),
        ("gen_ai.request.model", variant.into()),
    ];
    let run = span(whole.span_id, "run".to_owned(), started, ended, more);
    record(whole);
    record(queue);
    record(run);
}
