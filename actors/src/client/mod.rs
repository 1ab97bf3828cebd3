//! A client: sends a request and receives its one reply, over the broker or from an ingress in the same process.

mod attempts;
mod cancel;
mod durable;
mod feedback;
mod inbox;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, StatusCode};
use bytes::Bytes;
use kaskade_models::Tensor;
use tokio::sync::mpsc::unbounded_channel;

use crate::{
    bus::Bus,
    bus::publisher::HEADROOM,
    error::{Code, Fault},
    ids,
    ingress::LocalIntake,
    ingress::client::Parts,
    ingress::local::Pending,
    subjects::App,
    wire::headers,
    wire::{self, InferReply, InferRequest, Message as _, RequestOptions, STREAM},
};

use attempts::{Exchange, Shared};
use cancel::CancelOnDrop;
pub use durable::Accepted;
use inbox::{Inbox, Replies};

/// Time beyond its budget that a client waits for the reply to travel back.
const REPLY_MARGIN: Duration = Duration::from_millis(500);

/// A client of one app. Cheap to clone.
///
/// A request is sent again, with the same id and its remaining budget, if its connection breaks, no process answers, or
/// the service refuses it with a retryable fault ([`kaskade_policy::client_retry`]). The model may run twice; the caller
/// gets one answer. [`Client::retry`] turns that off.
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
    /// Creates a client of `app` on that bus.
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

    /// Hands requests to the ingresses of this process while they take any, without the broker. What they do not take, and
    /// what is sent again, goes over the broker, where other processes may answer.
    #[must_use]
    pub fn beside(self, local: Option<LocalIntake>) -> Self {
        Self { local, ..self }
    }

    /// Sets whether requests are sent again (the default). Without it, each request is sent once and runs at most once.
    #[must_use]
    pub fn retry(self, retries: bool) -> Self {
        Self { retries, ..self }
    }

    /// Sends a request and waits for the answer within the budget.
    ///
    /// # Errors
    /// The service's own [`Fault`]; `UnknownApp` if no process serves the app, `TooLarge` if the request exceeds the
    /// broker's limit, `NoReply` if no reply came in time.
    pub async fn infer(&self, inputs: Vec<Tensor>, budget: Duration) -> Result<InferReply, Fault> {
        let request = InferRequest {
            inputs,
            ..InferRequest::default()
        };
        self.ask(&request, request_headers(budget), budget).await
    }

    /// Sends a request with the given headers (see [`headers`]) and waits for the answer. The parameter `stream` is left out;
    /// [`Client::stream`] is for it.
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
        if self.retries && request.id.is_none() && headers::request_id(&headers)?.is_none() {
            headers::put_request_id(&mut headers, &ids::unique_token())?;
        }
        Exchange::new(self, headers, payload, budget).run().await
    }

    /// As [`Client::ask`], with options instead of headers. Dropping the future cancels the request.
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
            let reply = tokio::time::timeout(options.budget + REPLY_MARGIN, pending.reply()).await;
            match reply {
                Err(_) => return Err(no_reply()),
                Ok(Some(Ok(reply))) => return Ok(reply),
                Ok(Some(Err(fault))) if !self.retries || !fault.code.retryable() => return Err(fault),
                Ok(Some(Err(fault))) => refused = Some(fault),
                Ok(None) if !self.retries => return Err(ended()),
                Ok(None) => refused = Some(ended()),
            }
        }
        let payload = self.encode_checked(&request)?;
        let mut cancel = CancelOnDrop::new(self, &options.id);
        let exchange = Exchange::new(self, options.headers()?, payload, options.budget).since(begun);
        let reply = match refused {
            None => exchange.run().await,
            Some(fault) => exchange.run_after(fault).await,
        };
        cancel.disarm();
        reply
    }

    /// Sends a request to a language model and streams its answer: `part` is called with each new piece, in order.
    /// Only stages that always reply send parts, unless the request has the parameter `stream` with the value `optimistic`;
    /// the complete answer is returned in any case. A streamed request is sent once.
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
        headers::put_budget(&mut headers, budget);
        let payload = self.encode_checked(&request)?;
        self.stream_over_bus(payload, headers, budget, part).await
    }

    /// As [`Client::stream`], with options instead of headers. Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn request_streamed(
        &self,
        mut request: InferRequest,
        options: &RequestOptions,
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        request.ask_for_parts();
        let request = Arc::new(request);
        if self.local.is_some() {
            let (sender, mut parts) = unbounded_channel();
            if let Some(mut pending) = self.taken_here(&request, options, Some(sender)) {
                let answer = async {
                    // The channel closes with the reply, after the last part.
                    while let Some(piece) = parts.recv().await {
                        part(*piece);
                    }
                    pending.reply().await.unwrap_or_else(|| Err(ended()))
                };
                let answer = tokio::time::timeout(options.budget + REPLY_MARGIN, answer).await;
                return answer.unwrap_or_else(|_| Err(no_reply()));
            }
        }
        let payload = self.encode_checked(&request)?;
        // An answer may take long.
        drop(request);
        let mut cancel = CancelOnDrop::new(self, &options.id);
        let answer = self
            .stream_over_bus(payload, options.headers()?, options.budget, part)
            .await;
        cancel.disarm();
        answer
    }

    async fn stream_over_bus(
        &self,
        payload: Bytes,
        headers: HeaderMap,
        budget: Duration,
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        let absent = |error: String| Fault::new(Code::Unavailable, error);
        let mut replies = self.replies().await?;
        self.nats
            .publish_with_reply_and_headers(self.app.infer(), replies.subject(), headers, payload)
            .await
            .map_err(|error| absent(error.to_string()))?;
        let answer = async {
            while let Some(message) = replies.next().await {
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    return Err(self.no_responders());
                }
                let reply = read(&message)?;
                if reply.part.is_none() {
                    return Ok(reply);
                }
                part(reply);
            }
            Err(absent("the connection was closed".to_owned()))
        };
        let answer = tokio::time::timeout(budget + REPLY_MARGIN, answer).await;
        answer.unwrap_or_else(|_| Err(no_reply()))
    }

    /// Begins to receive the replies to a streamed request.
    async fn replies(&self) -> Result<Replies, Fault> {
        let known = self.shared.inbox().clone();
        if let Some(replies) = known.and_then(|inbox| inbox.replies()) {
            return Ok(replies);
        }
        let absent = |error: String| Fault::new(Code::Unavailable, error);
        let opened = Inbox::open(&self.nats).await;
        let opened = opened.map_err(|error| absent(error.to_string()))?;
        let replies = opened.replies();
        *self.shared.inbox() = Some(opened);
        replies.ok_or_else(|| absent("the connection was closed".to_owned()))
    }

    /// Hands the request to an ingress of this process; `None` if none takes it.
    fn taken_here(
        &self,
        request: &Arc<InferRequest>,
        options: &RequestOptions,
        parts: Option<Parts>,
    ) -> Option<Pending> {
        self.local.as_ref()?.take(request, options, parts)
    }

    /// Cancels the requests of that id (header `Kaskade-Request-Id`, or `id` of the request). They are answered with
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
                "the request has {} bytes; the broker accepts at most {limit}",
                payload.len()
            );
            return Err(Fault::new(Code::TooLarge, message));
        }
        Ok(payload)
    }

    fn no_responders(&self) -> Fault {
        let app = self.app.name();
        let message = format!("no process serves app `{app}` on this broker; start it, or correct the name");
        Fault::new(Code::UnknownApp, message)
    }
}

fn no_reply() -> Fault {
    Fault::new(Code::NoReply, "no reply arrived within the budget")
}

/// The fault of a request whose ingress, in this process, ended without a reply.
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

/// Headers of a request with that budget.
fn request_headers(budget: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers::put_budget(&mut headers, budget);
    headers
}

#[cfg(test)]
mod tests;
