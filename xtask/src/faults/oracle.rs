//! Requests that the oracle sends to the app under test, and the reading of replies.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;
use kaskade::Inputs;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{InferReply, InferRequest, Message as _};
use kaskade_actors::{App, Code};
use kaskade_testkit::oracle;
pub(super) use kaskade_testkit::oracle::{End, Fate, Tally, connect};

use crate::deployed_plan::APP;
use crate::node::inputs;

/// Requests, their rate, and their budget.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// The NATS server that the oracle connects to.
    pub(super) url: String,
    /// Requests per second, evenly spaced.
    pub(super) rate: f64,
    /// Requests in all.
    pub(super) total: u64,
    /// Budget of each request.
    pub(super) budget: Duration,
    /// Inputs of each request, by its number.
    pub(super) asks: fn(u64) -> Inputs,
    /// Whether each request carries its number as its id.
    pub(super) named: bool,
}

impl Load {
    /// 600 requests at 200 per second, of whose answers the small model is confident.
    pub(super) fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            rate: 200.0,
            total: 600,
            budget: Duration::from_secs(5),
            asks: |number| inputs((number % 4) as f32, 9.0),
            named: false,
        }
    }

    fn encoded(&self) -> anyhow::Result<oracle::Load> {
        self.of(|number| {
            let request = InferRequest {
                inputs: (self.asks)(number),
                ..InferRequest::default()
            };
            Ok(request.encode()?)
        })
    }

    fn of(&self, body: impl Fn(u64) -> anyhow::Result<Bytes>) -> anyhow::Result<oracle::Load> {
        let request = |number: u64| {
            let mut headers = HeaderMap::new();
            headers::put_budget(&mut headers, self.budget);
            if self.named {
                headers::put_request_id(&mut headers, &number.to_string())?;
            }
            Ok((headers, body(number)?))
        };
        Ok(oracle::Load {
            url: self.url.clone(),
            subject: App::new(APP)?.infer().to_string(),
            rate: self.rate,
            budget: self.budget,
            requests: (0..self.total).map(request).collect::<anyhow::Result<_>>()?,
            classify: end,
        })
    }
}

/// Sends the load, and makes the fault when a third of it is sent; `strike` returns the moment from which recovery counts.
pub(super) async fn under<F>(load: &Load, strike: F) -> anyhow::Result<Tally>
where
    F: AsyncFnOnce() -> anyhow::Result<Instant>,
{
    load.encoded()?.with_fault(strike).await
}

/// Sends the load without a fault.
pub(super) async fn undisturbed(load: &Load) -> anyhow::Result<Tally> {
    load.encoded()?.undisturbed().await
}

/// Sends the load without a fault, with this body in every request.
pub(super) async fn repeated(load: &Load, body: &Bytes) -> anyhow::Result<Tally> {
    load.of(|_| Ok(body.clone()))?.undisturbed().await
}

fn end(reply: &Message) -> End {
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return End::Fault(Code::UnknownApp.id());
    }
    if let Some(fault) = headers::fault(reply.headers.as_ref()) {
        return End::Fault(fault.code.id());
    }
    match InferReply::decode(&reply.payload) {
        Ok(reply) => End::Answer {
            degraded: reply.degraded,
        },
        Err(_) => End::Fault(Code::Malformed.id()),
    }
}
