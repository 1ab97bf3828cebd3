//! Limits of a gateway, and options of its apps.

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
    /// As soon as the stage that generates them can no longer defer: the last stage of a cascade streams token by
    /// token; an earlier stage sends its answer once its confidence suffices.
    #[default]
    AfterCertain,
    /// As soon as any stage generates them. If a later stage replaces the answer, an event retracts what was sent.
    Optimistic,
    /// In one event, when the answer is complete.
    Buffered,
}

/// Bytes of a body that must arrive within a pause, unless it ends: a client that sends a byte now and then would hold its place
/// for as long as it likes.
pub(crate) const MIN_BYTES_PER_PAUSE: usize = 16 << 10;

/// Limits of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Number of threads that serve connections; `None`: half of the cores, because ingresses and models need the
    /// others.
    pub threads: Option<NonZeroUsize>,
    /// Maximum number of requests in progress, streams and each text or choice of a request included; more are refused
    /// with 429. The parts of one request use at most an eighth of them; further parts wait.
    pub max_in_flight: usize,
    /// Maximum size of a request's body after decompression, bytes.
    pub max_body: usize,
    /// Maximum total size of the bodies of all requests in progress as received, bytes; more are refused with 429. At
    /// least `max_body`.
    pub max_in_flight_bytes: usize,
    /// Longest time until the complete head of the next request, counted from the start of a connection or, on
    /// HTTP/1.1, from the end of an answer; the connection is then closed. Balancers keep idle connections for up to 60
    /// s.
    pub head_pause: Duration,
    /// Longest time in which less than 16 KiB of an unfinished body arrive; the request is then refused with 408 and
    /// ended. Also the longest time in which a client reads nothing of an answer or, on HTTP/2, answers no ping; the
    /// connection is then closed.
    pub body_pause: Duration,
    /// Smallest size of a response that is compressed if the client accepts it, bytes.
    pub compress_from: usize,
    /// Time after the start of a shutdown in which the gateway still accepts connections while its probe reports "not
    /// ready", so that balancers notice.
    pub shutdown_delay: Duration,
    /// Longest wait of a shutdown for requests in progress, after the delay.
    pub grace: Duration,
    /// Certificate and key; `None` leaves connections unencrypted.
    pub tls: Option<TlsFiles>,
    /// Origins whose pages may send requests and read answers: `https://app.example`, or `*` for all. If empty, only
    /// the gateway's own origin may.
    pub cors: Vec<String>,
    /// Keys by tenant; a request must carry one as `Authorization: Bearer KEY`. If empty, no key is needed.
    pub keys: Vec<TenantKey>,
}

impl Limits {
    /// Returns the number of threads that serve connections; by default half of the cores. With two threads on one
    /// core, waiting for each other costs more than the second thread gains.
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
    /// Maximum number of the tenant's requests in progress; `None`: only the gateway's limit.
    pub max_in_flight: Option<usize>,
    /// Maximum rate of the tenant, requests/s, each text or choice of a request included, with a burst of one second;
    /// `None`: unlimited.
    pub rate: Option<f64>,
    /// Whether the key gives access to the dashboard's events, which show the requests and errors of all tenants.
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
    /// Name of the app, which is the model name in all APIs.
    pub name: String,
    /// Default budget of a request.
    pub default_budget: Duration,
    /// Maximum budget; longer budgets are reduced to it. Also the default budget of a request to a language model.
    pub max_budget: Duration,
    /// When tokens are sent to a streaming client.
    pub streaming: Streaming,
    /// Inputs of the app's models, if known before the first request.
    pub signature: Option<Signature>,
    /// Kind of answers, if known; requests for other answers are refused without reaching a model.
    pub answers: Option<AnswerKind>,
    /// Class names in the order of the logits, if known.
    pub labels: Vec<String>,
    /// Ingresses of the app in this process, which requests reach without the broker.
    pub local: Option<LocalIntake>,
    /// Checkpoints whose tokenizers `/tokenize` may use, in order of preference.
    pub tokenizers: Vec<TokenizerPath>,
    /// Maximum number of tokens of a request, prompt and answer, if the app's settings state it.
    pub max_model_len: Option<usize>,
}

/// Tokenizer of a checkpoint. The directory need not contain weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerPath {
    /// Variant of the checkpoint.
    pub variant: String,
    /// The directory, or a GGUF file.
    pub path: PathBuf,
}

impl AppOptions {
    /// Creates options for an app, with a default budget of 2 s and a maximum of 120 s.
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

    /// Sets the default budget of a request.
    #[must_use]
    pub fn default_budget(self, default_budget: Duration) -> Self {
        Self {
            default_budget,
            ..self
        }
    }

    /// Sets the class names, in the order of the logits.
    #[must_use]
    pub fn labels(self, labels: Vec<String>) -> Self {
        Self { labels, ..self }
    }

    /// Sets the maximum budget.
    #[must_use]
    pub fn max_budget(self, max_budget: Duration) -> Self {
        Self { max_budget, ..self }
    }

    /// Sets when tokens are sent to a streaming client.
    #[must_use]
    pub fn streaming(self, streaming: Streaming) -> Self {
        Self { streaming, ..self }
    }

    /// Sets the ingresses of the app in this process ([`Node::local_intake`](kaskade_actors::Node::local_intake)).
    #[must_use]
    pub fn with_local_ingress(self, local: Option<LocalIntake>) -> Self {
        Self { local, ..self }
    }

    /// Sets the checkpoints whose tokenizers `/tokenize` may use. The first one on this machine is loaded at the first
    /// request that needs it.
    #[must_use]
    pub fn tokenizers(self, tokenizers: Vec<TokenizerPath>) -> Self {
        Self { tokenizers, ..self }
    }

    /// Sets the maximum number of tokens of a request.
    #[must_use]
    pub fn max_model_len(self, max_model_len: Option<usize>) -> Self {
        Self {
            max_model_len,
            ..self
        }
    }

    /// Sets the kind of answers.
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
