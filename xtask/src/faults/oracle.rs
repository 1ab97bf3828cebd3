//! The oracle: it sends requests with ids of its own, and demands exactly one terminal reply for each within its budget.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::StreamExt as _;
use kaskade::Inputs;
use kaskade::actors::wire::{InferReply, InferRequest, Message as _};
use kaskade::actors::{Code, wire::headers};

use crate::node::{APP, inputs};

/// What is asked, how often, and for how long it may take.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where the oracle connects.
    pub(super) url: String,
    /// Requests a second, evenly spaced.
    pub(super) rate: f64,
    /// Requests in all.
    pub(super) total: u64,
    /// Budget of each.
    pub(super) budget: Duration,
    /// What each asks.
    pub(super) asks: fn(u64) -> Inputs,
    /// Whether each has a header with its number as its id.
    pub(super) named: bool,
}

impl Load {
    /// Three seconds of 200 requests that the small model is sure of.
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
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    /// With an answer; whether a larger model was meant to give it.
    Answer { degraded: bool },
    /// With a typed error.
    Fault(Code),
}

/// What the oracle knows of a request.
#[derive(Debug, Clone)]
pub(super) struct Fate {
    pub(super) sent: Instant,
    /// Every reply to it, with how long it took.
    pub(super) replies: Vec<(Duration, End)>,
}

/// What became of all requests.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) fates: Vec<Fate>,
    pub(super) budget: Duration,
    /// When the fault was made, or ended, whichever the recovery counts from.
    pub(super) struck: Option<Instant>,
}

/// Sends the load, and strikes when a third of it is sent. What it gives back is the time from which recovery counts.
pub(super) async fn under<F>(load: &Load, strike: F) -> anyhow::Result<Tally>
where
    F: AsyncFnOnce() -> anyhow::Result<Instant>,
{
    let nats = connect(&load.url).await?;
    let inbox = nats.new_inbox();
    let replies = nats.subscribe(format!("{inbox}.*")).await?;
    nats.flush().await?;
    let bodies = bodies(load)?;
    let clock = Instant::now();
    let fault = async {
        tokio::time::sleep(Duration::from_secs_f64(load.total as f64 / 3.0 / load.rate)).await;
        strike().await
    };
    // Tasks of their own: whoever strikes starts processes, and blocks meanwhile.
    let sending = tokio::spawn(send(load.clone(), nats.clone(), inbox, bodies, clock));
    let collecting = tokio::spawn(collect(load.clone(), replies, clock));
    let fault_at = fault.await;
    let (sent, ends) = (sending.await?, collecting.await?);
    let mut fates: Vec<Fate> = sent?
        .into_iter()
        .map(|sent| Fate {
            sent,
            replies: Vec::new(),
        })
        .collect();
    for (number, at, end) in ends {
        if let Some(fate) = fates.get_mut(number) {
            fate.replies.push((at.saturating_duration_since(fate.sent), end));
        }
    }
    Ok(Tally {
        fates,
        budget: load.budget,
        struck: Some(fault_at?),
    })
}

/// A connection to `nats://[user:password@]host:port`.
pub(super) async fn connect(url: &str) -> anyhow::Result<async_nats::Client> {
    let named = url.strip_prefix("nats://").and_then(|rest| rest.split_once('@'));
    let Some(((user, password), host)) = named.and_then(|(who, host)| Some((who.split_once(':')?, host)))
    else {
        return Ok(async_nats::connect(url).await?);
    };
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    Ok(options.connect(format!("nats://{host}")).await?)
}

/// Sends the load and breaks nothing.
pub(super) async fn undisturbed(load: &Load) -> anyhow::Result<Tally> {
    let mut tally = under(load, async || Ok(Instant::now())).await?;
    tally.struck = None;
    Ok(tally)
}

fn bodies(load: &Load) -> anyhow::Result<Vec<Bytes>> {
    let body = |number| {
        InferRequest {
            inputs: (load.asks)(number),
            ..InferRequest::default()
        }
        .encode()
    };
    Ok((0..load.total).map(body).collect::<Result<_, _>>()?)
}

async fn send(
    load: Load,
    nats: async_nats::Client,
    inbox: String,
    bodies: Vec<Bytes>,
    clock: Instant,
) -> anyhow::Result<Vec<Instant>> {
    let subject = format!("kaskade.{APP}.infer");
    let mut sent = Vec::new();
    for (number, body) in bodies.into_iter().enumerate() {
        let due = clock + Duration::from_secs_f64(number as f64 / load.rate);
        tokio::time::sleep_until(due.into()).await;
        let mut headers = HeaderMap::new();
        headers::put_budget(&mut headers, load.budget);
        if load.named {
            headers::put_request_id(&mut headers, &number.to_string())?;
        }
        sent.push(Instant::now());
        let to = format!("{inbox}.{number}");
        nats.publish_with_reply_and_headers(subject.clone(), to, headers, body)
            .await?;
    }
    Ok(sent)
}

