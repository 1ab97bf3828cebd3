//! What the requests of a gateway share: its limits, its tenants, and the apps that it serves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use kaskade_actors::Client;
use kaskade_actors::bus::Bus;
use kaskade_actors::ops::health::Health;
use kaskade_actors::wire::{InferReply, InferRequest};
use tokio::sync::{Semaphore, watch};

use crate::accept::AcceptFailures;
use crate::answer_kind::AnswerKind;
use crate::apps::app_state::AppState;
use crate::apps::latency::LatencyHistograms;
use crate::apps::observed_signature::{LearnedSignature, ObservedSignature, TensorInfo, covers, infos};
use crate::config::{AppOptions, Limits};
use crate::http::body;
use crate::http::failure::Failure;
use crate::limits::limited_body::take_room;
use crate::limits::permits::{InProgress, Permits};
use crate::limits::tenant::Tenant;
use crate::tokenizer::AppTokenizer;

/// Time within which a gateway that follows an app knows what its workers announce: they do so every half a second.
const ANNOUNCED_WITHIN: Duration = Duration::from_millis(800);

/// State that all requests share.
pub(crate) struct GatewayState {
    pub(crate) limits: Limits,
    pub(crate) tenants: Vec<Arc<Tenant>>,
    /// The permits of requests in progress.
    pub(crate) in_progress: Arc<InProgress>,
    /// One permit per byte of the bodies of requests in progress.
    pub(crate) bodies: Arc<Semaphore>,
    /// True once a shutdown began: the gateway is not ready, and connections of HTTP/1.1 close after their answer.
    pub(crate) leaving: AtomicBool,
    /// True once the gateway drains, [`Limits::shutdown_delay`] later.
    pub(crate) stopping: watch::Sender<bool>,
    /// One permit per thread that tokenizes; others wait, so that the models keep cores.
    pub(crate) tokenizing: Arc<Semaphore>,
    pub(crate) accept_failures: Arc<AcceptFailures>,
    /// Health of the process's node, if it has one.
    pub(crate) health: watch::Sender<Option<Health>>,
    apps: RwLock<BTreeMap<String, Arc<ServedApp>>>,
}

impl GatewayState {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            in_progress: Arc::new(InProgress::new(limits.max_in_flight)),
            // One body always finds room.
            bodies: Arc::new(Semaphore::new(
                limits
                    .max_in_flight_bytes
                    .max(limits.max_body)
                    .min(Semaphore::MAX_PERMITS),
            )),
            tenants: limits.keys.iter().map(|key| Arc::new(Tenant::new(key))).collect(),
            leaving: AtomicBool::new(false),
            stopping: watch::Sender::new(false),
            tokenizing: Arc::new(Semaphore::new(limits.threads().get())),
            accept_failures: Arc::default(),
            health: watch::Sender::new(None),
            apps: RwLock::default(),
            limits,
        }
    }

    /// Returns whether a shutdown began.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }

    /// Reads a request's body, decompressed, within the limits of the gateway. What a compressed one becomes counts for them too.
    ///
    /// # Errors
    /// As [`body::read`].
    pub(crate) async fn read_body(&self, parts: &Parts, body: Body) -> Result<Bytes, Failure> {
        let room = Arc::clone(&self.bodies);
        let permits = parts.extensions.get::<Permits>().cloned();
        let count = move |bytes| {
            permits
                .as_ref()
                .map_or(Ok(()), |permits| take_room(&room, permits, bytes))
        };
        body::read(&parts.headers, body, &self.limits, count).await
    }

    /// Adds an app, and returns it.
    pub(crate) fn add(&self, app: ServedApp) -> Arc<ServedApp> {
        let app = Arc::new(app);
        let mut apps = self.apps.write().unwrap_or_else(PoisonError::into_inner);
        apps.insert(app.options.name.clone(), Arc::clone(&app));
        app
    }

    /// Returns the apps in the order of their names.
    pub(crate) fn apps(&self) -> Vec<Arc<ServedApp>> {
        let apps = self.apps.read().unwrap_or_else(PoisonError::into_inner);
        apps.values().cloned().collect()
    }

    /// Returns the app of that name.
    ///
    /// # Errors
    /// `KSK0004` with status 404; `KSK0007` with status 503 before the gateway serves its first app.
    pub(crate) fn app(&self, name: &str) -> Result<Arc<ServedApp>, Failure> {
        let apps = self.apps.read().unwrap_or_else(PoisonError::into_inner);
        if apps.is_empty() {
            return Err(Failure::starting());
        }
        apps.get(name).cloned().ok_or_else(|| {
            let mut names = apps.keys();
            let first = names.next().filter(|_| names.next().is_none());
            Failure::unknown_app(name, first.map(String::as_str))
        })
    }

    /// Returns the app of that name; without a name, the only app.
    ///
    /// # Errors
    /// As [`GatewayState::app`]; also without a name if there is not exactly one app.
    pub(crate) fn app_or_only(&self, name: Option<&str>) -> Result<Arc<ServedApp>, Failure> {
        if let Some(name) = name {
            return self.app(name);
        }
        match self.apps().as_slice() {
            [only] => Ok(Arc::clone(only)),
            [] => Err(Failure::starting()),
            _ => Err(Failure::param(
                "model",
                "name the app in `model`; this gateway serves several",
            )),
        }
    }
}

