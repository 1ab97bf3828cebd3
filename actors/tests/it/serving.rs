//! A cascade served over the embedded broker: results, refusals, and one terminal reply for everything.

use std::{num::NonZeroU32, time::Duration};

use crate::common::{BUDGET, EMPTY, FAIL, NAN, PANIC, Scripted, ask, cascade, label, service};
use crate::health::held;
use bytes::Bytes;
use futures::StreamExt;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::wire::EnergyReport;
use kaskade_actors::wire::{ContentType, headers};
use kaskade_actors::{App, Client, Code, Node, NodeConfig, Service, wire};
use kaskade_models::power::SourceKind;
use kaskade_models::{DeviceChoice, PowerConfig, PowerMeter, Tensor, device};
use kaskade_policy::plan::{Batching, Plan};
use kaskade_testkit::TIMEOUT;

fn client(node: &Node, app: &str) -> Client {
    Client::new(node.bus(), App::new(app).unwrap())
}

/// Runs the test with a client of a started node, and returns the node.
fn with<F: Future<Output = ()>>(service: Service, app: &str, test: impl FnOnce(Client) -> F) -> Node {
    let node = service.start().unwrap();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test(client(&node, app)));
    node
}

#[test]
fn confident_answers_exit_early_and_others_escalate_or_skip() {
    let node = with(service("cascade"), "cascade", |client| async move {
        let stages = |margin: f32| {
            let client = client.clone();
            async move {
                let reply = client.infer(ask(2.0, margin), BUDGET).await.unwrap();
                assert_eq!(label(&reply.outputs), 2);
                (
                    reply.stage.clone(),
                    reply.hops.iter().map(|hop| hop.stage.clone()).collect::<Vec<_>>(),
                )
            }
        };
        // softmax of one leading logit m over four classes, squared: 0.58 at m = 2.3, 0.44 at 1.8, 0.11 at 0.
        assert_eq!(stages(4.0).await, ("small".into(), vec!["small".into()]));
        assert_eq!(
            stages(1.8).await,
            ("medium".into(), vec!["small".into(), "medium".into()])
        );
        assert_eq!(
            stages(0.3).await,
            ("large".into(), vec!["small".into(), "large".into()])
        );
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (3, 3));
    assert_eq!(counted.variants["small"].requests, 3);
    node.stop();
}

#[test]
fn a_reply_carries_its_confidence() {
    with(service("confident"), "confident", |client| async move {
        let reply = client.infer(ask(1.0, 4.0), BUDGET).await.unwrap();
        let p = f64::from(4.0_f32).exp() / (f64::from(4.0_f32).exp() + 3.0);
        assert!((reply.confidence.unwrap() - p * p).abs() < 1e-6);
        assert_eq!(reply.variant, "small");
    });
}

#[test]
fn misbehaving_models_cause_typed_errors_and_keep_serving() {
    with(service("faulty"), "faulty", |client| async move {
        for (special, code) in [
            (NAN, Code::BadOutput),
            (PANIC, Code::ModelFailed),
            (FAIL, Code::ModelFailed),
            (EMPTY, Code::BadOutput),
        ] {
            let fault = client.infer(ask(special, 1.0), BUDGET).await.unwrap_err();
            assert_eq!(fault.code, code, "{fault}");
            assert!(
                client.infer(ask(1.0, 4.0), BUDGET).await.is_ok(),
                "after {code:?}"
            );
        }
    });
}

#[test]
fn wrong_inputs_are_refused_by_code() {
    with(service("inputs"), "inputs", |client| async move {
        let wrong = [
            vec![Tensor::from_f32("x", &[3], &[0.0; 3]).unwrap()],
            vec![Tensor::from_f32("y", &[2], &[0.0; 2]).unwrap()],
            vec![Tensor::from_f32("x", &[2], &[f32::NAN, 0.0]).unwrap()],
            vec![Tensor::from_i64("x", &[2], &[1, 2]).unwrap()],
            Vec::new(),
        ];
        for inputs in wrong {
            let fault = client.infer(inputs, BUDGET).await.unwrap_err();
            assert_eq!(fault.code, Code::InvalidInput, "{fault}");
        }
    });
}

#[test]
fn malformed_bodies_get_a_typed_error() {
    let node = service("bodies").start().unwrap();
    let nats = node.bus().client().clone();
    let deep = [vec![0x91; 10_000], vec![0xc0]].concat();
    let huge = vec![0xdf, 0xff, 0xff, 0xff, 0xff];
    let bodies = [
        Vec::new(),
        vec![0xc1],
        b"not a map".to_vec(),
        deep,
        huge,
        vec![0x81, 0xa6],
    ];
    block_on(async {
        for body in bodies {
            let reply = nats
                .request("kaskade.bodies.infer", Bytes::from(body))
                .await
                .unwrap();
            let fault = headers::fault(reply.headers.as_ref()).unwrap();
            assert_eq!(fault.code, Code::Malformed, "{fault}");
            assert_eq!(
                reply
                    .headers
                    .unwrap()
                    .get("Nats-Service-Error-Code")
                    .unwrap()
                    .as_str(),
                "400"
            );
        }
        let mut bad_budget = async_nats::HeaderMap::new();
        bad_budget.insert("Kaskade-Budget-Us", "-5");
        let reply = nats
            .request_with_headers("kaskade.bodies.infer", bad_budget, Bytes::new())
            .await
            .unwrap();
        assert_eq!(
            headers::fault(reply.headers.as_ref()).unwrap().code,
            Code::Malformed
        );
    });
    node.stop();
}

#[test]
fn the_ingress_accepts_json() {
    let node = service("json").start().unwrap();
    let nats = node.bus().client().clone();
    block_on(async {
        let body = r#"{"id":"a1","inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[3.0,5.0]}]}"#;
        let headers = headers::for_body(ContentType::Json);
        let reply = nats
            .request_with_headers("kaskade.json.infer", headers, body.into())
            .await
            .unwrap();
        let json: serde_json::Value = serde_json::from_slice(&reply.payload).unwrap();
        assert_eq!(json["id"], "a1");
        assert_eq!(json["model_name"], "small");
        assert_eq!(json["outputs"][0]["data"][3], 5.0);
    });
    node.stop();
}

#[test]
fn a_message_over_max_payload_is_refused_with_both_sizes() {
    with(service("oversize"), "oversize", |client| async move {
        let huge = vec![Tensor::from_f32("x", &[3 << 20], &vec![0.0; 3 << 20]).unwrap()];
        let fault = client.infer(huge, BUDGET).await.unwrap_err();
        assert_eq!(fault.code, Code::TooLarge);
        assert!(fault.message.contains("12582"), "{fault}");
        assert!(client.infer(ask(1.0, 4.0), BUDGET).await.is_ok());
    });
}

#[test]
fn a_request_to_an_unserved_app_fails_at_once() {
    let node = with(service("known"), "unknown", |client| async move {
        let fault = client.infer(ask(1.0, 4.0), BUDGET).await.unwrap_err();
        assert_eq!(fault.code, Code::UnknownApp, "{fault}");
    });
    node.stop();
}

#[test]
fn a_spent_budget_is_refused_and_a_short_one_expires_in_time() {
    let (slow, begins, let_go) = held("slow");
    let node = slow.start().unwrap();
    let client = client(&node, "slow");
    let expired = || {
        let faults = node.metrics().read().faults;
        faults.get("KSK0005").copied().unwrap_or_default()
    };
    block_on(async {
        let fault = client.infer(ask(1.0, 4.0), Duration::ZERO).await.unwrap_err();
        assert_eq!(fault.code, Code::Expired, "{fault}");
        let before = expired();
        let request = wire::InferRequest {
            inputs: ask(1.0, 4.0),
            ..Default::default()
        };
        // Longer than a busy machine stalls: the model begins within it.
        let mut budget = async_nats::HeaderMap::new();
        headers::put_budget(&mut budget, Duration::from_secs(2));
        // A client ends by itself, soon after the budget.
        let message = async_nats::Request::new()
            .headers(budget)
            .payload(wire::Message::encode(&request).unwrap())
            .timeout(Some(TIMEOUT));
        let nats = node.bus().client();
        let reply = nats.send_request("kaskade.slow.infer", message).await.unwrap();
        let fault = headers::fault(reply.headers.as_ref()).unwrap();
        assert_eq!(fault.code, Code::Expired, "{fault}");
        assert_eq!(expired(), before + 1, "it is counted");
        assert!(
            begins.try_recv().is_ok(),
            "the model runs, until the test ends it"
        );
    });
    let_go.send(()).unwrap();
    node.stop();
}

#[test]
fn overload_is_refused_at_once_and_every_request_gets_one_reply() {
    let limits = IngressConfig {
        max_in_flight: 16,
        ..IngressConfig::default()
    };
    let service = Service::new("flood")
        .ingress(limits)
        .batching(Batching {
            min_queue: 1,
            max_batch: 4,
            max_wait_us: 1_000,
        })
        .replicas(NonZeroU32::MIN)
        .model("slow", || {
            Ok::<_, String>(Scripted {
                strength: 1.0,
                run: Duration::from_millis(20),
            })
        });
    let node = service.start().unwrap();
    let nats = node.bus().client().clone();
    let total = 200_u64;
    block_on(async {
        let inbox = nats.new_inbox();
        let mut replies = nats.subscribe(inbox.clone()).await.unwrap();
        let request = wire::InferRequest {
            inputs: ask(1.0, 4.0),
            ..Default::default()
        };
        let body = wire::Message::encode(&request).unwrap();
        for _ in 0..total {
            nats.publish_with_reply("kaskade.flood.infer", inbox.clone(), body.clone())
                .await
                .unwrap();
        }
        let (mut answered, mut refused) = (0, 0);
        while answered + refused < total {
            let reply = tokio::time::timeout(BUDGET, replies.next())
                .await
                .expect("a reply is missing")
                .unwrap();
            match headers::fault(reply.headers.as_ref()) {
                None => answered += 1,
                Some(fault) => {
                    assert_eq!(fault.code, Code::Overloaded, "{fault}");
                    refused += 1;
                }
            }
        }
        assert!(answered >= 16, "accepted requests are answered: {answered}");
        assert!(refused > 0);
        let more = tokio::time::timeout(Duration::from_millis(200), replies.next()).await;
        assert!(more.is_err(), "a request was answered twice");
    });
    let counted = node.metrics().read();
    assert_eq!(counted.answered + counted.faults.values().sum::<u64>(), total);
    node.stop();
}

#[test]
fn goodput_stays_level_at_four_times_the_load() {
    const BATCH: u32 = 4;
    let run = Duration::from_millis(20);
    let capacity = f64::from(BATCH) / run.as_secs_f64();
    let budget = Duration::from_millis(400);
    let service = Service::new("level")
        .batching(Batching {
            min_queue: 1,
            max_batch: BATCH,
            max_wait_us: 1_000,
        })
        .model("slow", move || Ok::<_, String>(Scripted { strength: 1.0, run }));
    let node = service.start().unwrap();
    // What the service refuses is counted, so each request is sent once.
    let client = client(&node, "level").retry(false);
    let length = Duration::from_secs(3);
    let (mut good, mut refused) = (0.0, 0);
    block_on(async {
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / (4.0 * capacity)));
        let end = tokio::time::Instant::now() + length;
        let mut asked = Vec::new();
        while tokio::time::Instant::now() < end {
            pace.tick().await;
            let client = client.clone();
            asked.push(tokio::spawn(
                async move { client.infer(ask(1.0, 4.0), budget).await },
            ));
        }
        for reply in asked {
            match reply.await.unwrap() {
                Ok(_) => good += 1.0,
                Err(fault) => {
                    assert!(matches!(fault.code, Code::Overloaded | Code::Expired), "{fault}");
                    refused += 1;
                }
            }
        }
    });
    let share = good / (capacity * length.as_secs_f64());
    assert!(refused > 0, "four times the load cannot all be served");
    assert!(share > 0.6, "goodput fell to {share:.2} of what the model can do");
    node.stop();
}

