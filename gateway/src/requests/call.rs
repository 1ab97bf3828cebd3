//! One request of a client to an app: its budget, its trace, and the app requests that it becomes.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{Extensions, HeaderMap, HeaderName};
use futures::StreamExt as _;
use kaskade_actors::wire::headers::Trace;
use kaskade_actors::wire::{InferReply, InferRequest, RequestOptions};
use kaskade_actors::{Code, Fault};
use tokio::sync::mpsc::UnboundedSender;

use crate::apps::app_state::Joules;
use crate::config::Streaming;
use crate::http::failure::Failure;
use crate::http::header_names;
use crate::limits::permits::Permits;
use crate::limits::subrequests::{Outcome, run_subrequests};
use crate::requests::reply_metadata::ReplyMetadata;
use crate::requests::request_ids;
use crate::requests::trace::{RequestSpan, of_headers};
use crate::state::ServedApp;

/// Smallest and largest time between the end of a budget and the client's timeout; in between, a twentieth of the
/// timeout.
const ANSWER_MARGIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// A request of a client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) app: Arc<ServedApp>,
    /// Budget of the whole request, counted from `begun`.
    budget: Duration,
    /// Budget of a streamed request, for which a client's timeout applies to a single read.
    stream_budget: Duration,
    /// Whether the client stated a budget or timeout.
    is_stated: bool,
    pub(crate) begun: Instant,
    trace: Trace,
    permits: Option<Permits>,
}

/// Channel for the pieces of streamed answers, each with the index of its choice. Pieces are boxed because a channel
/// reserves room for 32 of them in every stream.
pub(crate) type Pieces = UnboundedSender<Box<(usize, Piece)>>;

/// A piece of a streamed answer, or its end.
pub(crate) enum Piece {
    /// New tokens.
    Part(InferReply),
    /// The complete answer, or the failure.
    End(Result<InferReply, Failure>),
}

impl Call {
    /// Reads the budget and the trace of a request. `fallback` is the default budget.
    ///
    /// # Errors
    /// `KSK0001` for an invalid budget.
    pub(crate) fn new(
        app: Arc<ServedApp>,
        headers: &HeaderMap,
        extensions: &Extensions,
        fallback: Duration,
    ) -> Result<Self, Failure> {
        let stated = budget(headers)?;
        // The client does not wait longer, whatever other timeouts it states.
        let deadline = grpc_timeout(headers)?.unwrap_or(Duration::MAX);
        let within = |budget: Duration| budget.min(app.options.max_budget).min(deadline);
        let announced = stated.or_else(|| announced_timeout(headers));
        // The middleware has started a span. For a stream, each request has a span below the stream's.
        let trace = extensions.get::<Trace>().copied().or_else(|| of_headers(headers));
        Ok(Self {
            budget: within(announced.unwrap_or(fallback)),
            stream_budget: within(stated.unwrap_or(fallback)),
            is_stated: announced.is_some(),
            begun: Instant::now(),
            trace: trace.unwrap_or_else(Trace::start),
            permits: extensions.get::<Permits>().cloned(),
            app,
        })
    }

    /// Sets the budget of a request with many parts to the app's largest budget, unless the client stated one.
    pub(crate) fn of_many_parts(self) -> Self {
        let budget = if self.is_stated {
            self.budget
        } else {
            self.app.options.max_budget
        };
        Self { budget, ..self }
    }

    fn options(&self, span: &RequestSpan) -> RequestOptions {
        RequestOptions {
            id: request_ids::new(self.permits.as_ref().and_then(Permits::tenant)),
            has_unique_id: true,
            // A part that had to wait gets the remaining budget.
            budget: self.budget.saturating_sub(self.begun.elapsed()),
            trace: span.trace,
        }
    }

    /// Sends a request and waits for its answer. Dropping the future cancels the request.
    ///
    /// # Errors
    /// The app's fault.
    pub(crate) async fn ask(&self, request: InferRequest) -> Result<InferReply, Failure> {
        match self.ask_part(request, false).await {
            Outcome::Done(answer) => {
                if answer.is_ok() {
                    self.app.times.request.add(self.begun.elapsed());
                }
                answer
            }
            Outcome::Requeue(_) => Err(Failure::full("the app has no room")),
        }
    }

    /// Sends a request and waits for its answer. With `may_wait`, a request refused as overloaded is returned.
    async fn ask_part(
        &self,
        request: InferRequest,
        may_wait: bool,
    ) -> Outcome<InferRequest, Result<InferReply, Failure>> {
        let again = may_wait.then(|| request.clone());
        let inputs = self.app.unknown_inputs(&request);
        let span = RequestSpan::begin(&self.trace, &request);
        let result = self.app.client.request(request, &self.options(&span)).await;
        if let Some(request) = again.filter(|_| self.may_wait(result.as_ref().err())) {
            return Outcome::Requeue(request);
        }
        let answer = self.note(result, &span);
        if let Ok(reply) = &answer {
            self.app.record_signature(&inputs, reply);
        }
        Outcome::Done(answer)
    }

