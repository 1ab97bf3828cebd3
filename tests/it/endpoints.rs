//! A cascade of a local classifier and one behind an endpoint: profiled once, planned by cost, served, and served on while
//! the endpoint fails.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaskade_app::App;
use kaskade_app::measure::{Judge, Profiler};
use kaskade_app::planning;
use kaskade_app::serving::Service;
use kaskade_planners::cascade::Objective;
use kaskade_planners::thresholds::{CostBasis, Minimise};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::Plan;
use kaskade_policy::remote::price::CostSource;
use kaskade_testkit::ROOT;
use kaskade_testkit::endpoint::{Does, Server, ok};

const KEY: &str = "sk-of-the-test";

/// An endpoint of the OpenAI API that finds a review good if the word is in it.
struct Endpoint {
    server: Server,
    broken: Arc<AtomicBool>,
}

impl Endpoint {
    fn start() -> Self {
        let broken = Arc::new(AtomicBool::new(false));
        let is_broken = Arc::clone(&broken);
        let server = Server::start(move |request, _| {
            assert!(request.head.contains(KEY));
            if is_broken.load(Ordering::SeqCst) {
                let body = format!("{{\"error\": \"{KEY} is of no use here\"}}");
                return Does::Answer(500, String::new(), body.into_bytes());
            }
            let (word, other) = if String::from_utf8_lossy(&request.body).contains("good") {
                ("positive", "negative")
            } else {
                ("negative", "positive")
            };
            ok(&format!(
                "{{\"choices\": [{{\"message\": {{\"content\": \"{word}\"}}, \"logprobs\": {{\"content\": [{{\"token\": \"{word}\", \"logprob\": \
                 -0.05, \"top_logprobs\": [{{\"token\": \"{word}\", \"logprob\": -0.05}}, {{\"token\": \"{other}\", \"logprob\": -3.5}}]}}]}}}}], \
                 \"usage\": {{\"prompt_tokens\": 100, \"completion_tokens\": 1}}}}"
            ))
        });
        Self { server, broken }
    }

    fn calls(&self) -> usize {
        self.server.calls()
    }

    /// Breaks the endpoint, or ends that.
    fn set_broken(&self, broken: bool) {
        self.broken.store(broken, Ordering::SeqCst);
        self.server.down.store(broken, Ordering::SeqCst);
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
    let weights = Path::new(ROOT).join("examples/sentiment/weights/sentiment-pico");
    let text = format!(
        "name = \"reviews\"\n[[variants]]\nname = \"small\"\ndir = \"{}\"\nprice = {{ request = 0.0 }}\n[[variants]]\nname = \"large\"\n\
         price = {{ input_tokens = 10.0, output_tokens = 20.0 }}\n[variants.remote]\nkind = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\n\
         api_key = {{ file = \"key\" }}\nlabels = [\"negative\", \"positive\"]\nprompt = \"Review: {{text}}\"\nretries = 0\n\
         [data.validation.tsv]\nfile = \"dev.tsv\"\n",
        weights.display(),
        endpoint.server.url() + "/v1"
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
        .measure_for(Duration::from_millis(5));
    let answers = folder.path().join("answers");
    let refused = profiler.clone().record(&answers, Some(0.004)).run().unwrap_err();
    let refused = kaskade_app::report::in_one_line(&refused);
    assert!(
        refused.contains("limit of spending") && refused.contains("would take"),
        "{refused}"
    );
    let paid = endpoint.calls();
    // A request costs 100 * 10 + 20 millionths.
    assert!(paid > 0 && paid as f64 * 0.001_02 <= 0.004, "{paid}");
    let profile = profiler.clone().record(&answers, None).run().unwrap();
    assert_eq!(endpoint.calls(), 40, "each sample once");
    let again = profiler.record(&answers, Some(0.0)).run().unwrap();
    assert_eq!(endpoint.calls(), 40, "replayed");
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
    assert!(planning::cascade::as_text(&profile, &planned).contains("0.00102 "));
}

#[test]
fn without_labels_the_endpoint_judges() {
    let (folder, endpoint) = (tempfile::tempdir().unwrap(), Endpoint::start());
    let with_labels = app(folder.path(), &endpoint);
    let file = folder.path().join("app.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines = (0..40).map(|n| {
        let word = if n % 2 == 0 { "good" } else { "bad" };
        format!("{{\"text\": \"review {n} of a {word} film\"}}\n")
    });
    std::fs::write(folder.path().join("reviews.jsonl"), lines.collect::<String>()).unwrap();
    let unlabelled = text.replace(
        "[data.validation.tsv]\nfile = \"dev.tsv\"",
        "[data.validation.records]\nfile = \"reviews.jsonl\"",
    );
    assert_ne!(text, unlabelled);
    std::fs::write(&file, unlabelled).unwrap();
    let app = App::load(&file).unwrap();
    let answers = folder.path().join("answers");
    let profiler = |app| {
        Profiler::new(app)
            .batches([1])
            .rounds(1)
            .measure_for(Duration::from_millis(5))
            .record(&answers, None)
    };
    let judged = profiler(&app).judge(Judge::Largest).run().unwrap();
    assert_eq!(endpoint.calls(), 40, "each sample once");
    let [small, large] = judged.variants.as_slice() else {
        panic!("{judged:?}")
    };
    assert!(
        large.validation.correct.iter().all(|right| *right),
        "it agrees with itself"
    );
    assert_eq!(judged.judge.as_deref(), Some("large"));
    // The labels are the endpoint's answers, so that both profiles find the same answers right.
    let labelled = profiler(&with_labels).run().unwrap();
    assert_eq!(endpoint.calls(), 40, "replayed");
    assert_eq!(small.validation.correct, labelled.variants[0].validation.correct);
    let planned = planning::cascade(&judged)
        .app(&app)
        .minimise(Minimise::Cost)
        .plan()
        .unwrap();
    assert_eq!(planned.estimates.basis, CostBasis::Money);
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
    let costs: Vec<f64> = reply
        .hops
        .iter()
        .filter_map(|hop| Some(hop.cost?.amount))
        .collect();
    assert_eq!(costs.len(), 2, "{:?}", reply.hops);
    assert!(costs[0] == 0.0 && (costs[1] - 0.001_02).abs() < 1e-9, "{costs:?}");
    endpoint.set_broken(true);
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
    assert!(endpoint.calls() < 15, "{}", endpoint.calls());
    endpoint.set_broken(false);
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
