//! A cascade whose large model is behind an endpoint. The small one is never sure.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kaskade::models::generation::SamplingOptions;
use kaskade::models::{Datatype, Extent, InputSpec, Model, Signature};
use kaskade::policy::remote::breaker::BreakerConfig;
use kaskade::policy::remote::retry::RetryConfig;
use kaskade::{Inputs, ModelError, Outputs, Tensor};
use kaskade_actors::stage::worker::Loader;
use kaskade_remote::{Api, Chat, ChatTask, Confidence, Endpoint, Fields, Secret, SpendLimit, Style, connect};

use crate::deployed_plan::LARGE;

/// Longest time of one call to the endpoint.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Address of the large model.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoteArgs {
    /// Address of an endpoint of the OpenAI API, which has the large model.
    #[arg(long)]
    remote: Option<String>,
    /// File with its key.
    #[arg(long, requires = "remote")]
    key: Option<PathBuf>,
    /// Money that may be spent, at 1 per request.
    #[arg(long, requires = "remote")]
    spend_limit: Option<f64>,
}

impl RemoteArgs {
    /// Logs everything, if there is an endpoint.
    pub(crate) fn log_everything(&self) {
        if self.remote.is_none() {
            return;
        }
        tracing_subscriber::fmt()
            .with_env_filter("trace")
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }

    /// Returns the loader of the models, if there is an endpoint.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub(crate) fn loader(&self) -> anyhow::Result<Option<Loader>> {
        let Some(url) = &self.remote else { return Ok(None) };
        let key = self.key.as_ref().map(|file| Secret::from_file(file)).transpose();
        let endpoint = Endpoint {
            name: LARGE.to_owned(),
            base_url: format!("{url}/v1"),
            key: key.context("the key")?,
            ca: None,
            api: Api::Chat(Chat {
                model: "large".to_owned(),
                task: ChatTask::Generate,
                system: None,
                prompt: "{text}".to_owned(),
                sampling: SamplingOptions {
                    max_tokens: Some(8),
                    ..SamplingOptions::default()
                },
                top_logprobs: 1,
                style: Style::Chat,
                confidence: Confidence::Logprobs,
                fields: Fields::default(),
            }),
            price: Some(serde_json::from_value(serde_json::json!({"request": 1.0}))?),
            concurrency: 64.try_into()?,
            timeout: TIMEOUT,
            retry: RetryConfig::default(),
            breaker: BreakerConfig::default(),
            cache: None,
            spend_limit: self.spend_limit.map(SpendLimit::new),
        };
        let loader: Loader = Arc::new(move |replica| {
            if replica.variant != LARGE {
                return Ok(Box::new(Unsure));
            }
            let loaded = connect(&endpoint).map_err(|error| error.to_string())?;
            Ok(loaded.model)
        });
        Ok(Some(loader))
    }
}

/// Answers every text with a confidence of 0.1.
struct Unsure;

impl Model for Unsure {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required(
                "text",
                Datatype::Bytes,
                vec![Extent::Exactly(1)],
            )],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = || {
            Ok(vec![
                Tensor::from_texts("text", &["perhaps"])?,
                Tensor::from_f32("confidence", &[1], &[0.1])?,
            ])
        };
        batch.iter().map(|_| answer()).collect()
    }
}
