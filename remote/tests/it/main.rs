//! Remote models before a server that answers, hangs, refuses and breaks off.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test"
)]

mod confidence;
mod health;
mod servers;
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
use kaskade_remote::{Api, Chat, ChatTask, Confidence, Endpoint, Fields, Secret, Style, connect};
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

#[test]
fn answers_have_scores_usage_and_cost_over_one_connection() {
    let server = Server::start(|_, _| ok(&good()));
    let mut large = model(&endpoint(&server, classify()));
    assert_eq!(large.info.labels, ["bad", "good"]);
    for _ in 0..3 {
        let answers = large.model.run(&[text("fine"), Vec::new()]);
        let outputs = answers[0].as_ref().unwrap();
        let logits = named(outputs, "logits").to_f32().unwrap();
        assert!(
            (logits[1] + 0.1).abs() < 1e-6 && (logits[0] + 3.0).abs() < 1e-6,
            "{logits:?}"
        );
        assert_eq!(named(outputs, "label").to_texts().unwrap(), ["good"]);
        assert_eq!(named(outputs, "usage").to_i64().unwrap(), [3, 1]);
        assert!((cost(outputs) - 5.0).abs() < 1e-9);
        assert!(matches!(answers[1], Err(ModelError::MissingInput { .. })));
    }
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "connections are reused"
    );
    let request = server.requests.lock().unwrap()[0].clone();
    assert_eq!(request.path, "/v1/chat/completions");
    assert!(
        request.head.contains(&format!("Bearer {KEY}")),
        "{}",
        request.head
    );
}

#[test]
fn no_more_requests_are_under_way_than_allowed() {
    let server = Server::start(|_, _| Does::Slowly(Duration::from_millis(30), good()));
    let mut large = model(&endpoint(&server, classify()));
    let requests: Vec<Inputs> = (0..16).map(|number| text(&number.to_string())).collect();
    let begun = Instant::now();
    assert!(large.model.run(&requests).iter().all(Result::is_ok));
    assert_eq!(server.most.load(Ordering::SeqCst), 4);
    assert!(begun.elapsed() >= Duration::from_millis(4 * 30));
}

#[test]
fn an_endpoint_that_hangs_ends_with_the_budget_or_the_timeout() {
    let server = Server::start(|_, _| Does::Hang);
    let hanging = endpoint(&server, classify());
    let budget = Duration::from_millis(400);
    let (_, end, took) = within(&hanging, budget);
    assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    assert!(took < hanging.timeout, "{took:?}");
    let mut impatient = hanging;
    impatient.timeout = Duration::from_millis(50);
    impatient.retry.retries = 1;
    let (_, end, took) = within(&impatient, Duration::from_secs(10));
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
    assert!(
        took < Duration::from_secs(10),
        "the budget was not used up: {took:?}"
    );
    // The client may have given up before the server has read the request.
    wait_until("the second request was repeated", Duration::from_secs(20), || {
        server.calls() >= 3
    });
    assert_eq!(server.calls(), 3, "the second request was repeated once");
}

#[test]
fn pauses_that_the_endpoint_asks_for_are_kept_if_the_budget_allows() {
    let busy = |after: &'static str| {
        Server::start(move |_, number| match number {
            0 => Does::Answer(
                429,
                format!("retry-after: {after}\r\n"),
                b"{\"error\": {\"message\": \"slow down\"}}".to_vec(),
            ),
            _ => ok(&good()),
        })
    };
    let server = busy("0.2");
    let (_, end, took) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    assert!(
        end.is_ok() && took >= Duration::from_millis(200),
        "{end:?} {took:?}"
    );
    let server = busy("60");
    let (_, end, took) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
    assert!(took < Duration::from_secs(5) && server.calls() == 1, "{took:?}");
}