/// Replies until every request has one and a second has passed in which a second one would have come, or until the last request's
/// budget is over and nothing comes any more.
async fn collect(
    load: Load,
    mut replies: async_nats::Subscriber,
    clock: Instant,
) -> Vec<(usize, Instant, End)> {
    const AFTER: Duration = Duration::from_secs(1);
    let last = clock + Duration::from_secs_f64(load.total as f64 / load.rate) + load.budget;
    let mut collected = Vec::new();
    let mut heard = std::collections::BTreeSet::new();
    loop {
        let whole = heard.len() as u64 >= load.total;
        let until = if whole { Instant::now() } else { last } + AFTER;
        let Ok(Some(reply)) = tokio::time::timeout_at(until.into(), replies.next()).await else {
            return collected;
        };
        let number = reply
            .subject
            .rsplit('.')
            .next()
            .and_then(|number| number.parse().ok());
        if let Some(number) = number {
            heard.insert(number);
            collected.push((number, Instant::now(), end(&reply)));
        }
    }
}

fn end(reply: &async_nats::Message) -> End {
    if reply.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
        return End::Fault(Code::UnknownApp);
    }
    if let Some(fault) = headers::fault(reply.headers.as_ref()) {
        return End::Fault(fault.code);
    }
    match InferReply::decode(&reply.payload) {
        Ok(reply) => End::Answer {
            degraded: reply.degraded,
        },
        Err(_) => End::Fault(Code::Malformed),
    }
}

impl Tally {
    fn count(&self, of: impl Fn(&Fate) -> bool) -> usize {
        self.fates.iter().filter(|fate| of(fate)).count()
    }

    pub(super) fn requests(&self) -> usize {
        self.fates.len()
    }

    /// Without any reply.
    pub(super) fn lost(&self) -> usize {
        self.count(|fate| fate.replies.is_empty())
    }

    /// With more than one.
    pub(super) fn doubled(&self) -> usize {
        self.count(|fate| fate.replies.len() > 1)
    }

    /// Replied to after the budget; a tenth of a second is the way back.
    pub(super) fn late(&self) -> usize {
        let limit = self.budget + Duration::from_millis(100);
        self.count(|fate| fate.replies.iter().any(|(after, _)| *after > limit))
    }

    pub(super) fn answered(&self) -> usize {
        self.count(|fate| matches!(fate.replies.first(), Some((_, End::Answer { .. }))))
    }

    pub(super) fn degraded(&self) -> usize {
        self.count(|fate| matches!(fate.replies.first(), Some((_, End::Answer { degraded: true }))))
    }

    /// Typed errors, by code.
    pub(super) fn faults(&self) -> BTreeMap<&'static str, usize> {
        let mut faults = BTreeMap::new();
        for fate in &self.fates {
            if let Some((_, End::Fault(code))) = fate.replies.first() {
                *faults.entry(code.id()).or_default() += 1;
            }
        }
        faults
    }

    /// The code of one request's end, if it is a typed error.
    pub(super) fn fault_of(&self, number: usize) -> Option<Code> {
        match self.fates.get(number)?.replies.first()? {
            (_, End::Fault(code)) => Some(*code),
            (_, End::Answer { .. }) => None,
        }
    }

    /// Median time to the first reply over the first quarter, which was sent before the fault.
    pub(super) fn usual(&self) -> Duration {
        let early = self.fates.iter().take(self.fates.len() / 4);
        let mut waits: Vec<Duration> = early
            .filter_map(|fate| fate.replies.first().map(|(after, _)| *after))
            .collect();
        waits.sort_unstable();
        waits.get(waits.len() / 2).copied().unwrap_or_default()
    }

    /// From the fault to the end of the last request that it disturbed: one that got no answer, or waited ten times as long as usual
    /// and at least 50 ms.
    pub(super) fn recovery(&self) -> Option<Duration> {
        let struck = self.struck?;
        let patience = (self.usual() * 10).max(Duration::from_millis(50));
        let disturbed = self.fates.iter().filter_map(|fate| match fate.replies.first() {
            Some((after, End::Answer { .. })) if *after <= patience => None,
            Some((after, _)) => Some(fate.sent + *after),
            None => Some(fate.sent),
        });
        Some(
            disturbed
                .max()
                .map_or(Duration::ZERO, |last| last.saturating_duration_since(struck)),
        )
    }
}
