//! The client of an app: sends requests and receives one reply each, over the broker or from an ingress in the same
//! process.

mod attempts;
mod cancel;
mod durable;
mod feedback;
mod inbox;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use kaskade_models::Tensor;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{error::Elapsed, timeout};

use crate::{
    bus::publisher::HEADROOM,
    bus::{Bus, RAISE_MAX_PAYLOAD},
    error::{Code, Fault},
    ids,
    ingress::LocalIntake,
    ingress::local::Pending,
    ingress::reply_target::Parts,
    subjects::App,
    wire::headers,
    wire::{self, InferReply, InferRequest, Message as _, RequestOptions, STREAM},
};

use attempts::{Exchange, Shared};
use cancel::CancelOnDrop;
pub use durable::Accepted;
use inbox::{Inbox, Replies};

/// Time after the end of the budget that a client waits for a reply in transit.
const REPLY_MARGIN: Duration = Duration::from_millis(500);

/// A client of one app. Cheap to clone.
///
/// The client retries a request with the same id and the remaining budget if the connection breaks, no process answers,
/// or the service returns a retryable fault ([`kaskade_policy::client_retry`]). The model may run twice; the caller
/// gets one answer. A streamed request is not retried after its first part. [`Client::retry`] disables retries.
#[derive(Debug, Clone)]
pub struct Client {
    bus: Bus,
    nats: async_nats::Client,
    app: App,
    max_payload: usize,
    retries: bool,
    local: Option<LocalIntake>,
    shared: Arc<Shared>,
}

impl Client {
    /// Creates a client of `app` on `bus`.
    pub fn new(bus: &Bus, app: App) -> Self {
        Self {
            nats: bus.client().clone(),
            app,
            max_payload: bus.max_payload(),
            retries: true,
            local: None,
            shared: Arc::new(Shared::new()),
            bus: bus.clone(),
        }
    }

    /// Sends requests to the ingresses of this process, without the broker, while they accept any. Requests that they
    /// do not accept, and retries, go over the broker, where other processes may answer.
    #[must_use]
    pub fn with_local_ingress(self, local: Option<LocalIntake>) -> Self {
        Self { local, ..self }
    }

    /// Enables or disables retries; enabled by default. Without retries, each request is sent once and runs at most
    /// once.
    #[must_use]
    pub fn retry(self, retries: bool) -> Self {
        Self { retries, ..self }
    }

    /// Sends a request and waits for the answer within the budget.
    ///
    /// # Errors
    /// The service's [`Fault`]; `UnknownApp` if no process serves the app, `TooLarge` if the request exceeds the
    /// broker's limit, `NotPermitted` if the broker denies this client's requests, `NoReply` if no reply came in time.
    pub async fn infer(&self, inputs: Vec<Tensor>, budget: Duration) -> Result<InferReply, Fault> {
        let request = InferRequest {
            inputs,
            ..InferRequest::default()
        };
        self.ask(&request, request_headers(budget), budget).await
    }

