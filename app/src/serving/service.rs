//! Serves an app, or a part of it, in this process.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use kaskade_actors::bus::BusConfig;
use kaskade_actors::node::{Node, NodeError};
use kaskade_policy::plan::Plan;

use super::{Client, Connection, Role, ServingError, start};
use crate::config::App;
use crate::family::Family;
use crate::planning::initial;

/// An app, or a part of it, served by this process.
///
/// ```no_run
/// use kaskade_app::config::App;
/// use kaskade_app::serving::Service;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let app = App::load("app.toml".as_ref())?;
/// let service = Service::builder(&app).listen("127.0.0.1:4222".parse()?).start()?;
/// let client = service.client().await?;
/// let reply = client.text("a film that stays with you")?.send().await?;
/// println!("{} answered", reply.variant);
/// service.stop();
/// # Ok(())
/// # }
/// ```
///
/// Dropping it stops it without a grace time; [`Service::stop`] drains it first.
pub struct Service {
    node: Node,
    app: App,
    bus: BusConfig,
}

/// Builder of a [`Service`].
#[derive(Debug, Clone)]
#[must_use = "a service is started by `start`"]
pub struct ServiceBuilder {
    app: App,
    family: Family,
    /// Whether the family has passed its checks.
    is_checked: bool,
    plan: PlanChoice,
    role: Role,
    worker: Option<String>,
    connection: Connection,
    bus: Option<BusConfig>,
    shards: Option<NonZeroU32>,
}

/// Plan to write to an empty plan store.
#[derive(Debug, Clone)]
enum PlanChoice {
    /// The plan configured in the app's file.
    App,
    /// None; a stored plan is awaited.
    Stored,
    /// The given plan.
    Given(Box<Plan>),
}

impl ServiceBuilder {
    /// Sets the plan to write if the plan store is empty, instead of the one configured in the app's file. A stored
    /// plan is never overwritten (use [`crate::deploy`] for that).
    pub fn plan(self, plan: Plan) -> Self {
        Self {
            plan: PlanChoice::Given(Box::new(plan)),
            ..self
        }
    }

    /// Serves the stored plan, and waits for one if the plan store is empty.
    pub fn stored_plan(self) -> Self {
        Self {
            plan: PlanChoice::Stored,
            ..self
        }
    }

    /// Sets the number of threads that process messages, instead of the app file's setting.
    pub fn shards(self, shards: NonZeroU32) -> Self {
        Self {
            shards: Some(shards),
            ..self
        }
    }

    /// Connects to a nats-server (2.10 or newer).
    pub fn nats(mut self, url: impl Into<String>) -> Self {
        self.connection.url = Some(url.into());
        self
    }

    /// Connects as the user whose seed is in a file.
    pub fn nkey(mut self, file: impl Into<PathBuf>) -> Self {
        self.connection.nkey = Some(file.into());
        self
    }

    /// Trusts the certificates in a file in addition to the system's.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.connection.ca = Some(file.into());
        self
    }

    /// Sets the address of the embedded broker, if no nats-server is configured; port 0 selects a free port.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.connection.listen = Some(address);
        self
    }

    /// Sets the connection to the broker, instead of the app file's settings.
    pub fn bus(self, bus: BusConfig) -> Self {
        Self {
            bus: Some(bus),
            ..self
        }
    }

    /// Serves only a part of the app.
    pub fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// Sets the worker, by its name in the app's file.
    pub fn worker(self, name: impl Into<String>) -> Self {
        Self {
            worker: Some(name.into()),
            ..self
        }
    }

    /// Selects the first worker of the app.
    pub fn on_first_worker(mut self) -> Self {
        self.worker = self.app.workers.first().map(|worker| worker.name.to_string());
        self
    }

    /// Sets the models, instead of those in the app's file.
    pub fn family(self, family: Family) -> Self {
        Self {
            family,
            is_checked: false,
            ..self
        }
    }

    /// Sets models that have passed [`Family::check_classes`] and [`Family::check_tokenizers`], so that their files are
    /// not opened again for these checks.
    pub fn checked_family(self, family: Family) -> Self {
        Self {
            family,
            is_checked: true,
            ..self
        }
    }

    /// Starts the service, and returns once it serves.
    ///
    /// # Errors
    /// [`ServingError`] if the broker, the plan or a model fails; if the app has several workers and none is selected;
    /// or if a part of an app has no broker that the other parts can reach.
    pub fn start(self) -> Result<Service, ServingError> {
        let Self {
            app,
            family,
            is_checked,
            plan,
            role,
            worker,
            connection,
            bus,
            shards,
        } = self;
        if role != Role::All && bus.is_none() && connection.url(&app).is_none() {
            return Err(ServingError::NeedsBroker);
        }
        let worker = worker_of(&app, role, worker)?;
        if !is_checked {
            family.check_classes()?;
            family.check_tokenizers(&app.data)?;
        }
        let plan = match plan {
            PlanChoice::Given(plan) => {
                initial::check(&app, &plan)?;
                Some(*plan)
            }
            PlanChoice::App => Some(initial::of(&app)?),
            PlanChoice::Stored => None,
        };
        let bus = match bus {
            Some(bus) => bus,
            None => connection.serve(&app, "serve")?,
        };
        let node = start(&app, family, role, &worker, plan, bus.clone(), shards)?;
        Ok(Service { node, app, bus })
    }
}

impl Service {
    /// Creates a builder that serves the whole app in this process, with the app's plan, on the broker in the app's
    /// file or else an embedded one.
    pub fn builder(app: &App) -> ServiceBuilder {
        ServiceBuilder {
            family: Family::from_app(app),
            is_checked: false,
            app: app.clone(),
            plan: PlanChoice::App,
            role: Role::All,
            worker: None,
            connection: Connection::default(),
            bus: None,
            shards: None,
        }
    }

    /// Returns the address of the broker, without credentials, for [`Client::connect`].
    pub fn url(&self) -> &str {
        self.node.bus().url()
    }

    /// Returns the node with the actors.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Connects a client to the same broker. The connection belongs to the runtime that awaits this call.
    ///
    /// # Errors
    /// [`ServingError`] if the connection fails.
    pub async fn client(&self) -> Result<Client, ServingError> {
        let budget = self.app.ingress.default_budget.duration();
        let client = Client::connect_with(self.bus.clone(), self.app.name.as_str()).await?;
        Ok(client.budget(budget))
    }

    /// Waits until a core task of the service fails. The service then ends by itself; the process should end with this
    /// error.
    pub async fn failure(&self) -> NodeError {
        self.node.failure().await
    }

    /// Stops the service: accepts no more requests, and finishes those in flight within the app's
    /// `ingress.drain_timeout`.
    pub fn stop(self) {
        self.node.stop();
    }
}

/// Returns the worker of a process: the named one, or the app's only one; empty if the process hosts no replicas.
///
/// # Errors
/// [`ServingError`] if the app has no such worker, or has several and none is named.
pub fn worker_of(app: &App, role: Role, named: Option<String>) -> Result<String, ServingError> {
    let workers = || app.workers.iter().map(|worker| worker.name.to_string()).collect();
    match (named, app.workers.as_slice()) {
        (Some(worker), all) if all.iter().any(|known| known.name.as_str() == worker) => Ok(worker),
        (Some(worker), _) => Err(ServingError::NoWorker {
            worker,
            workers: workers(),
        }),
        (None, [only]) => Ok(only.name.to_string()),
        (None, _) if !role.runs_worker() => Ok(String::new()),
        (None, _) => Err(ServingError::WhichWorker { workers: workers() }),
    }
}
