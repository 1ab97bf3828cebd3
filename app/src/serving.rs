//! Serving an app in this process, and clients of a running app.
//!
//! | module | holds |
//! |---|---|
//! | [`service`] | [`Service`]: an app, or a part of it, served by this process |
//! | [`client`] | [`Client`]: sends requests to an app by its name |
//! | [`gateway`] | the HTTP gateway of an app |
//! | [`telemetry`] | the export of traces |

pub mod client;
pub mod gateway;
pub mod service;
pub mod telemetry;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use kaskade_actors::bus::{BusConfig, BusError, Embedded};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::node::{self, Node, NodeConfig, NodeError};
use kaskade_actors::plan::store::StoreError;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::subjects::SubjectError;
use kaskade_broker::{BrokerConfig, BrokerError};
use kaskade_models::power::PowerError;
use kaskade_models::{DeviceChoice, DeviceError, PowerMeter, device};
use kaskade_policy::certificate_monitor::AuditSettings;
use kaskade_policy::plan::Plan;
use thiserror::Error;

pub use kaskade_gateway::overview;

pub use self::client::Client;
pub use self::service::Service;
use crate::config::App;
use crate::config::guarantee::AuditShare;
use crate::family::{Family, FamilyError};
use crate::planning::{PlanningError, replan};

