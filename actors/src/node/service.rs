//! An app in a few lines: models, a plan, a broker.
//!
//! This is the way in for people who bring models of their own. Whoever wants other actors than ours uses
//! [`crate::node::attach`]; whoever wants another language joins the stage's queue group.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use kaskade_models::{Model, PowerMeter};
use kaskade_plans::plan::{Batching, Plan};

use crate::{
    bus::BusConfig,
    control::planner::PlannerConfig,
    ingress::IngressConfig,
    node::{Node, NodeConfig, NodeError},
    plan::single,
    stage::worker::{Loader, WorkerConfig},
};

/// Name of the worker of a service that runs in one process.
pub const SOLE_WORKER: &str = "local";

type Make = Arc<dyn Fn() -> Result<Box<dyn Model>, String> + Send + Sync>;

/// An app under construction.
pub struct Service {
    app: String,
    models: BTreeMap<String, Make>,
    plan: Option<Plan>,
    bus: BusConfig,
    ingress: Option<IngressConfig>,
    worker: WorkerConfig,
    batching: Batching,
    replicas: NonZeroU32,
    planner: Option<PlannerConfig>,
    power: Option<PowerMeter>,
    grace: Duration,
}

impl Service {
    /// A service of that name, on the embedded broker unless told otherwise.
    pub fn new(app: impl Into<String>) -> Self {
        let app = app.into();
        Self {
            bus: BusConfig::new(&app),
            app,
            models: BTreeMap::new(),
            plan: None,
            ingress: Some(IngressConfig::default()),
            worker: WorkerConfig {
                name: SOLE_WORKER.to_owned(),
                queue_capacity: 1024,
            },
            batching: Batching::default(),
            replicas: NonZeroU32::MIN,
            planner: None,
            power: None,
            grace: Duration::from_secs(10),
        }
    }

    /// A model of that name. `make` runs once per replica, on the thread that then runs the model.
    #[must_use]
    pub fn model<M, E>(mut self, name: &str, make: impl Fn() -> Result<M, E> + Send + Sync + 'static) -> Self
    where
        M: Model + 'static,
        E: std::fmt::Display,
    {
        let make: Make = Arc::new(move || match make() {
            Ok(model) => Ok(Box::new(model)),
            Err(error) => Err(error.to_string()),
        });
        self.models.insert(name.to_owned(), make);
        self
    }

    /// The plan to serve by. Without one, a service with one model answers every request with it.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// The broker to use instead of the embedded one.
    #[must_use]
    pub fn bus(mut self, bus: BusConfig) -> Self {
        self.bus = bus;
        self
    }

    /// The doors' limits; `None` for a process that only works.
    #[must_use]
    pub fn ingress(mut self, ingress: impl Into<Option<IngressConfig>>) -> Self {
        self.ingress = ingress.into();
        self
    }

    /// The worker's name (as the plan's placement has it) and queue.
    #[must_use]
    pub fn worker(mut self, worker: WorkerConfig) -> Self {
        self.worker = worker;
        self
    }

    /// What makes another plan when asked, or when the load has drifted.
    #[must_use]
    pub fn planner(mut self, planner: PlannerConfig) -> Self {
        self.planner = Some(planner);
        self
    }

    /// Batching of the single-model plan.
    #[must_use]
    pub fn batching(mut self, batching: Batching) -> Self {
        self.batching = batching;
        self
    }

    /// Replicas of the single-model plan.
    #[must_use]
    pub fn replicas(mut self, replicas: NonZeroU32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Meters the energy of the process with this.
    #[must_use]
    pub fn power(mut self, power: PowerMeter) -> Self {
        self.power = Some(power);
        self
    }

    /// How long a shutdown waits for requests in flight.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Starts it, and returns once it serves.
    ///
    /// # Errors
    /// [`NodeError`]: the broker, the plan or a model.
    pub fn start(self) -> Result<Node, NodeError> {
        let mut names = self.models.keys();
        let plan = match (self.plan, names.next(), names.next()) {
            (Some(plan), ..) => Some(plan),
            (None, Some(only), None) => Some(single(
                &self.app,
                only,
                &self.worker.name,
                self.replicas,
                self.batching,
            )),
            // Several models and no plan: the plan store has to say how they work together.
            (None, ..) => None,
        };
        let models = self.models;
        let loader: Loader = Arc::new(move |replica| match models.get(&replica.variant) {
            Some(make) => make(),
            None => Err(format!(
                "the plan places variant `{}` here, but this process has {:?}",
                replica.variant,
                models.keys().collect::<Vec<_>>()
            )),
        });
        Node::start(NodeConfig {
            app: self.app,
            bus: self.bus,
            ingress: self.ingress,
            worker: Some((self.worker, loader)),
            plan,
            planner: self.planner,
            power: self.power,
            grace: self.grace,
        })
    }
}
