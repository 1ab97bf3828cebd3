//! The attempts of one request: sends it, and retries it as the policy decides.

use std::collections::hash_map::RandomState;
use std::future::pending;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, Message, RequestErrorKind, StatusCode, Subject};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kaskade_policy::client_retry::{AttemptFailure, ClientRetry, RetryDecision};
use kaskade_policy::routing;
use tokio::time::{Instant, sleep_until, timeout};

use super::cancel::cancel;
use super::inbox::{Inbox, Replies};
use super::{Client, REPLY_MARGIN, absent, no_reply, read};
use crate::bus::{Bus, Link};
use crate::error::{Code, Fault};
use crate::wire::InferReply;
use crate::wire::headers;

/// State shared by the requests of one client.
#[derive(Debug)]
pub(super) struct Shared {
    policy: Mutex<ClientRetry>,
    /// Creation time of the client, from which the policy's times count.
    begun: Instant,
    /// Whether the app has ever replied.
    served: AtomicBool,
    /// Inbox for the replies to streamed requests; opened by the first one.
    inbox: Mutex<Option<Arc<Inbox>>>,
    /// Number of the next random draw; starts at a random value.
    draws: AtomicU64,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            policy: Mutex::default(),
            begun: Instant::now(),
            served: AtomicBool::new(false),
            inbox: Mutex::default(),
            draws: AtomicU64::new(RandomState::new().build_hasher().finish()),
        }
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Option<Arc<Inbox>>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self) -> MutexGuard<'_, ClientRetry> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt.
#[derive(Clone, Copy)]
struct Attempt {
    number: u32,
    sent: Instant,
    /// How long the attempt waits for replies.
    timeout: Duration,
    /// Lost connections before it was sent.
    disconnects: u64,
}

/// Result of an attempt.
struct Ended {
    attempt: Attempt,
    outcome: Outcome,
    /// Source of further replies to a streamed request.
    replies: Option<Replies>,
}

/// Outcome of waiting for a reply.
enum Outcome {
    Replied(Message),
    NoResponders,
    Failed(Fault),
}

