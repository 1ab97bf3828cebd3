//! The thread that sends spans to a collector.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::otlp;
use crate::sink::{self, Failures, Sink};
use crate::span::Span;

/// Spans of one export.
const BATCH: usize = 512;

/// Longest time that a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// Longest time of one attempt to export.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts to export the same spans, if the collector is busy.
const MAX_ATTEMPTS: u32 = 5;

/// Pause before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause that a collector may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Longest time of all exports after the exporter is asked to end.
const GRACE: Duration = Duration::from_secs(2);

/// Longest answer of a collector that is read, bytes.
const MAX_ANSWER: usize = 64 << 10;

/// Destination of spans.
#[derive(Debug, Clone, PartialEq)]
pub struct ExporterConfig {
    /// Address of the collector, `http://127.0.0.1:4318`; spans go to `/v1/traces` below it.
    pub endpoint: String,
    /// Headers of every export, such as a key.
    pub headers: Vec<(String, String)>,
    /// Name of the service.
    pub service: String,
    /// Share of the traces that start here and are sampled, 0 to 1. A trace that comes with a request keeps its own flag.
    pub sample: f64,
    /// Spans that wait for their export at most; more are dropped and counted.
    pub queue: usize,
}

impl ExporterConfig {
    /// Exports all traces of a service to a collector, with a queue of 8,192 spans.
    pub fn new(endpoint: impl Into<String>, service: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            service: service.into(),
            sample: 1.0,
            queue: 8_192,
        }
    }
}

/// Why spans cannot be exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The address is invalid.
    #[error("telemetry: `{endpoint}` is not an http or https URL of a collector: {reason}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// The reason.
        reason: String,
    },
    /// A header is invalid. Its value is not shown: it may be a key.
    #[error("telemetry: the header `{name}` is not valid")]
    Header {
        /// Name of the header.
        name: String,
    },
    /// The system's certificates cannot be read.
    #[error("telemetry: the system's certificates cannot be read: {0}")]
    Certificates(std::io::Error),
    /// The system gives no thread.
    #[error("telemetry: cannot start the exporter's thread: {0}")]
    Thread(std::io::Error),
    /// The process exports spans already.
    #[error("telemetry: this process exports its spans already")]
    Twice,
}