#[test]
fn failures_of_the_server_are_repeated_and_typed() {
    let server = Server::start(|_, number| match number % 3 {
        0 => Does::Answer(500, String::new(), b"oops".to_vec()),
        1 => Does::Answer(503, String::new(), Vec::new()),
        _ => ok(&good()),
    });
    let mut three = endpoint(&server, classify());
    assert!(within(&three, Duration::from_secs(10)).1.is_ok());
    three.retry.retries = 1;
    let end = within(&three, Duration::from_secs(10)).1;
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("503")),
        "{end:?}"
    );
    let nowhere = Endpoint {
        base_url: "http://127.0.0.1:9".to_owned(),
        ..three
    };
    let end = within(&nowhere, Duration::from_secs(10)).1;
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
}

#[test]
fn a_revoked_key_is_shown_nowhere() {
    let said = format!("{{\"error\": {{\"message\": \"Incorrect API key provided: {KEY}.\"}}}}");
    let server = Server::start(move |_, _| Does::Answer(401, String::new(), said.clone().into_bytes()));
    let revoked = endpoint(&server, classify());
    let end = within(&revoked, Duration::from_secs(10)).1.unwrap_err();
    assert!(
        matches!(&end, ModelError::Refused { reason } if reason.contains("[redacted]")),
        "{end}"
    );
    assert_eq!(server.calls(), 1, "a refused key is not tried again");
    assert!(!format!("{end:?} {revoked:?}").contains(KEY));
    tracing::error!(?revoked, %end, "for the log");
    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    assert!(
        log.contains("for the log") && !log.contains(KEY),
        "the key is in the log"
    );
}

#[test]
fn garbage_is_never_a_confident_answer() {
    let bodies = [
        "<html>out of order</html>".to_owned(),
        good().replace("-0.1", "NaN"),
        good().replace("-0.1", "null"),
        good().replace("-0.1", "1e999"),
        good().replace("-0.1", "7.5"),
        good().replace("good", "who knows"),
        "{\"choices\": []}".to_owned(),
    ];
    for body in bodies {
        let said = body.clone();
        let server = Server::start(move |_, _| ok(&said));
        let end = within(&endpoint(&server, classify()), Duration::from_secs(10)).1;
        assert!(
            matches!(end, Err(ModelError::BadOutput { .. })),
            "{body}: {end:?}"
        );
    }
}

fn event(content: &str, logprob: &str, finish: &str) -> String {
    format!(
        "{{\"choices\": [{{\"delta\": {{\"content\": \"{content}\"}}, \"finish_reason\": {finish}, \"logprobs\": {{\"content\": \
         [{{\"token\": \"{content}\", \"logprob\": {logprob}, \"top_logprobs\": []}}]}}}}]}}"
    )
}

#[test]
fn texts_are_streamed() {
    let usage = "{\"choices\": [], \"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 2}}".to_owned();
    let events = vec![
        event("to", "-0.1", "null"),
        event(" be", "-0.2", "\"stop\""),
        usage,
        "[DONE]".to_owned(),
    ];
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let (parts, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
    let outputs = end.unwrap();
    assert_eq!(parts, ["to", " be"]);
    assert_eq!(named(&outputs, "text").to_texts().unwrap(), ["to be"]);
    let confidence = named(&outputs, "confidence").to_f32().unwrap()[0];
    assert!((confidence - (-0.4_f32).exp()).abs() < 1e-3, "{confidence}");
    assert!((cost(&outputs) - 6.0).abs() < 1e-9);
}

#[test]
fn a_stream_that_breaks_off_is_an_error() {
    for (events, whole) in [
        (vec![event("to", "-0.1", "null")], false),
        (vec![event("to", "-0.1", "null")], true),
        (
            vec![
                event("to", "-0.1", "null"),
                "{\"error\": {\"message\": \"out of memory\"}}".to_owned(),
            ],
            true,
        ),
    ] {
        let server = Server::start(move |_, _| Does::Stream(events.clone(), whole));
        let (parts, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
        assert_eq!(parts, ["to"]);
        assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
        assert_eq!(server.calls(), 1, "an answer that has begun is not begun again");
    }
    let events = vec![event("to", "NaN", "null")];
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let end = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10)).1;
    assert!(matches!(end, Err(ModelError::BadOutput { .. })), "{end:?}");
}

