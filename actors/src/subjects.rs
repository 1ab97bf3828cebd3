//! The grammar of subjects. No other module formats or parses a subject.
//!
//! ```text
//! kaskade.<app>.infer                  requests, answered to their reply subject   queue group INGRESS_GROUP
//! kaskade.<app>.submit                 durable requests                            a JetStream stream
//! kaskade.<app>.result.<id>            results of durable requests                 a JetStream stream
//! kaskade.<app>.dead.<id>              dead letters                                a JetStream stream
//! kaskade.<app>.failures.<seq>         failures at durable requests                a JetStream stream
//! kaskade.<app>.cancel                 a client cancels a request
//! kaskade.<app>.feedback               the right answer to a request, known later
//! kaskade.<app>.stage_cancel           an ingress tells the replicas which of its requests are cancelled
//! kaskade.<app>.stage.<stage>          any replica of a stage                      queue group STAGE_GROUP
//! kaskade.<app>.replica.<replica>      one replica
//! kaskade.<app>.done.<ingress>.<id>.<attempt>.<token>
//!                                      a result for the ingress that owns request <id>
//! kaskade.<app>.beat.<actor>           heartbeats of workers and custom actors, for the ingresses
//! kaskade.<app>.ingress.<id>           states of ingresses, for the workers
//! kaskade.<app>.gear                   gear shifts
//! kaskade.<app>.plan                   notices of a new epoch
//! kaskade.<app>.stored_plan            requests for the stored plan, on an embedded broker
//! kaskade.<app>.event.<name>           events for observers
//! ```
//!
//! A name is one token of letters, digits, `-` and `_`. Other names are refused, not escaped: a name with `.`, `*` or
//! `>` would address other actors, and one with a line break would inject protocol lines.

mod permissions;
mod tokens;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_nats::Subject;

pub(crate) use permissions::{
    all_unserved, discovery_patterns, durable_taking, plan_reading, plan_writing, result_reading,
};
pub use tokens::{MAX_TOKEN, SubjectError, check_token};
use tokens::{is_key, key, parse_id};

/// Queue group of the ingresses of an app: the default of ADR-32, which `nats micro` clients expect.
pub const INGRESS_GROUP: &str = "q";

/// Queue group of the replicas of a stage.
pub const STAGE_GROUP: &str = "q";

/// Queue group of the planners of an app: each plan request goes to one of them.
pub const PLANNER_GROUP: &str = "q";

/// The consumer of durable requests that all ingresses of an app share.
pub const DURABLE_CONSUMER: &str = "ingress";

/// Names of the events that Kaskade's own actors publish on `event.<name>`.
pub mod event {
    /// Each ingress publishes its arrival counter ([`crate::wire::LoadCount`]).
    pub const LOAD: &str = "load";
    /// The leading shifter reports a gear shift ([`crate::wire::ShiftReport`]).
    pub const GEAR: &str = "gear";
    /// The leading shifter reports that the load has drifted from the plan ([`crate::wire::LoadDriftNotice`]).
    pub const LOAD_DRIFT: &str = "load_drift";
    /// The planner reports the outcome of a planning run ([`crate::wire::PlanReport`]).
    pub const PLANNER: &str = "planner";
    /// Each meter publishes its energy report ([`crate::wire::EnergyReport`]).
    pub const ENERGY: &str = "energy";
    /// Each ingress process publishes its counts of audits and stage results ([`crate::wire::AuditReport`]).
    pub const AUDIT: &str = "audit";
    /// The leading shifter reports the state of the plan's certificates ([`crate::wire::CertificateReport`]).
    pub const CERTIFICATE_STATUS: &str = "certificate_status";
    /// The leading shifter reports that a certificate no longer holds or holds again, or that the inputs of a stage
    /// have drifted ([`crate::wire::CertificateNotice`]).
    pub const CERTIFICATE: &str = "certificate";
}

const ROOT: &str = "kaskade";

/// An app's name and all its subjects. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct App {
    /// `kaskade.<app>.`
    prefix: Arc<str>,
}

