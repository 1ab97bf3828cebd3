//! Probes and metrics over HTTP: `/live`, `/ready` and `/metrics`, for orchestrators and Prometheus.
//!
//! The listener has a separate thread and runtime and starts before the node. A process that is still loading models
//! answers "not ready" instead of refusing the connection, and a process whose actors are stuck can still report it.

use std::net::{SocketAddr, TcpListener};
use std::thread;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::metrics;
use crate::ops::health::Health;

/// Error of probes that could not start.
#[derive(Debug, Error)]
pub enum ProbesError {
    /// The address is in use, or does not belong to this machine.
    #[error(
        "cannot listen on {address} for probes: {reason}; give another address, such as `--http 127.0.0.1:0`"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason that the system reports.
        reason: String,
    },
    /// The operating system refused to start a thread.
    #[error("the probe thread cannot be started: {reason}; the system may be out of threads or memory")]
    Thread {
        /// Reason that the system reports.
        reason: String,
    },
}

/// The probe listener. Dropping it closes it.
pub struct Probes {
    address: SocketAddr,
    health: watch::Sender<Option<Health>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Probes {
    /// Starts to listen; answers "not ready" until [`Probes::watch`] is called. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`ProbesError`].
    pub fn listen(address: SocketAddr) -> Result<Self, ProbesError> {
        let refused = |error: std::io::Error| ProbesError::Listen {
            address,
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let (health, receiver) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let no_thread = |error: std::io::Error| ProbesError::Thread {
            reason: error.to_string(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let thread = thread::Builder::new()
            .name("kaskade-probes".to_owned())
            .spawn(move || runtime.block_on(serve(listener, receiver, stopped)))
            .map_err(no_thread)?;
        Ok(Self {
            address: bound,
            health,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the process whose health the probes report.
    pub fn watch(&self, health: Health) {
        self.health.send_replace(Some(health));
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Receiver of the watched health, once set.
type HealthReceiver = watch::Receiver<Option<Health>>;

async fn serve(listener: TcpListener, receiver: HealthReceiver, stopped: oneshot::Receiver<()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "serving the probes failed"),
    };
    let router = Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics_page))
        .fallback(async || (StatusCode::NOT_FOUND, NO_GATEWAY))
        .with_state(receiver);
    tokio::select! {
        served = axum::serve(listener, router) => {
            if let Err(error) = served {
                tracing::error!(%error, "the probe server stopped");
            }
        }
        // A probe in progress when the process ends gets no answer.
        _ = stopped => {}
    }
}

const NO_GATEWAY: &str = "this process is not a gateway: it has /live, /ready and /metrics only; `kaskade serve --role gateway` serves requests over HTTP\n";
const STARTING: &str = "starting: connecting to the broker and loading models\n";

fn known(receiver: &HealthReceiver) -> Option<Health> {
    receiver.borrow().clone()
}

async fn live(State(receiver): State<HealthReceiver>) -> Response {
    match known(&receiver) {
        // A process that fails to load its models exits, so it is live while loading.
        None => (StatusCode::OK, STARTING).into_response(),
        Some(health) => verdict("live", health.live().await),
    }
}

async fn ready(State(receiver): State<HealthReceiver>) -> Response {
    match known(&receiver) {
        None => (StatusCode::SERVICE_UNAVAILABLE, STARTING).into_response(),
        Some(health) => {
            let mut said = vec!["ready".to_owned()];
            said.extend(health.notes());
            verdict(&said.join("; "), health.ready())
        }
    }
}

async fn metrics_page(State(receiver): State<HealthReceiver>) -> Response {
    match known(&receiver) {
        None => (StatusCode::SERVICE_UNAVAILABLE, STARTING).into_response(),
        Some(health) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], health.page()).into_response(),
    }
}

fn verdict(word: &str, found: Result<(), impl std::fmt::Display>) -> Response {
    match found {
        Ok(()) => (StatusCode::OK, format!("{word}\n")).into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
