//! Source of the confidence of a remote variant's answers.

use std::num::NonZeroU32;

use kaskade_models::generation::SamplingOptions;
use kaskade_policy::remote::price::Price;
use kaskade_remote::endpoint::{ANSWER, TEXT, VERDICTS};
use kaskade_remote::secret::SecretError;
use kaskade_remote::{Chat, ChatTask, Confidence, Fields, Judge, Style};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key_source::KeySource;

/// Largest number of samples of one answer.
const MAX_SAMPLES: u32 = 64;

/// Largest length of a verdict, tokens.
const VERDICT_TOKENS: usize = 8;

/// Number of most probable tokens requested from a judge.
const VERDICT_LOGPROBS: u32 = 20;

/// Default prompt of a judge.
const VERDICT_PROMPT: &str =
    "Request:\n{text}\n\nAnswer:\n{answer}\n\nIs the answer right? Reply with one word, yes or no.";

/// Source of the confidence of answers. Calibration fits it like any other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfidenceConfig {
    /// The log probabilities of the tokens.
    #[default]
    Logprobs,
    /// The share of several samples that agree, for endpoints that give no log probabilities. All are paid for.
    Agreement(AgreementConfig),
    /// A second model, which is asked whether the answer is right. Its calls are paid for too.
    Judge(Box<JudgeConfig>),
}

/// Several samples of each answer, by one call with `n`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgreementConfig {
    /// Samples of an answer.
    #[serde(default = "default_samples")]
    #[schemars(range(min = 2, max = 64))]
    pub samples: NonZeroU32,
    /// Sampling temperature, above 0: at 0 all samples would be the same.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
}

/// The model that judges answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// The model, as its endpoint names it. It must give log probabilities.
    pub model: String,
    /// Address of the judge's endpoint [default: that of the variant].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Source of the judge's key, if the judge has its own address [default: requests have none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<KeySource>,
    /// Prompt for the judge; `{text}` stands for the request's text, `{answer}` for the answer. The judge must reply `yes` or `no`.
    #[serde(default = "default_prompt")]
    pub prompt: String,
    /// Cost of a verdict in money [default: unknown, and so is the cost of the variant].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

const fn default_samples() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(4)
}

const fn default_temperature() -> f64 {
    0.7
}

fn default_prompt() -> String {
    VERDICT_PROMPT.to_owned()
}

impl ConfidenceConfig {
    /// Returns whether the confidence comes from log probabilities.
    pub fn is_default(&self) -> bool {
        *self == Self::Logprobs
    }

    /// Converts the setting to that of the endpoint's client, and reads the judge's key.
    ///
    /// # Errors
    /// [`SecretError`] if the key cannot be read.
    pub(super) fn resolved(&self) -> Result<Confidence, SecretError> {
        match self {
            Self::Logprobs => Ok(Confidence::Logprobs),
            Self::Agreement(config) => Ok(Confidence::Agreement {
                samples: config.samples.get(),
                temperature: config.temperature,
            }),
            Self::Judge(config) => {
                let key = config.api_key.as_ref().map(KeySource::read).transpose()?;
                let chat = Chat {
                    model: config.model.clone(),
                    task: ChatTask::Classify {
                        labels: VERDICTS.map(str::to_owned).to_vec(),
                    },
                    system: None,
                    prompt: config.prompt.clone(),
                    sampling: SamplingOptions {
                        max_tokens: Some(VERDICT_TOKENS),
                        ..SamplingOptions::default()
                    },
                    top_logprobs: VERDICT_LOGPROBS,
                    style: Style::Chat,
                    confidence: Confidence::Logprobs,
                    fields: Fields::default(),
                };
                Ok(Confidence::Judge(Box::new(Judge {
                    chat,
                    at: config.base_url.clone().map(|base_url| (base_url, key)),
                    price: config.price,
                })))
            }
        }
    }

    /// Returns the problems of the setting, by field.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Logprobs => Vec::new(),
            Self::Agreement(config) => {
                let mut problems = Vec::new();
                if !(2..=MAX_SAMPLES).contains(&config.samples.get()) {
                    let text = format!("must be from 2 to {MAX_SAMPLES}");
                    problems.push(("confidence.agreement.samples", text));
                }
                if !(config.temperature.is_finite() && config.temperature > 0.0) {
                    let text = "must be above 0, or all samples are the same".to_owned();
                    problems.push(("confidence.agreement.temperature", text));
                }
                problems
            }
            Self::Judge(config) => {
                let mut problems = Vec::new();
                for place in [TEXT, ANSWER] {
                    if !config.prompt.contains(place) {
                        problems.push(("confidence.judge.prompt", format!("has no `{place}`")));
                    }
                }
                if let Some(url) = &config.base_url
                    && !url.starts_with("http://")
                    && !url.starts_with("https://")
                {
                    let text = format!("`{url}` is not an http or https URL");
                    problems.push(("confidence.judge.base_url", text));
                }
                if config.api_key.is_some() && config.base_url.is_none() {
                    let text = "is for a judge with a `base_url` of its own".to_owned();
                    problems.push(("confidence.judge.api_key", text));
                }
                if config.price.is_some_and(|price| !price.is_sound()) {
                    let text = "amounts must be finite and not negative".to_owned();
                    problems.push(("confidence.judge.price", text));
                }
                problems
            }
        }
    }
}
