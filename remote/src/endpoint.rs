//! What is known about an endpoint.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use kaskade_models::generation::SamplingOptions;
use kaskade_policy::remote::breaker::BreakerConfig;
use kaskade_policy::remote::price::Price;
use kaskade_policy::remote::retry::RetryConfig;
use serde_json::{Map, Value};

use crate::secret::Secret;
use crate::spending::SpendLimit;

/// Place in a prompt for the text of the request.
pub const TEXT: &str = "{text}";

/// An endpoint and the model behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// Name of the variant.
    pub name: String,
    /// Address, with the path before the protocol's own: `https://api.example.com/v1`, `http://127.0.0.1:8000`. The Open
    /// Inference Protocol over gRPC has `grpc://127.0.0.1:8001`, or `grpcs` with TLS.
    pub base_url: String,
    /// Key that is sent as bearer token.
    pub key: Option<Secret>,
    /// File of the only certificates to trust, in PEM; those of the system's authorities if `None`. The judge's address is trusted by
    /// the same file.
    pub ca: Option<PathBuf>,
    /// How it is spoken to.
    pub api: Api,
    /// What a request costs.
    pub price: Option<Price>,
    /// Requests under way at once; others wait.
    pub concurrency: NonZeroUsize,
    /// Longest time of one call, or of a pause in a streamed answer. The request's budget ends it earlier.
    pub timeout: Duration,
    /// When failed calls are repeated.
    pub retry: RetryConfig,
    /// When the endpoint gets no requests for a while.
    pub breaker: BreakerConfig,
    /// Directory for answers, by the hash of their request; `None`: every request is a call.
    pub cache: Option<PathBuf>,
    /// Money that may be spent on calls, together with the other endpoints of the limit; unlimited if `None`.
    pub spend_limit: Option<SpendLimit>,
}

/// Protocol of an endpoint.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "there is one of them for each endpoint")]
pub enum Api {
    /// `POST chat/completions` or `POST completions` of the OpenAI API.
    Chat(Chat),
    /// `POST embeddings` of the OpenAI API, for this model.
    Embeddings {
        /// The model, as the endpoint names it.
        model: String,
    },
    /// The Open Inference Protocol v2, over HTTP or gRPC by the address.
    Oip {
        /// The model, as the endpoint names it.
        model: String,
        /// Its version; the endpoint's choice if `None`.
        version: Option<String>,
    },
}

/// Place in a judge's prompt for the answer that it judges.
pub const ANSWER: &str = "{answer}";

/// Labels of a judge: the answer is wrong, or right.
pub const VERDICTS: [&str; 2] = ["no", "yes"];

/// A language model and what it is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// The model, as the endpoint names it.
    pub model: String,
    /// What it is asked for.
    pub task: ChatTask,
    /// Instructions before the request, as the message of the system.
    pub system: Option<String>,
    /// The message of the user; [`TEXT`] stands for the request's text, or for the last message of the user.
    pub prompt: String,
    /// Sampling of requests that state none of their own. What both leave out is the endpoint's choice, except the most tokens
    /// of an answer and the temperature, which are those of a local model.
    pub sampling: SamplingOptions,
    /// Most probable tokens to ask for at every place, 1 to 20; 0 asks for no probabilities, so that answers have no
    /// confidence of their own.
    pub top_logprobs: u32,
    /// How it is asked.
    pub style: Style,
    /// Source of the confidence of an answer.
    pub confidence: Confidence,
    /// Changes to the body of every request.
    pub fields: Fields,
}

/// Sampling options that [`Fields::omit`] can leave out.
pub const OMITTABLE: [&str; 15] = [
    "temperature",
    "top_p",
    "top_k",
    "ignore_eos",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "min_tokens",
    "logit_bias",
    "parallel_tool_calls",
    "reasoning_effort",
    "stream_options",
];

/// Fields of a body that are the client's own, so that [`Fields::extra`] cannot set them.
pub const RESERVED: [&str; 9] = [
    "model",
    "messages",
    "prompt",
    "stream",
    "n",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
];

/// Changes to the body of a request, for endpoints that differ from the OpenAI API or add to it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fields {
    /// Fields that are added, or replace those of the same name; none of [`RESERVED`].
    pub extra: Map<String, Value>,
    /// Names of fields that are left out, of [`OMITTABLE`].
    pub omit: Vec<String>,
}

/// Form in which a language model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// By messages: `POST chat/completions`.
    #[default]
    Chat,
    /// By a prompt alone: `POST completions`, the older interface.
    Completions,
}

/// Source of the confidence of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Confidence {
    /// The log probabilities of its tokens. Without [`Chat::top_logprobs`] it has none.
    #[default]
    Logprobs,
    /// How many of several samples agree with it.
    Agreement {
        /// Samples of one call, at least 2.
        samples: u32,
        /// Their sampling temperature, also for requests that state another one: greedy samples would always agree.
        temperature: f64,
    },
    /// A second model.
    Judge(Box<Judge>),
}

/// A model that judges answers of another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Judge {
    /// The model, which classifies by [`VERDICTS`]. Its prompt has [`TEXT`] for the request's text and [`ANSWER`] for the answer.
    pub chat: Chat,
    /// Its address and key; those of the endpoint if `None`.
    pub at: Option<(String, Option<Secret>)>,
    /// What a call costs.
    pub price: Option<Price>,
}

/// Task of a chat model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatTask {
    /// One of these words, the classes in order.
    Classify {
        /// The words.
        labels: Vec<String>,
    },
    /// A text.
    Generate,
}