/// An app cannot be served, or a client cannot reach it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServingError {
    /// The process does not start.
    #[error("app `{app}` does not start")]
    Start {
        /// The app.
        app: String,
        /// What is wrong.
        source: NodeError,
    },
    /// The app has several workers, and the process is to be one of them.
    #[error("the app has the workers {workers:?}; say with `--worker` which one this process is")]
    WhichWorker {
        /// The app's workers.
        workers: Vec<String>,
    },
    /// The app has no such worker.
    #[error("the app has no worker `{worker}`; it has {workers:?}")]
    NoWorker {
        /// The requested worker.
        worker: String,
        /// The app's workers.
        workers: Vec<String>,
    },
    /// A process that is not the whole app is to use a broker of its own.
    #[error(
        "a process that is not the whole app needs a broker that the others reach too: name a nats-server"
    )]
    NeedsBroker,
    /// Another process listens on the address of the embedded broker.
    #[error(
        "the embedded broker cannot listen on {listen}: another process does; choose another address with `--listen` (port 0 \
         selects a free one), or give `--nats nats://{listen}` to use the NATS server that listens there"
    )]
    ListenTaken {
        /// The address.
        listen: SocketAddr,
    },
    /// There is no plan.
    #[error(transparent)]
    Planning(#[from] PlanningError),
    /// The models are no family.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The broker fails.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The plan store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The app's name is no subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The meter cannot be set up.
    #[error(transparent)]
    Power(#[from] PowerError),
    /// The gateway does not start.
    #[error(transparent)]
    Gateway(#[from] kaskade_gateway::GatewayError),
    /// The file with the key of a tenant cannot be read, or is empty.
    #[error("gateway.keys: the key of tenant `{tenant}` in {} cannot be used: {reason}", path.display())]
    Key {
        /// The tenant.
        tenant: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system gives no threads.
    #[error("the client's runtime cannot be started")]
    Runtime(#[source] io::Error),
}

/// Address on which `kaskade serve` starts its embedded broker, and at which clients look for an app, unless another one is
/// given.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4222);

/// Connection of a process to the broker. Fields that are `None` are taken from the app's file, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// A nats-server of 2.10 or newer.
    pub url: Option<String>,
    /// A file with the seed of the user to connect as.
    pub nkey: Option<PathBuf>,
    /// A `.creds` file of the user to connect as; `nkey` is not read then.
    pub credentials: Option<PathBuf>,
    /// Certificates to trust beside the system's.
    pub ca: Option<PathBuf>,
    /// The certificate of this client and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Address on which a service's embedded broker listens, whatever server the app's file names; by default a free port of
    /// the loopback interface.
    pub listen: Option<SocketAddr>,
}

impl Connection {
    /// Returns the nats-server that is named here or in the app's file.
    pub fn url<'a>(&'a self, app: &'a App) -> Option<&'a str> {
        let of_app = app.nats.url.as_deref().filter(|_| self.listen.is_none());
        self.url.as_deref().or(of_app)
    }

    /// Returns the connection of a client to a running app that is known by its name only; without a URL, to
    /// [`DEFAULT_ADDRESS`]. `role` becomes part of the connection's name.
    pub fn client(&self, app: &str, role: &str) -> BusConfig {
        BusConfig {
            url: Some(self.url.clone().unwrap_or_else(default_url)),
            name: role.to_owned(),
            nkey: self.nkey.clone().filter(|_| self.credentials.is_none()),
            credentials: self.credentials.clone(),
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            ..BusConfig::new(app)
        }
    }

    /// Returns the connection of a client to a running app that is known by its file; without a URL, to
    /// [`DEFAULT_ADDRESS`].
    pub fn client_of(&self, app: &App, role: &str) -> BusConfig {
        let mut bus = self.bus(app, role);
        bus.url.get_or_insert_with(default_url);
        bus
    }

    /// Returns the connection of a process that serves an app. Starts an embedded broker if no nats-server is named and
    /// `listen` is set.
    ///
    /// # Errors
    /// [`ServingError::ListenTaken`], and other reasons for which the broker cannot start.
    pub fn serve(&self, app: &App, role: &str) -> Result<BusConfig, ServingError> {
        let mut bus = self.bus(app, role);
        if let (None, Some(listen)) = (&bus.url, self.listen) {
            let broker = BrokerConfig {
                listen,
                max_payload: bus.max_payload,
                ..BrokerConfig::default()
            };
            let started = Embedded::start(broker).map_err(|error| match error {
                BrokerError::Listen { listen, source } if source.kind() == io::ErrorKind::AddrInUse => {
                    ServingError::ListenTaken { listen }
                }
                error => BusError::from(error).into(),
            });
            bus.embedded = Some(started?);
        }
        Ok(bus)
    }

    /// Returns the connection of a process to the broker of an app; without a URL, to the embedded broker of this process.
    pub fn bus(&self, app: &App, name: &str) -> BusConfig {
        let nats = &app.nats;
        let defaults = BusConfig::new(app.name.as_str());
        // A user that is named here takes precedence over the app's file.
        let (credentials, nkey) = match (&self.credentials, &self.nkey) {
            (Some(credentials), _) => (Some(credentials), None),
            (None, Some(nkey)) => (None, Some(nkey)),
            (None, None) => (nats.credentials.as_ref(), nats.nkey.as_ref()),
        };
        let certificate = nats.certificate.clone().zip(nats.key.clone());
        BusConfig {
            url: self.url(app).map(str::to_owned),
            name: name.to_owned(),
            credentials: credentials.cloned(),
            nkey: nkey.cloned(),
            ca: self.ca.clone().or_else(|| nats.ca.clone()),
            certificate: self.certificate.clone().or(certificate),
            max_payload: usize::try_from(nats.max_payload.bytes()).unwrap_or(usize::MAX),
            replicas: nats.replicas.map(size),
            listen: self.listen.unwrap_or(defaults.listen),
            ..defaults
        }
    }
}

fn size(count: NonZeroU32) -> usize {
    usize::try_from(count.get()).unwrap_or(usize::MAX)
}

fn default_url() -> String {
    format!("nats://{DEFAULT_ADDRESS}")
}

/// The part of an app that a process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Role {
    /// The ingress, a worker, the planner if the app has one, and the gateway if it has an address for HTTP.
    #[default]
    All,
    /// The ingress.
    Ingress,
    /// A worker.
    Worker,
    /// The planner.
    Planner,
    /// The HTTP gateway, at its address for HTTP.
    Gateway,
}

impl Role {
    fn has_ingress(self) -> bool {
        matches!(self, Self::All | Self::Ingress)
    }

    /// Returns whether its HTTP listener is the gateway; otherwise it answers probes only.
    pub fn has_gateway(self) -> bool {
        matches!(self, Self::All | Self::Gateway)
    }

    /// Returns whether it hosts replicas.
    pub fn runs_worker(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }

    fn plans(self) -> bool {
        matches!(self, Self::All | Self::Planner)
    }
}

/// Starts an app's share of this process, and returns once it serves. The plan store's plan is served; if it is empty, `plan` is
/// written to it. `shards` precedes the app's own number.
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
    shards: Option<NonZeroU32>,
) -> Result<Node, ServingError> {
    let ingress = ingress(app);
    // Without replicas, a process computes on the CPU only, and its host may have no other device.
    let device = if role.runs_worker() {
        app.device_at(worker)
    } else {
        DeviceChoice::Cpu
    };
    let power = power_meter(app, device)?;
    let worker = WorkerConfig {
        name: worker.to_owned(),
        queue_capacity: size(app.ingress.queue_capacity),
        max_budget: app.ingress.max_budget.duration(),
    };
    let node = NodeConfig {
        app: app.name.to_string(),
        bus,
        ingress: role.has_ingress().then_some(ingress),
        worker: role.runs_worker().then(|| (worker, family.loader())),
        plan,
        planner: if role.plans() { replan::planner(app)? } else { None },
        power: Some(power),
        grace: app.ingress.drain_timeout.duration(),
    };
    let shards = shards
        .or(app.shards)
        .and_then(|shards| NonZeroUsize::new(size(shards)));
    let node = Node::start_sharded(node, shards.unwrap_or_else(node::default_shards));
    node.map_err(|source| ServingError::Start {
        app: app.name.to_string(),
        source,
    })
}

/// Returns the configuration of an ingress of the app.
fn ingress(app: &App) -> IngressConfig {
    IngressConfig {
        max_in_flight: size(app.ingress.max_in_flight),
        max_in_flight_bytes: usize::try_from(app.ingress.max_in_flight_bytes.bytes()).unwrap_or(usize::MAX),
        default_budget: app.ingress.default_budget.duration(),
        max_budget: app.ingress.max_budget.duration(),
        durable: app.durable.as_ref().map(Into::into),
        audit: AuditSettings::with_share(
            app.guarantee
                .map_or_else(AuditShare::default, |guarantee| guarantee.audit)
                .get(),
        ),
        recent_replies: app.ingress.recent_replies as usize,
        ..IngressConfig::default()
    }
}

/// Returns the meter of a process that serves the app on a device.
fn power_meter(app: &App, choice: DeviceChoice) -> Result<PowerMeter, ServingError> {
    let device = device::describe(choice, &device::open(choice)?);
    Ok(PowerMeter::detect(&(&app.power).into(), &device)?)
}

/// Creates a runtime for clients.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, ServingError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(ServingError::Runtime)
}

#[cfg(test)]
mod tests {
    use kaskade_actors::ingress::durable::DurableConfig;

    use super::*;

    /// An app's file and a service without one have the same defaults.
    #[test]
    fn defaults_of_the_file_are_those_of_the_actors() {
        let app = App::parse("name = \"digits\"\n[[variants]]\nname = \"tiny\"\ndir = \"tiny\"\n").unwrap();
        let of_file = IngressConfig {
            audit: AuditSettings::OFF,
            ..ingress(&app)
        };
        assert_eq!(format!("{of_file:?}"), format!("{:?}", IngressConfig::default()));
        let durable = DurableConfig::from(&crate::config::durable::DurableConfig::default());
        assert_eq!(format!("{durable:?}"), format!("{:?}", DurableConfig::default()));
        let gateway = gateway::limits(&app).unwrap();
        assert_eq!(
            format!("{gateway:?}"),
            format!("{:?}", kaskade_gateway::Limits::default())
        );
    }
}