/// A running exporter. Dropping it sends what waits, within 2 s, drops the rest, and ends the recording.
pub struct Exporter {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A client of a collector.
struct Collector {
    client: Connections,
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    service: String,
    instance: String,
}

enum Connections {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Tls(Client<hyper_rustls::HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Exporter {
    /// Starts to record and export the spans of this process.
    ///
    /// # Errors
    /// [`TelemetryError`]; [`TelemetryError::Twice`] after the first exporter.
    pub fn start(config: &ExporterConfig) -> Result<Self, TelemetryError> {
        let collector = Collector::new(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let (queue, spans) = channel(config.queue.max(1));
        let sink = Sink {
            queue,
            sample: (config.sample.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32,
            exported: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failures: Failures::default(),
        };
        if !sink::install(sink) {
            return Err(TelemetryError::Twice);
        }
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("kaskade-telemetry".to_owned())
            .spawn(move || runtime.block_on(run(collector, spans, stopped)))
            .map_err(|error| {
                sink::close();
                TelemetryError::Thread(error)
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        sink::close();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the exporter of spans failed");
        }
    }
}

/// When the exporter ends.
struct End {
    stopped: oneshot::Receiver<()>,
    /// When exports are stopped; `None` until the exporter is asked to end.
    deadline: Option<Instant>,
}

impl End {
    /// Returns once the exporter is asked to end.
    async fn begun(&mut self) -> Instant {
        if let Some(deadline) = self.deadline {
            return deadline;
        }
        let _ = (&mut self.stopped).await;
        *self.deadline.insert(Instant::now() + GRACE)
    }

    /// Returns when exports are stopped.
    async fn over(&mut self) {
        let deadline = self.begun().await;
        tokio::time::sleep_until(deadline).await;
    }
}

async fn run(collector: Collector, mut spans: Receiver<Span>, stopped: oneshot::Receiver<()>) {
    let mut end = End {
        stopped,
        deadline: None,
    };
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            _ = end.begun() => break,
            first = spans.recv_many(&mut batch, BATCH) => {
                if first == 0 {
                    return;
                }
            }
        }
        let full = async { while batch.len() < BATCH && spans.recv_many(&mut batch, BATCH).await > 0 {} };
        tokio::select! {
            _ = end.begun() => break,
            _ = tokio::time::timeout(DELAY, full) => {}
        }
        collector.export(&mut batch, &mut end).await;
    }
    loop {
        while batch.len() < BATCH
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() {
            return;
        }
        if !collector.export(&mut batch, &mut end).await {
            break;
        }
    }
    drop_spans(spans.len(), "the export before them failed");
}

/// Counts spans as dropped. A reason is logged once, until an export succeeds or another reason comes.
fn drop_spans(count: usize, reason: &str) {
    if let Some(sink) = sink::sink()
        && count > 0
    {
        if sink.failures.is_new(reason) {
            tracing::warn!(reason, count, "spans were dropped");
        }
        sink.dropped.fetch_add(count as u64, Relaxed);
    }
}

impl Collector {
    fn new(config: &ExporterConfig) -> Result<Self, TelemetryError> {
        let has_credentials = config.endpoint.contains('@');
        let bad = |reason: String| TelemetryError::Endpoint {
            endpoint: if has_credentials {
                "[redacted]".to_owned()
            } else {
                config.endpoint.clone()
            },
            reason,
        };
        if has_credentials {
            // No request would have them.
            return Err(bad("it holds a name or password; set a header".to_owned()));
        }
        let base = config.endpoint.trim_end_matches('/');
        let address = if base.ends_with("/v1/traces") {
            base.to_owned()
        } else {
            format!("{base}/v1/traces")
        };
        let uri: Uri = address
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| bad(error.to_string()))?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let builder = Client::builder(TokioExecutor::new());
        let client = match uri.scheme_str() {
            Some("http") => Connections::Plain(builder.build(tcp)),
            Some("https") => {
                let tls = HttpsConnectorBuilder::new().with_native_roots();
                let tls = tls
                    .map_err(TelemetryError::Certificates)?
                    .https_only()
                    .enable_http1();
                Connections::Tls(builder.build(tls.wrap_connector(tcp)))
            }
            _ => return Err(bad("it must be like http://host:4318".to_owned())),
        };
        let headers = config.headers.iter().map(|(name, value)| {
            let invalid = || TelemetryError::Header { name: name.clone() };
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            Ok((HeaderName::try_from(name).map_err(|_| invalid())?, value))
        });
        Ok(Self {
            client,
            uri,
            headers: headers.collect::<Result<_, TelemetryError>>()?,
            service: config.service.clone(),
            instance: format!("{:08x}", getrandom::u32().unwrap_or_else(|_| std::process::id())),
        })
    }

    /// Sends the spans and empties the batch. Returns whether the collector took them. They are dropped if not: a queue that waits
    /// for it would grow, or block requests.
    async fn export(&self, batch: &mut Vec<Span>, end: &mut End) -> bool {
        let count = batch.len();
        let body = otlp::request(&self.service, &self.instance, batch).to_string();
        batch.clear();
        let sent = tokio::select! {
            sent = self.deliver(body.into()) => sent,
            () = end.over() => Err("the collector did not answer before the process ended".to_owned()),
        };
        match sent {
            Ok(Rejected { spans, reason }) => {
                let rejected = usize::try_from(spans).unwrap_or(usize::MAX).min(count);
                drop_spans(rejected, &format!("the collector rejected them: {reason}"));
                if let Some(sink) = sink::sink() {
                    sink.exported.fetch_add((count - rejected) as u64, Relaxed);
                    if rejected == 0 {
                        sink.failures.end();
                    }
                }
                true
            }
            Err(reason) => {
                drop_spans(count, &reason);
                false
            }
        }
    }

    /// Sends an export, again if the collector is busy. Returns what the collector rejects of it.
    ///
    /// # Errors
    /// Why the collector does not take it.
    async fn deliver(&self, body: Bytes) -> Result<Rejected, String> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let sent = tokio::time::timeout(TIMEOUT, self.send(body.clone())).await;
            match sent {
                Ok(Ok(rejected)) => return Ok(rejected),
                Ok(Err(Refused::Busy { reason, after })) => match pause(attempts, after) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(reason),
                },
                Ok(Err(Refused::Failed(reason))) => return Err(reason),
                Err(_) => {
                    return Err(format!(
                        "the collector did not answer within {} s",
                        TIMEOUT.as_secs()
                    ));
                }
            }
        }
    }

    /// Sends an export once. Returns what the collector rejects of it.
    ///
    /// # Errors
    /// Why the collector does not take it.
    async fn send(&self, body: Bytes) -> Result<Rejected, Refused> {
        let mut request = Request::post(self.uri.clone()).header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::from(body))
            .map_err(|error| Refused::Failed(error.to_string()))?;
        let answer = match &self.client {
            Connections::Plain(client) => client.request(request).await,
            Connections::Tls(client) => client.request(request).await,
        };
        let answer = answer.map_err(|error| Refused::Failed(with_sources(&error)))?;
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER).and_then(seconds);
        // The connection is reused only after the whole answer.
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        if matches!(status.as_u16(), 429 | 502..=504) {
            let reason = format!("HTTP {status}");
            return Err(Refused::Busy { reason, after });
        }
        if !status.is_success() {
            return Err(Refused::Failed(format!("HTTP {status}")));
        }
        Ok(body.map_or_else(|_| Rejected::default(), |body| Rejected::read(&body.to_bytes())))
    }
}