    /// Returns whether a failed request may wait for capacity of the app.
    fn may_wait(&self, fault: Option<&Fault>) -> bool {
        fault.is_some_and(|fault| fault.code == Code::Overloaded) && self.begun.elapsed() < self.budget
    }

    /// Sends requests concurrently, as far as the limits allow, and returns their answers in the same order. The first
    /// failure cancels the others.
    ///
    /// # Errors
    /// The app's first fault.
    pub(crate) async fn ask_all(&self, requests: Vec<InferRequest>) -> Result<Vec<InferReply>, Failure> {
        let mut replies = Vec::new();
        replies.resize_with(requests.len(), InferReply::default);
        // A single request is refused immediately, as over NATS; parts of one request wait for each other.
        let may_wait = requests.len() > 1;
        let run = |_, request| self.ask_part(request, may_wait);
        let mut answers = pin!(run_subrequests(self.permits.clone(), requests, run));
        while let Some((number, answer)) = answers.next().await {
            let answer = answer?;
            if let Some(reply) = replies.get_mut(number) {
                *reply = answer;
            }
        }
        self.app.times.request.add(self.begun.elapsed());
        Ok(replies)
    }

    /// Sends a request for each choice, as far as the limits allow. Each piece of an answer comes with the index of its
    /// choice. Closing the receiver cancels the requests.
    pub(crate) fn stream(&self, mut requests: Vec<InferRequest>, pieces: Pieces) {
        if self.app.options.streaming == Streaming::Optimistic {
            for request in &mut requests {
                let parameters = &mut request.parameters;
                parameters.insert("stream".to_owned(), "optimistic".to_owned());
            }
        }
        self.stream_certain(requests, pieces);
    }

    /// Streams like [`Call::stream`], but no piece is ever replaced, whatever the app's policy.
    pub(crate) fn stream_certain(&self, requests: Vec<InferRequest>, pieces: Pieces) {
        // The clone holds the permits until the streams have ended.
        let call = Self {
            budget: self.stream_budget,
            ..self.clone()
        };
        tokio::spawn(async move {
            let may_wait = requests.len() > 1;
            let run = |choice, request| call.stream_part(request, choice, &pieces, may_wait);
            let all = run_subrequests(call.permits.clone(), requests, run);
            let all = all.fold(true, |all, (_, is_answered)| ready(all && is_answered));
            if all.await {
                call.app.times.request.add(call.begun.elapsed());
            }
        });
    }

    /// Sends a request for a choice; returns whether it was answered. With `may_wait`, a request refused as overloaded
    /// is returned.
    async fn stream_part(
        &self,
        request: InferRequest,
        choice: usize,
        pieces: &Pieces,
        may_wait: bool,
    ) -> Outcome<InferRequest, bool> {
        if pieces.is_closed() {
            return Outcome::Done(false);
        }
        let again = may_wait.then(|| request.clone());
        let span = RequestSpan::begin(&self.trace, &request);
        let mut first: Option<(Instant, u32)> = None;
        let (mut tokens, mut stage) = (0, String::new());
        let parts = |part: InferReply| {
            tokens = part.part.unwrap_or_default() + 1;
            if first.is_none() {
                self.app.times.first_token.add(self.begun.elapsed());
            }
            if first.is_none() || stage != part.stage {
                // The answer of a later stage starts from the beginning.
                first = Some((Instant::now(), tokens));
                stage.clone_from(&part.stage);
            }
            let _ = pieces.send(Box::new((choice, Piece::Part(part))));
        };
        let options = self.options(&span);
        let result = tokio::select! {
            result = self.app.client.request_streamed(request, &options, parts) => result,
            // Dropping the request cancels it.
            () = pieces.closed() => return Outcome::Done(false),
        };
        if let Some(request) = again.filter(|_| first.is_none() && self.may_wait(result.as_ref().err())) {
            return Outcome::Requeue(request);
        }
        if let Some((at, from)) = first
            && tokens > from
        {
            self.app.times.per_token.add(at.elapsed() / (tokens - from));
        }
        let result = self.note(result, &span);
        let is_answered = result.is_ok();
        let _ = pieces.send(Box::new((choice, Piece::End(result))));
        Outcome::Done(is_answered)
    }

    fn note(&self, result: Result<InferReply, Fault>, span: &RequestSpan) -> Result<InferReply, Failure> {
        let result = result.map_err(|fault| self.named(fault));
        if kaskade_telemetry::is_on() {
            let joules = result.as_ref().ok().and_then(|reply| self.joules(reply));
            span.end(&self.app.options.name, &result, joules.as_ref());
        }
        match result {
            Ok(reply) => {
                self.app.state.answered(&reply);
                Ok(reply)
            }
            Err(fault) => {
                self.app.state.failed(&fault);
                Err(fault.into())
            }
        }
    }

