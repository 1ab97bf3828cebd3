//! The promises that must hold, and the oracles that check them.

use std::fmt;

use super::scenario::{SETTLED_US, SWEEP_US, Scenario, Weather};

/// A promise that every run keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oracle {
    OneReply,
    InTime,
    AdmittedEpoch,
    OwnAnswer,
    Attempts,
    LedgerEmpties,
    QueueKeeps,
    BatchFits,
    EpochsForward,
    StaleWrite,
    CountedOnce,
    Converges,
    OneLeader,
    Calm,
    Recovers,
    NothingLost,
    RightModel,
    SentOnce,
    Avoids,
    Ends,
}

impl Oracle {
    fn says(self) -> &'static str {
        match self {
            Self::OneReply => "every accepted request gets exactly one terminal reply",
            Self::InTime => "no reply comes later than the budget and a sweep",
            Self::AdmittedEpoch => "a request ends under the epoch and the gear that admitted it",
            Self::OwnAnswer => "a reply answers the request that it replies to",
            Self::Attempts => "attempts are numbered upwards and no more than allowed",
            Self::LedgerEmpties => "the ledger is empty in the end",
            Self::QueueKeeps => {
                "a queue gives out what it took, once, and never holds more than its capacity"
            }
            Self::BatchFits => "a batch is neither empty nor larger than the plan's largest",
            Self::EpochsForward => "the epoch of a process never goes back",
            Self::StaleWrite => "a stale write never replaces a newer plan",
            Self::CountedOnce => "no arrival is counted twice as load",
            Self::Converges => "once all is quiet every process holds the newest plan and the leader's gear",
            Self::OneLeader => "once things have settled, exactly one ingress shifts gears",
            Self::Calm => "without faults nothing fails and nothing is sent twice",
            Self::Recovers => "once faults are over every request succeeds",
            Self::NothingLost => {
                "a death, a leave or a broken connection costs no reply while another replica lives and budget is left"
            }
            Self::RightModel => "a stage is run by the variant that the request's plan has for it",
            Self::SentOnce => "no request is sent again because a worker leaves in good order",
            Self::Avoids => {
                "once the ingress of a request knows which replicas are dead, the request meets none"
            }
            Self::Ends => "a run comes to an end",
        }
    }
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) oracle: Oracle,
    pub(crate) how: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}): {}", self.oracle, self.oracle.says(), self.how)
    }
}

/// An ingress in one life of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) process: usize,
    pub(crate) life: u32,
}

/// An accepted request and its outcome, as far as known.
#[derive(Debug, Clone)]
pub(crate) struct Obligation {
    pub(crate) owner: Owner,
    pub(crate) accepted: u64,
    pub(crate) deadline: u64,
    pub(crate) admitted_by: (u64, u32),
    attempt: u32,
    replies: u32,
    /// Lost together with its ingress: no process owes a reply.
    excused: bool,
}

/// Outcome of a request, as the ingress names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Expired,
    Overloaded,
    Unavailable,
    ModelFailed,
    BadOutput,
    Internal,
}

impl Fault {
    /// Whether another attempt may do better, as the ingress sees it.
    pub(crate) fn may_retry(self) -> bool {
        self == Self::Unavailable
    }
}

/// Counts of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) resent: u64,
    pub(crate) excused: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.resent += other.resent;
        self.excused += other.excused;
    }
}

/// Keeps the obligations and the first broken promise.
pub(crate) struct Judge {
    weather: Weather,
    max_attempts: u32,
    late_us: u64,
    requests: Vec<Option<Obligation>>,
    violation: Option<Violation>,
    pub(crate) tally: Tally,
}

