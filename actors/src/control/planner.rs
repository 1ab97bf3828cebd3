//! The planner: makes a new plan on request while the current one serves.
//!
//! Planning is a user-supplied function ([`Planning`]) on a separate thread. If it panics, hangs or finds nothing, the
//! running plan is unaffected, and the requester gets a [`PlanReport`] in any case. The planner writes its result by
//! compare-and-set against the epoch that ran when it started; of two concurrent planners one succeeds and the other
//! gets a stale-epoch error.
//!
//! It plans on request, after a load drift, or by its [`ReplanTrigger`].

use std::{sync::Arc, thread, time::Duration};

use crate::actor::{self, Actor, Addr, Context, Handler, Message, ResponseFuture};
use async_nats::Subject;
use futures::StreamExt;
use kaskade_policy::plan::Plan;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{
    bus::{Bus, BusError},
    control::heartbeats::Heartbeats,
    control::replan_trigger::{LoadListener, ReplanTrigger},
    dispatch::dispatcher::Dispatcher,
    plan::store::{PlanStore, StoreError},
    plan::versions::PlanVersions,
    subjects::{
        self,
        event::{LOAD_DRIFT, PLANNER},
    },
    supervision::TaskGuard,
    wire::{LoadDriftNotice, Message as _, PlanReport, PlanRequest},
};

/// Function that makes a plan for a request, given the running plan. The error is text for users.
pub type Planning = Arc<dyn Fn(&PlanRequest, Option<&Plan>) -> Result<Plan, String> + Send + Sync>;

/// Configuration of a planner.
#[derive(Clone)]
pub struct PlannerConfig {
    /// The planning function.
    pub planning: Planning,
    /// Time limit of one planning run.
    pub limit: Duration,
    /// Whether a drift of the load triggers planning.
    pub replan_on_load_drift: bool,
    /// Trigger for planning without a request.
    pub trigger: ReplanTrigger,
}

impl std::fmt::Debug for PlannerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlannerConfig")
            .field("limit", &self.limit)
            .field("replan_on_load_drift", &self.replan_on_load_drift)
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
    /// Allows one planning thread at a time.
    permits: Arc<Semaphore>,
    _guard: TaskGuard,
}

/// Requests a plan now.
#[derive(Message)]
#[rtype(result = "PlanReport")]
pub struct MakePlan(pub PlanRequest);