/// The meaning of a subject of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route<'a> {
    /// `infer`
    Infer,
    /// `submit`
    Submit,
    /// `result.<key>`, the key of a request id
    Result(&'a str),
    /// `dead.<key>`, the key of a request id
    Dead(&'a str),
    /// `cancel`
    Cancel,
    /// `feedback`
    Feedback,
    /// `stage_cancel`
    StageCancel,
    /// `stage.<stage>`
    Stage(&'a str),
    /// `replica.<replica>`
    Replica(&'a str),
    /// `done.<ingress>.<id>.<attempt>.<token>`
    StageReply {
        /// The ingress that owns the request.
        ingress: &'a str,
        /// The number of the request at that ingress.
        id: u64,
        /// The attempt that the result answers.
        attempt: u32,
        /// Proof that the ingress sent this attempt to the sender ([`crate::wire::Token`]).
        token: &'a str,
    },
    /// `beat.<actor>`
    Beat(&'a str),
    /// `ingress.<id>`
    Ingress(&'a str),
    /// `gear`
    Gear,
    /// `plan`
    Plan,
    /// `replan`
    Replan,
    /// `stored_plan`
    StoredPlan,
    /// `event.<name>`
    Event(&'a str),
}

impl App {
    /// Creates the app with a name: one token of letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// [`SubjectError`] for an invalid name.
    pub fn new(name: &str) -> Result<Self, SubjectError> {
        check_token("app", name)?;
        Ok(Self {
            prefix: format!("{ROOT}.{name}.").into(),
        })
    }

    /// Returns the name of the app.
    pub fn name(&self) -> &str {
        self.prefix
            .get(ROOT.len() + 1..self.prefix.len() - 1)
            .unwrap_or_default()
    }

    /// Returns the subject of requests that are answered to their reply subject.
    pub fn infer(&self) -> Subject {
        self.plain("infer")
    }

    /// Returns the subject of durable requests.
    pub fn submit(&self) -> Subject {
        self.plain("submit")
    }

    /// Returns the subject of a durable request's result. Any text is a valid id: characters that are special in NATS
    /// are escaped, so that no two ids share a subject.
    pub fn result(&self, id: &str) -> Subject {
        [&*self.prefix, "result.", &key(id)].concat().into()
    }

    /// Returns the pattern of all results of durable requests.
    pub fn results(&self) -> Subject {
        self.plain("result.*")
    }

    /// Returns the subject of a durable request's dead letter.
    pub fn dead(&self, id: &str) -> Subject {
        [&*self.prefix, "dead.", &key(id)].concat().into()
    }

    /// Returns the pattern of all dead letters.
    pub fn dead_letters(&self) -> Subject {
        self.plain("dead.*")
    }

    /// Returns the subject of the failure count of the durable request with a sequence number.
    pub(crate) fn failures_of(&self, number: u64) -> Subject {
        [&*self.prefix, "failures.", &number.to_string()].concat().into()
    }

    /// Returns the pattern of all failure counts.
    pub(crate) fn failures(&self) -> Subject {
        self.plain("failures.*")
    }

    /// Returns the subject of cancellations by clients.
    pub fn cancel(&self) -> Subject {
        self.plain("cancel")
    }

    /// Returns the subject of delayed labels.
    pub fn feedback(&self) -> Subject {
        self.plain("feedback")
    }

    /// Returns the subject of cancellations that ingresses send to replicas.
    pub fn stage_cancel(&self) -> Subject {
        self.plain("stage_cancel")
    }

    /// Returns the subject of a stage, received by one of its replicas.
    ///
    /// # Errors
    /// [`SubjectError`] if `stage` is not a valid token.
    pub fn stage(&self, stage: &str) -> Result<Subject, SubjectError> {
        self.named("stage", "stage", stage)
    }

    /// Returns the subject of one replica.
    ///
    /// # Errors
    /// [`SubjectError`] if `replica` is not a valid token.
    pub fn replica(&self, replica: &str) -> Result<Subject, SubjectError> {
        self.named("replica", "replica", replica)
    }

    /// Returns the subject of the result of an attempt of request `id`, with the token that the request carries.
    ///
    /// # Errors
    /// [`SubjectError`] if `ingress` or `token` is not a valid token of a subject.
    pub fn done(&self, ingress: &str, id: u64, attempt: u32, token: &str) -> Result<Subject, SubjectError> {
        check_token("ingress", ingress)?;
        check_token("result's token", token)?;
        Ok(format!("{}done.{ingress}.{id}.{attempt}.{token}", self.prefix).into())
    }

    /// Returns the pattern of all results for one ingress.
    ///
    /// # Errors
    /// [`SubjectError`] if `ingress` is not a valid token.
    pub fn done_all(&self, ingress: &str) -> Result<Subject, SubjectError> {
        check_token("ingress", ingress)?;
        Ok(format!("{}done.{ingress}.*.*.*", self.prefix).into())
    }

    /// Returns the request id, the attempt and the token in a subject of [`App::done`]; `None` for any other subject.
    pub fn parse_done<'a>(&self, subject: &'a str) -> Option<(u64, u32, &'a str)> {
        match self.parse(subject) {
            Some(Route::StageReply {
                id, attempt, token, ..
            }) => Some((id, attempt, token)),
            _ => None,
        }
    }

    /// Returns the subject of one actor's heartbeats.
    ///
    /// # Errors
    /// [`SubjectError`] if `actor` is not a valid token.
    pub fn beat(&self, actor: &str) -> Result<Subject, SubjectError> {
        self.named("beat", "actor", actor)
    }

    /// Returns the pattern of all heartbeats.
    pub fn beats(&self) -> Subject {
        self.plain("beat.*")
    }

    /// Returns the subject of one ingress's state.
    ///
    /// # Errors
    /// [`SubjectError`] if `ingress` is not a valid token.
    pub fn ingress(&self, ingress: &str) -> Result<Subject, SubjectError> {
        self.named("ingress", "ingress", ingress)
    }

    /// Returns the pattern of all ingress states.
    pub fn ingresses(&self) -> Subject {
        self.plain("ingress.*")
    }

    /// Returns the subject of gear shifts.
    pub fn gear(&self) -> Subject {
        self.plain("gear")
    }

    /// Returns the subject of notices that a new epoch can be read from the plan store.
    pub fn plan(&self) -> Subject {
        self.plain("plan")
    }

    /// Returns the subject of plan requests to the planner.
    pub fn replan(&self) -> Subject {
        self.plain("replan")
    }

    /// Returns the subject of queries for the stored plan on an embedded broker, which has no JetStream.
    pub fn stored_plan(&self) -> Subject {
        self.plain("stored_plan")
    }

    /// Returns the subject of events with one name.
    ///
    /// # Errors
    /// [`SubjectError`] if `name` is not a valid token.
    pub fn event(&self, name: &str) -> Result<Subject, SubjectError> {
        self.named("event", "event", name)
    }

    /// Returns the pattern of all events.
    pub fn events(&self) -> Subject {
        self.plain("event.>")
    }

    /// Returns the meaning of a subject of this app; `None` for other subjects.
    pub fn parse<'a>(&self, subject: &'a str) -> Option<Route<'a>> {
        let mut tokens = subject.strip_prefix(&*self.prefix)?.split('.');
        let kind = tokens.next()?;
        let mut name = || tokens.next().filter(|name| check_token("name", name).is_ok());
        let route = match kind {
            "infer" => Route::Infer,
            "submit" => Route::Submit,
            "result" => Route::Result(tokens.next().filter(|key| is_key(key))?),
            "dead" => Route::Dead(tokens.next().filter(|key| is_key(key))?),
            "cancel" => Route::Cancel,
            "feedback" => Route::Feedback,
            "stage_cancel" => Route::StageCancel,
            "gear" => Route::Gear,
            "plan" => Route::Plan,
            "replan" => Route::Replan,
            "stored_plan" => Route::StoredPlan,
            "stage" => Route::Stage(name()?),
            "replica" => Route::Replica(name()?),
            "beat" => Route::Beat(name()?),
            "ingress" => Route::Ingress(name()?),
            "event" => Route::Event(name()?),
            "done" => Route::StageReply {
                ingress: name()?,
                id: parse_id(name()?)?,
                attempt: parse_id(name()?)?.try_into().ok()?,
                token: name()?,
            },
            _ => return None,
        };
        tokens.next().is_none().then_some(route)
    }

    fn plain(&self, tail: &str) -> Subject {
        [&*self.prefix, tail].concat().into()
    }

    fn named(&self, kind: &str, what: &'static str, name: &str) -> Result<Subject, SubjectError> {
        check_token(what, name)?;
        Ok([&*self.prefix, kind, ".", name].concat().into())
    }
}

/// Patterns for permissions, and the names of the app's streams and bucket.
impl App {
    /// Returns the subjects or patterns with these tails below the app's prefix.
    pub(crate) fn all_of<const N: usize>(&self, tails: [&str; N]) -> Vec<String> {
        tails.map(|tail| [&*self.prefix, tail].concat()).to_vec()
    }

    /// Returns the name of the JetStream bucket of the app's plans.
    pub(crate) fn bucket(&self) -> String {
        format!("{ROOT}-{}", self.name())
    }

    /// Returns the name of the JetStream stream of waiting durable requests.
    pub(crate) fn submitted_stream(&self) -> String {
        format!("{ROOT}-{}-submit", self.name())
    }

    /// Returns the name of the JetStream stream of results.
    pub(crate) fn results_stream(&self) -> String {
        format!("{ROOT}-{}-results", self.name())
    }

    /// Returns the name of the JetStream stream of dead letters.
    pub(crate) fn dead_stream(&self) -> String {
        format!("{ROOT}-{}-dead", self.name())
    }

    /// Returns the name of the JetStream stream of failure counts.
    pub(crate) fn failures_stream(&self) -> String {
        format!("{ROOT}-{}-failures", self.name())
    }
}

impl std::fmt::Display for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "App({})", self.name())
    }
}