    /// Sends a request with the given headers (see [`headers`]) and waits for the answer. Ignores the parameter
    /// `stream`; use [`Client::stream`] to stream.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn ask(
        &self,
        request: &InferRequest,
        mut headers: HeaderMap,
        budget: Duration,
    ) -> Result<InferReply, Fault> {
        if self.local.is_some() {
            let options = RequestOptions::read(&headers, request, budget)?;
            return self.request(request.clone(), &options).await;
        }
        let payload = if request.parameters.contains_key(STREAM) {
            let mut whole = request.clone();
            whole.ask_for_no_parts();
            self.encode_checked(&whole)?
        } else {
            self.encode_checked(request)?
        };
        let unique_id = self.name(request, &mut headers)?;
        Exchange::new(self, headers, payload, budget)
            .with_unique_id(unique_id)
            .run(None)
            .await
    }

    /// Assigns an id to a request that has none and may be retried. Returns the new id.
    fn name(&self, request: &InferRequest, headers: &mut HeaderMap) -> Result<Option<String>, Fault> {
        if !self.retries || request.id.is_some() || headers::request_id(headers)?.is_some() {
            return Ok(None);
        }
        let id = ids::unique_token();
        headers::put_request_id(headers, &id)?;
        Ok(Some(id))
    }

    /// Sends a request like [`Client::ask`], with options instead of headers. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn request(
        &self,
        mut request: InferRequest,
        options: &RequestOptions,
    ) -> Result<InferReply, Fault> {
        let begun = Instant::now();
        request.ask_for_no_parts();
        let request = Arc::new(request);
        let mut refused = None;
        if let Some(mut pending) = self.taken_here(&request, options, None) {
            let answer = timeout(options.budget + REPLY_MARGIN, pending.reply()).await;
            match Self::ended_here(answer, self.retries) {
                ControlFlow::Break(end) => return end,
                ControlFlow::Continue(fault) => refused = Some(fault),
            }
        }
        let payload = self.encode_checked(&request)?;
        let mut cancel = CancelOnDrop::new(self, &options.id);
        let reply = self.exchange(options, payload, begun)?.run(refused).await;
        cancel.disarm();
        reply
    }

    /// Interprets the answer of an ingress of this process: breaks with the result, or continues with the fault after
    /// which the request is sent over the broker.
    fn ended_here(
        answer: Result<Option<Result<InferReply, Fault>>, Elapsed>,
        may_send_again: bool,
    ) -> ControlFlow<Result<InferReply, Fault>, Fault> {
        match answer {
            Err(_) => ControlFlow::Break(Err(no_reply())),
            Ok(Some(Ok(reply))) => ControlFlow::Break(Ok(reply)),
            Ok(reply) => {
                let fault = reply.and_then(Result::err).unwrap_or_else(ended);
                if may_send_again && fault.code.retryable() {
                    ControlFlow::Continue(fault)
                } else {
                    ControlFlow::Break(Err(fault))
                }
            }
        }
    }

    /// Sends a request to a language model and streams its answer: calls `part` with each new piece, in order. Only
    /// stages that always reply send parts, unless the request has the parameter `stream` with the value `optimistic`.
    /// The complete answer is returned in any case. The request is not retried after its first part.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn stream(
        &self,
        mut request: InferRequest,
        mut headers: HeaderMap,
        budget: Duration,
        part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        if self.local.is_some() {
            let options = RequestOptions::read(&headers, &request, budget)?;
            return self.request_streamed(request, &options, part).await;
        }
        request.ask_for_parts();
        let payload = self.encode_checked(&request)?;
        let unique_id = self.name(&request, &mut headers)?;
        // Free the memory: the answer may take long.
        drop(request);
        Exchange::new(self, headers, payload, budget)
            .with_unique_id(unique_id)
            .stream(None, part)
            .await
    }

    /// Streams a request like [`Client::stream`], with options instead of headers. Dropping the future cancels the
    /// request.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn request_streamed(
        &self,
        mut request: InferRequest,
        options: &RequestOptions,
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        let begun = Instant::now();
        request.ask_for_parts();
        let request = Arc::new(request);
        let mut refused = None;
        if self.local.is_some() {
            let (sender, mut parts) = unbounded_channel();
            if let Some(mut pending) = self.taken_here(&request, options, Some(sender)) {
                let mut has_begun = false;
                let answer = async {
                    // The channel closes with the reply, after the last part.
                    while let Some(piece) = parts.recv().await {
                        has_begun = true;
                        part(*piece);
                    }
                    pending.reply().await
                };
                let answer = timeout(options.budget + REPLY_MARGIN, answer).await;
                match Self::ended_here(answer, self.retries && !has_begun) {
                    ControlFlow::Break(end) => return end,
                    ControlFlow::Continue(fault) => refused = Some(fault),
                }
            }
        }
        let payload = self.encode_checked(&request)?;
        // Free the memory: the answer may take long.
        drop(request);
        let mut cancel = CancelOnDrop::new(self, &options.id);
        let answer = self
            .exchange(options, payload, begun)?
            .stream(refused, part)
            .await;
        cancel.disarm();
        answer
    }

    /// Creates an exchange whose budget counts from `begun`.
    fn exchange(
        &self,
        options: &RequestOptions,
        payload: Bytes,
        begun: Instant,
    ) -> Result<Exchange<'_>, Fault> {
        let unique_id = options.has_unique_id.then(|| options.id.clone());
        let exchange = Exchange::new(self, options.headers()?, payload, options.budget);
        Ok(exchange.since(begun).with_unique_id(unique_id))
    }

    /// Registers for the replies to a streamed request.
    async fn replies(&self) -> Result<Replies, Fault> {
        let known = self.shared.inbox().clone();
        if let Some(replies) = known.and_then(|inbox| inbox.replies()) {
            return Ok(replies);
        }
        let opened = Inbox::open(&self.nats).await;
        let opened = opened.map_err(|error| absent(error.to_string()))?;
        let replies = opened.replies();
        *self.shared.inbox() = Some(opened);
        replies.ok_or_else(|| absent("the connection was closed"))
    }

    /// Hands the request to an ingress of this process; `None` if none accepts it.
    fn taken_here(
        &self,
        request: &Arc<InferRequest>,
        options: &RequestOptions,
        parts: Option<Parts>,
    ) -> Option<Pending> {
        self.local.as_ref()?.take(request, options, parts)
    }

    /// Cancels the requests with that id (header `Kaskade-Request-Id`, or `id` of the request). They are answered with
    /// [`Code::Cancelled`]; a language model drops them at its next token.
    ///
    /// # Errors
    /// [`Code::Malformed`] for an invalid id; [`Code::Unavailable`] if the connection is closed.
    pub async fn cancel(&self, id: &str) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        headers::put_request_id(&mut headers, id)?;
        self.nats
            .publish_with_headers(self.app.cancel(), headers, Bytes::new())
            .await
            .map_err(|error| Fault::new(Code::Unavailable, error.to_string()))
    }

    fn encode_checked(&self, request: &InferRequest) -> Result<Bytes, Fault> {
        let payload = request.encode()?;
        let limit = self.max_payload.saturating_sub(HEADROOM);
        if payload.len() > limit {
            let message = format!(
                "the request has {} bytes; the broker accepts at most {limit}; send less, or {RAISE_MAX_PAYLOAD}",
                payload.len()
            );
            return Err(Fault::new(Code::TooLarge, message));
        }
        Ok(payload)
    }

    /// Waits for the reply to a message on `subject`, or for the server's error that publishing there is not permitted.
    /// The server reports that error on the connection and sends no reply.
    async fn permitted<T>(
        &self,
        subject: &Subject,
        asked: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let refused = self.bus.connection().refused(subject);
        tokio::select! {
            biased;
            end = asked => end,
            text = refused => Err(Fault::new(
                Code::NotPermitted,
                format!("{text}; check the permissions of this client's user"),
            )),
        }
    }

    fn no_responders(&self) -> Fault {
        let app = self.app.name();
        let message = format!("no process serves app `{app}` on this broker; start it, or correct the name");
        Fault::new(Code::UnknownApp, message)
    }
}

/// Returns the fault of a request without a connection.
fn absent(error: impl Into<String>) -> Fault {
    Fault::new(Code::Unavailable, error)
}

fn no_reply() -> Fault {
    Fault::new(Code::NoReply, "no reply arrived within the budget")
}

/// Returns the fault of a request whose ingress, in this process, ended without a reply.
fn ended() -> Fault {
    Fault::new(
        Code::Unavailable,
        "the ingress that had the request has ended; send it again",
    )
}

fn read(reply: &async_nats::Message) -> Result<InferReply, Fault> {
    match headers::fault(reply.headers.as_ref()) {
        Some(fault) => Err(fault),
        None => wire::decode_reply(headers::content_type(reply.headers.as_ref())?, &reply.payload),
    }
}

/// Returns the headers of a request with that budget.
fn request_headers(budget: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers::put_budget(&mut headers, budget);
    headers
}

#[cfg(test)]
mod tests;
