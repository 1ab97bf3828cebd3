//! A client: publishes a request, gets its one reply.

mod durable;

use std::time::Duration;

use async_nats::{HeaderMap, RequestErrorKind, StatusCode, Subject};
use bytes::Bytes;
use futures::StreamExt;
use kaskade_models::Tensor;

use crate::{
    bus::Bus,
    fault::{Code, Fault},
    headers,
    post::HEADROOM,
    subjects::App,
    wire::{self, InferReply, InferRequest, Message as _},
};

pub use durable::Accepted;

/// How much longer than its budget a client waits for the reply: the way back.
const WAY_BACK: Duration = Duration::from_millis(500);

/// Asks one app. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    nats: async_nats::Client,
    app: App,
    max_payload: usize,
}

impl Client {
    /// A client of `app` on that bus.
    pub fn new(bus: &Bus, app: App) -> Self {
        Self {
            nats: bus.client().clone(),
            app,
            max_payload: bus.max_payload(),
        }
    }

    /// Asks, and waits for the answer as long as the budget says.
    ///
    /// # Errors
    /// The service's own [`Fault`]; or `UnknownApp` when nobody serves the app, `TooLarge` when the request exceeds what
    /// the broker carries, `Expired` when no reply came in time.
    pub async fn infer(&self, inputs: Vec<Tensor>, budget: Duration) -> Result<InferReply, Fault> {
        let request = InferRequest {
            inputs,
            ..InferRequest::default()
        };
        self.ask(&request, request_headers(budget), budget).await
    }

    /// The same with headers of one's own (see [`headers`]).
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn ask(
        &self,
        request: &InferRequest,
        headers: HeaderMap,
        budget: Duration,
    ) -> Result<InferReply, Fault> {
        let payload = self.written(request)?;
        let message = async_nats::Request::new()
            .headers(headers)
            .payload(payload)
            .timeout(Some(budget + WAY_BACK));
        let reply = self
            .nats
            .send_request(self.app.infer(), message)
            .await
            .map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => self.nobody(),
                RequestErrorKind::TimedOut => late(),
                _ => Fault::new(Code::Unavailable, error.to_string()),
            })?;
        read(&reply)
    }

    /// Asks a language model, and reads its answer while it is made: `part` gets what is new of it each time, in order. Only the answer
    /// of a stage that does not pass requests on comes in parts; the whole comes back in any case.
    ///
    /// # Errors
    /// As [`Client::infer`].
    pub async fn read_along(
        &self,
        mut request: InferRequest,
        mut headers: HeaderMap,
        budget: Duration,
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        request.parameters.insert("stream".to_owned(), "true".to_owned());
        headers::put_budget(&mut headers, budget);
        let payload = self.written(&request)?;
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
                    return Err(self.nobody());
                }
                let reply = read(&message)?;
                if reply.part.is_none() {
                    return Ok(reply);
                }
                part(reply);
            }
            Err(absent("the connection was closed".to_owned()))
        };
        let answer = tokio::time::timeout(budget + WAY_BACK, answer).await;
        answer.unwrap_or_else(|_| Err(late()))
    }

    /// Says that nobody waits any more for the requests of that id (header `Kaskade-Request-Id`, or `id` of the request). They are
    /// answered with [`Code::Cancelled`]; a language model lets go of them at its next token.
    ///
    /// # Errors
    /// [`Code::Malformed`] for an id that cannot be one; [`Code::Unavailable`] where the connection is closed.
    pub async fn cancel(&self, id: &str) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        headers::put_request_id(&mut headers, id)?;
        self.nats
            .publish_with_headers(self.app.cancel(), headers, Bytes::new())
            .await
            .map_err(|error| Fault::new(Code::Unavailable, error.to_string()))
    }

    fn written(&self, request: &InferRequest) -> Result<Bytes, Fault> {
        let payload = request.encode()?;
        let limit = self.max_payload.saturating_sub(HEADROOM);
        if payload.len() > limit {
            let message = format!(
                "the request takes {} bytes, this broker carries {limit}",
                payload.len()
            );
            return Err(Fault::new(Code::TooLarge, message));
        }
        Ok(payload)
    }

    fn nobody(&self) -> Fault {
        let app = self.app.name();
        let message = format!("nobody serves app `{app}` on this broker; is it started, and the name right?");
        Fault::new(Code::UnknownApp, message)
    }
}

fn late() -> Fault {
    Fault::new(Code::Expired, "no reply came within the budget")
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
