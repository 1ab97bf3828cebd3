//! A client: publishes a request and receives its one reply.

mod durable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, RequestErrorKind, StatusCode, Subject};
use bytes::Bytes;
use futures::StreamExt;
use kaskade_models::Tensor;

use crate::{
    bus::publisher::HEADROOM,
    bus::{Bus, Link},
    error::{Code, Fault},
    subjects::App,
    wire::headers,
    wire::{self, InferReply, InferRequest, Message as _},
};

pub use durable::Accepted;

/// Time beyond its budget that a client waits for the reply to travel back.
const REPLY_MARGIN: Duration = Duration::from_millis(500);

/// Time for which "no responders" is retried for an app that has answered before: when a server of a cluster leaves,
/// its clients reconnect to others before these know all subscriptions.
const NO_RESPONDERS_GRACE: Duration = Duration::from_secs(1);

/// Pause between two such attempts.
const NO_RESPONDERS_PAUSE: Duration = Duration::from_millis(50);

/// A client of one app. Cheap to clone.
///
/// A request whose connection breaks before the reply arrives is sent again with its remaining budget, since either
/// message may have been lost. The model may run twice; the caller gets one answer.
#[derive(Debug, Clone)]
pub struct Client {
    bus: Bus,
    nats: async_nats::Client,
    app: App,
    max_payload: usize,
    /// Whether the app has ever answered.
    served: Arc<AtomicBool>,
}

/// Outcome of one attempt.
enum Attempt {
    Replied(async_nats::Message),
    NoResponders,
    Reconnected,
    Failed(Fault),
}

impl Client {
    /// Creates a client of `app` on that bus.
    pub fn new(bus: &Bus, app: App) -> Self {
        Self {
            nats: bus.client().clone(),
            app,
            max_payload: bus.max_payload(),
            served: Arc::default(),
            bus: bus.clone(),
        }
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
        let payload = self.encode_checked(request)?;
        let (begun, mut headers) = (Instant::now(), headers);
        loop {
            let left = budget.saturating_sub(begun.elapsed());
            match self.attempt(headers.clone(), payload.clone(), left).await {
                Attempt::Replied(reply) => {
                    self.served.store(true, Ordering::Relaxed);
                    return read(&reply);
                }
                Attempt::NoResponders
                    if self.served.load(Ordering::Relaxed) && begun.elapsed() < NO_RESPONDERS_GRACE =>
                {
                    tokio::time::sleep(NO_RESPONDERS_PAUSE).await;
                }
                Attempt::NoResponders => return Err(self.no_responders()),
                Attempt::Failed(fault) => return Err(fault),
                Attempt::Reconnected => {}
            }
            let left = budget.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(no_reply());
            }
            headers::put_budget(&mut headers, left);
        }
    }

    async fn attempt(&self, headers: HeaderMap, payload: Bytes, budget: Duration) -> Attempt {
        let message = async_nats::Request::new()
            .headers(headers)
            .payload(payload)
            .timeout(Some(budget + REPLY_MARGIN));
        let broken = self.reconnected();
        let sent = self.nats.send_request(self.app.infer(), message);
        let sent = tokio::select! {
            sent = sent => sent,
            () = broken => return Attempt::Reconnected,
        };
        sent.map_or_else(
            |error| match error.kind() {
                RequestErrorKind::NoResponders => Attempt::NoResponders,
                RequestErrorKind::TimedOut => Attempt::Failed(no_reply()),
                _ => Attempt::Failed(Fault::new(Code::Unavailable, error.to_string())),
            },
            Attempt::Replied,
        )
    }

    /// Resolves when the connection has been lost since the call and is up again.
    fn reconnected(&self) -> impl Future<Output = ()> + use<> {
        let (bus, mut link) = (self.bus.clone(), self.bus.connection().link());
        let before = bus.connection().counts().disconnects;
        async move {
            loop {
                // A link that was lost and is up again may read "up" both times; the counter shows the loss.
                let broken = bus.connection().counts().disconnects > before;
                if broken && *link.borrow_and_update() == Link::Up {
                    return;
                }
                if link.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Sends a request to a language model and streams its answer: `part` is called with each new piece, in order.
    /// Only stages that always reply send parts; the complete answer is returned in any case.
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
        request.parameters.insert("stream".to_owned(), "true".to_owned());
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
mod tests {
    use kaskade_testkit::{NatsOptions, NatsServer};

    use super::*;
    use crate::bus::BusConfig;

    const BUDGET: Duration = Duration::from_secs(20);

    async fn bus(server: &NatsServer) -> Bus {
        let config = BusConfig {
            url: Some(server.url()),
            ..BusConfig::new("test")
        };
        Bus::connect(config).await.unwrap()
    }

    fn replied() -> Bytes {
        InferReply::default().encode().unwrap()
    }

    #[tokio::test]
    async fn a_request_is_sent_again_when_its_connection_broke() {
        let server = NatsServer::start(NatsOptions::default());
        let (ours, theirs) = (bus(&server).await, bus(&server).await);
        let app = App::new("moving").unwrap();
        let mut asked = theirs.subscribe(app.infer(), None).await.unwrap();
        theirs.barrier().await.unwrap();
        let client = Client::new(&ours, app);
        let requests = async {
            let first = asked.next().await.unwrap();
            let budget = headers::budget(&first.headers.unwrap()).unwrap();
            ours.client().force_reconnect().await.unwrap();
            let second = asked.next().await.unwrap();
            let left = headers::budget(&second.headers.unwrap()).unwrap();
            theirs
                .client()
                .publish(second.reply.unwrap(), replied())
                .await
                .unwrap();
            (budget, left)
        };
        let (answer, (budget, left)) = tokio::join!(client.infer(Vec::new(), BUDGET), requests);
        assert!(answer.is_ok(), "{answer:?}");
        assert!(left < budget, "what has passed is not given twice");
    }

    #[tokio::test]
    async fn moved_ingresses_are_found_again_and_unknown_apps_are_refused_immediately() {
        let server = NatsServer::start(NatsOptions::default());
        let (ours, theirs) = (bus(&server).await, bus(&server).await);
        let app = App::new("moved").unwrap();
        let client = Client::new(&ours, app.clone());
        let refused = client.infer(Vec::new(), BUDGET).await.unwrap_err();
        assert_eq!(refused.code, Code::UnknownApp);
        let requests = || async {
            let asked = theirs.subscribe(app.infer(), None).await.unwrap();
            theirs.barrier().await.unwrap();
            asked
        };
        let answer =
            |message: async_nats::Message| theirs.client().publish(message.reply.unwrap(), replied());
        let mut asked = requests().await;
        let (first, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
            answer(asked.next().await.unwrap()).await.unwrap();
        });
        assert!(first.is_ok());
        asked.unsubscribe().await.unwrap();
        theirs.barrier().await.unwrap();
        let (second, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
            let mut asked = requests().await;
            answer(asked.next().await.unwrap()).await.unwrap();
        });
        assert!(second.is_ok(), "{second:?}");
    }
}