impl Judge {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            weather: scenario.weather,
            max_attempts: scenario.glue.max_attempts,
            late_us: if scenario.late > 0.0 { scenario.late_us } else { 0 },
            requests: Vec::new(),
            violation: None,
            tally: Tally::default(),
        }
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Notes a broken promise; the first one is kept.
    pub(crate) fn broken(&mut self, oracle: Oracle, how: String) {
        self.violation.get_or_insert(Violation { oracle, how });
    }

    pub(crate) fn demand(&mut self, oracle: Oracle, holds: bool, how: impl FnOnce() -> String) {
        if !holds {
            self.broken(oracle, how());
        }
    }

    /// A new request's token.
    pub(crate) fn asked(&mut self) -> usize {
        self.requests.push(None);
        self.requests.len() - 1
    }

    pub(crate) fn refused(&mut self, token: usize, now: u64) {
        self.tally.refused += 1;
        self.demand(Oracle::Calm, self.weather != Weather::Calm, || {
            format!("request {token} is refused")
        });
        self.demand(Oracle::Recovers, now < SETTLED_US, || {
            format!("request {token} is refused")
        });
    }

    pub(crate) fn accepted(
        &mut self,
        token: usize,
        owner: Owner,
        now: u64,
        deadline: u64,
        admitted_by: (u64, u32),
    ) {
        self.tally.accepted += 1;
        self.requests[token] = Some(Obligation {
            owner,
            accepted: now,
            deadline,
            admitted_by,
            attempt: 0,
            replies: 0,
            excused: false,
        });
    }

    /// The ingress sends an attempt to the first stage.
    pub(crate) fn sent(&mut self, token: usize, attempt: u32) {
        let (max, calm) = (self.max_attempts, self.weather == Weather::Calm);
        let leaves = self.weather == Weather::Leaves;
        let Some(Some(request)) = self.requests.get_mut(token) else {
            return;
        };
        let before = std::mem::replace(&mut request.attempt, attempt);
        self.tally.resent += u64::from(attempt > 1);
        let rises = attempt > before && attempt <= max;
        self.demand(Oracle::Attempts, rises, || {
            format!("request {token}: attempt {attempt} after attempt {before}, {max} are allowed")
        });
        self.demand(Oracle::SentOnce, !leaves || attempt == 1, || {
            format!("request {token} is sent again")
        });
        self.demand(Oracle::Calm, !calm || attempt == 1, || {
            format!("request {token} is sent again")
        });
    }

    /// A terminal reply; `resumed` is when its ingress last went on after a pause, 0 if it never paused.
    pub(crate) fn replied(&mut self, token: usize, outcome: Result<(), Fault>, now: u64, resumed: u64) {
        let slack = SWEEP_US + self.late_us + 1;
        let Some(Some(request)) = self.requests.get_mut(token) else {
            return self.broken(Oracle::OneReply, format!("request {token} was never accepted"));
        };
        request.replies += 1;
        let request = request.clone();
        match outcome {
            Ok(()) => self.tally.succeeded += 1,
            Err(_) => self.tally.failed += 1,
        }
        self.demand(Oracle::OneReply, request.replies == 1, || {
            format!("request {token} has {} replies", request.replies)
        });
        self.demand(
            Oracle::InTime,
            now <= request.deadline.max(resumed) + slack,
            || {
                let late = now - request.deadline;
                format!("request {token} is replied to {late} us after its deadline")
            },
        );
        if let Err(fault) = outcome {
            self.failed(token, &request, fault);
        }
    }

    fn failed(&mut self, token: usize, request: &Obligation, fault: Fault) {
        let how = || {
            format!(
                "request {token}, accepted at {} us, ends as {fault:?}",
                request.accepted
            )
        };
        self.demand(Oracle::Calm, self.weather != Weather::Calm, how);
        self.demand(Oracle::Recovers, request.accepted < SETTLED_US, how);
        let strict = matches!(
            self.weather,
            Weather::Crashes | Weather::Leaves | Weather::Reconnects
        );
        self.demand(Oracle::NothingLost, !strict, how);
    }

    /// An ingress died, and its requests with it.
    pub(crate) fn excuse(&mut self, owner: Owner) {
        let open = self
            .requests
            .iter_mut()
            .flatten()
            .filter(|request| request.owner == owner && request.replies == 0);
        for request in open {
            request.excused = true;
            self.tally.excused += 1;
        }
    }

    pub(crate) fn admitted_by(&self, token: usize) -> Option<(u64, u32)> {
        self.requests
            .get(token)?
            .as_ref()
            .map(|request| request.admitted_by)
    }

    /// In the end no client waits.
    pub(crate) fn close(&mut self) {
        let requests = self.requests.iter().enumerate();
        let open = requests
            .filter_map(|(token, request)| Some((token, request.as_ref()?)))
            .find(|(_, request)| request.replies == 0 && !request.excused);
        let open = open.map(|(token, request)| {
            format!("request {token}, accepted at {} us, has none", request.accepted)
        });
        if let Some(how) = open {
            self.broken(Oracle::OneReply, how);
        }
    }
}
