//! The planner: makes another plan when asked, while the old one serves.
//!
//! Planning is somebody's function ([`Planning`]), run on a thread of its own: it may crash, hang or find nothing, and the
//! running plan is untouched; the asker gets a [`PlanReport`] in any case. What it finds is written by compare-and-set
//! against the epoch that ran when it began, so of two planners one wins and the other is told that it is stale.
//!
//! It plans when asked, when the load has drifted, or in a trigger of its own ([`ReplanTrigger`]).

use std::{sync::Arc, thread, time::Duration};

use crate::actor::{self, Actor, Addr, Context, Handler, Message, ResponseFuture};
use async_nats::Subject;
use futures::StreamExt;
use kaskade_plans::plan::Plan;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    bus::{Bus, BusError},
    control::replan_trigger::{LoadListener, ReplanTrigger},
    dispatch::dispatcher::Dispatcher,
    plan::store::{PlanStore, StoreError},
    plan::versions::PlanVersions,
    subjects::{
        self,
        event::{DRIFT, PLANNED},
    },
    wire::{DriftNotice, Message as _, PlanReport, PlanRequest},
};

/// Makes a plan for a request, given the plan that runs. The error is for people.
pub type Planning = Arc<dyn Fn(&PlanRequest, Option<&Plan>) -> Result<Plan, String> + Send + Sync>;

/// What a planner is told at its start.
#[derive(Clone)]
pub struct PlannerConfig {
    /// What plans.
    pub planning: Planning,
    /// How long it may take before it is given up.
    pub limit: Duration,
    /// Whether a drift of the load makes a new plan without anybody asking.
    pub on_drift: bool,
    /// When else a new plan is made without anybody asking.
    pub trigger: ReplanTrigger,
}

impl std::fmt::Debug for PlannerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlannerConfig")
            .field("limit", &self.limit)
            .field("on_drift", &self.on_drift)
            .field("trigger", &self.trigger)
            .finish_non_exhaustive()
    }
}

/// The planner actor.
pub struct Planner {
    config: PlannerConfig,
    store: Arc<dyn PlanStore>,
    plans: PlanVersions,
    dispatcher: Dispatcher,
    /// One plan at a time.
    permits: Arc<Semaphore>,
}

/// Makes a plan now.
#[derive(Message)]
#[rtype(result = "PlanReport")]
pub struct MakePlan(pub PlanRequest);

impl Planner {
    /// A planner that writes to that store.
    pub fn new(
        config: PlannerConfig,
        store: Arc<dyn PlanStore>,
        plans: PlanVersions,
        dispatcher: Dispatcher,
    ) -> Self {
        Self {
            config,
            store,
            plans,
            dispatcher,
            permits: Arc::new(Semaphore::new(1)),
        }
    }

    /// Starts it, taking requests from the app's `replan` subject and, if so configured, from drifts.
    ///
    /// # Errors
    /// [`BusError`] when a subscription fails.
    pub async fn listen(self, bus: &Bus) -> Result<Addr<Self>, BusError> {
        let app = self.dispatcher.app().clone();
        let (dispatcher, on_drift) = (self.dispatcher.clone(), self.config.on_drift);
        let trigger = match &self.config.trigger {
            ReplanTrigger::OnRequest => None,
            unasked => Some(LoadListener::begin(bus, &dispatcher, *unasked).await?),
        };
        let mut requests = bus
            .subscribe(app.replan(), Some(subjects::PLANNER_GROUP.to_owned()))
            .await?;
        let mut drifts = bus.subscribe(app.event(DRIFT)?, None).await?;
        // Only a round trip proves that the subscriptions stand.
        bus.barrier().await?;
        let planner = self.start();
        if let Some(load_listener) = trigger {
            let listener = planner.clone();
            actor::spawn(load_listener.ask(move |request| listener.do_send(MakePlan(request))));
        }
        let listener = planner.clone();
        actor::spawn(async move {
            loop {
                tokio::select! {
                    message = requests.next() => match message {
                        Some(message) => take(&listener, &dispatcher, &message),
                        None => return,
                    },
                    message = drifts.next() => match message {
                        Some(message) if on_drift => match DriftNotice::decode(&message.payload) {
                            Ok(drift) => listener.do_send(MakePlan(after(drift))),
                            Err(error) => tracing::warn!(%error, "a drift could not be read"),
                        },
                        Some(_) => {}
                        None => return,
                    },
                }
            }
        });
        Ok(planner)
    }
}

