//! An app on the bus: the process that serves it, and the client that asks it.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::HeaderMap;
use kaskade::App;
use kaskade::actors::bus::{Bus, BusConfig};
use kaskade::actors::client::Accepted;
use kaskade::actors::ingress::IngressConfig;
use kaskade::actors::node::{Node, NodeConfig};
use kaskade::actors::plan::store::StoreError;
use kaskade::actors::stage::worker::WorkerConfig;
use kaskade::actors::wire::{InferReply, InferRequest};
use kaskade::actors::{Client, Fault, plan, subjects, wire::headers};
use kaskade::models::{Inputs, PowerMeter, device};
use kaskade::plans::plan::Plan;

use crate::family::Family;
use crate::replanning;

/// The broker, as every verb that needs one is told.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Broker {
    /// A nats-server of 2.10 or newer. Without one (and without `nats.url` in the app), a small broker is started in the
    /// process, on the loopback.
    #[arg(long, value_name = "URL", env = "NATS_URL")]
    pub(crate) nats: Option<String>,
    /// The seed of the user to connect as, in a file; `kaskade auth init` writes them. Instead of the app's `nats.nkey`.
    #[arg(long, value_name = "FILE", env = "NATS_NKEY")]
    pub(crate) nkey: Option<PathBuf>,
    /// Certificates to trust beside the system's, for a server reached by `tls://`. Instead of the app's `nats.ca`.
    #[arg(long, value_name = "FILE", env = "NATS_CA")]
    pub(crate) nats_ca: Option<PathBuf>,
}

impl Broker {
    /// The nats-server that was named, here or in the app.
    pub(crate) fn url<'a>(&'a self, app: &'a App) -> Option<&'a str> {
        self.nats.as_deref().or(app.nats.url.as_deref())
    }

    /// How `verb` reaches the broker of an app.
    pub(crate) fn bus(&self, app: &App, verb: &str) -> BusConfig {
        let nats = &app.nats;
        BusConfig {
            url: self.url(app).map(str::to_owned),
            name: verb.to_owned(),
            // Who is named here is who connects, whatever the app says.
            credentials: nats.credentials.clone().filter(|_| self.nkey.is_none()),
            nkey: self.nkey.clone().or_else(|| nats.nkey.clone()),
            ca: self.nats_ca.clone().or_else(|| nats.ca.clone()),
            max_payload: usize::try_from(nats.max_payload.bytes()).unwrap_or(usize::MAX),
            ..BusConfig::new(app.name.as_str())
        }
    }
}

/// What a process takes on of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// The doors, a worker, and the planner where the app has one.
    All,
    /// The doors alone.
    Ingress,
    /// A worker alone.
    Worker,
    /// The planner alone.
    Planner,
}

impl Role {
    fn has_doors(self) -> bool {
        matches!(self, Self::All | Self::Ingress)
    }

    /// Whether it hosts replicas.
    pub(crate) fn works(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }

    fn plans(self) -> bool {
        matches!(self, Self::All | Self::Planner)
    }
}

/// Starts an app's share of this process, and returns once it serves. Without a plan, the plan store's is served.
///
/// # Errors
/// What the broker, the plan or a model says.
pub(crate) fn start(
    app: &App,
    family: Family,
    role: Role,
    worker: &str,
    plan: Option<Plan>,
    bus: BusConfig,
) -> anyhow::Result<Node> {
    let size = |count: NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
    let ingress = IngressConfig {
        max_in_flight: size(app.ingress.max_in_flight),
        default_budget: app.ingress.default_budget.duration(),
        max_budget: app.ingress.max_budget.duration(),
        durable: app.durable.as_ref().map(Into::into),
        ..IngressConfig::default()
    };
    let worker = WorkerConfig {
        name: worker.to_owned(),
        queue_capacity: size(app.ingress.queue_capacity),
    };
    let node = Node::start(NodeConfig {
        app: app.name.to_string(),
        bus,
        ingress: role.has_doors().then_some(ingress),
        worker: role.works().then(|| (worker, family.loader())),
        plan,
        planner: if role.plans() {
            replanning::planner(app)?
        } else {
            None
        },
        power: Some(power_meter(app)?),
        grace: app.ingress.drain.duration(),
    });
    node.with_context(|| format!("app `{}` does not start", app.name))
}