    /// Converts a fault for the gateway's clients: an app without a running ingress is unavailable, not unknown, and a
    /// missing reply during a broker outage is reported as caused by the broker.
    fn named(&self, fault: Fault) -> Fault {
        if fault.code == Code::UnknownApp {
            let message = format!(
                "no ingress of app `{}` is running at present",
                self.app.options.name
            );
            return Fault::new(Code::Unavailable, message);
        }
        if fault.code != Code::NoReply || self.app.bus.connection().is_up() {
            return fault;
        }
        // Log the address; do not send it to clients.
        tracing::warn!(
            broker = self.app.bus.url(),
            app = self.app.options.name,
            "a request had no broker"
        );
        let message =
            "the gateway has no connection to its broker, and it did not come back within the budget";
        Fault::new(Code::BrokerUnavailable, message)
    }

    /// Returns the energy of an answer, by the variants of its hops; `None` if unknown.
    pub(crate) fn joules(&self, reply: &InferReply) -> Option<Joules> {
        self.app.state.joules(reply)
    }

    /// Returns the metadata of a reply.
    pub(crate) fn described<'a>(&self, reply: &'a InferReply) -> ReplyMetadata<'a> {
        ReplyMetadata::new(reply, self.joules(reply))
    }

    /// Sets the metadata headers of a reply.
    pub(crate) fn describe(&self, reply: &InferReply, headers: &mut HeaderMap) {
        self.described(reply).headers(headers);
    }

    /// Returns the metadata of a reply for a JSON body.
    pub(crate) fn description(&self, reply: &InferReply) -> serde_json::Value {
        self.described(reply).json()
    }
}

/// Returns the budget in the header `x-kaskade-budget-ms`.
fn budget(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(milliseconds) = text(headers, &header_names::BUDGET) else {
        return Ok(None);
    };
    let budget = seconds(milliseconds).map(|seconds| seconds / 1e3);
    let budget = budget.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    budget.map(Some).ok_or_else(|| {
        Failure::malformed("header x-kaskade-budget-ms must be a number of milliseconds above zero")
    })
}

/// Returns the budget for the read timeout that OpenAI's clients announce. It is shorter than the timeout, so that the
/// refusal of an expired request arrives before the client gives up and retries.
fn announced_timeout(headers: &HeaderMap) -> Option<Duration> {
    let announced = header_names::TIMEOUTS.iter().find_map(|name| text(headers, name));
    let timeout = Duration::try_from_secs_f64(seconds(announced?)?).ok()?;
    let [least, most] = ANSWER_MARGIN;
    let margin = (timeout / 20).clamp(least, most);
    // If the timeout is shorter than the margin, use half of it.
    Some(timeout.saturating_sub(margin).max(timeout / 2))
}

/// Returns the text of a header; empty if it is not valid text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Parses a positive number.
fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| *number > 0.0)
}

/// Returns the timeout of a gRPC call: at most eight digits and a unit.
fn grpc_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(value) = headers.get(&header_names::GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let parse = |text: &str| {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let digits = number.len() <= 8 && number.bytes().all(|digit| digit.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| digits)?;
        Some(match unit {
            "H" => Duration::from_secs(number * 3_600),
            "M" => Duration::from_secs(number * 60),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        })
    };
    let timeout = value.to_str().ok().and_then(parse);
    timeout.map(Some).ok_or_else(|| {
        Failure::malformed("grpc-timeout must be at most eight digits and one of the units H, M, S, m, u, n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_of_grpc_are_read() {
        let of = |value: &'static str| {
            grpc_timeout(&HeaderMap::from_iter([(
                HeaderName::from_static("grpc-timeout"),
                axum::http::HeaderValue::from_static(value),
            )]))
        };
        for (value, millis) in [
            ("2S", 2_000),
            ("250m", 250),
            ("1M", 60_000),
            ("5000u", 5),
            ("1H", 3_600_000),
        ] {
            assert_eq!(of(value), Ok(Some(Duration::from_millis(millis))), "{value}");
        }
        for wrong in ["", "S", "1", "123456789S", "-1S", "+1S", "1 S"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn budgets_come_from_headers() {
        let header = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(
                HeaderName::from_static(name),
                axum::http::HeaderValue::from_static(value),
            )])
        };
        let of = |name: &'static str, value: &'static str| budget(&header(name, value));
        assert_eq!(
            of("x-kaskade-budget-ms", "250.5"),
            Ok(Some(Duration::from_micros(250_500)))
        );
        let announced = |value: &'static str| announced_timeout(&header("x-stainless-read-timeout", value));
        assert_eq!(announced("600"), Some(Duration::from_secs(599)));
        assert_eq!(announced("2"), Some(Duration::from_millis(1_900)));
        assert_eq!(announced("0.1"), Some(Duration::from_millis(80)));
        assert_eq!(announced("0.01"), Some(Duration::from_millis(5)));
        assert_eq!(announced("soon"), None);
        assert_eq!(of("x-other", "1"), Ok(None));
        for wrong in ["", "soon", "-1", "0", "inf", "NaN"] {
            assert!(of("x-kaskade-budget-ms", wrong).is_err(), "{wrong}");
        }
    }
}
