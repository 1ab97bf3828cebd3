//! Trace spans: one for each HTTP request, and one for each NATS request that it becomes, with the attributes of
//! OpenTelemetry's conventions for HTTP and generative AI. There is no convention for energy; the attribute is
//! `kaskade.energy.joules`, with its source.

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response};
use kaskade_actors::Fault;
use kaskade_actors::dispatch::spans::reply_attributes;
use kaskade_actors::wire::headers::Trace;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_telemetry::{Kind, Span, Value, is_on, record, unix_nanos};

use crate::apps::app_state::Joules;
use crate::http::header_names;

/// The span of an HTTP request.
pub(crate) struct HttpSpan {
    /// Trace context of the span.
    pub(crate) trace: Trace,
    /// Span id of the client, or 0.
    parent: u64,
    start: u64,
}

/// Returns the trace context in the headers of a request.
pub(crate) fn of_headers(headers: &HeaderMap) -> Option<Trace> {
    let trace = headers.get(&header_names::TRACE_PARENT)?;
    Trace::parse(trace.to_str().ok()?)
}

impl HttpSpan {
    /// Starts the span of a request, in the trace of its headers or in a new one. Requests without a key
    /// (`is_stranger`) always start a new trace, because otherwise their sampling flag would determine how much is
    /// recorded.
    pub(crate) fn begin(headers: &HeaderMap, is_stranger: bool) -> Self {
        let carried = of_headers(headers).filter(|_| !is_stranger);
        Self {
            trace: carried.map_or_else(Trace::start, |carried| carried.child()),
            parent: carried.map_or(0, |carried| carried.span_id),
            start: unix_nanos(),
        }
    }

    /// Ends the span when the answer's head is known.
    pub(crate) fn end(&self, method: &Method, path: &str, response: &Response<Body>) {
        if !is_on() || !self.trace.sampled() {
            return;
        }
        let (status, known) = (response.status(), known_method(method));
        let failed = status.is_server_error().then(|| status.to_string());
        record(Span {
            trace_id: self.trace.trace_id,
            span_id: self.trace.span_id,
            parent_id: self.parent,
            name: match route_of(response, path) {
                Some(route) => format!("{} {route}", known.unwrap_or("HTTP")),
                None => known.unwrap_or("HTTP").to_owned(),
            },
            kind: Kind::Server,
            start: self.start,
            end: unix_nanos(),
            attributes: vec![
                ("http.request.method", known.unwrap_or("_OTHER").into()),
                ("url.path", path.into()),
                ("http.response.status_code", i64::from(status.as_u16()).into()),
            ],
            error: failed,
        });
    }
}

/// Marks an answer that no route produced.
#[derive(Clone)]
struct Unrouted;

/// Marks an answer that no route produced: its path is chosen by the client, and must not name a span.
pub(crate) fn unrouted(mut response: Response<Body>) -> Response<Body> {
    response.extensions_mut().insert(Unrouted);
    response
}

/// Returns the method if it is a standard HTTP method.
fn known_method(method: &Method) -> Option<&str> {
    let known = [
        "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT",
    ];
    known.into_iter().find(|known| *known == method.as_str())
}

/// Returns the route that produced the answer; `None` if none did.
fn route_of(response: &Response<Body>, path: &str) -> Option<String> {
    let headers = response.headers();
    // The gRPC library answers unknown methods itself, without a Kaskade fault.
    let is_unknown_method = headers
        .get("grpc-status")
        .is_some_and(|status| status == UNIMPLEMENTED)
        && !headers.contains_key("x-kaskade-fault");
    let is_unrouted = is_unknown_method || response.extensions().get::<Unrouted>().is_some();
    (!is_unrouted).then(|| route(path))
}

/// gRPC status of an unknown method.
const UNIMPLEMENTED: &str = "12";

/// Returns a path with app names replaced by a placeholder, to limit the number of span names.
fn route(path: &str) -> String {
    let parts = path.split('/').scan("", |before, part| {
        let shown = match *before {
            "models" | "versions" | "events" if part != "stats" => "{name}",
            _ => part,
        };
        *before = part;
        Some(shown)
    });
    parts.collect::<Vec<_>>().join("/")
}

/// The span of a NATS request.
pub(crate) struct RequestSpan {
    /// Trace context of the span, which the NATS request carries.
    pub(crate) trace: Trace,
    parent: u64,
    operation: &'static str,
    start: u64,
}

impl RequestSpan {
    /// Starts the span of a NATS request below that of its HTTP request.
    pub(crate) fn begin(http: &Trace, request: &InferRequest) -> Self {
        let has = |name: &str| request.inputs.iter().any(|input| input.name == name);
        Self {
            trace: http.child(),
            parent: http.span_id,
            operation: if has("messages") {
                "chat"
            } else {
                "text_completion"
            },
            start: unix_nanos(),
        }
    }

    /// Ends the span with the answer.
    pub(crate) fn end(&self, app: &str, result: &Result<InferReply, Fault>, joules: Option<&Joules>) {
        if !is_on() || !self.trace.sampled() {
            return;
        }
        let mut attributes: Vec<(&'static str, Value)> = vec![("kaskade.app", app.into())];
        let mut error = None;
        match result {
            Ok(reply) => {
                attributes.extend(reply_attributes(reply));
                attributes.extend(self.generated(app, reply));
            }
            Err(fault) => {
                attributes.push(("error.type", fault.code.id().into()));
                error = Some(fault.to_string());
            }
        }
        if let Some(joules) = joules {
            attributes.push(("kaskade.energy.joules", joules.joules.into()));
            attributes.push(("kaskade.energy.source", joules.source.as_str().into()));
        }
        record(Span {
            trace_id: self.trace.trace_id,
            span_id: self.trace.span_id,
            parent_id: self.parent,
            name: format!("send {app}"),
            kind: Kind::Client,
            start: self.start,
            end: unix_nanos(),
            attributes,
            error,
        });
    }

    /// Returns the attributes of an answer that counts its tokens. Classifiers are omitted, because OpenTelemetry's
    /// conventions have no operation for them.
    fn generated(&self, app: &str, reply: &InferReply) -> Vec<(&'static str, Value)> {
        let has = |name: &str| reply.outputs.iter().any(|output| output.name == name);
        let operation = match (has("text") || has("tokens"), has("embedding")) {
            (true, _) => self.operation,
            (false, true) => "embeddings",
            (false, false) => return Vec::new(),
        };
        let usage = reply.outputs.iter().find(|output| output.name == "usage");
        let Some([prompt, answer]) = usage.and_then(|usage| <[i64; 2]>::try_from(usage.to_i64().ok()?).ok())
        else {
            return Vec::new();
        };
        vec![
            ("gen_ai.operation.name", operation.into()),
            ("gen_ai.provider.name", "kaskade".into()),
            ("gen_ai.request.model", app.into()),
            ("gen_ai.response.model", reply.variant.as_str().into()),
            ("gen_ai.usage.input_tokens", prompt.into()),
            ("gen_ai.usage.output_tokens", answer.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_spans_hold_no_names_of_apps() {
        for (path, expected) in [
            (
                "/v2/models/digits/versions/small/infer",
                "/v2/models/{name}/versions/{name}/infer",
            ),
            ("/v2/models/stats", "/v2/models/stats"),
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/", "/"),
        ] {
            assert_eq!(route(path), expected);
        }
    }
}
