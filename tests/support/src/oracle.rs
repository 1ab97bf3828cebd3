//! The oracle: sends requests with a reply subject each, and demands exactly one terminal reply to each within its budget.
//!
//! It knows NATS and nothing of Kaskade's messages: its caller encodes the requests and classifies the replies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;

/// Requests, and the rate at which they are sent.
#[derive(Debug, Clone)]
pub struct Load {
    /// The NATS server, `nats://[user:password@]host:port`.
    pub url: String,
    /// The subject that takes the requests.
    pub subject: String,
    /// Requests per second, evenly spaced.
    pub rate: f64,
    /// Time within which each request must be answered.
    pub budget: Duration,
    /// Headers and body of each request.
    pub requests: Vec<(HeaderMap, Bytes)>,
    /// Reads a reply.
    pub classify: fn(&Message) -> End,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an answer; `degraded` if a larger model should have given it.
    Answer {
        /// Whether the answer is flagged as degraded.
        degraded: bool,
    },
    /// With a typed error of this code.
    Fault(&'static str),
}

/// What the oracle knows of a request.
#[derive(Debug, Clone)]
pub struct Fate {
    /// When it was sent.
    pub sent: Instant,
    /// Every reply, with the time that it took.
    pub replies: Vec<(Duration, End)>,
}

/// What became of all requests.
#[derive(Debug, Clone)]
pub struct Tally {
    /// By request, in the order of sending.
    pub fates: Vec<Fate>,
    /// The budget of each request.
    pub budget: Duration,
    /// The moment from which recovery counts: the fault, or its end. `None` without a fault.
    pub struck: Option<Instant>,
}

impl Load {
    /// Sends the load, and calls `strike` when a third of it is sent. `strike` returns the moment from which recovery
    /// counts.
    ///
    /// # Errors
    /// When `strike` fails, or the oracle's own connection does.
    pub async fn with_fault<F>(self, strike: F) -> anyhow::Result<Tally>
    where
        F: AsyncFnOnce() -> anyhow::Result<Instant>,
    {
        let nats = connect(&self.url).await?;
        let inbox = nats.new_inbox();
        let replies = nats.subscribe(format!("{inbox}.*")).await?;
        nats.flush().await?;
        let (total, rate, budget) = (self.requests.len(), self.rate, self.budget);
        let clock = Instant::now();
        let fault = async {
            tokio::time::sleep(Duration::from_secs_f64(total as f64 / 3.0 / rate)).await;
            strike().await
        };
        let last = clock + Duration::from_secs_f64(total as f64 / rate) + budget;
        // Tasks of their own: a strike may start processes, which blocks.
        let collecting = tokio::spawn(collect(total, last, self.classify, replies));
        let sending = tokio::spawn(self.send(nats, inbox, clock));
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
            budget,
            struck: Some(fault_at?),
        })
    }

    /// Sends the load without a fault.
    ///
    /// # Errors
    /// When the oracle's own connection fails.
    pub async fn undisturbed(self) -> anyhow::Result<Tally> {
        let mut tally = self.with_fault(async || Ok(Instant::now())).await?;
        tally.struck = None;
        Ok(tally)
    }

    /// When each request was sent.
    async fn send(self, nats: Client, inbox: String, clock: Instant) -> anyhow::Result<Vec<Instant>> {
        let mut sent = Vec::new();
        for (number, (headers, body)) in self.requests.into_iter().enumerate() {
            let due = clock + Duration::from_secs_f64(number as f64 / self.rate);
            tokio::time::sleep_until(due.into()).await;
            sent.push(Instant::now());
            let to = format!("{inbox}.{number}");
            nats.publish_with_reply_and_headers(self.subject.clone(), to, headers, body)
                .await?;
        }
        Ok(sent)
    }
}

/// A connection to `nats://[user:password@]host:port`.
///
/// # Errors
/// When the server cannot be reached or refuses the user.
pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let named = url.strip_prefix("nats://").and_then(|rest| rest.split_once('@'));
    let Some(((user, password), host)) = named.and_then(|(who, host)| Some((who.split_once(':')?, host)))
    else {
        return Ok(async_nats::connect(url).await?);
    };
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    Ok(options.connect(format!("nats://{host}")).await?)
}

/// Collects replies until every request has one and a further second has brought no second one, or until a second after
/// `last`, the end of the last request's budget.
async fn collect(
    total: usize,
    last: Instant,
    classify: fn(&Message) -> End,
    mut replies: Subscriber,
) -> Vec<(usize, Instant, End)> {
    const AFTER: Duration = Duration::from_secs(1);
    let mut collected = Vec::new();
    let mut heard = BTreeSet::new();
    loop {
        let whole = heard.len() >= total;
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
            collected.push((number, Instant::now(), classify(&reply)));
        }
    }
}

impl Tally {
    fn count(&self, of: impl Fn(&Fate) -> bool) -> usize {
        self.fates.iter().filter(|fate| of(fate)).count()
    }

    /// Requests that were sent.
    pub fn requests(&self) -> usize {
        self.fates.len()
    }

    /// Requests without a reply.
    pub fn lost(&self) -> usize {
        self.count(|fate| fate.replies.is_empty())
    }

    /// Requests with more than one reply.
    pub fn doubled(&self) -> usize {
        self.count(|fate| fate.replies.len() > 1)
    }

    /// Requests with a reply after their budget; a tenth of a second is allowed for the way back.
    pub fn late(&self) -> usize {
        let limit = self.budget + Duration::from_millis(100);
        self.count(|fate| fate.replies.iter().any(|(after, _)| *after > limit))
    }

    /// Requests whose first reply is an answer.
    pub fn answered(&self) -> usize {
        self.count(|fate| matches!(fate.replies.first(), Some((_, End::Answer { .. }))))
    }

    /// Requests whose first reply is an answer flagged as degraded.
    pub fn degraded(&self) -> usize {
        self.count(|fate| matches!(fate.replies.first(), Some((_, End::Answer { degraded: true }))))
    }

    /// Requests that ended with a typed error, by code.
    pub fn faults(&self) -> BTreeMap<&'static str, usize> {
        let mut faults = BTreeMap::new();
        for fate in &self.fates {
            if let Some((_, End::Fault(code))) = fate.replies.first() {
                *faults.entry(*code).or_default() += 1;
            }
        }
        faults
    }

    /// The code of the typed error with which a request ended.
    pub fn fault_of(&self, number: usize) -> Option<&'static str> {
        match self.fates.get(number)?.replies.first()? {
            (_, End::Fault(code)) => Some(*code),
            (_, End::Answer { .. }) => None,
        }
    }

    /// Median time to the first reply over the first quarter of the requests, which were sent before the fault.
    pub fn usual(&self) -> Duration {
        let early = self.fates.iter().take(self.fates.len() / 4);
        let mut waits: Vec<Duration> = early
            .filter_map(|fate| fate.replies.first().map(|(after, _)| *after))
            .collect();
        waits.sort_unstable();
        waits.get(waits.len() / 2).copied().unwrap_or_default()
    }

    /// Time from the fault to the end of the last request that it disturbed: one without an answer, or whose answer took
    /// ten times as long as usual and more than 50 ms.
    pub fn recovery(&self) -> Option<Duration> {
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