/// Its timeout ended every stream that took longer, although tokens arrived.
#[test]
fn a_stream_takes_as_long_as_its_parts_arrive() {
    // One every 20 ms.
    let mut events: Vec<String> = (0..60).map(|_| event("a", "-0.1", "null")).collect();
    events.extend([event("b", "-0.1", "\"stop\""), "[DONE]".to_owned()]);
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let mut slow = endpoint(&server, ChatTask::Generate);
    slow.timeout = Duration::from_millis(600);
    slow.breaker.failures = 1;
    let running = Running::start(&slow);
    for _ in 0..2 {
        let (parts, end, took) = running.within(Duration::from_secs(20));
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(parts.len(), 61);
        assert!(took > slow.timeout, "{took:?}");
    }
    assert_eq!(server.calls(), 2);
}

#[test]
fn a_stream_that_stops_ends_with_the_timeout() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
    let begun = format!("data: {}\n\n", event("to", "-0.1", "null")).into_bytes();
    for (pieces, parts, calls) in [
        (vec![head.clone(), begun], 1, 1),
        (vec![head], 0, 2),
        (vec![], 0, 2),
    ] {
        let said = pieces.clone();
        let server = Server::start(move |_, _| Does::Raw(said.clone(), Ends::Silent));
        let mut silent = endpoint(&server, ChatTask::Generate);
        silent.timeout = Duration::from_millis(200);
        silent.retry.retries = 1;
        let (got, end, _) = within(&silent, Duration::from_secs(20));
        assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
        assert_eq!(got.len(), parts);
        // The client may have given up before the server has read the request.
        wait_until("the calls arrive", Duration::from_secs(20), || {
            server.calls() >= calls
        });
        assert_eq!(server.calls(), calls);
    }
}

/// Five requests with budgets that no answer fits in stopped all others.
#[test]
fn budgets_too_short_for_any_answer_do_not_open_the_breaker() {
    let server = Server::start(|_, _| Does::Slowly(Duration::from_millis(500), good()));
    let mut slow = endpoint(&server, classify());
    slow.breaker.failures = 2;
    let running = Running::start(&slow);
    for _ in 0..5 {
        let (_, end, _) = running.within(Duration::from_millis(50));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    let (_, end, _) = running.within(Duration::from_secs(20));
    assert!(end.is_ok(), "{end:?}");
    for _ in 0..5 {
        let (_, end, _) = running.within(Duration::from_millis(50));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    assert!(running.within(Duration::from_secs(20)).1.is_ok());
}

#[test]
fn an_endpoint_that_hangs_is_noticed_by_requests_with_short_budgets() {
    let server = Server::start(|_, number| match number {
        0..20 => ok(&good()),
        _ => Does::Hang,
    });
    let mut hanging = endpoint(&server, classify());
    hanging.breaker.failures = 2;
    let running = Running::start(&hanging);
    for _ in 0..20 {
        assert!(running.within(Duration::from_secs(20)).1.is_ok());
    }
    for _ in 0..2 {
        let (_, end, _) = running.within(Duration::from_secs(1));
        assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    }
    let (_, end, _) = running.within(Duration::from_secs(1));
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("circuit breaker")),
        "{end:?}"
    );
}