/// A request in progress. All its attempts stay open and the first answer to any of them counts. For a streamed
/// request, the attempt that sends the first part counts, and the request is not retried afterwards.
pub(super) struct Exchange<'a> {
    client: &'a Client,
    headers: HeaderMap,
    payload: Bytes,
    begun: Instant,
    budget: Duration,
    streamed: bool,
    /// Id of the request, if it is unique to this request.
    unique_id: Option<String>,
    /// Number of the attempt whose parts were passed on.
    reading: Option<u32>,
    resends: u32,
    open: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Time of the next retry.
    resend_at: Option<Instant>,
    /// Time at which the last attempt counts as lost.
    silent_at: Option<Instant>,
    /// Resolves when the connection has been lost since the last attempt and is up again.
    reconnected: BoxFuture<'static, ()>,
    /// The most recent failure.
    fault: Option<Fault>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(client: &'a Client, headers: HeaderMap, payload: Bytes, budget: Duration) -> Self {
        Self {
            client,
            headers,
            payload,
            begun: Instant::now(),
            budget,
            streamed: false,
            unique_id: None,
            reading: None,
            resends: 0,
            open: FuturesUnordered::new(),
            resend_at: None,
            silent_at: None,
            reconnected: pending().boxed(),
            fault: None,
        }
    }

    /// Sets the moment from which the budget counts.
    pub(super) fn since(mut self, begun: std::time::Instant) -> Self {
        self.begun = Instant::from_std(begun);
        self
    }

    /// Sets the id, unique to this request, by which the remaining attempts are cancelled.
    pub(super) fn with_unique_id(mut self, id: Option<String>) -> Self {
        self.unique_id = id;
        self
    }

    /// Sends the request until an attempt is answered or the policy gives up. `refused` is the retryable fault of an
    /// attempt in this process.
    pub(super) async fn run(self, refused: Option<Fault>) -> Result<InferReply, Fault> {
        let client = self.client;
        client
            .permitted(&client.app.infer(), self.finish(refused, |_| ()))
            .await
    }

    /// Runs like [`Exchange::run`], and passes the parts of the answer to `part`.
    pub(super) async fn stream(
        mut self,
        refused: Option<Fault>,
        part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        self.streamed = true;
        let client = self.client;
        client
            .permitted(&client.app.infer(), self.finish(refused, part))
            .await
    }

    async fn finish(
        mut self,
        refused: Option<Fault>,
        mut part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        match refused {
            None => self.send(),
            Some(fault) => {
                self.client.shared.served.store(true, Ordering::Relaxed);
                let failure = failure(fault.code);
                self.fault = Some(fault);
                self.decide(failure);
            }
        }
        loop {
            if self.open.is_empty() && self.resend_at.is_none() {
                return Err(self.fault.unwrap_or_else(no_reply));
            }
            tokio::select! {
                biased;
                Some(ended) = self.open.next() => if let Some(end) = self.ended(ended, &mut part) {
                    if end.is_ok() {
                        self.cancel_others();
                    }
                    return end;
                },
                () = &mut self.reconnected => {
                    self.reconnected = pending().boxed();
                    self.decide(AttemptFailure::Disconnected);
                }
                () = at(self.silent_at) => {
                    self.silent_at = None;
                    self.decide(AttemptFailure::Silence);
                }
                () = at(self.resend_at) => self.resend(),
            }
        }
    }

    /// Cancels the attempts that still wait, once the request is answered. The ingress that answered no longer has it.
    fn cancel_others(&self) {
        if let Some(id) = self.unique_id.as_deref().filter(|_| !self.open.is_empty()) {
            cancel(self.client, id);
        }
    }

    fn left(&self) -> Duration {
        self.budget.saturating_sub(self.begun.elapsed())
    }

    fn resend(&mut self) {
        self.resend_at = None;
        // The timer may fire late.
        if !self.left().is_zero() {
            self.resends += 1;
            self.send();
        }
    }

    fn send(&mut self) {
        let (client, left, sent) = (self.client, self.left(), Instant::now());
        headers::put_budget(&mut self.headers, left);
        let attempt = Attempt {
            number: self.resends,
            sent,
            timeout: left + REPLY_MARGIN,
            disconnects: client.bus.connection().counts().disconnects,
        };
        let (headers, payload) = (self.headers.clone(), self.payload.clone());
        self.open.push(if self.streamed {
            begin_stream(client.clone(), headers, payload, attempt).boxed()
        } else {
            let (nats, subject) = (client.nats.clone(), client.app.infer());
            ask(nats, subject, headers, payload, attempt).boxed()
        });
        if client.retries {
            // The latencies of whole answers do not predict the time to the first part.
            if !self.streamed {
                let silence = client.shared.policy().silence_us(self.resends, micros(left));
                self.silent_at = silence.map(|silence| sent + Duration::from_micros(silence));
            }
            self.reconnected = reconnected(&client.bus).boxed();
        }
    }

    /// Handles the result of an attempt, and passes on a part. Returns the result of the request if it is complete.
    fn ended(
        &mut self,
        ended: Ended,
        part: &mut impl FnMut(InferReply),
    ) -> Option<Result<InferReply, Fault>> {
        let Ended {
            attempt,
            outcome,
            replies,
        } = ended;
        let has_begun = self.reading == Some(attempt.number);
        if self.reading.is_some() && !has_begun {
            // Its answer may differ from the one whose parts the client has.
            return None;
        }
        let shared = &self.client.shared;
        let (failure, fault) = match outcome {
            Outcome::Replied(reply) => {
                shared.served.store(true, Ordering::Relaxed);
                match read(&reply) {
                    Ok(reply) if reply.part.is_some() => {
                        // A request that is not streamed receives no parts.
                        let replies = replies?;
                        self.reading = Some(attempt.number);
                        (self.resend_at, self.silent_at) = (None, None);
                        self.reconnected = pending().boxed();
                        // A part before this one may have been lost with the connection. The whole answer comes at the end.
                        if self.client.bus.connection().counts().disconnects == attempt.disconnects {
                            part(reply);
                        }
                        self.open.push(next(replies, attempt).boxed());
                        return None;
                    }
                    Ok(reply) => {
                        if !self.streamed {
                            shared.policy().answered(micros(attempt.sent.elapsed()));
                        }
                        return Some(Ok(reply));
                    }
                    Err(fault) => (failure(fault.code), fault),
                }
            }
            Outcome::NoResponders => {
                let lost = self.client.bus.connection().counts().disconnects > 0;
                let known = lost || shared.served.load(Ordering::Relaxed);
                (
                    AttemptFailure::NoResponders { known },
                    self.client.no_responders(),
                )
            }
            // The attempt has timed out, or the connection is closed.
            Outcome::Failed(fault) if has_begun => return Some(Err(fault)),
            Outcome::Failed(fault) => {
                self.fault.get_or_insert(fault);
                return None;
            }
        };
        if has_begun {
            return Some(Err(fault));
        }
        if failure == AttemptFailure::Final {
            // If the budget ended during this attempt, an earlier fault is more informative.
            let earlier = self.fault.take().filter(|_| fault.code == Code::Expired);
            return Some(Err(earlier.unwrap_or(fault)));
        }
        self.fault = Some(fault);
        self.decide(failure);
        None
    }

    /// Schedules the next attempt if the policy allows one.
    fn decide(&mut self, failure: AttemptFailure) {
        if !self.client.retries || self.resend_at.is_some() {
            return;
        }
        let shared = &self.client.shared;
        let draw = routing::draw(shared.draws.fetch_add(1, Ordering::Relaxed));
        let (left, now) = (micros(self.left()), Instant::now());
        let at = micros(now.duration_since(shared.begun));
        match shared.policy().decide(failure, self.resends, left, at, draw) {
            RetryDecision::Again { after_us } => {
                self.resend_at = Some(now + Duration::from_micros(after_us));
                self.silent_at = None;
            }
            RetryDecision::Wait { after_us } => self.silent_at = Some(now + Duration::from_micros(after_us)),
            RetryDecision::End => {}
        }
    }
}

