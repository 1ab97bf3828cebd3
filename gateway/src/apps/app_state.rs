//! Follows an app through its broker: heartbeats, energy reports, gear shifts, plans and the counters of its ingresses.

mod interface;
mod plans;
mod serving;
mod snapshot;
mod subscriptions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kaskade_actors::Fault;
use kaskade_actors::wire::{Heartbeat, InferReply, IngressState, ModelInterface};
use kaskade_policy::plan::Plan;
use serde::Serialize;
use tokio::sync::watch;

use crate::apps::observed_signature::ObservedSignature;
use crate::apps::overview::{AppSnapshot, Overview};

use plans::{Plans, variant_in};
use snapshot::Listed;

pub(crate) use subscriptions::follow;

/// Errors that are kept.
const ERRORS: usize = 50;

/// Most stages or variants that are counted.
const NAMES: usize = 256;

/// Seconds of history.
const HISTORY: usize = 300;

/// Window of the counts by way and confidence, seconds.
const WINDOW: usize = 10;

/// Time without a heartbeat after which an actor is forgotten.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// State of an app, as a gateway knows it. Cheap to share.
pub(crate) struct AppState {
    pub(crate) app: String,
    state: Mutex<State>,
    /// The newest update of the dashboard with its number, once per second while it is subscribed to.
    pub(crate) updates: watch::Sender<(u64, Arc<str>)>,
}

/// Energy of one answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Joules {
    /// Sum over the variants that the request passed of their energy per request lately, idle time included, joules.
    pub(crate) joules: f64,
    /// Source of the readings.
    pub(crate) source: String,
}

struct State {
    begun: Instant,
    overview: Overview,
    snapshot: Option<AppSnapshot>,
    plans: Plans,
    actors: BTreeMap<String, ReceivedState>,
    /// Replicas to avoid, by ingress, and when it said so.
    unavailable: BTreeMap<String, (Instant, BTreeSet<String>)>,
    history: VecDeque<Point>,
    errors: VecDeque<Problem>,
    shifts: VecDeque<Shift>,
    /// Answers by way lately, a count per second, the newest last.
    routes: VecDeque<RouteCounts>,
    last_error: Option<String>,
    /// Answers since the start of the gateway, by variant.
    totals: BTreeMap<String, Totals>,
    failures: u64,
    /// The replicas that readers of updates know.
    listed: Listed,
    /// Number of the newest update.
    update: u64,
}

/// Work of a variant on requests that this gateway sent, since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Requests that it ran.
    pub(crate) runs: u64,
    /// Time in its queues, microseconds.
    pub(crate) wait_us: u64,
    /// Run time of the batches, microseconds.
    pub(crate) run_us: u64,
    /// When the newest answer of a request that it ran arrived, milliseconds since 1970.
    pub(crate) newest_ms: u64,
}

/// The newest heartbeat of an actor.
struct ReceivedState {
    at: Instant,
    beat: Heartbeat,
    /// What its models take and answer, by variant, as it announced last; without the names of classes.
    models: BTreeMap<String, ModelInterface>,
}

/// Answers of one second through this gateway.
#[derive(Default, Clone)]
struct RouteCounts {
    /// Answers by pair of successive stages, from and to; the first of a request comes from the empty stage.
    edges: BTreeMap<String, BTreeMap<String, u64>>,
    /// Answers by the stage that gave them.
    exits: BTreeMap<String, u64>,
    /// Sum and number of confidences.
    confidence: (f64, u64),
}

/// One second of history.
#[derive(Debug, Clone, Serialize)]
struct Point {
    /// Milliseconds since 1970.
    at_ms: u64,
    arrived_per_s: f64,
    gear: Option<u32>,
    p50_s: Option<f64>,
    p95_s: Option<f64>,
    p99_s: Option<f64>,
    joules_per_request: Option<f64>,
    money_per_request: Option<f64>,
}

/// An error that a client got.
#[derive(Debug, Clone, Serialize)]
struct Problem {
    at_ms: u64,
    code: &'static str,
    message: String,
    title: &'static str,
    explanation: &'static str,
}