/// Writes the app's plan to the plan store, unless there is one: what a planner's process does first, so that doors and workers
/// that serve the stored plan have one. A plan that is there stays, whoever made it.
///
/// # Errors
/// What the broker or the plan store says.
pub(crate) async fn first_plan(app: &App, plan: &Plan, bus: BusConfig) -> anyhow::Result<()> {
    let bus = Bus::connect(bus).await?;
    let store = plan::store::open(&bus, &subjects::App::new(app.name.as_str())?).await?;
    let written = match store.get().await {
        Ok(None) => store.put(plan, None).await.map(drop),
        Ok(Some(_)) | Err(StoreError::Malformed { .. }) => Ok(()),
        Err(error) => Err(error),
    };
    bus.close().await;
    match written {
        // Somebody was first.
        Ok(()) | Err(StoreError::Stale { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What reads the energy of a process that serves the app.
fn power_meter(app: &App) -> anyhow::Result<PowerMeter> {
    let device = device::describe(app.device, &device::open(app.device)?);
    Ok(PowerMeter::detect(&(&app.power).into(), &device)?)
}

/// Asks an app.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    bus: Bus,
    client: Client,
    budget: Duration,
    durable: bool,
}

impl Asker {
    /// Connects. The connection belongs to the runtime that this is awaited on.
    ///
    /// # Errors
    /// What the broker says.
    pub(crate) async fn connect(app: &str, bus: BusConfig, budget: Duration) -> anyhow::Result<Self> {
        let app = subjects::App::new(app)?;
        let bus = Bus::connect(bus).await?;
        Ok(Self {
            client: Client::new(&bus, app),
            bus,
            budget,
            durable: false,
        })
    }

    /// The same, with every question submitted to be kept until it is answered.
    pub(crate) fn durably(self) -> Self {
        Self {
            durable: true,
            ..self
        }
    }

    /// Closes the connection. What is still asked fails.
    pub(crate) async fn leave(&self) {
        self.bus.close().await;
    }

    /// Asks, and waits for the one terminal reply.
    ///
    /// # Errors
    /// The app's own fault, or that nobody answered.
    pub(crate) async fn ask(&self, inputs: Inputs) -> Result<InferReply, Fault> {
        if !self.durable {
            return self.client.infer(inputs, self.budget).await;
        }
        let (request, headers) = self.submission(inputs, None);
        self.client.submit_and_wait(&request, headers, self.budget).await
    }

    /// Submits, to be answered once whatever is lost meanwhile.
    ///
    /// # Errors
    /// What the app or the stream says.
    pub(crate) async fn submit(&self, inputs: Inputs, id: Option<&str>) -> Result<Accepted, Fault> {
        let (request, headers) = self.submission(inputs, id);
        self.client.submit(&request, headers).await
    }

    fn submission(&self, inputs: Inputs, id: Option<&str>) -> (InferRequest, HeaderMap) {
        let request = InferRequest {
            inputs,
            id: id.map(ToOwned::to_owned),
            ..InferRequest::default()
        };
        let mut headers = HeaderMap::new();
        headers::put_budget(&mut headers, self.budget);
        (request, headers)
    }

    /// The result of a durable request, waited for at most so long.
    ///
    /// # Errors
    /// The request's own fault, or that it has no result yet.
    pub(crate) async fn wait_for(&self, id: &str, patience: Duration) -> Result<InferReply, Fault> {
        self.client.wait_for(id, patience).await
    }

    /// The same, with what is new of the answer each time while it is made.
    ///
    /// # Errors
    /// As [`Asker::ask`].
    pub(crate) async fn read_along(
        &self,
        inputs: Inputs,
        part: impl FnMut(InferReply),
    ) -> Result<InferReply, Fault> {
        let request = InferRequest {
            inputs,
            ..InferRequest::default()
        };
        self.client
            .stream(request, HeaderMap::new(), self.budget, part)
            .await
    }
}

/// A runtime for the asking side.
///
/// # Errors
/// When the system gives no threads.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the client's runtime cannot be started")
}