/// Sends a request and waits for its reply.
async fn ask(
    nats: async_nats::Client,
    subject: Subject,
    headers: HeaderMap,
    payload: Bytes,
    attempt: Attempt,
) -> Ended {
    let message = async_nats::Request::new()
        .headers(headers)
        .payload(payload)
        .timeout(Some(attempt.timeout));
    let outcome = match nats.send_request(subject, message).await {
        Ok(reply) => Outcome::Replied(reply),
        Err(error) => match error.kind() {
            RequestErrorKind::NoResponders => Outcome::NoResponders,
            RequestErrorKind::TimedOut => Outcome::Failed(no_reply()),
            _ => Outcome::Failed(absent(error.to_string())),
        },
    };
    Ended {
        attempt,
        outcome,
        replies: None,
    }
}

/// Sends a streamed request and waits for its first reply.
async fn begin_stream(client: Client, headers: HeaderMap, payload: Bytes, attempt: Attempt) -> Ended {
    let begun = async {
        let replies = client.replies().await?;
        let (subject, inbox) = (client.app.infer(), replies.subject());
        let published = client
            .nats
            .publish_with_reply_and_headers(subject, inbox, headers, payload);
        published.await.map_err(|error| absent(error.to_string()))?;
        Ok::<_, Fault>(replies)
    };
    match begun.await {
        Ok(replies) => next(replies, attempt).await,
        Err(fault) => Ended {
            attempt,
            outcome: Outcome::Failed(fault),
            replies: None,
        },
    }
}

/// Waits for the next reply to a streamed request.
async fn next(mut replies: Replies, attempt: Attempt) -> Ended {
    let left = attempt.timeout.saturating_sub(attempt.sent.elapsed());
    let outcome = match timeout(left, replies.next()).await {
        Err(_) => Outcome::Failed(no_reply()),
        Ok(None) => Outcome::Failed(absent("the connection was closed")),
        Ok(Some(message)) if message.status == Some(StatusCode::NO_RESPONDERS) => Outcome::NoResponders,
        Ok(Some(message)) => Outcome::Replied(*message),
    };
    Ended {
        attempt,
        outcome,
        replies: Some(replies),
    }
}

/// Classifies a fault code for the policy.
fn failure(code: Code) -> AttemptFailure {
    match code {
        Code::Overloaded => AttemptFailure::Overloaded,
        code if code.retryable() => AttemptFailure::Retryable,
        _ => AttemptFailure::Final,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Resolves when the connection has been lost since the call and is up again.
fn reconnected(bus: &Bus) -> impl Future<Output = ()> + use<> {
    let (bus, mut link) = (bus.clone(), bus.connection().link());
    let before = bus.connection().counts().disconnects;
    async move {
        loop {
            // The link may read "up" both before and after a loss; the counter shows the loss.
            let broken = bus.connection().counts().disconnects > before;
            if broken && *link.borrow_and_update() == Link::Up {
                return;
            }
            if link.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}
