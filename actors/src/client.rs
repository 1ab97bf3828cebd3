//! A client: publishes a request, gets its one reply.

use std::time::Duration;

use async_nats::{HeaderMap, RequestErrorKind};
use kaskade_models::Tensor;

use crate::{
    bus::Bus,
    fault::{Code, Fault},
    headers,
    post::HEADROOM,
    subjects::App,
    wire::{self, InferReply, InferRequest, Message as _},
};

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
        let payload = request.encode()?;
        let limit = self.max_payload.saturating_sub(HEADROOM);
        if payload.len() > limit {
            let message = format!(
                "the request takes {} bytes, this broker carries {limit}",
                payload.len()
            );
            return Err(Fault::new(Code::TooLarge, message));
        }
        let message = async_nats::Request::new()
            .headers(headers)
            .payload(payload)
            .timeout(Some(budget + WAY_BACK));
        let reply = self
            .nats
            .send_request(self.app.infer(), message)
            .await
            .map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => Fault::new(
                    Code::UnknownApp,
                    format!(
                        "nobody serves app `{}` on this broker; is it started, and the name right?",
                        self.app.name()
                    ),
                ),
                RequestErrorKind::TimedOut => Fault::new(Code::Expired, "no reply came within the budget"),
                _ => Fault::new(Code::Unavailable, error.to_string()),
            })?;
        match headers::fault(reply.headers.as_ref()) {
            Some(fault) => Err(fault),
            None => wire::decode_reply(headers::content_type(reply.headers.as_ref())?, &reply.payload),
        }
    }
}

/// Headers of a request with that budget.
fn request_headers(budget: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers::put_budget(&mut headers, budget);
    headers
}
