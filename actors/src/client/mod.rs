//! A client: publishes a request and receives its one reply.

mod attempts;
mod durable;
mod feedback;

use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, StatusCode, Subject};
use bytes::Bytes;
use futures::StreamExt;
use kaskade_models::Tensor;

use crate::{
    bus::Bus,
    bus::publisher::HEADROOM,
    error::{Code, Fault},
    ids,
    subjects::App,
    wire::headers,
    wire::{self, InferReply, InferRequest, Message as _},
};

use attempts::{Exchange, Shared};
pub use durable::Accepted;

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
            shared: Arc::new(Shared::new()),
            bus: bus.clone(),
        }
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

    /// Sends a request with the given headers (see [`headers`]) and waits for the answer.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn ask(
        &self,
        request: &InferRequest,
        headers: HeaderMap,
        budget: Duration,
    ) -> Result<InferReply, Fault> {
        let (payload, mut headers) = (self.encode_checked(request)?, headers);
        if self.retries && request.id.is_none() && headers::request_id(&headers)?.is_none() {
            headers::put_request_id(&mut headers, &ids::unique_token())?;
        }
        Exchange::new(self, headers, payload, budget).run().await
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
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        let stream = request.parameters.entry("stream".to_owned());
        stream.or_insert_with(|| "true".to_owned());
        headers::put_budget(&mut headers, budget);
        let payload = self.encode_checked(&request)?;
        let absent = |error: String| Fault::new(Code::Unavailable, error);
        let inbox: Subject = self.nats.new_inbox().into();
        let subscribed = self.nats.subscribe(inbox.clone()).await;
        let mut replies = subscribed.map_err(|error| absent(error.to_string()))?;
        self.nats
            .publish_with_reply_and_headers(self.app.infer(), inbox, headers, payload)
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
