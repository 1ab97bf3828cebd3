//! Remote models before a server that answers, hangs, refuses and breaks off.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test"
)]

mod breaker;
mod calls;
mod confidence;
mod health;
mod servers;
mod spending;
mod streams;
mod tls;

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use kaskade_models::generation::SamplingOptions;
use kaskade_models::{Availability, Executor, Inputs, Loaded, ModelError, Outputs, Progress, Tensor};
use kaskade_policy::remote::breaker::BreakerConfig;
use kaskade_policy::remote::price::Price;
use kaskade_policy::remote::retry::RetryConfig;
use kaskade_remote::{Api, Chat, ChatTask, Confidence, Endpoint, Fields, Secret, SpendLimit, Style, connect};
use kaskade_testkit::endpoint::{self as fixture, Does, Ends, Server, ok};
use kaskade_testkit::wait_until;

const KEY: &str = "sk-this-is-the-key";

/// Everything that was logged by this process.
static LOG: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(|| {
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || Writer(Arc::clone(&writer)));
    subscriber.init();
    log
});

struct Writer(Arc<Mutex<Vec<u8>>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn classify() -> ChatTask {
    ChatTask::Classify {
        labels: vec!["bad".to_owned(), "good".to_owned()],
    }
}

/// Greedy sampling of so many tokens.
fn at_most(tokens: usize) -> SamplingOptions {
    SamplingOptions {
        max_tokens: Some(tokens),
        ..SamplingOptions::default()
    }
}

fn endpoint(server: &Server, task: ChatTask) -> Endpoint {
    LazyLock::force(&LOG);
    Endpoint {
        name: "large".to_owned(),
        base_url: server.url() + "/v1",
        key: Some(Secret::new(KEY, "a test").unwrap()),
        ca: None,
        api: Api::Chat(Chat {
            model: "m".to_owned(),
            task,
            system: None,
            prompt: "{text}".to_owned(),
            sampling: at_most(8),
            top_logprobs: 5,
            style: Style::Chat,
            confidence: Confidence::Logprobs,
            fields: Fields::default(),
        }),
        price: Some(Price {
            request: 0.0,
            input_tokens: 1e6,
            output_tokens: 2e6,
        }),
        concurrency: 4.try_into().unwrap(),
        timeout: Duration::from_secs(10),
        retry: RetryConfig {
            pause_us: 10_000,
            ..RetryConfig::default()
        },
        breaker: BreakerConfig {
            failures: 100,
            ..BreakerConfig::default()
        },
        cache: None,
        spend_limit: None,
    }
}

fn model(endpoint: &Endpoint) -> Loaded {
    connect(endpoint).unwrap()
}

fn text(text: &str) -> Inputs {
    vec![Tensor::from_texts("text", &[text]).unwrap()]
}

/// A completion that is `good` with probability e^-0.1, of 3 and 1 tokens.
fn good() -> String {
    r#"{"choices": [{"message": {"content": "good"}, "logprobs": {"content": [{"token": "good", "logprob": -0.1,
        "top_logprobs": [{"token": "good", "logprob": -0.1}, {"token": "bad", "logprob": -3.0}]}]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1}}"#
        .to_owned()
}

fn named<'a>(outputs: &'a Outputs, name: &str) -> &'a Tensor {
    outputs.iter().find(|output| output.name == name).unwrap()
}

fn cost(outputs: &Outputs) -> f64 {
    f64::from_le_bytes(named(outputs, "cost").data.as_ref().try_into().unwrap())
}

/// Waits until the model is available, or is not.
fn becomes(availability: &Availability, available: bool) {
    let begun = Instant::now();
    while availability.is_available() != available {
        assert!(begun.elapsed() < Duration::from_secs(20), "never {available}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The parts of an answer, its end, and how long it took.
type Answered = (Vec<String>, Result<Outputs, ModelError>, Duration);

/// The model of an endpoint on an executor.
struct Running {
    executor: Executor,
    progress: Receiver<Progress>,
}

impl Running {
    fn start(endpoint: &Endpoint) -> Self {
        let endpoint = endpoint.clone();
        let load = move || connect(&endpoint).map(|loaded| loaded.model);
        let executor = Executor::spawn("remote", load).unwrap();
        assert!(executor.is_continuous());
        let (sender, progress) = std::sync::mpsc::channel();
        executor.listen(move |stepped| {
            for progress in stepped.progress {
                drop(sender.send(progress));
            }
        });
        Self { executor, progress }
    }

    /// Answers one request within a budget.
    fn within(&self, budget: Duration) -> Answered {
        let begun = Instant::now();
        assert!(self.executor.submit_within(7, text("fine"), budget));
        let mut parts = Vec::new();
        loop {
            let progress = self.progress.recv_timeout(Duration::from_secs(20)).unwrap();
            parts.extend(
                progress
                    .part
                    .iter()
                    .map(|part| part.to_texts().unwrap()[0].to_owned()),
            );
            if let Some(end) = progress.end {
                return (parts, end, begun.elapsed());
            }
        }
    }
}

/// Answers the only request of a model within a budget.
fn within(endpoint: &Endpoint, budget: Duration) -> Answered {
    Running::start(endpoint).within(budget)
}
