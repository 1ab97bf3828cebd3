//! Remote variants: models behind endpoints that speak the OpenAI API or the Open Inference Protocol.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use kaskade_models::Generation;
use kaskade_models::generation::SamplingOptions;
use kaskade_policy::remote::breaker::BreakerConfig;
use kaskade_policy::remote::price::Price;
use kaskade_policy::remote::retry::RetryConfig;
use kaskade_remote::endpoint::{OMITTABLE, RESERVED};
use kaskade_remote::secret::SecretError;
use kaskade_remote::{Api, Chat, ChatTask, Endpoint, Fields, Style};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::confidence::ConfidenceConfig;
use super::key_source::KeySource;
use super::scalar::HumanDuration;
use super::task::Task;

/// Most probable tokens that the OpenAI API gives at every place.
const MAX_LOGPROBS: u32 = 20;

/// Most tokens of an answer that is a label.
const LABEL_TOKENS: u32 = 8;

/// An endpoint, and the model behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Protocol of the endpoint.
    pub kind: RemoteKind,
    /// Address, with the path before the protocol's own: `https://api.example.com/v1` for `openai`, `http://127.0.0.1:8000`
    /// for `oip`, and `grpc://127.0.0.1:8001` (with TLS `grpcs`) for `oip` over gRPC.
    pub base_url: String,
    /// The model, as the endpoint names it.
    pub model: String,
    /// Version of the model, for `oip` [default: the endpoint's choice].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Source of the endpoint's key [default: requests have none]. No log, error or metric shows the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<KeySource>,
    /// API of an `openai` endpoint to call.
    #[serde(default)]
    pub api: OpenAiApi,
    /// File of the only certificates to trust, in PEM, relative to this file: of authorities, or of a server that signs its own
    /// [default: the system's authorities].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Class names in order, for classification by `openai`: the words that the model answers with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Instructions before the request, as the message of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The message of the user; `{text}` stands for the request's text, or for the last message of the user in a chat.
    #[serde(default = "default_prompt")]
    pub prompt: String,
    /// Most probable tokens to ask for at every place, from which classes and confidences are computed. 0 for an endpoint
    /// that gives no probabilities: its answers are never confident, so it can only be the last stage of a cascade.
    #[serde(default = "default_logprobs")]
    #[schemars(range(max = 20))]
    pub top_logprobs: u32,
    /// Most tokens of an answer of `openai` for classification. Hidden tokens of a model that thinks first count too, so such a model
    /// needs some hundreds; texts have the limit of `[generation]` or of the request.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: NonZeroU32,
    /// Sampling options that are never sent, because the endpoint refuses them: `temperature`, `top_p`, `top_k`, `min_p`, `ignore_eos`,
    /// `presence_penalty`, `frequency_penalty`, `repetition_penalty`, `seed`, `stop`, `min_tokens`, `logit_bias`, `parallel_tool_calls`,
    /// `reasoning_effort`, `stream_options`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omit: Vec<String>,
    /// Fields that are added to every request of `chat` or `completions`, such as `reasoning_effort`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub extra_body: serde_json::Map<String, serde_json::Value>,
    /// Source of the confidence of answers.
    #[serde(default, skip_serializing_if = "ConfidenceConfig::is_default")]
    pub confidence: ConfidenceConfig,
    /// Simultaneous requests of a replica; others wait.
    #[serde(default = "default_concurrency")]
    pub concurrency: NonZeroU32,
    /// Longest time of one call; of a stream, the longest pause. A request's budget ends it earlier.
    #[serde(default = "default_timeout")]
    pub timeout: HumanDuration,
    /// Repetitions of a failed call within the request's budget. The pauses are no shorter than the endpoint's `retry-after`.
    #[serde(default = "default_retries")]
    pub retries: u32,
}

/// Protocol of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RemoteKind {
    /// The OpenAI API.
    OpenAi,
    /// The Open Inference Protocol v2, over HTTP or gRPC by the address.
    Oip,
}