/// A gear shift.
#[derive(Debug, Clone, Serialize)]
struct Shift {
    at_ms: u64,
    from: u32,
    to: u32,
    qps: f64,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl AppState {
    pub(crate) fn new(app: &str) -> Self {
        Self {
            app: app.to_owned(),
            state: Mutex::new(State {
                begun: Instant::now(),
                overview: Overview::default(),
                snapshot: None,
                plans: Plans::default(),
                actors: BTreeMap::new(),
                unavailable: BTreeMap::new(),
                history: VecDeque::new(),
                errors: VecDeque::new(),
                shifts: VecDeque::new(),
                routes: VecDeque::from([RouteCounts::default()]),
                last_error: None,
                totals: BTreeMap::new(),
                failures: 0,
                listed: Listed::default(),
                update: 0,
            }),
            updates: watch::Sender::new((0, Arc::from(""))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns everything that the dashboard shows, as JSON, with the number of the newest update that it includes.
    pub(crate) fn snapshot(&self) -> (u64, String) {
        self.state().snapshot(&self.app)
    }

    /// Notes an answer.
    pub(crate) fn answered(&self, reply: &InferReply) {
        let state = &mut *self.state();
        let wired = state.plans.of_reply(reply);
        let wiring = wired
            .as_ref()
            .and_then(|(plan, gear)| Some(&plan.gear(*gear)?.wiring));
        let now = now_ms();
        for hop in &reply.hops {
            let variant = wiring.and_then(|wiring| variant_in(wiring, &hop.stage));
            change(&mut state.totals, variant.unwrap_or(&hop.stage), |totals| {
                totals.runs += 1;
                totals.newest_ms = now;
                totals.wait_us += u64::from(hop.wait_us);
                totals.run_us += u64::from(hop.run_us);
            });
        }
        let Some(routes) = state.routes.back_mut() else {
            return;
        };
        let mut from = "";
        for hop in &reply.hops {
            change(&mut routes.edges, from, |to| {
                change(to, &hop.stage, |count| *count += 1);
            });
            from = &hop.stage;
        }
        change(&mut routes.exits, &reply.stage, |count| *count += 1);
        if let Some(confidence) = reply.confidence {
            routes.confidence.0 += confidence;
            routes.confidence.1 += 1;
        }
    }

    /// Notes an error that a client got.
    pub(crate) fn failed(&self, fault: &Fault) {
        let mut state = self.state();
        state.failures += 1;
        state.problem(Problem {
            at_ms: now_ms(),
            code: fault.code.id(),
            message: fault.message.chars().take(400).collect(),
            title: fault.code.title(),
            explanation: fault.code.explain(),
        });
    }

    /// Returns the plan under which requests are admitted.
    pub(crate) fn plan(&self) -> Option<(u64, Arc<Plan>)> {
        let state = self.state();
        let (epoch, plan) = state.plans.admitted()?;
        Some((epoch, Arc::clone(plan)))
    }

    /// Returns the inputs and outputs of the app, as far as its workers announce them.
    pub(crate) fn interface(&self) -> ObservedSignature {
        let state = self.state();
        let plan = state.plans.admitted().map(|(_, plan)| plan.as_ref());
        interface::of(&state.models(), plan)
    }

    /// Returns whether a model takes an input of that name.
    pub(crate) fn takes(&self, input: &str) -> bool {
        let state = self.state();
        let models = state.models();
        let mut inputs = models.values().flat_map(|model| &model.inputs);
        inputs.any(|taken| taken.name == input)
    }

    /// Returns the work by variant, and the number of failures, since the start of the gateway.
    pub(crate) fn totals(&self) -> (BTreeMap<String, Totals>, u64) {
        let state = self.state();
        (state.totals.clone(), state.failures)
    }

    /// Returns whether an ingress or a worker has sent a message within the window.
    pub(crate) fn is_alive(&self) -> bool {
        let state = self.state();
        state
            .actors
            .values()
            .any(|received| received.at.elapsed() < SILENT)
    }

    /// Returns the live replicas by variant.
    pub(crate) fn live(&self) -> BTreeMap<String, usize> {
        let state = self.state();
        let mut live = BTreeMap::new();
        for received in state.live_actors() {
            for replica in &received.beat.replicas {
                *live.entry(replica.variant.clone()).or_default() += 1;
            }
        }
        live
    }

    /// Returns the energy of an answer, by the recent energy per request of the variants that it passed; `None` if one is
    /// unknown.
    pub(crate) fn joules(&self, reply: &InferReply) -> Option<Joules> {
        let state = self.state();
        let snapshot = state.snapshot.as_ref()?;
        let (plan, gear) = state.plans.of_reply(reply)?;
        let wiring = &plan.gear(gear)?.wiring;
        let mut joules = 0.0;
        for hop in &reply.hops {
            let variant = variant_in(wiring, &hop.stage)?;
            let row = snapshot.models.iter().find(|row| row.variant == variant)?;
            joules += row.joules_per_request()?;
        }
        let sources: BTreeSet<&str> = snapshot
            .nodes
            .iter()
            .filter(|node| node.models > 0)
            .map(|node| node.source.as_str())
            .collect();
        if sources.is_empty() || reply.hops.is_empty() {
            return None;
        }
        Some(Joules {
            joules,
            source: sources.into_iter().collect::<Vec<_>>().join(", "),
        })
    }
}

/// Changes the value of a name; copies the name only if it is new. Replies state names of stages, and a stage may make them up, so
/// that further names are not counted beyond a limit.
fn change<T: Default>(values: &mut BTreeMap<String, T>, name: &str, change: impl FnOnce(&mut T)) {
    let is_full = values.len() >= NAMES;
    match values.get_mut(name) {
        Some(value) => change(value),
        None if is_full => {}
        None => change(values.entry(name.to_owned()).or_default()),
    }
}

/// Time without a heartbeat after which a replica counts as silent; actors send several per second, and ingresses their state
/// once.
const SILENT: Duration = Duration::from_secs(3);

impl State {
    fn problem(&mut self, problem: Problem) {
        self.errors.push_back(problem);
        if self.errors.len() > ERRORS {
            self.errors.pop_front();
        }
    }

    fn beat(&mut self, mut beat: Heartbeat) {
        let before = self.actors.remove(&beat.actor);
        let mut models = std::mem::take(&mut beat.models);
        if models.is_empty() {
            models = before.map(|received| received.models).unwrap_or_default();
        }
        models.retain(|variant, _| beat.replicas.iter().any(|replica| replica.variant == *variant));
        for model in models.values_mut() {
            model.labels = Vec::new();
        }
        let received = ReceivedState {
            at: Instant::now(),
            beat: beat.clone(),
            models,
        };
        self.actors.insert(beat.actor.clone(), received);
        let now = self.begun.elapsed();
        self.overview.beat(now, beat);
    }

    /// Returns what the models take and answer, by variant, as the workers announce it on which the plan places them.
    fn models(&self) -> BTreeMap<&str, &ModelInterface> {
        let plan = self.plans.admitted().map(|(_, plan)| plan);
        let is_placed = |worker: &str, variant: &str| {
            let places = |plan: &Arc<Plan>| {
                let mut placed = plan.placement.iter();
                placed.any(|replica| replica.worker == worker && replica.variant == variant)
            };
            plan.is_none_or(places)
        };
        let announced = self.actors.iter().flat_map(|(worker, received)| {
            let models = received.models.iter();
            models.filter(move |(variant, _)| is_placed(worker, variant))
        });
        announced
            .map(|(variant, model)| (variant.as_str(), model))
            .collect()
    }

    fn ingress(&mut self, state: IngressState) {
        if state.gone {
            self.unavailable.remove(&state.ingress);
            self.plans.left(&state.ingress);
        } else {
            self.plans.admits(&state.ingress, state.admits);
            let unavailable = state.unavailable.into_iter().collect();
            self.unavailable
                .insert(state.ingress, (Instant::now(), unavailable));
        }
    }

    /// Forgets the actors and the ingresses that have been silent for long: a killed process sends no last heartbeat.
    fn forget_silent(&mut self) {
        self.actors
            .retain(|_, received| received.at.elapsed() < FORGOTTEN);
        self.unavailable.retain(|_, (at, _)| at.elapsed() < SILENT);
        let ingresses = &self.unavailable;
        self.plans
            .keep_ingresses(|ingress| ingresses.contains_key(ingress));
    }

    /// Returns the counts by way of the last seconds.
    fn recent_routes(&self) -> RouteCounts {
        let mut all = RouteCounts::default();
        for routes in &self.routes {
            for (from, edges) in &routes.edges {
                for (to, count) in edges {
                    change(&mut all.edges, from, |all| change(all, to, |all| *all += count));
                }
            }
            for (stage, count) in &routes.exits {
                change(&mut all.exits, stage, |all| *all += count);
            }
            all.confidence.0 += routes.confidence.0;
            all.confidence.1 += routes.confidence.1;
        }
        all
    }
}
