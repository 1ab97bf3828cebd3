//! Builds a node of an app from models, a plan and a broker connection.
//!
//! Serves models written in Rust. For custom stages use [`crate::node::stage`], for custom actors
//! [`crate::node::attach`]; processes in other languages join the stage's queue group.

use std::{
    collections::BTreeMap,
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use kaskade_models::{Model, PowerMeter};
use kaskade_policy::plan::{Batching, Plan};

pub use kaskade_policy::plan::SOLE_WORKER;

use crate::{
    bus::BusConfig,
    control::planner::PlannerConfig,
    ingress::IngressConfig,
    node::{self, Node, NodeConfig, NodeError},
    plan::single,
    stage::worker::{Loader, WorkerConfig},
};

type Make = Arc<dyn Fn() -> Result<Box<dyn Model>, String> + Send + Sync>;

/// Builder of a node.
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
    shards: Option<NonZeroUsize>,
}

impl Service {
    /// Creates a builder for the app `app`, on the embedded broker by default.
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
                ..WorkerConfig::default()
            },
            batching: Batching::default(),
            replicas: NonZeroU32::MIN,
            planner: None,
            power: None,
            grace: Duration::from_secs(10),
            shards: None,
        }
    }

    /// Adds a model. `make` runs once per replica, on the replica's model thread.
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

    /// Sets the plan. Without a plan, a service with one model answers every request with that model.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Sets the connection to the broker; the default is the embedded broker.
    #[must_use]
    pub fn bus(mut self, bus: BusConfig) -> Self {
        self.bus = bus;
        self
    }

    /// Configures the ingress; `None` for a process that only runs a worker.
    #[must_use]
    pub fn ingress(mut self, ingress: impl Into<Option<IngressConfig>>) -> Self {
        self.ingress = ingress.into();
        self
    }

    /// Sets the worker's name (as in the plan's placement) and queue capacity.
    #[must_use]
    pub fn worker(mut self, worker: WorkerConfig) -> Self {
        self.worker = worker;
        self
    }

    /// Adds a planner.
    #[must_use]
    pub fn planner(mut self, planner: PlannerConfig) -> Self {
        self.planner = Some(planner);
        self
    }

    /// Sets the batching of the single-model plan.
    #[must_use]
    pub fn batching(mut self, batching: Batching) -> Self {
        self.batching = batching;
        self
    }

    /// Sets the number of replicas of the single-model plan.
    #[must_use]
    pub fn replicas(mut self, replicas: NonZeroU32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Meters the energy of the process with `power`.
    #[must_use]
    pub fn power(mut self, power: PowerMeter) -> Self {
        self.power = Some(power);
        self
    }

    /// Sets the longest wait of a shutdown for requests in flight.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the number of threads that process messages; the default is
    /// [`default_shards`](crate::node::default_shards).
    #[must_use]
    pub fn shards(mut self, shards: NonZeroUsize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Starts the service, and returns once it serves.
    ///
    /// # Errors
    /// [`NodeError`] if the broker, the plan or a model fails.
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
            // With several models and no plan, the plan comes from the store.
            (None, ..) => None,
        };
        let models = self.models;
        let loader: Loader = Arc::new(move |replica| match models.get(&replica.variant) {
            Some(make) => make(),
            None => Err(format!(
                "the plan places variant `{}` on this worker, which only has {:?}",
                replica.variant,
                models.keys().collect::<Vec<_>>()
            )),
        });
        let config = NodeConfig {
            app: self.app,
            bus: self.bus,
            ingress: self.ingress,
            worker: Some((self.worker, loader)),
            plan,
            planner: self.planner,
            power: self.power,
            grace: self.grace,
        };
        Node::start_sharded(config, self.shards.unwrap_or_else(node::default_shards))
    }
}
