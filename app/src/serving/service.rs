//! A share of an app, or the whole of it, in this process.

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

/// An app that is served by this process.
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
/// Dropping it stops it without grace; [`Service::stop`] lets requests in flight finish.
pub struct Service {
    node: Node,
    app: App,
    bus: BusConfig,
}

/// A service that is being set up.
#[derive(Debug, Clone)]
#[must_use = "a service is started by `start`"]
pub struct ServiceBuilder {
    app: App,
    family: Family,
    /// Whether the models passed their checks.
    is_checked: bool,
    plan: PlanChoice,
    role: Role,
    worker: Option<String>,
    connection: Connection,
    bus: Option<BusConfig>,
    shards: Option<NonZeroU32>,
}

/// Which plan is written to an empty plan store.
#[derive(Debug, Clone)]
enum PlanChoice {
    /// The one that the app's file asks for.
    App,
    /// None.
    Stored,
    /// This one.
    Given(Box<Plan>),
}

impl ServiceBuilder {
    /// Serves this plan instead of the one that the app's file asks for, if the plan store is empty. A stored plan is never
    /// overwritten ([`crate::deploy`] does that).
    pub fn plan(self, plan: Plan) -> Self {
        Self {
            plan: PlanChoice::Given(Box::new(plan)),
            ..self
        }
    }

    /// Serves the plan in the plan store, and waits for one if it is empty.
    pub fn stored_plan(self) -> Self {
        Self {
            plan: PlanChoice::Stored,
            ..self
        }
    }

    /// Moves messages on this many threads, instead of as many as the app's file says.
    pub fn shards(self, shards: NonZeroU32) -> Self {
        Self {
            shards: Some(shards),
            ..self
        }
    }

    /// Uses a nats-server of 2.10 or newer.
    pub fn nats(mut self, url: impl Into<String>) -> Self {
        self.connection.url = Some(url.into());
        self
    }

    /// Connects as the user whose seed is in this file.
    pub fn nkey(mut self, file: impl Into<PathBuf>) -> Self {
        self.connection.nkey = Some(file.into());
        self
    }

    /// Trusts the certificates in this file beside the system's.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.connection.ca = Some(file.into());
        self
    }

    /// Sets where the embedded broker listens, if no nats-server is named; port 0 takes a free one.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.connection.listen = Some(address);
        self
    }

    /// Uses this connection to the broker, whatever the app's file says.
    pub fn bus(self, bus: BusConfig) -> Self {
        Self {
            bus: Some(bus),
            ..self
        }
    }

    /// Takes on only a part of the app.
    pub fn role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// Sets which of the app's workers this process is.
    pub fn worker(self, name: impl Into<String>) -> Self {
        Self {
            worker: Some(name.into()),
            ..self
        }
    }

    /// Makes this process the first of the app's workers.
    pub fn first_worker(mut self) -> Self {
        self.worker = self.app.workers.first().map(|worker| worker.name.to_string());
        self
    }

    /// Uses these models instead of the directories that the app's file names.
    pub fn family(self, family: Family) -> Self {
        Self {
            family,
            is_checked: false,
            ..self
        }
    }

    /// Uses these models, which passed [`Family::check_classes`] and [`Family::check_tokenizers`]: their files are not opened for that
    /// again.
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
    /// What the broker, the plan or a model says; that the app has several workers and none was named; that a part of an app has no
    /// broker that the other parts reach.
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
    /// Begins to set up a service of an app: the whole app in this process, by its own plan, on the broker that its file names or
    /// else on an embedded one.
    pub fn builder(app: &App) -> ServiceBuilder {
        ServiceBuilder {
            family: Family::of(app),
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

    /// The address of the broker, without credentials: what [`Client::connect`] takes.
    pub fn url(&self) -> &str {
        self.node.bus().url()
    }

    /// The actors.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Connects a client to the same broker. The connection belongs to the runtime that this is awaited on.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn client(&self) -> Result<Client, ServingError> {
        let budget = self.app.ingress.default_budget.duration();
        let client = Client::connect_with(self.bus.clone(), self.app.name.as_str()).await?;
        Ok(client.budget(budget))
    }

    /// Waits until a core task of the service fails while it runs. The service then ends by itself; the process should end
    /// with this error.
    pub async fn failure(&self) -> NodeError {
        self.node.failure().await
    }

    /// Stops: no more requests are accepted, those in flight are finished within the app's `ingress.drain_timeout`.
    pub fn stop(self) {
        self.node.stop();
    }
}

/// The worker that a process is: the one that was named, or the app's only one; none if the process hosts no replicas.
///
/// # Errors
/// When the app has no such worker, or has several and none was named.
pub fn worker_of(app: &App, role: Role, named: Option<String>) -> Result<String, ServingError> {
    let workers = || app.workers.iter().map(|worker| worker.name.to_string()).collect();
    match (named, app.workers.as_slice()) {
        (Some(worker), all) if all.iter().any(|known| known.name.as_str() == worker) => Ok(worker),
        (Some(worker), _) => Err(ServingError::NoWorker {
            worker,
            workers: workers(),
        }),
        (None, [only]) => Ok(only.name.to_string()),
        (None, _) if !role.works() => Ok(String::new()),
        (None, _) => Err(ServingError::WhichWorker { workers: workers() }),
    }
}