/// Why a collector does not take an export.
#[derive(Debug)]
enum Refused {
    /// It may take it later: after that time, if it states one.
    Busy { reason: String, after: Option<Duration> },
    /// It never will, or cannot be reached.
    Failed(String),
}

/// Returns the pause after so many attempts; `None` if there is no other one, or if the collector asks for more than [`MAX_PAUSE`].
fn pause(attempts: u32, after: Option<Duration>) -> Option<Duration> {
    let doubled = FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(8));
    let pause = after.unwrap_or(doubled);
    (attempts < MAX_ATTEMPTS && pause <= MAX_PAUSE).then_some(pause)
}

/// Reads the seconds of a `retry-after`.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Spans of an export that the collector rejects, although it takes the others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rejected {
    spans: u64,
    reason: String,
}

impl Rejected {
    /// Reads `partialSuccess` of an answer (OTLP/HTTP); in JSON, a number of 64 bits is a text.
    fn read(answer: &[u8]) -> Self {
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        let partial = answer.get("partialSuccess");
        let field = |name: &str| partial.and_then(|partial| partial.get(name));
        let spans = field("rejectedSpans");
        let spans = spans.and_then(|spans| spans.as_u64().or_else(|| spans.as_str()?.parse().ok()));
        Self {
            spans: spans.unwrap_or(0),
            reason: field("errorMessage")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// An error with what caused it, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn a_collector_that_cannot_be_reached_is_reported_with_the_cause() {
        let collector = Collector::new(&ExporterConfig::new("http://127.0.0.1:1", "app")).unwrap();
        let error = runtime().block_on(collector.deliver(Bytes::new())).unwrap_err();
        assert!(error.contains("refused"), "{error}");
    }

    #[test]
    fn rejected_spans_are_read() {
        for (answer, spans, reason) in [
            (
                r#"{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "x"}}"#,
                3,
                "x",
            ),
            (r#"{"partialSuccess": {"rejectedSpans": 2}}"#, 2, ""),
            (r#"{"partialSuccess": {}}"#, 0, ""),
            ("{}", 0, ""),
            ("", 0, ""),
        ] {
            let expected = Rejected {
                spans,
                reason: reason.to_owned(),
            };
            assert_eq!(Rejected::read(answer.as_bytes()), expected, "{answer}");
        }
    }

    /// Spans that met a 503 were dropped.
    #[test]
    fn a_busy_collector_gets_the_spans_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = [
            "503 Busy\r\nretry-after: 0",
            "429 Busy\r\nretry-after: 0",
            "200 OK",
        ];
        let server = std::thread::spawn(move || {
            let bodies = answers.map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"spans") {
                    let mut part = [0; 1024];
                    let count = stream.read(&mut part).unwrap();
                    assert!(count > 0, "the request ends early");
                    asked.extend_from_slice(&part[..count]);
                }
                let answer = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
            });
            bodies.len()
        });
        let collector = Collector::new(&ExporterConfig::new(format!("http://{address}"), "app")).unwrap();
        let sent = runtime().block_on(collector.deliver(Bytes::from_static(b"spans")));
        assert_eq!(sent.unwrap(), Rejected::default());
        assert_eq!(server.join().unwrap(), answers.len());
    }

    #[test]
    fn attempts_and_pauses_are_bounded() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(1, None), Some(seconds(1)));
        assert_eq!(pause(3, None), Some(seconds(4)));
        assert_eq!(pause(3, Some(seconds(30))), Some(seconds(30)));
        assert_eq!(pause(1, Some(seconds(31))), None);
        assert_eq!(pause(MAX_ATTEMPTS, Some(Duration::ZERO)), None);
    }

    #[test]
    fn addresses_and_headers_are_checked() {
        let of = |endpoint: &str| Collector::new(&ExporterConfig::new(endpoint, "app"));
        assert_eq!(
            of("http://a:4318")
                .map(|collector| collector.uri.to_string())
                .unwrap(),
            "http://a:4318/v1/traces"
        );
        assert_eq!(
            of("http://a/v1/traces/")
                .map(|collector| collector.uri.to_string())
                .unwrap(),
            "http://a/v1/traces"
        );
        for wrong in ["", "a:4318", "grpc://a:4317", "http://", "http://me:secret@a"] {
            assert!(
                matches!(of(wrong), Err(TelemetryError::Endpoint { .. })),
                "{wrong}"
            );
        }
        let Err(refused) = of("grpc://me:secret@a") else {
            panic!("it has a password");
        };
        assert!(!format!("{refused} {refused:?}").contains("secret"));
        let mut config = ExporterConfig::new("http://a", "app");
        config.headers.push(("api-key".to_owned(), "se\ncret".to_owned()));
        let Err(refused) = Collector::new(&config) else {
            panic!("the header has a line end");
        };
        assert!(!format!("{refused} {refused:?}").contains("cret"));
    }
}