#[test]
fn invalid_requests_are_the_senders_fault_and_not_repeated() {
    for status in [400, 413, 422] {
        let said = b"{\"error\": {\"message\": \"Invalid schema for response_format\"}}".to_vec();
        let server = Server::start(move |_, _| Does::Answer(status, String::new(), said.clone()));
        let (_, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
        assert!(
            matches!(&end, Err(ModelError::InvalidRequest { reason }) if reason.contains("Invalid schema")),
            "{status}: {end:?}"
        );
        assert_eq!(server.calls(), 1);
    }
}

/// Requests that a server answered with log probabilities that are none stopped all others.
#[test]
fn answers_that_cannot_be_read_open_the_breaker_only_if_they_are_no_answers() {
    for (body, is_answer) in [
        (good().replace("-0.1", "\"x\""), true),
        (good().replace("-0.1", "7.5"), true),
        ("<html>out of order</html>".to_owned(), false),
        ("{\"choices\": []}".to_owned(), false),
    ] {
        let said = body.clone();
        let server = Server::start(move |_, number| match number {
            0..2 => ok(&said),
            _ => ok(&good()),
        });
        let mut wrong = endpoint(&server, classify());
        wrong.breaker.failures = 2;
        let mut large = model(&wrong);
        for _ in 0..2 {
            let answer = large.model.run(&[text("fine")]).remove(0);
            assert!(
                matches!(answer, Err(ModelError::BadOutput { .. })),
                "{body}: {answer:?}"
            );
        }
        let answer = large.model.run(&[text("fine")]).remove(0);
        assert_eq!(answer.is_ok(), is_answer, "{body}: {answer:?}");
    }
}

#[test]
fn a_failing_endpoint_gets_no_requests_until_a_probe_succeeds() {
    let server = Server::start(|_, number| match number {
        0..4 => Does::Answer(500, String::new(), Vec::new()),
        _ => ok(&good()),
    });
    let mut failing = endpoint(&server, classify());
    failing.retry.retries = 0;
    failing.breaker = BreakerConfig {
        failures: 3,
        // Time for the five requests below.
        pause_us: 1_000_000,
        max_pause_us: 1_000_000,
    };
    let mut large = model(&failing);
    let availability = large.model.availability().unwrap();
    let mut ask = || large.model.run(&[text("fine")]).remove(0);
    for _ in 0..3 {
        assert!(matches!(ask(), Err(ModelError::Unavailable { .. })));
    }
    for _ in 0..5 {
        let refused = ask();
        assert!(
            matches!(&refused, Err(ModelError::Unavailable { reason }) if reason.contains("circuit breaker")),
            "{refused:?}"
        );
    }
    assert_eq!(server.calls(), 3, "an open breaker makes no calls");
    becomes(&availability, false);
    // Before that, a question about the endpoint's health may be the probe.
    becomes(&availability, true);
    assert!(ask().is_err() && server.calls() == 4, "the probe fails");
    becomes(&availability, false);
    becomes(&availability, true);
    assert!(ask().is_ok() && ask().is_ok());
}

#[test]
fn recorded_answers_are_not_paid_again_and_the_limit_holds() {
    let server = Server::start(|_, _| ok(&good()));
    let folder = tempfile::tempdir().unwrap();
    let mut recording = endpoint(&server, classify());
    recording.cache = Some(folder.path().to_owned());
    recording.concurrency = 1.try_into().unwrap();
    let requests: Vec<Inputs> = (0..10).map(|number| text(&number.to_string())).collect();
    // Each costs 5; a call is made only if the most that it may cost still fits.
    recording.spend_limit = Some(160.0);
    let answers = model(&recording).model.run(&requests);
    let paid = server.calls();
    assert!(paid > 0 && paid < 10 && paid as f64 * 5.0 <= 160.0, "{paid}");
    let refused = answers.iter().find_map(|answer| answer.as_ref().err()).unwrap();
    assert!(
        matches!(refused, ModelError::SpendLimit { reason } if reason.contains("limit of spending") && reason.contains("would take")),
        "{refused}"
    );
    let left = format!("the remaining {} calls", requests.len() - paid);
    let says = |answer: &Result<Outputs, ModelError>| {
        answer
            .as_ref()
            .is_err_and(|error| error.to_string().contains(&left))
    };
    assert!(answers.iter().any(says), "{left}: {answers:?}");
    // Continued with a higher limit, only what is missing is paid for.
    recording.spend_limit = Some(1e6);
    let answers = model(&recording).model.run(&requests);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(server.calls(), 10);
    let again = model(&recording).model.run(&requests);
    assert_eq!(server.calls(), 10);
    let logits = |answer: &Result<Outputs, ModelError>| named(answer.as_ref().unwrap(), "logits").clone();
    assert_eq!(
        again.iter().map(logits).collect::<Vec<_>>(),
        answers.iter().map(logits).collect::<Vec<_>>()
    );
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let content = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(KEY));
    }
}