/// The request that a drift makes.
fn after(drift: DriftNotice) -> PlanRequest {
    PlanRequest {
        reason: format!("the load drifted by {:.2}", drift.distance),
        peak_qps: Some(drift.peak_qps),
        measured: drift.measured,
        ..PlanRequest::default()
    }
}

/// A request from the bus: answered with the report, if an answer is wanted.
fn take(planner: &Addr<Planner>, dispatcher: &Dispatcher, message: &async_nats::Message) {
    let (planner, dispatcher, reply) = (planner.clone(), dispatcher.clone(), message.reply.clone());
    // An empty body asks for a plan without saying why.
    let request = if message.payload.is_empty() {
        Ok(PlanRequest::default())
    } else {
        PlanRequest::decode(&message.payload)
    };
    actor::spawn(async move {
        let report = match request {
            Ok(request) => planner
                .send(MakePlan(request))
                .await
                .unwrap_or(PlanReport::Crashed),
            Err(error) => PlanReport::Refused {
                reason: format!("the request could not be read: {error}"),
            },
        };
        if let Some(reply) = reply {
            say(&dispatcher, reply, &report);
        }
    });
}

fn say(dispatcher: &Dispatcher, subject: Subject, report: &PlanReport) {
    if let Ok(payload) = report.encode() {
        dispatcher.publish(subject, None, None, payload);
    }
}

impl Actor for Planner {
    type Context = Context<Self>;
}

impl Handler<MakePlan> for Planner {
    type Result = ResponseFuture<PlanReport>;

    fn handle(&mut self, MakePlan(request): MakePlan, _: &mut Context<Self>) -> Self::Result {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return Box::pin(std::future::ready(PlanReport::Busy));
        };
        let (config, store, plans) = (self.config.clone(), Arc::clone(&self.store), self.plans.clone());
        let dispatcher = self.dispatcher.clone();
        Box::pin(async move {
            let report = make(&config, &*store, &plans, request).await;
            drop(permit);
            match &report {
                PlanReport::Adopted { epoch } => tracing::info!(epoch, "a new plan runs"),
                PlanReport::Unchanged { epoch } => {
                    tracing::debug!(epoch, "the running plan is still the one to run");
                }
                other => tracing::error!(report = ?other, "no new plan; the running one goes on serving"),
            }
            if let Ok(subject) = dispatcher.app().event(PLANNED) {
                say(&dispatcher, subject, &report);
            }
            report
        })
    }
}

async fn make(
    config: &PlannerConfig,
    store: &dyn PlanStore,
    plans: &PlanVersions,
    request: PlanRequest,
) -> PlanReport {
    let running = plans.current().map(|(version, _)| version);
    // A thread and not the runtime's pool: one that hangs must not keep the process from stopping.
    let (finished, result) = oneshot::channel();
    let (planning, before) = (Arc::clone(&config.planning), running.clone());
    let spawned = thread::Builder::new().name("planner".to_owned()).spawn(move || {
        let _ = finished.send(planning(&request, before.as_ref().map(|version| &version.plan)));
    });
    if let Err(error) = spawned {
        let reason = format!("no thread to plan on: {error}");
        return PlanReport::Refused { reason };
    }
    let plan = match tokio::time::timeout(config.limit, result).await {
        Err(_) => {
            let limit_ms = config.limit.as_millis() as u64;
            return PlanReport::TimedOut { limit_ms };
        }
        // The thread ended without a word: it panicked.
        Ok(Err(_)) => return PlanReport::Crashed,
        Ok(Ok(Err(reason))) => return PlanReport::Refused { reason },
        Ok(Ok(Ok(plan))) => plan,
    };
    if let Some(running) = running.as_ref().filter(|running| running.plan == plan) {
        return PlanReport::Unchanged { epoch: running.epoch };
    }
    write(store, plans, &plan, running.map(|version| version.epoch)).await
}

/// Puts the plan into the store, unless it could not be served or another one came first.
async fn write(
    store: &dyn PlanStore,
    plans: &PlanVersions,
    plan: &Plan,
    expected: Option<u64>,
) -> PlanReport {
    // Tried on a plans of its own first: what this process would not serve is not put before others either.
    if let Err(error) = PlanVersions::new(plans.app()).adopt(u64::MAX, plan.clone()) {
        let reason = error.to_string();
        return PlanReport::Refused { reason };
    }
    match store.put(plan, expected).await {
        Ok(epoch) => PlanReport::Adopted { epoch },
        Err(StoreError::Stale { newest, .. }) => PlanReport::Stale { newest },
        Err(error) => PlanReport::Refused {
            reason: error.to_string(),
        },
    }
}
