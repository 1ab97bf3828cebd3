//! The attempts of one request: sends it, and sends it again when the policy says so.

use std::collections::hash_map::RandomState;
use std::future::pending;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, Message, RequestErrorKind};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kaskade_policy::client_retry::{ClientRetry, Failure, Verdict};
use kaskade_policy::routing;
use tokio::time::{Instant, sleep_until};

use super::inbox::Inbox;
use super::{Client, REPLY_MARGIN, no_reply, read};
use crate::bus::{Bus, Link};
use crate::error::{Code, Fault};
use crate::wire::InferReply;
use crate::wire::headers;

/// What the requests of one client share.
#[derive(Debug)]
pub(super) struct Shared {
    policy: Mutex<ClientRetry>,
    /// When the client was made: the policy's times count from here.
    begun: Instant,
    /// Whether the app has ever answered.
    served: AtomicBool,
    /// Where the replies to streamed requests come; opened by the first one.
    inbox: Mutex<Option<Arc<Inbox>>>,
    /// Number of the next draw; the first one differs between clients.
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

/// An attempt that ended.
struct Ended {
    sent: Instant,
    outcome: Outcome,
}

/// Outcome of one attempt.
enum Outcome {
    Replied(Message),
    NoResponders,
    Failed(Fault),
}

/// One request in progress. All its attempts stay open, and the first answer to any of them counts.
pub(super) struct Exchange<'a> {
    client: &'a Client,
    headers: HeaderMap,
    payload: Bytes,
    begun: Instant,
    budget: Duration,
    resends: u32,
    open: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// When to send it again.
    resend_at: Option<Instant>,
    /// When the last attempt counts as lost.
    silent_at: Option<Instant>,
    /// Resolves when the connection has been lost since the last attempt and is up again.
    reconnected: BoxFuture<'static, ()>,
    /// The last failure.
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
            resends: 0,
            open: FuturesUnordered::new(),
            resend_at: None,
            silent_at: None,
            reconnected: pending().boxed(),
            fault: None,
        }
    }

    /// Counts the budget from an earlier moment.
    pub(super) fn since(mut self, begun: std::time::Instant) -> Self {
        self.begun = Instant::from_std(begun);
        self
    }

    /// Sends the request until an attempt is answered or the policy ends it.
    pub(super) async fn run(mut self) -> Result<InferReply, Fault> {
        self.send();
        self.finish().await
    }

    /// As [`Exchange::run`], after an attempt in this process that ended with a retryable fault.
    pub(super) async fn run_after(mut self, fault: Fault) -> Result<InferReply, Fault> {
        self.client.shared.served.store(true, Ordering::Relaxed);
        let failure = failure(fault.code);
        self.fault = Some(fault);
        self.decide(failure);
        self.finish().await
    }

    async fn finish(mut self) -> Result<InferReply, Fault> {
        loop {
            if self.open.is_empty() && self.resend_at.is_none() {
                return Err(self.fault.unwrap_or_else(no_reply));
            }
            tokio::select! {
                biased;
                Some(ended) = self.open.next() => if let Some(end) = self.ended(ended) {
                    return end;
                },
                () = &mut self.reconnected => {
                    self.reconnected = pending().boxed();
                    self.decide(Failure::Disconnected);
                }
                () = at(self.silent_at) => {
                    self.silent_at = None;
                    self.decide(Failure::Silence);
                }
                () = at(self.resend_at) => self.resend(),
            }
        }
    }

    fn left(&self) -> Duration {
        self.budget.saturating_sub(self.begun.elapsed())
    }

    fn resend(&mut self) {
        self.resend_at = None;
        // The timer may be late.
        if !self.left().is_zero() {
            self.resends += 1;
            self.send();
        }
    }

    fn send(&mut self) {
        let (client, left, sent) = (self.client, self.left(), Instant::now());
        headers::put_budget(&mut self.headers, left);
        let message = async_nats::Request::new()
            .headers(self.headers.clone())
            .payload(self.payload.clone())
            .timeout(Some(left + REPLY_MARGIN));
        let (nats, subject) = (client.nats.clone(), client.app.infer());
        let attempt = async move {
            let outcome = match nats.send_request(subject, message).await {
                Ok(reply) => Outcome::Replied(reply),
                Err(error) => match error.kind() {
                    RequestErrorKind::NoResponders => Outcome::NoResponders,
                    RequestErrorKind::TimedOut => Outcome::Failed(no_reply()),
                    _ => Outcome::Failed(Fault::new(Code::Unavailable, error.to_string())),
                },
            };
            Ended { sent, outcome }
        };
        self.open.push(attempt.boxed());
        if client.retries {
            let silence = client.shared.policy().silence_us(self.resends, micros(left));
            self.silent_at = silence.map(|silence| sent + Duration::from_micros(silence));
            self.reconnected = reconnected(&client.bus).boxed();
        }
    }

    /// Takes the end of an attempt. Returns the end of the request, if it is one.
    fn ended(&mut self, Ended { sent, outcome }: Ended) -> Option<Result<InferReply, Fault>> {
        let shared = &self.client.shared;
        let (failure, fault) = match outcome {
            Outcome::Replied(reply) => {
                shared.served.store(true, Ordering::Relaxed);
                match read(&reply) {
                    Ok(reply) => {
                        shared.policy().answered(micros(sent.elapsed()));
                        return Some(Ok(reply));
                    }
                    Err(fault) => (failure(fault.code), fault),
                }
            }
            Outcome::NoResponders => {
                let lost = self.client.bus.connection().counts().disconnects > 0;
                let known = lost || shared.served.load(Ordering::Relaxed);
                (Failure::NoResponders { known }, self.client.no_responders())
            }
            // The time of the attempt is over, or the connection is closed.
            Outcome::Failed(fault) => {
                self.fault.get_or_insert(fault);
                return None;
            }
        };
        if failure == Failure::Final {
            // The budget ended during this attempt: what an earlier one failed with says more.
            let earlier = self.fault.take().filter(|_| fault.code == Code::Expired);
            return Some(Err(earlier.unwrap_or(fault)));
        }
        self.fault = Some(fault);
        self.decide(failure);
        None
    }

    /// Plans the next attempt, if there is to be one.
    fn decide(&mut self, failure: Failure) {
        if !self.client.retries || self.resend_at.is_some() {
            return;
        }
        let shared = &self.client.shared;
        let draw = routing::draw(shared.draws.fetch_add(1, Ordering::Relaxed));
        let (left, now) = (micros(self.left()), Instant::now());
        let at = micros(now.duration_since(shared.begun));
        match shared.policy().verdict(failure, self.resends, left, at, draw) {
            Verdict::Again { after_us } => {
                self.resend_at = Some(now + Duration::from_micros(after_us));
                self.silent_at = None;
            }
            Verdict::Wait { after_us } => self.silent_at = Some(now + Duration::from_micros(after_us)),
            Verdict::End => {}
        }
    }
}

/// Classifies a fault of the service for the policy.
fn failure(code: Code) -> Failure {
    match code {
        Code::Overloaded => Failure::Overloaded,
        code if code.retryable() => Failure::Retryable,
        _ => Failure::Final,
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
            // A link that was lost and is up again may read "up" both times; the counter shows the loss.
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
