//! The gateway: a listener with a runtime of its own, its routes, and its graceful shutdown.
//!
//! It listens before the app's models are loaded: probes then say "not ready", and requests are answered with 404 until
//! [`Gateway::serve`] adds an app.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, Uri};
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use kaskade_actors::bus::{Bus, BusConfig, BusError};
use kaskade_actors::ops::health::Health;
use kaskade_actors::subjects::SubjectError;
use kaskade_actors::{App, Client};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::accept::TcpAcceptor;
use crate::apps::app_state::{AppState, follow};
use crate::config::{AppOptions, Limits};
use crate::connections;
use crate::endpoints::{dashboard, feedback, grpc, health, oip, openai, openapi, tei, tokenize};
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::http::{grpc_status, other_paths};
use crate::middleware::Guarded;
use crate::requests::trace;
use crate::state::{GatewayState, ServedApp};
use crate::tls::{TlsError, TlsListener, acceptor};

/// Why a gateway does not start, or does not serve an app.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The address is in use, or not one of this machine.
    #[error(
        "cannot listen on {address} for HTTP: {reason}; give another address, such as `--http 127.0.0.1:0`"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason that the system reports.
        reason: String,
    },
    /// The system refused a thread.
    #[error(
        "the threads of the gateway cannot be started: {reason}; the system may be out of threads or memory"
    )]
    Thread {
        /// Reason that the system reports.
        reason: String,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The broker fails.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The app's name is no subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
}

/// A running gateway. Dropping it closes all connections at once; [`Gateway::stop`] lets requests in progress finish.
pub struct Gateway {
    address: SocketAddr,
    shared: Arc<GatewayState>,
    runtime: Option<Runtime>,
    serving: Option<JoinHandle<()>>,
}

impl Gateway {
    /// Starts listening. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`GatewayError::Listen`], [`GatewayError::Thread`], [`GatewayError::Tls`].
    pub fn listen(address: SocketAddr, limits: Limits) -> Result<Self, GatewayError> {
        let refused = |error: std::io::Error| GatewayError::Listen {
            address,
            reason: error.to_string(),
        };
        let tls = limits.tls.as_ref().map(acceptor).transpose()?;
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(limits.threads().get())
            .thread_name("kaskade-gateway")
            .enable_all()
            .build()
            .map_err(|error| GatewayError::Thread {
                reason: error.to_string(),
            })?;
        let shared = Arc::new(GatewayState::new(limits));
        let serving = runtime.spawn(run(listener, tls, Arc::clone(&shared)));
        Ok(Self {
            address: bound,
            shared,
            runtime: Some(runtime),
            serving: Some(serving),
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the node whose health the probes report, if the process has one.
    pub fn watch(&self, health: Health) {
        self.shared.health.send_replace(Some(health));
    }

    /// Connects to the broker of an app and serves it. Blocks the calling thread, not the gateway's, until it is connected.
    ///
    /// # Errors
    /// [`GatewayError::Bus`], [`GatewayError::Subject`].
    pub fn serve(&self, options: AppOptions, bus: BusConfig) -> Result<(), GatewayError> {
        let ended = || GatewayError::Thread {
            reason: "the gateway has stopped".to_owned(),
        };
        let Some(runtime) = &self.runtime else {
            return Err(ended());
        };
        let shared = Arc::clone(&self.shared);
        let (done, connected) = std::sync::mpsc::sync_channel(1);
        runtime.spawn(async move {
            let _ = done.send(connect(&shared, options, bus).await);
        });
        connected.recv().map_err(|_| ended())?
    }

    /// Stops: is not ready from here on, but serves for another [`Limits::shutdown_delay`]; then accepts no connections, lets requests
    /// in progress finish within [`Limits::grace`], and closes.
    pub fn stop(mut self) {
        self.shared.leaving.store(true, Relaxed);
        thread::sleep(self.shared.limits.shutdown_delay);
        self.shared.stopping.send_replace(true);
        let grace = self.shared.limits.grace;
        if let (Some(runtime), Some(serving)) = (&self.runtime, self.serving.take()) {
            let (done, drained) = std::sync::mpsc::sync_channel(1);
            runtime.spawn(async move {
                let ended = tokio::time::timeout(grace, serving).await;
                let _ = done.send(ended.is_ok());
            });
            if !drained
                .recv_timeout(grace + Duration::from_secs(1))
                .unwrap_or(false)
            {
                tracing::warn!("the gateway ends with requests in progress");
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Relaxed);
        self.shared.stopping.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn connect(shared: &GatewayState, options: AppOptions, bus: BusConfig) -> Result<(), GatewayError> {
    let app = App::new(&options.name)?;
    let bus = Bus::connect(bus).await?;
    let app_state = Arc::new(AppState::new(app.name()));
    let client = Client::new(&bus, app.clone()).with_local_ingress(options.local.clone());
    let served = shared.add(ServedApp::new(options, client, bus.clone(), app_state));
    // A user without the observer's permissions still serves requests; the dashboard stays empty.
    if let Err(error) = follow(&bus, &app, &served.state, Arc::clone(&served.times)).await {
        tracing::warn!(%error, "the gateway cannot follow the app; the dashboard stays empty");
    }
    Ok(())
}

async fn run(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<GatewayState>) {
    let failed = |error: std::io::Error| tracing::error!(%error, "serving HTTP failed");
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => TcpAcceptor::new(listener, Arc::clone(&shared.accept_failures)),
        Err(error) => return failed(error),
    };
    let (stopping, head_pause) = (shared.stopping.subscribe(), shared.limits.head_pause);
    let guarded = Arc::new(Guarded {
        routes: TowerToHyperService::new(router(Arc::clone(&shared))),
        shared,
    });
    if let Some(acceptor) = tls {
        match TlsListener::new(listener, acceptor) {
            Ok(listener) => connections::serve(listener, guarded, head_pause, stopping).await,
            Err(error) => failed(error),
        }
        return;
    }
    connections::serve(listener, guarded, head_pause, stopping).await;
}

async fn unknown_path(headers: HeaderMap, uri: Uri) -> Response<Body> {
    let path = uri.path();
    if grpc_status::is_grpc(&headers) {
        return trace::unrouted(grpc_status::unknown_method(path));
    }
    trace::unrouted(Failure::unknown_path(path).response(Api::from_path(path)))
}

async fn wrong_method(method: Method, uri: Uri) -> Response<Body> {
    let path = uri.path();
    // A path of another server that looks like one of this gateway.
    let failure = match other_paths::remedy(path) {
        Some(_) => Failure::unknown_path(path),
        None => Failure::wrong_method(&method, path),
    };
    trace::unrouted(failure.response(Api::from_path(path)))
}

/// Returns all routes.
fn router(shared: Arc<GatewayState>) -> Router {
    Router::new()
        .route("/", get(dashboard::page))
        .route("/dashboard/apps", get(dashboard::apps))
        .route("/dashboard/events/{app}", get(dashboard::events))
        .merge(health::routes())
        .merge(oip::routes())
        .merge(openai::routes())
        .merge(feedback::routes())
        .merge(tei::routes())
        .merge(tokenize::routes())
        .merge(openapi::routes())
        .merge(grpc::routes(&shared))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}