/// An app behind the gateway.
pub(crate) struct ServedApp {
    pub(crate) options: AppOptions,
    pub(crate) client: Client,
    pub(crate) bus: Bus,
    pub(crate) state: Arc<AppState>,
    pub(crate) times: Arc<LatencyHistograms>,
    pub(crate) tokenizer: Arc<AppTokenizer>,
    learned: RwLock<LearnedSignature>,
    /// When it was added.
    since: Instant,
    /// The same, seconds since 1970.
    pub(crate) created: u64,
}

impl ServedApp {
    pub(crate) fn new(options: AppOptions, client: Client, bus: Bus, state: Arc<AppState>) -> Self {
        Self {
            tokenizer: Arc::new(AppTokenizer::new(&options)),
            options,
            client,
            bus,
            state,
            times: Arc::default(),
            learned: RwLock::default(),
            since: Instant::now(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
        }
    }

    /// Returns the inputs and outputs that the workers announce. Waits for the first announcement if the gateway has only just begun to
    /// follow the app.
    pub(crate) async fn announced_signature(&self) -> ObservedSignature {
        loop {
            let announced = self.state.interface();
            let is_known = !announced.inputs.is_empty() || self.options.signature.is_some();
            if is_known || self.since.elapsed() > ANNOUNCED_WITHIN {
                return announced;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the tensors of answered requests.
    pub(crate) fn learned_signature(&self) -> ObservedSignature {
        self.learned
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .tensors
            .clone()
    }

    /// Returns what the inputs of a request would add to what is known.
    pub(crate) fn unknown_inputs(&self, request: &InferRequest) -> Vec<TensorInfo> {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        if covers(&learned.tensors.inputs, &request.inputs) {
            return Vec::new();
        }
        infos(&request.inputs)
    }

    /// Notes the tensors of an answered request; most have none that are new.
    pub(crate) fn record_signature(&self, inputs: &[TensorInfo], reply: &InferReply) {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        if inputs.is_empty() && covers(&learned.tensors.outputs, &reply.outputs) {
            return;
        }
        drop(learned);
        let epoch = self.state.plan().map_or(0, |(epoch, _)| epoch);
        let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        learned.add(epoch, inputs, &infos(&reply.outputs));
    }

    /// Refuses a request for answers of another kind than the app's, if that is known.
    ///
    /// # Errors
    /// `KSK0003`, with the path to use.
    pub(crate) fn check_answer_kind(&self, refused: &[AnswerKind]) -> Result<(), Failure> {
        match self.options.answers {
            Some(kind) if refused.contains(&kind) => {
                let instead = kind.instead();
                let instead = instead.replace("{app}", &self.options.name);
                Err(Failure::wrong_kind(format!(
                    "the app `{}` {instead}",
                    self.options.name
                )))
            }
            _ => Ok(()),
        }
    }
}