impl Planner {
    /// Creates a planner that writes to `store`.
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
            _guard: dispatcher.supervisor().guard("planner"),
            dispatcher,
            permits: Arc::new(Semaphore::new(1)),
        }
    }

    /// Starts the planner. It takes requests from the app's `replan` subject and, if configured, plans after drifts.
    ///
    /// # Errors
    /// [`BusError`] if a subscription fails.
    pub(crate) async fn listen(self, bus: &Bus, heartbeats: &mut Heartbeats) -> Result<Addr<Self>, BusError> {
        let app = self.dispatcher.app().clone();
        let (dispatcher, replan_on_load_drift) = (self.dispatcher.clone(), self.config.replan_on_load_drift);
        let trigger = match &self.config.trigger {
            ReplanTrigger::OnRequest => None,
            unasked => Some(LoadListener::begin(bus, heartbeats, &dispatcher, *unasked).await?),
        };
        let mut requests = bus
            .subscribe(app.replan(), Some(subjects::PLANNER_GROUP.to_owned()))
            .await?;
        let mut drifts = bus.control().subscribe(app.event(LOAD_DRIFT)?, None).await?;
        // Only round trips prove that the subscriptions are active.
        bus.barrier().await?;
        bus.control().barrier().await?;
        let planner = self.start();
        if let Some(load_listener) = trigger {
            let listener = planner.clone();
            let ask = load_listener.ask(move |request| listener.do_send(MakePlan(request)));
            dispatcher.supervisor().spawn("replan trigger", ask);
        }
        let listener = planner.clone();
        let supervisor = dispatcher.supervisor().clone();
        supervisor.spawn("subscriptions of the planner", async move {
            loop {
                tokio::select! {
                    message = requests.next() => match message {
                        Some(message) => take(&listener, &dispatcher, &message),
                        None => return,
                    },
                    message = drifts.next() => match message {
                        Some(message) if replan_on_load_drift => match LoadDriftNotice::decode(&message.payload) {
                            Ok(drift) => listener.do_send(MakePlan(after(drift))),
                            Err(error) => tracing::warn!(%error, "a drift notice could not be decoded"),
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

/// Returns the plan request for a load drift.
fn after(drift: LoadDriftNotice) -> PlanRequest {
    PlanRequest {
        reason: format!("the load drifted by {:.2}", drift.distance),
        peak_qps: Some(drift.peak_qps),
        measured: drift.measured,
        ..PlanRequest::default()
    }
}

/// Handles a request from the bus, and replies with the report if replies to the message's reply subject are allowed.
/// Otherwise a sender could make the planner publish to another subject of the app.
fn take(planner: &Addr<Planner>, dispatcher: &Dispatcher, message: &async_nats::Message) {
    let (planner, dispatcher) = (planner.clone(), dispatcher.clone());
    let reply = message.reply.clone();
    let reply = reply.filter(|reply| subjects::is_reply_allowed(reply));
    // An empty body requests a plan without a reason.
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
                reason: format!("the request could not be decoded: {error}"),
            },
        };
        if let Some(reply) = reply {
            publish_report(&dispatcher, reply, &report);
        }
    });
}

fn publish_report(dispatcher: &Dispatcher, subject: Subject, report: &PlanReport) {
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
            let permit = Arc::new(permit);
            let report = make(&config, &*store, &plans, request, &permit).await;
            drop(permit);
            match &report {
                PlanReport::Adopted { epoch } => tracing::info!(epoch, "adopted a new plan"),
                PlanReport::Unchanged { epoch } => {
                    tracing::debug!(epoch, "planning returned the running plan");
                }
                failed => tracing::error!("{failed}"),
            }
            if let Ok(subject) = dispatcher.app().event(PLANNER) {
                publish_report(&dispatcher, subject, &report);
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
    permit: &Arc<OwnedSemaphorePermit>,
) -> PlanReport {
    let running = plans.newest();
    // A thread instead of the runtime's pool, so that a hanging planning function does not keep the process from
    // stopping.
    let (finished, result) = oneshot::channel();
    let (planning, before) = (Arc::clone(&config.planning), running.clone());
    // The thread also holds the permit: a run that exceeds its time limit continues, and no other may start meanwhile.
    let held = Arc::clone(permit);
    let spawned = thread::Builder::new().name("planner".to_owned()).spawn(move || {
        let plan = planning(&request, before.as_ref().map(|version| &version.plan));
        drop(held);
        let _ = finished.send(plan);
    });
    if let Err(error) = spawned {
        let reason = format!("the planning thread could not be started: {error}");
        return PlanReport::Refused { reason };
    }
    let plan = match tokio::time::timeout(config.limit, result).await {
        Err(_) => {
            let limit_ms = config.limit.as_millis() as u64;
            return PlanReport::TimedOut { limit_ms };
        }
        // The sender was dropped because the planning function panicked.
        Ok(Err(_)) => return PlanReport::Crashed,
        Ok(Ok(Err(reason))) => return PlanReport::Refused { reason },
        Ok(Ok(Ok(plan))) => plan,
    };
    if let Some(running) = running.as_ref().filter(|running| running.plan == plan) {
        return PlanReport::Unchanged { epoch: running.epoch };
    }
    write(store, plans, &plan, running.map(|version| version.epoch)).await
}

/// Writes the plan to the store, unless it is invalid or another plan was written first.
async fn write(
    store: &dyn PlanStore,
    plans: &PlanVersions,
    plan: &Plan,
    expected: Option<u64>,
) -> PlanReport {
    // Validate first, so that an invalid plan does not reach other processes.
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