#[test]
fn joules_per_request_are_published_with_their_source() {
    let config = PowerConfig {
        sources: vec![SourceKind::Modelled],
        ..PowerConfig::default()
    };
    let device = device::describe(DeviceChoice::Cpu, &device::open(DeviceChoice::Cpu).unwrap());
    let power = PowerMeter::detect(&config, &device).unwrap();
    let node = service("metered").power(power).start().unwrap();
    let client = client(&node, "metered");
    let nats = node.bus().client().clone();
    block_on(async {
        let mut events = nats.subscribe("kaskade.metered.event.energy").await.unwrap();
        client.infer(ask(1.0, 4.0), BUDGET).await.unwrap();
        let report = loop {
            let event = tokio::time::timeout(BUDGET, events.next())
                .await
                .unwrap()
                .unwrap();
            let report: EnergyReport = wire::Message::decode(&event.payload).unwrap();
            if report.requests > 0 {
                break report;
            }
        };
        assert!(report.source.contains("modelled"), "{report:?}");
        assert!(
            report.joules_per_request.unwrap() > 0.0 && report.wall_s > 0.0,
            "{report:?}"
        );
        let model = &report.models["small"];
        assert_eq!((model.requests, model.batches), (1, 1), "{report:?}");
        // Only one model was busy: it used all of the energy.
        let (its, all) = (model.joules.unwrap(), report.joules.unwrap());
        assert!((its - all).abs() <= 1e-9 * all, "{report:?}");
        assert_eq!(node.energy().await.unwrap().requests, 1);
        let told = node.metrics().read().energy.unwrap();
        assert_eq!(told.source, report.source);
    });
    node.stop();
}