/// Interface of the OpenAI API that an endpoint is asked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenAiApi {
    /// `chat/completions`: a label for classification, a text for generation.
    #[default]
    Chat,
    /// `completions`, the older interface: as `chat`, for models without a chat template.
    Completions,
    /// `embeddings`.
    Embeddings,
}

fn default_prompt() -> String {
    kaskade_remote::endpoint::TEXT.to_owned()
}

const fn default_logprobs() -> u32 {
    MAX_LOGPROBS
}

const fn default_max_tokens() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(LABEL_TOKENS - 1)
}

const fn default_concurrency() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(31)
}

fn default_timeout() -> HumanDuration {
    HumanDuration::from_millis(30_000)
}

fn default_retries() -> u32 {
    RetryConfig::default().retries
}

/// A field, and what is wrong with it.
type Problem = (&'static str, String);

impl RemoteConfig {
    /// Makes the paths relative to a folder.
    pub(super) fn resolve(&mut self, folder: &Path) {
        let judge = match &mut self.confidence {
            ConfidenceConfig::Judge(judge) => judge.api_key.as_mut(),
            ConfidenceConfig::Logprobs | ConfidenceConfig::Agreement(_) => None,
        };
        if let Some(path) = &mut self.ca {
            *path = folder.join(&path);
        }
        for key in self.api_key.as_mut().into_iter().chain(judge) {
            if let KeySource::File(path) = key {
                *path = folder.join(&path);
            }
        }
    }

    /// Returns the endpoint, with its key.
    ///
    /// # Errors
    /// [`SecretError`] if the key cannot be read.
    pub fn endpoint(
        &self,
        name: &str,
        task: Task,
        generation: &Generation,
        price: Option<Price>,
    ) -> Result<Endpoint, SecretError> {
        let model = self.model.clone();
        let completions = self.api == OpenAiApi::Completions;
        let api = match (self.kind, self.api) {
            (RemoteKind::Oip, _) => Api::Oip {
                model,
                version: self.version.clone(),
            },
            (RemoteKind::OpenAi, OpenAiApi::Embeddings) => Api::Embeddings { model },
            (RemoteKind::OpenAi, OpenAiApi::Chat | OpenAiApi::Completions) => {
                let generates = task == Task::Generation;
                let label = SamplingOptions {
                    max_tokens: Some(self.max_tokens.get() as usize),
                    ..SamplingOptions::default()
                };
                Api::Chat(Chat {
                    model,
                    task: if generates {
                        ChatTask::Generate
                    } else {
                        ChatTask::Classify {
                            labels: self.labels.clone(),
                        }
                    },
                    system: self.system.clone(),
                    prompt: self.prompt.clone(),
                    sampling: if generates {
                        generation.sampling.clone()
                    } else {
                        label
                    },
                    top_logprobs: if self.confidence.is_default() {
                        self.top_logprobs
                    } else {
                        0
                    },
                    style: if completions {
                        Style::Completions
                    } else {
                        Style::Chat
                    },
                    confidence: self.confidence.resolved()?,
                    fields: Fields {
                        extra: self.extra_body.clone(),
                        omit: self.omit.clone(),
                    },
                })
            }
        };
        let key = self.api_key.as_ref().map(KeySource::read).transpose()?;
        Ok(Endpoint {
            name: name.to_owned(),
            base_url: self.base_url.clone(),
            key,
            ca: self.ca.clone(),
            api,
            price,
            concurrency: NonZeroUsize::try_from(self.concurrency).unwrap_or(NonZeroUsize::MAX),
            timeout: self.timeout.duration(),
            retry: RetryConfig {
                retries: self.retries,
                ..RetryConfig::default()
            },
            breaker: BreakerConfig::default(),
            cache: None,
            spend_limit: None,
        })
    }

    /// Returns the settings that contradict each other or the app's task, after the path `at`.
    pub(super) fn problems(&self, at: &str, task: Task) -> Vec<String> {
        let asks = self.kind == RemoteKind::OpenAi && self.api != OpenAiApi::Embeddings;
        let problems = self
            .address_problems()
            .into_iter()
            .chain(self.class_problems(task, asks && task == Task::Classification))
            .chain(self.request_problems(asks));
        problems
            .map(|(field, text)| format!("{at}.{field}: {text}"))
            .collect()
    }

    /// Returns what is wrong with the address and the protocol.
    fn address_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |field, text: String| problems.push((field, text));
        let scheme = self.base_url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http" | "https") => {}
            Some("grpc" | "grpcs") if self.kind == RemoteKind::Oip => {}
            Some("grpc" | "grpcs") => {
                problem("base_url", "gRPC is for `oip` only".to_owned());
            }
            _ => problem(
                "base_url",
                format!("`{}` is not an http, https or grpc URL", self.base_url),
            ),
        }
        if self.base_url.contains('@') {
            problem(
                "base_url",
                "holds a name or password; only an `api_key` is sent".to_owned(),
            );
        }
        if self.ca.is_some() && matches!(scheme, Some("http" | "grpc")) {
            problem("ca", "is for https and grpcs addresses".to_owned());
        }
        if self.kind == RemoteKind::OpenAi && self.version.is_some() {
            problem("version", "is for `oip` only".to_owned());
        }
        problems
    }

    /// Returns what is wrong with the classes and other settings of a task; `classifies` if a language model classifies.
    fn class_problems(&self, task: Task, classifies: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |field, text: &str| problems.push((field, text.to_owned()));
        if classifies && self.labels.len() < 2 {
            problem(
                "labels",
                "name at least two classes, in their order, or state the `task` of the app, such as `task = \"generation\"`; the default is \
                 `classification`",
            );
        }
        if !classifies && !self.labels.is_empty() {
            problem("labels", "are for classification by chat completions only");
        }
        if self.labels.iter().any(|label| label.trim().is_empty()) {
            problem("labels", "one is empty");
        }
        let mut words: Vec<String> = self
            .labels
            .iter()
            .map(|label| label.trim().to_lowercase())
            .collect();
        words.sort_unstable();
        if words.windows(2).any(|pair| pair.first() == pair.last()) {
            problem(
                "labels",
                "two are the same word, so that no answer tells them apart",
            );
        }
        if self.kind == RemoteKind::OpenAi && task == Task::TokenClassification {
            problem("kind", "an OpenAI endpoint labels no tokens; use `oip`");
        }
        if !classifies && self.max_tokens != default_max_tokens() {
            problem(
                "max_tokens",
                "is for classification by `openai`; `[generation]` has the limit of texts",
            );
        }
        problems
    }

    /// Returns what is wrong with the settings of requests to a language model; `asks` if there are such requests.
    fn request_problems(&self, asks: bool) -> Vec<Problem> {
        const ASKS_ONLY: &str = "is for `openai` with `chat` or `completions` only";
        let mut problems = Vec::new();
        let mut problem = |field, text: String| problems.push((field, text));
        if self.top_logprobs > MAX_LOGPROBS {
            problem("top_logprobs", format!("is more than {MAX_LOGPROBS}"));
        }
        if asks && !self.prompt.contains(kaskade_remote::endpoint::TEXT) {
            problem(
                "prompt",
                "has no `{text}`, so that no request's text would be sent".to_owned(),
            );
        }
        if !asks && (!self.omit.is_empty() || !self.extra_body.is_empty()) {
            let field = if self.omit.is_empty() {
                "extra_body"
            } else {
                "omit"
            };
            problem(field, ASKS_ONLY.to_owned());
        }
        if let Some(name) = self.omit.iter().find(|name| !OMITTABLE.contains(&name.as_str())) {
            problem("omit", format!("`{name}` is none of {}", OMITTABLE.join(", ")));
        }
        let mut extra = self.extra_body.keys();
        if let Some(name) = extra.find(|name| RESERVED.contains(&name.as_str())) {
            problem("extra_body", format!("`{name}` is set by other settings"));
        }
        if !asks && !self.confidence.is_default() {
            problem("confidence", ASKS_ONLY.to_owned());
        }
        problems.extend(self.confidence.problems());
        problems
    }
}
