//! Audits, labels and the certified list over a real bus: what they find, and that clients notice nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{HeaderMap, Subscriber};
use kaskade_actors::bus::{BusConfig, Embedded};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::metrics::Gauges;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::wire::{
    CertificateFinding, CertificateNotice, CertificateReport, FeedbackLabel, InferRequest, ShiftReport,
    headers,
};
use kaskade_actors::{App, Client, Code, Node, Service};
use kaskade_broker::BrokerConfig;
use kaskade_models::{Answers, Described, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::certificate_monitor::AuditSettings;
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::{Exit, Plan};
use kaskade_policy::text_metrics::{Metric, TextComparison};
use kaskade_testkit::certified;

use crate::common::gears::{block_on, events, next, quick_shifts};
use crate::common::{BUDGET, Scripted, ask, cascade, label};

/// A model that can be made to answer wrongly, or to fail.
struct Deceived {
    model: Scripted,
    wrong: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
}

impl Model for Deceived {
    fn signature(&self) -> Signature {
        self.model.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        if self.fails.load(Ordering::Relaxed) {
            let reason = "told to fail".to_owned();
            return batch
                .iter()
                .map(|_| {
                    Err(ModelError::Failed {
                        reason: reason.clone(),
                    })
                })
                .collect();
        }
        if !self.wrong.load(Ordering::Relaxed) {
            return self.model.run(batch);
        }
        let other = |inputs: &Inputs| {
            let x = inputs[0].to_f32().unwrap();
            ask((x[0] + 1.0) % 4.0, x[1])
        };
        let others: Vec<Inputs> = batch.iter().map(other).collect();
        self.model.run(&others)
    }
}

/// A plan whose list has the largest variant alone, and `small` before it. Both answered a thousand samples alike.
fn plan(app: &str) -> Plan {
    let mut plan = cascade(app);
    let stages = &mut plan.gears[0].wiring.stages;
    stages.retain(|stage| stage.name != "medium");
    if let Exit::Bands { bands } = &mut stages[0].exit {
        bands.remove(1);
    }
    certified(plan)
}

/// A service whose `small` can be made to answer wrongly, and its `large` to fail.
fn service(app: &str, ingress: IngressConfig) -> (Node, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (wrong, fails) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let model = |strength: f32, wrong: &Arc<AtomicBool>, fails: &Arc<AtomicBool>| {
        let (wrong, fails) = (Arc::clone(wrong), Arc::clone(fails));
        move || {
            Ok::<_, String>(Deceived {
                model: Scripted {
                    strength,
                    run: Duration::ZERO,
                },
                wrong: Arc::clone(&wrong),
                fails: Arc::clone(&fails),
            })
        }
    };
    let never = Arc::<AtomicBool>::default();
    let node = Service::new(app)
        .model("small", model(1.0, &wrong, &never))
        .model("medium", model(2.0, &never, &never))
        .model("large", model(4.0, &never, &fails))
        .plan(plan(app))
        .ingress(ingress)
        .start()
        .unwrap();
    (node, wrong, fails)
}

fn all_audited() -> IngressConfig {
    IngressConfig {
        audit: AuditSettings::with_share(1.0),
        ..quick_shifts()
    }
}

/// Sends requests, one after the other, until an event arrives; returns it and how many there were.
async fn until<M: kaskade_actors::wire::Message>(
    client: &Client,
    events: &mut Subscriber,
    asked: &mut u64,
    mut check: impl FnMut(usize),
) -> M {
    let asking = async {
        loop {
            let reply = client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
            *asked += 1;
            check(label(&reply.outputs));
        }
    };
    tokio::select! {
        () = asking => unreachable!(),
        event = next(events) => event,
    }
}

async fn certificate_events(node: &Node, app: &str) -> Subscriber {
    events(node, app, "certificate").await
}

#[test]
fn a_loss_runs_the_safer_cascade_and_its_end_the_cheaper_one_again() {
    let app = "audited";
    let (node, wrong, _) = service(app, all_audited());
    block_on(async {
        let mut found = certificate_events(&node, app).await;
        let mut shifts = events(&node, app, "gear").await;
        let client = Client::new(node.bus(), App::new(app).unwrap());
        let mut asked = 0;
        for _ in 0..200 {
            let reply = client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
            assert_eq!((reply.stage.as_str(), label(&reply.outputs)), ("small", 2));
            asked += 1;
        }
        wrong.store(true, Ordering::Relaxed);
        let refuted: CertificateNotice = until(&client, &mut found, &mut asked, |_| ()).await;
        assert!(
            matches!(&refuted.found, CertificateFinding::Refuted { from: 1, to: 0, by } if by == "audits"),
            "{refuted:?}"
        );
        let shift: ShiftReport = next(&mut shifts).await;
        assert_eq!(
            (shift.from, shift.to),
            (0, 1),
            "gear 1 is the first of the certified list"
        );
        let reply = client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
        assert_eq!((reply.stage.as_str(), label(&reply.outputs)), ("large", 2));
        asked += 1;
        wrong.store(false, Ordering::Relaxed);
        // Probes find that the cascade is as certified again; meanwhile every answer is the largest variant's.
        let restored: CertificateNotice =
            until(&client, &mut found, &mut asked, |answer| assert_eq!(answer, 2)).await;
        assert_eq!(restored.found, CertificateFinding::Restored { from: 0, to: 1 });
        let back: ShiftReport = next(&mut shifts).await;
        assert_eq!((back.from, back.to), (1, 0));
        // Audits are in no counter of requests, and each request had one reply. Two may have been dropped when an event arrived.
        client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
        let counted = node.metrics().read();
        assert_eq!(counted.accepted, counted.answered);
        assert!(
            (asked + 1..=asked + 3).contains(&counted.accepted),
            "{asked} {counted:?}"
        );
        assert!(counted.faults.is_empty() && counted.stale == 0, "{counted:?}");
        let page = node.metrics().text(app, &Gauges::default());
        for line in [
            "kaskade_audits_total{app=\"audited\",outcome=\"differ\"}",
            "kaskade_certificate_findings_total{app=\"audited\",finding=\"refuted\"} 1",
            "kaskade_certificate_findings_total{app=\"audited\",finding=\"restored\"} 1",
        ] {
            assert!(page.contains(line), "{line} is missing in {page}");
        }
    });
    node.stop();
}

#[test]
fn audits_that_fail_hurt_nothing() {
    let app = "unaudited";
    let (node, _, fails) = service(app, all_audited());
    fails.store(true, Ordering::Relaxed);
    block_on(async {
        let mut reports = events(&node, app, "certificate_status").await;
        let client = Client::new(node.bus(), App::new(app).unwrap());
        for _ in 0..100 {
            let reply = client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
            assert_eq!(reply.stage, "small");
        }
        let report: CertificateReport = next(&mut reports).await;
        assert_eq!((report.limit, report.cascades.len()), (1, 2));
        assert!(report.cascades.iter().all(|cascade| cascade.audited == 0));
        let counted = node.metrics().read();
        assert_eq!((counted.accepted, counted.answered), (100, 100));
        assert!(counted.faults.is_empty(), "{counted:?}");
        let page = node.metrics().text(app, &Gauges::default());
        assert!(
            page.contains("outcome=\"agree\"} 0") && !page.contains("outcome=\"failed\"} 0"),
            "{page}"
        );
    });
    node.stop();
}

/// Sends a request of that id.
async fn named(client: &Client, id: &str) {
    let request = InferRequest {
        inputs: ask(2.0, 9.0),
        ..InferRequest::default()
    };
    let mut headers = HeaderMap::new();
    headers::put_request_id(&mut headers, id).unwrap();
    client.ask(&request, headers, BUDGET).await.unwrap();
}

#[test]
fn labels_that_arrive_later_refute_a_certificate() {
    let app = "labelled";
    let (node, wrong, _) = service(app, all_audited());
    block_on(async {
        let mut found = certificate_events(&node, app).await;
        let client = Client::new(node.bus(), App::new(app).unwrap());
        let timeout = Duration::from_secs(5);
        let tell = |id: String, class: u64| {
            let client = client.clone();
            async move {
                client
                    .feedback(&id, FeedbackLabel::Class(class), timeout)
                    .await
                    .unwrap()
            }
        };
        named(&client, "right").await;
        let reply = tell("right".to_owned(), 2).await.unwrap();
        assert!(reply.right && reply.variant == "small", "{reply:?}");
        let quick = Duration::from_millis(100);
        for unknown in ["right", "never-asked"] {
            let reply = client
                .feedback(unknown, FeedbackLabel::Class(2), quick)
                .await
                .unwrap();
            assert_eq!(reply, None, "{unknown}");
        }
        let tell_text =
            async |id: String, text: String| client.feedback(&id, FeedbackLabel::Text(text), timeout).await;
        let error = tell_text("x".repeat(1_025), "sea".to_owned()).await.unwrap_err();
        assert!(error.message.contains("1 to 1024"), "{error}");
        let long = "n".repeat(node.bus().max_payload());
        let error = tell_text("right".to_owned(), long).await.unwrap_err();
        assert_eq!(error.code, Code::TooLarge, "{error}");
        wrong.store(true, Ordering::Relaxed);
        let asking = async {
            for number in 0_u64.. {
                let id = format!("wrong-{number}");
                named(&client, &id).await;
                // Right once the safer cascade answers, which may be before its notice is read.
                tell(id, 2).await.unwrap();
            }
        };
        let refuted: CertificateNotice = tokio::select! {
            () = asking => unreachable!(),
            refuted = next(&mut found) => refuted,
        };
        assert!(
            matches!(refuted.found, CertificateFinding::Refuted { from: 1, to: 0, .. }),
            "{refuted:?}"
        );
        let page = node.metrics().text(app, &Gauges::default());
        assert!(
            page.contains("kaskade_labels_total{app=\"labelled\",answer=\"right\"} 1"),
            "{page}"
        );
    });
    node.stop();
}

#[test]
fn the_audits_of_other_processes_reach_the_leader() {
    let app = "several";
    let config = |wrong: &Arc<AtomicBool>| {
        let wrong = Arc::clone(wrong);
        move |strength: f32| {
            let wrong = Arc::clone(&wrong);
            move || {
                Ok::<_, String>(Deceived {
                    model: Scripted {
                        strength,
                        run: Duration::ZERO,
                    },
                    wrong: Arc::clone(&wrong),
                    fails: Arc::default(),
                })
            }
        }
    };
    let (wrong, never) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let first = Service::new(app)
        .model("small", config(&wrong)(1.0))
        .model("medium", config(&never)(2.0))
        .model("large", config(&never)(4.0))
        .plan(plan(app))
        .ingress(all_audited())
        .start()
        .unwrap();
    // Ingresses alone; whichever of the three has the smallest id leads.
    let others: Vec<Node> = (0..2).map(|_| ingress_alone(app)).collect();
    wrong.store(true, Ordering::Relaxed);
    block_on(async {
        let mut found = certificate_events(&first, app).await;
        let client = Client::new(first.bus(), App::new(app).unwrap());
        let mut asked = 0;
        let refuted: CertificateNotice = until(&client, &mut found, &mut asked, |_| ()).await;
        assert!(matches!(
            refuted.found,
            CertificateFinding::Refuted { from: 1, to: 0, .. }
        ));
        // Every process follows the gear.
        for node in std::iter::once(&first).chain(&others) {
            let mut changes = node.plans().changes();
            while node.plans().current().unwrap().1 != 1 {
                assert!(changes.next().await);
            }
        }
    });
    others.into_iter().for_each(Node::stop);
    first.stop();
}

fn ingress_alone(app: &str) -> Node {
    Node::start(kaskade_actors::NodeConfig {
        app: app.to_owned(),
        bus: kaskade_actors::bus::BusConfig::new(app),
        ingress: Some(all_audited()),
        worker: None,
        plan: None,
        planner: None,
        power: None,
        grace: Duration::from_secs(1),
    })
    .unwrap()
}

/// Says the same in its own words, with a confidence of 0.9.
struct Worded(&'static str);

impl Model for Worded {
    fn signature(&self) -> Signature {
        Scripted {
            strength: 1.0,
            run: Duration::ZERO,
        }
        .signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let outputs = vec![
            Tensor::from_texts("text", &[self.0]).unwrap(),
            Tensor::from_f32("confidence", &[1], &[0.9]).unwrap(),
        ];
        batch.iter().map(|_| Ok(outputs.clone())).collect()
    }
}

#[test]
fn texts_are_audited_and_labelled_by_the_metric_of_the_plan() {
    let app = "worded";
    let mut plan = plan(app);
    plan.certified.as_mut().unwrap().texts = Some(TextComparison {
        metric: Metric::F1,
        min_score: 0.5,
    });
    for variant in &mut plan.variants {
        variant.calibration = Some(Calibration {
            estimator: Estimator::Given,
            temperature: 1.0,
        });
    }
    let model = |text: &'static str| move || Ok::<_, String>(Worded(text));
    let node = Service::new(app)
        .model("small", model("a green lighthouse"))
        .model("medium", model("unused"))
        .model("large", model("The lighthouse."))
        .plan(plan)
        .ingress(all_audited())
        .start()
        .unwrap();
    block_on(async {
        let mut reports = events(&node, app, "certificate_status").await;
        let client = Client::new(node.bus(), App::new(app).unwrap());
        named(&client, "right").await;
        named(&client, "wrong").await;
        let tell = |id: &'static str, text: &str| {
            let label = FeedbackLabel::Text(text.to_owned());
            let client = client.clone();
            async move { client.feedback(id, label, BUDGET).await.unwrap().unwrap().right }
        };
        assert!(tell("right", "lighthouse").await);
        assert!(!tell("wrong", "a ship").await);
        loop {
            let report: CertificateReport = next(&mut reports).await;
            if report.cascades[1].audited >= 2 {
                break;
            }
        }
        let page = node.metrics().text(app, &Gauges::default());
        assert!(page.contains("outcome=\"differ\"} 0"), "{page}");
    });
    node.stop();
}

/// The names came from answers alone, so that a misspelt one counted as a wrong answer. Here the worker is another process.
#[test]
fn a_label_that_names_no_class_is_refused_by_an_ingress_without_models() {
    let app = "named";
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let bus = || BusConfig::new(app).embedded(&embedded);
    let labels = ["calm", "rain", "snow", "storm"].map(str::to_owned).to_vec();
    let model = move |strength: f32| {
        let labels = labels.clone();
        move || {
            let run = Duration::ZERO;
            let outputs = Vec::new();
            let labels = labels.clone();
            Ok::<_, String>(Described::new(
                Box::new(Scripted { strength, run }),
                Answers { outputs, labels },
            ))
        }
    };
    let worker = Service::new(app)
        .model("small", model(1.0))
        .model("medium", model(2.0))
        .model("large", model(4.0))
        .plan(plan(app))
        .ingress(None)
        .bus(bus())
        .start()
        .unwrap();
    let other = WorkerConfig {
        name: "other".to_owned(),
        ..WorkerConfig::default()
    };
    let ingress = Service::new(app).worker(other).bus(bus()).start().unwrap();
    block_on(async {
        let client = Client::new(ingress.bus(), App::new(app).unwrap());
        named(&client, "mine").await;
        let tell = |label: &'static str| {
            let client = client.clone();
            async move {
                let label = FeedbackLabel::Text(label.to_owned());
                client.feedback("mine", label, BUDGET).await.unwrap()
            }
        };
        // The ingress learns the names from one of the worker's next heartbeats.
        kaskade_testkit::eventually("the names are known", BUDGET, async || {
            let refused = tell("snwo").await.unwrap().refused.unwrap();
            refused.contains("is it `snow`?")
        })
        .await;
        let told = tell("snow").await.unwrap();
        assert!(
            told.right && !told.unchecked && told.refused.is_none(),
            "{told:?}"
        );
    });
    ingress.stop();
    worker.stop();
}