/// Only a refusal is free: an endpoint is paid for answers of no use, for one that breaks off and for one that comes too late.
#[test]
fn calls_that_fail_count_for_the_limit_of_spending() {
    let useless = good().replace("\"good\"", "\"who knows\"");
    let answers = [
        (ok(&useless), 5.0),
        (ok("<html>out of order</html>"), 100.0),
        (
            Does::Raw(
                vec![b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal".to_vec()],
                Ends::Closed,
            ),
            100.0,
        ),
        (Does::Hang, 100.0),
    ];
    for (answer, least) in answers {
        let said = answer.clone();
        let server = Server::start(move |_, _| said.clone());
        let mut limited = endpoint(&server, classify());
        limited.timeout = Duration::from_millis(200);
        limited.retry.retries = 0;
        limited.concurrency = 1.try_into().unwrap();
        // A call may cost some 150.
        limited.spend_limit = Some(400.0);
        let requests: Vec<Inputs> = (0..80).map(|number| text(&number.to_string())).collect();
        let answers = model(&limited).model.run(&requests);
        let paid = server.calls() as f64;
        assert!(paid >= 1.0 && paid * least <= 400.0, "{answer:?}: {paid}");
        assert!(answers.iter().any(|answer| {
            answer
                .as_ref()
                .is_err_and(|error| error.to_string().contains("limit of spending"))
        }));
    }
    let server = Server::start(|_, _| Does::Answer(429, String::new(), Vec::new()));
    let mut limited = endpoint(&server, classify());
    limited.retry.retries = 0;
    limited.concurrency = 1.try_into().unwrap();
    limited.spend_limit = Some(400.0);
    let requests: Vec<Inputs> = (0..20).map(|number| text(&number.to_string())).collect();
    model(&limited).model.run(&requests);
    assert_eq!(server.calls(), 20, "a refusal costs nothing");
}

#[test]
fn the_open_inference_protocol_is_spoken_with_binary_tensors() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/v2" => ok(r#"{"name": "triton", "extensions": ["binary_tensor_data"]}"#),
        "/v2/models/m" => {
            ok(r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": []}"#)
        }
        _ => {
            let json = br#"{"outputs": [{"name": "logits", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}"#;
            let echoed = &request.body[request.body.len() - 8..];
            let head = format!("inference-header-content-length: {}\r\n", json.len());
            Does::Answer(200, head, [&json[..], echoed].concat())
        }
    });
    let mut oip = endpoint(&server, classify());
    oip.base_url = server.url();
    oip.price = Some(Price {
        request: 0.25,
        input_tokens: 0.0,
        output_tokens: 0.0,
    });
    oip.api = Api::Oip {
        model: "m".to_owned(),
        version: None,
    };
    let mut loaded = model(&oip);
    let answers = loaded.model.run(&[
        vec![Tensor::from_f32("x", &[2], &[0.5, 2.0]).unwrap()],
        text("no"),
    ]);
    let outputs = answers[0].as_ref().unwrap();
    assert_eq!(named(outputs, "logits").to_f32().unwrap(), [0.5, 2.0]);
    assert!((cost(outputs) - 0.25).abs() < 1e-9);
    assert!(answers[1].is_err());
    assert_eq!(
        server.requests.lock().unwrap().last().unwrap().path,
        "/v2/models/m/infer"
    );
    let missing =
        Server::start(|_, _| Does::Answer(404, String::new(), b"{\"error\": \"no model m\"}".to_vec()));
    oip.base_url = missing.url();
    let error = connect(&oip).err().unwrap().to_string();
    assert!(error.contains("no model m"), "{error}");
}