#[test]
fn a_cascade_without_calibration_refuses_to_start() {
    let mut plan = crate::common::cascade("uncalibrated");
    plan.variants[1].calibration = None;
    let error = service("uncalibrated")
        .plan(plan)
        .start()
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("medium") && error.contains("calibration"),
        "{error}"
    );
}

#[test]
fn a_model_that_does_not_load_is_named_and_nothing_keeps_running() {
    let broken = Service::new("broken").model("absent", || Err::<Scripted, _>("no such file"));
    let error = broken.start().err().unwrap().to_string();
    assert!(
        error.contains("absent-0") && error.contains("no such file"),
        "{error}"
    );
}

#[test]
fn a_new_plan_is_adopted_and_an_invalid_one_is_refused() {
    let node = service("replanned").start().unwrap();
    let client = client(&node, "replanned");
    let stage = |margin: f32| block_on(client.infer(ask(1.0, margin), BUDGET)).unwrap().stage;
    assert_eq!(stage(4.0), "small");
    let (running, _) = node.plans().current().unwrap();

    let mut broken = crate::common::cascade("replanned");
    broken.gears[0].wiring.entry = kaskade_policy::plan::Edge::to("nowhere");
    assert!(node.plans().adopt(running.epoch + 1, broken).is_err());
    assert_eq!(stage(4.0), "small");

    let mut large = crate::common::cascade("replanned");
    large.gears[0].wiring.entry = kaskade_policy::plan::Edge::to("large");
    assert!(
        node.plans().adopt(running.epoch, large.clone()).is_err(),
        "an epoch is adopted once"
    );
    let next = running.epoch + 1;
    node.plans().adopt(next, large).unwrap();
    kaskade_testkit::wait_until("the plan is in place", BUDGET, || {
        node.plans().current().unwrap().0.epoch == next
    });
    assert_eq!(stage(4.0), "large");
    node.stop();
}

