//! A cascade of a local classifier and one behind an endpoint: profiled once, planned by cost, served, and served on while
//! the endpoint fails.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kaskade_app::App;
use kaskade_app::measure::Profiler;
use kaskade_app::planning;
use kaskade_app::serving::Service;
use kaskade_planners::cascade::Objective;
use kaskade_planners::thresholds::{CostBasis, Minimise};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::Plan;
use kaskade_policy::remote::price::CostSource;

const KEY: &str = "sk-of-the-test";

/// An endpoint of the OpenAI API that finds a review good if the word is in it.
struct Endpoint {
    url: String,
    calls: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Endpoint {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            calls: Arc::default(),
            broken: Arc::default(),
        };
        let (calls, broken) = (Arc::clone(&endpoint.calls), Arc::clone(&endpoint.broken));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (calls, broken) = (Arc::clone(&calls), Arc::clone(&broken));
                std::thread::spawn(move || serve(stream.unwrap(), &calls, &broken));
            }
        });
        endpoint
    }
}

fn serve(mut stream: TcpStream, calls: &AtomicUsize, broken: &AtomicBool) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let end = loop {
            let text = String::from_utf8_lossy(&bytes).to_lowercase();
            let length = text
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.parse::<usize>().ok());
            if let (Some(head), Some(length)) = (text.find("\r\n\r\n"), length)
                && bytes.len() >= head + 4 + length
            {
                break head + 4 + length;
            }
            match stream.read(&mut buffer) {
                Ok(read @ 1..) => bytes.extend_from_slice(&buffer[..read]),
                _ => return,
            }
        };
        let request: Vec<u8> = bytes.drain(..end).collect();
        let request = String::from_utf8(request).unwrap();
        assert!(request.contains(KEY));
        calls.fetch_add(1, Ordering::SeqCst);
        let (status, body) = if broken.load(Ordering::SeqCst) {
            (500, format!("{{\"error\": \"{KEY} is of no use here\"}}"))
        } else {
            let (word, other) = if request.contains("good") {
                ("positive", "negative")
            } else {
                ("negative", "positive")
            };
            let body = format!(
                "{{\"choices\": [{{\"message\": {{\"content\": \"{word}\"}}, \"logprobs\": {{\"content\": [{{\"token\": \"{word}\", \"logprob\": \
                 -0.05, \"top_logprobs\": [{{\"token\": \"{word}\", \"logprob\": -0.05}}, {{\"token\": \"{other}\", \"logprob\": -3.5}}]}}]}}}}], \
                 \"usage\": {{\"prompt_tokens\": 100, \"completion_tokens\": 1}}}}"
            );
            (200, body)
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The app, with 40 labelled reviews.
fn app(folder: &Path, endpoint: &Endpoint) -> App {
    let lines = (0..40).map(|n| {
        let (word, label) = if n % 2 == 0 { ("good", 1) } else { ("bad", 0) };
        format!("review {n} of a {word} film\t{label}\n")
    });
    std::fs::write(folder.join("dev.tsv"), lines.collect::<String>()).unwrap();
    std::fs::write(folder.join("key"), KEY).unwrap();
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sentiment/weights/sentiment-pico");
    let text = format!(
        "name = \"reviews\"\n[[variants]]\nname = \"small\"\ndir = \"{}\"\nprice = {{ request = 0.0 }}\n[[variants]]\nname = \"large\"\n\
         price = {{ input_tokens = 10.0, output_tokens = 20.0 }}\n[variants.remote]\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\n\
         api_key = {{ file = \"key\" }}\nlabels = [\"negative\", \"positive\"]\nprompt = \"Review: {{text}}\"\nretries = 0\n\
         [data.validation.tsv]\nfile = \"dev.tsv\"\n",
        weights.display(),
        endpoint.url
    );
    let file = folder.join("app.toml");
    std::fs::write(&file, text).unwrap();
    App::load(&file).unwrap()
}

#[test]
fn each_sample_is_paid_for_once_and_the_plan_is_the_cheapest() {
    let (folder, endpoint) = (tempfile::tempdir().unwrap(), Endpoint::start());
    let app = app(folder.path(), &endpoint);
    let profiler = Profiler::new(&app)
        .batches([1, 4])
        .rounds(1)
        .stretch(Duration::from_millis(5));
    let answers = folder.path().join("answers");
    let refused = profiler.clone().record(&answers, Some(0.004)).run().unwrap_err();
    let refused = kaskade_app::report::in_one_line(&refused);
    assert!(
        refused.contains("limit of spending") && refused.contains("would take"),
        "{refused}"
    );
    let paid = endpoint.calls.load(Ordering::SeqCst);
    // A request costs 100 * 10 + 20 millionths.
    assert!(paid > 0 && paid as f64 * 0.001_02 <= 0.004, "{paid}");
    let profile = profiler.clone().record(&answers, None).run().unwrap();
    assert_eq!(endpoint.calls.load(Ordering::SeqCst), 40, "each sample once");
    let again = profiler.record(&answers, Some(0.0)).run().unwrap();
    assert_eq!(endpoint.calls.load(Ordering::SeqCst), 40, "replayed");
    let [small, large] = profile.variants.as_slice() else {
        panic!("{profile:?}")
    };
    assert_eq!(large.validation, again.variants[1].validation);
    assert!(large.validation.correct.iter().all(|right| *right));
    let money = large.money.unwrap();
    assert!(
        (money.per_request - 0.001_02).abs() < 1e-9 && money.source == CostSource::Priced,
        "{money:?}"
    );
    assert!(small.money.is_some_and(|money| money.per_request == 0.0));
    assert!(
        large
            .costs
            .iter()
            .all(|cost| cost.energy_j.is_none() && cost.latency_s > 0.0)
    );
    let planned = planning::cascade(&profile)
        .app(&app)
        .objective(Objective::Ap)
        .minimise(Minimise::Cost)
        .plan()
        .unwrap();
    assert_eq!(planned.estimates.basis, CostBasis::Money);
    assert!(planned.estimates.energy_j <= money.per_request);
    assert!(planning::cascade::as_text(&profile, &planned).contains("0.001020"));
}

#[tokio::test]
async fn the_cascade_is_served_and_outlives_the_endpoint() {
    let (folder, endpoint) = (tempfile::tempdir().unwrap(), Endpoint::start());
    let app = app(folder.path(), &endpoint);
    let calibration = Calibration {
        estimator: Estimator::MaxSquared,
        temperature: 1.0,
    };
    let small = Plan::cascade("reviews")
        .stage("small", "small")
        .calibration(calibration);
    let plan = small.below(1.0).then("large", "large").build().unwrap();
    let service = Service::builder(&app).plan(plan).start().unwrap();
    let client = service.client().await.unwrap();
    let reply = client.text("a good film").unwrap().send().await.unwrap();
    assert_eq!(
        (reply.variant.as_str(), reply.hops.len(), reply.degraded),
        ("large", 2, false)
    );
    let cost = reply.outputs.iter().find(|output| output.name == "cost").unwrap();
    let cost = f64::from_le_bytes(cost.data.as_ref().try_into().unwrap());
    assert!((cost - 0.001_02).abs() < 1e-9, "{cost}");
    endpoint.broken.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let begun = Instant::now();
        let outcome = client.text("a good film").unwrap().send().await;
        assert!(begun.elapsed() < app.ingress.default_budget.duration() + Duration::from_secs(1));
        match outcome {
            Ok(reply) => assert!(reply.variant == "small" && reply.degraded, "{reply:?}"),
            Err(fault) => {
                let said = fault.to_string();
                assert!(said.contains("KSK0024") && !said.contains(KEY), "{said}");
            }
        }
    }
    // The circuit breaker is open: the endpoint gets a few calls, not twenty times four.
    assert!(endpoint.calls.load(Ordering::SeqCst) < 15, "{:?}", endpoint.calls);
    endpoint.broken.store(false, Ordering::SeqCst);
    let recovered = async {
        loop {
            match client.text("a good film").unwrap().send().await {
                Ok(reply) if reply.variant == "large" => return,
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), recovered)
        .await
        .unwrap();
    service.stop();
}