/// Returns whether a reply may be sent to that subject. Clients may state any reply subject, and the replying actor has
/// wider permissions than they have; subjects of Kaskade's actors and of the server are therefore refused.
pub fn is_reply_allowed(reply: &str) -> bool {
    let first = reply.split('.').next().unwrap_or_default();
    first != ROOT && !first.starts_with('$')
}

/// Returns the inbox prefix of a user. It contains the user's public key, so that a server can restrict each user to
/// its own inbox, and every holder of the seed can derive the prefix.
pub fn inbox_prefix(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// Returns a fresh subject without subscribers, for round trips.
pub fn without_subscribers() -> Subject {
    format!("_KASKADE.UNSERVED.{}", crate::ids::unique_token()).into()
}

/// Returns the JetStream API subject that queries the result of a durable request.
pub fn result_query(app: &App, id: &str) -> Subject {
    format!("$JS.API.DIRECT.GET.{}.{}", app.results_stream(), app.result(id)).into()
}

/// Returns the JetStream API subject that queries the failure count of a durable request.
pub(crate) fn failures_query(app: &App, number: u64) -> Subject {
    let (stream, subject) = (app.failures_stream(), app.failures_of(number));
    format!("$JS.API.DIRECT.GET.{stream}.{subject}").into()
}

/// Returns the subjects on which a NATS service answers `verb` (ADR-32): for all services, for services of its name,
/// and for this instance.
///
/// # Errors
/// [`SubjectError`] if `service` or `instance` is not a valid token.
pub fn discovery(verb: &str, service: &str, instance: &str) -> Result<[Subject; 3], SubjectError> {
    check_token("service", service)?;
    check_token("service instance", instance)?;
    Ok([
        format!("$SRV.{verb}").into(),
        format!("$SRV.{verb}.{service}").into(),
        format!("$SRV.{verb}.{service}.{instance}").into(),
    ])
}

/// Returns the verb of a discovery subject; empty for any other subject.
pub fn discovery_verb(subject: &str) -> &str {
    let rest = subject.strip_prefix("$SRV.");
    rest.and_then(|rest| rest.split('.').next()).unwrap_or_default()
}