#[test]
fn draining_answers_every_accepted_request() {
    let slow = Service::new("drain")
        .batching(Batching {
            min_queue: 1,
            max_batch: 1,
            max_wait_us: 0,
        })
        .model("slow", || {
            Ok::<_, String>(Scripted {
                strength: 1.0,
                run: Duration::from_millis(30),
            })
        });
    let node = slow.start().unwrap();
    let client = client(&node, "drain");
    block_on(async {
        let asked: Vec<_> = (0..10)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.infer(ask(1.0, 4.0), BUDGET).await })
            })
            .collect();
        while node.metrics().read().accepted < 10 {
            tokio::task::yield_now().await;
        }
        let stopping = tokio::task::spawn_blocking(move || node.stop());
        for reply in asked {
            assert!(reply.await.unwrap().is_ok());
        }
        stopping.await.unwrap();
    });
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// The cascade with all models but the smallest on a missing worker.
fn without_larger_models(app: &str) -> Plan {
    let mut plan = cascade(app);
    for replica in &mut plan.placement {
        if replica.variant != "small" {
            replica.worker = "gone".into();
        }
    }
    plan
}

async fn answered_by_the_smallest(client: &Client) {
    let sure = client.infer(ask(2.0, 9.0), BUDGET).await.unwrap();
    assert!(!sure.degraded);
    let unsure = client.infer(ask(2.0, 0.1), BUDGET).await.unwrap();
    assert_eq!((label(&unsure.outputs), unsure.stage.as_str()), (2, "small"));
    assert!(unsure.degraded, "a larger model should have answered");
}

#[test]
fn without_the_larger_models_the_small_answer_is_flagged_as_degraded() {
    let node = with(
        service("degrading").plan(without_larger_models("degrading")),
        "degrading",
        |client| async move { answered_by_the_smallest(&client).await },
    );
    node.stop();
}

/// The broker reports "no responders" to the connection of the router, which here is not the one of the ingress.
#[test]
fn without_the_larger_models_a_remote_ingress_flags_degraded_answers_too() {
    let app = "degrading-apart";
    let worker = service(app)
        .plan(without_larger_models(app))
        .ingress(None)
        .start()
        .unwrap();
    let ingress = Node::start(NodeConfig {
        app: app.to_owned(),
        bus: BusConfig::new(app),
        ingress: Some(IngressConfig::default()),
        worker: None,
        plan: Some(without_larger_models(app)),
        planner: None,
        power: None,
        grace: Duration::ZERO,
    })
    .unwrap();
    let client = client(&ingress, app);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(answered_by_the_smallest(&client));
    ingress.stop();
    worker.stop();
}
