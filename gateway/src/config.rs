//! Limits of a gateway, and options of the apps that it serves.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use kaskade_actors::ingress::LocalIntake;
use kaskade_models::Signature;

use crate::answer_kind::AnswerKind;
use crate::tls::TlsFiles;

/// Rule for when the tokens of a language model's answer are sent to a client that streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streaming {
    /// As they are generated, once the stage that generates them can no longer defer: the last stage of a cascade streams
    /// token by token, an earlier stage sends its answer when its confidence has been found sufficient.
    #[default]
    AfterCertain,
    /// As any stage generates them. If a later stage replaces the answer, an event retracts what was sent.
    Optimistic,
    /// In one event, when the answer is complete.
    Buffered,
}

/// Limits of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that serve connections; `None`: half of the cores, because ingresses and models need the others.
    pub threads: Option<NonZeroUsize>,
    /// Maximum requests in progress, streams and each text or choice of a request included; more are refused with 429. The parts of
    /// one request take at most an eighth, and the others wait.
    pub max_in_flight: usize,
    /// Maximum bytes of a request's body, after decompression.
    pub max_body: usize,
    /// Maximum bytes of the bodies of all requests in progress, as they arrive; more are refused with 429. At least `max_body`.
    pub max_in_flight_bytes: usize,
    /// Longest time from the start of a connection, or on HTTP/1.1 from the end of an answer, to the complete head of the next
    /// request; the connection is then closed. Balancers keep idle connections for up to 60 s.
    pub head_pause: Duration,
    /// Longest time in which less than 16 KiB of a body arrive, if it does not end; the request is then refused with 408 and no
    /// longer in progress. Also the longest pause in which a client takes nothing of an answer, or on HTTP/2 answers no ping; the
    /// connection is then closed.
    pub body_pause: Duration,
    /// Responses from this size are compressed if the client accepts it, bytes.
    pub compress_from: usize,
    /// How long the gateway still accepts connections after a shutdown began, while its probe says that it is not ready: as long as
    /// balancers need to notice.
    pub shutdown_delay: Duration,
    /// How long a shutdown waits for requests in progress, after the delay.
    pub grace: Duration,
    /// Certificate and key; without them connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Origins whose pages may send requests and read answers: `https://app.example`, or `*` for all. Empty: none but the gateway's own.
    pub cors: Vec<String>,
    /// Keys that a request must carry as `Authorization: Bearer KEY`, by tenant; empty: none is needed.
    pub keys: Vec<TenantKey>,
}

impl Limits {
    /// Returns the number of threads that serve connections; by default half of the cores. A thread that waits for another one costs
    /// more than it gains where both share a core.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            NonZeroUsize::new(cores / 2).unwrap_or(NonZeroUsize::MIN)
        })
    }
}

/// The key of a tenant, and its limits.
#[derive(Clone)]
pub struct TenantKey {
    /// Name of the tenant.
    pub tenant: String,
    /// The key.
    pub key: String,
    /// Maximum requests of the tenant in progress; `None`: no limit beside the gateway's.
    pub max_in_flight: Option<usize>,
    /// Maximum requests of the tenant per second, each text or choice of a request included, with a burst of one second; `None`: no
    /// limit.
    pub rate: Option<f64>,
    /// Whether its key opens the events of the dashboard, which show the requests and errors of all tenants.
    pub operator: bool,
}

impl std::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantKey")
            .field("tenant", &self.tenant)
            .field("max_in_flight", &self.max_in_flight)
            .field("rate", &self.rate)
            .field("operator", &self.operator)
            .finish_non_exhaustive()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: None,
            max_in_flight: 4_096,
            max_body: 64 << 20,
            max_in_flight_bytes: 1 << 30,
            head_pause: Duration::from_secs(75),
            body_pause: Duration::from_secs(30),
            compress_from: 4 << 10,
            shutdown_delay: Duration::ZERO,
            grace: Duration::from_secs(10),
            tls: None,
            cors: Vec::new(),
            keys: Vec::new(),
        }
    }
}

/// An app that a gateway serves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AppOptions {
    /// Name of the app: the name of the model in both APIs.
    pub name: String,
    /// Budget of a request that states none.
    pub default_budget: Duration,
    /// Maximum budget; a longer one is shortened to it. Also the budget of a request to a language model that states none.
    pub max_budget: Duration,
    /// When tokens are sent to a client that streams.
    pub streaming: Streaming,
    /// Inputs of the app's models, if they are known before the first request.
    pub signature: Option<Signature>,
    /// What the answers are, if that is known: requests for others are refused before they reach a model.
    pub answers: Option<AnswerKind>,
    /// Names of the classes, in the order of the logits, if they are known.
    pub labels: Vec<String>,
    /// The ingresses of the app in this process, which requests reach without the broker.
    pub local: Option<LocalIntake>,
    /// Checkpoints whose tokenizers `/tokenize` may use, in order of preference.
    pub tokenizers: Vec<TokenizerPath>,
    /// Maximum tokens of a request that the app's settings state, prompt and answer.
    pub max_model_len: Option<usize>,
}

/// A checkpoint whose tokenizer may be used: its directory need not have weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerPath {
    /// The variant that the checkpoint belongs to.
    pub variant: String,
    /// The directory, or a GGUF file.
    pub path: PathBuf,
}

impl AppOptions {
    /// Options of the app of that name: a budget of 2 s, at most 120 s.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            default_budget: Duration::from_secs(2),
            max_budget: Duration::from_mins(2),
            streaming: Streaming::default(),
            signature: None,
            answers: None,
            labels: Vec::new(),
            local: None,
            tokenizers: Vec::new(),
            max_model_len: None,
        }
    }

    /// Sets the budget of a request that states none.
    #[must_use]
    pub fn default_budget(self, default_budget: Duration) -> Self {
        Self {
            default_budget,
            ..self
        }
    }

    /// Sets the names of the classes, in the order of the logits.
    #[must_use]
    pub fn labels(self, labels: Vec<String>) -> Self {
        Self { labels, ..self }
    }

    /// Sets the maximum budget.
    #[must_use]
    pub fn max_budget(self, max_budget: Duration) -> Self {
        Self { max_budget, ..self }
    }

    /// Sets when tokens are sent to a client that streams.
    #[must_use]
    pub fn streaming(self, streaming: Streaming) -> Self {
        Self { streaming, ..self }
    }

    /// Sets the ingresses of the app in this process ([`Node::local_intake`](kaskade_actors::Node::local_intake)).
    #[must_use]
    pub fn with_local_ingress(self, local: Option<LocalIntake>) -> Self {
        Self { local, ..self }
    }

    /// Sets the checkpoints whose tokenizers `/tokenize` may use: the first that this machine has is loaded, with the first request that
    /// needs it.
    #[must_use]
    pub fn tokenizers(self, tokenizers: Vec<TokenizerPath>) -> Self {
        Self { tokenizers, ..self }
    }

    /// Sets the maximum tokens of a request.
    #[must_use]
    pub fn max_model_len(self, max_model_len: Option<usize>) -> Self {
        Self {
            max_model_len,
            ..self
        }
    }

    /// Sets what the answers are.
    #[must_use]
    pub fn answers(self, answers: Option<AnswerKind>) -> Self {
        Self { answers, ..self }
    }

    /// Sets the inputs of the app's models.
    #[must_use]
    pub fn signature(self, signature: Option<Signature>) -> Self {
        Self { signature, ..self }
    }
}
