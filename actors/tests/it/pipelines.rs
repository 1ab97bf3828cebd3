//! Pipelines over a real bus: one request fans out, and its one reply holds the result of each branch.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common::{
    BUDGET, FAIL, Scripted,
    gears::{TIMEOUT, block_on},
    label,
};
use futures::future::join_all;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::wire::InferReply;
use kaskade_actors::{App, Client, Code, Service};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::plan::{
    Batching, Child, Dropping, Edge, Exit, Plan, PlannedVariant, Profiled, Replica, Stage, Wiring,
};

/// Finds the objects in its input: each label becomes a request to `classify`.
struct Finder;

impl Model for Finder {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required(
                "labels",
                Datatype::F32,
                vec![Extent::UpTo(16)],
            )],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| Self::find(&inputs[0])).collect()
    }
}

impl Finder {
    fn find(labels: &Tensor) -> Result<Outputs, ModelError> {
        let labels: Vec<f32> = labels
            .to_f32()?
            .into_iter()
            .filter(|label| *label < 9.0)
            .collect();
        let count = labels.len();
        let mut outputs = vec![Tensor::from_f32("count", &[1], &[count as f32])?];
        if count > 0 {
            let items: Vec<f32> = labels.into_iter().flat_map(|label| [label, 4.0]).collect();
            outputs.push(Tensor::from_f32("classify/x", &[count, 2], &items)?);
        }
        Ok(outputs)
    }
}

fn find(labels: &[f32]) -> Vec<Tensor> {
    // 9 is above all labels and ignored; it keeps the input from being empty.
    let labels: Vec<f32> = labels.iter().copied().chain([9.0]).collect();
    vec![Tensor::from_f32("labels", &[labels.len()], &labels).unwrap()]
}

/// Variant, accuracy, and execution time in microseconds, as if profiled.
const PROFILED: [(&str, f64, u64); 3] = [
    ("finder", 0.8, 2_000),
    ("accurate", 0.9, 5_000),
    ("quick", 0.7, 1_000),
];

fn stage(task: &str, variant: &str, exit: Exit) -> Stage {
    let profiled = PROFILED.iter().find(|(name, ..)| *name == variant);
    Stage {
        score: None,
        name: format!("{task}-{variant}"),
        task: Some(task.into()),
        variant: variant.into(),
        partition: None,
        exit,
        batching: Batching {
            max_wait_us: 500,
            ..Batching::default()
        },
        budget_us: None,
        profiled: profiled.map(|(_, accuracy, run_us)| Profiled {
            run_us: *run_us,
            accuracy: *accuracy,
        }),
    }
}

/// `find`, then `classify` by two variants: the accurate one gets every request, the fast one is its backup.
pub(crate) fn pipeline(app: &str, worker: impl Fn(&str) -> String) -> Plan {
    let classify = Edge {
        shares: BTreeMap::from([("accurate-0".into(), 1.0)]),
        backup: vec!["quick-0".into()],
        ..Edge::to("classify-accurate")
    };
    let children = vec![Child {
        to: classify,
        multiplicity: 3.0,
    }];
    let names = ["finder", "accurate", "quick"];
    Plan {
        made_by: "test".into(),
        ..Plan::one_gear(
            app,
            names
                .map(|name| PlannedVariant {
                    name: name.into(),
                    calibration: None,
                })
                .to_vec(),
            names
                .map(|name| Replica {
                    id: format!("{name}-0"),
                    variant: name.into(),
                    worker: worker(name),
                    device: "cpu".into(),
                    partition: None,
                    checkpoint: None,
                })
                .to_vec(),
            Wiring {
                entry: Edge {
                    shares: BTreeMap::from([("finder-0".into(), 1.0)]),
                    ..Edge::to("find-finder")
                },
                ensemble: Vec::new(),
                stages: vec![
                    stage("find", "finder", Exit::FanOut { children }),
                    stage("classify", "accurate", Exit::Reply),
                    stage("classify", "quick", Exit::Reply),
                ],
            },
        )
    }
}

fn local(app: &str) -> Plan {
    pipeline(app, |_| kaskade_actors::node::service::SOLE_WORKER.to_owned())
}

fn service(app: &str, plan: Plan) -> Service {
    let classifier = || Scripted {
        strength: 1.0,
        run: Duration::ZERO,
    };
    Service::new(app)
        .plan(plan)
        .model("finder", || Ok::<_, String>(Finder))
        .model("accurate", move || Ok::<_, String>(classifier()))
        .model("quick", move || Ok::<_, String>(classifier()))
}

/// Branch, stage, and label or error code of each branch.
fn results(reply: &InferReply) -> Vec<(String, &str, String)> {
    let branches = reply.branches.iter().map(|branch| {
        let end = branch.error.as_ref().map_or_else(
            || label(&branch.outputs).to_string(),
            |fault| fault.code.id().to_owned(),
        );
        (branch.branch.to_string(), branch.stage.as_str(), end)
    });
    branches.collect()
}

#[test]
fn one_request_fans_out_and_its_reply_holds_every_branch() {
    let node = service("tree", local("tree")).start().unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new("tree").unwrap());
        let reply = client.infer(find(&[3.0, 1.0, 2.0]), BUDGET).await.unwrap();
        let stage = "classify-accurate";
        let expected = [("classify.0", "3"), ("classify.1", "1"), ("classify.2", "2")];
        let expected = expected.map(|(branch, end)| (branch.to_owned(), stage, end.to_owned()));
        assert_eq!(results(&reply), expected);
        assert_eq!((reply.stage.as_str(), reply.degraded), ("find-finder", false));
        assert_eq!(reply.outputs.len(), 1, "the rows went to the children");
        assert_eq!(reply.outputs[0].to_f32().unwrap(), [3.0]);
        assert_eq!(reply.hops.len(), 4);
        let nothing = client.infer(find(&[]), BUDGET).await.unwrap();
        assert!(nothing.branches.is_empty() && !nothing.degraded);
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered, counted.stale), (2, 2, 0));
    let fan_outs = &counted.fan_outs["finder"];
    assert_eq!((fan_outs.requests, fan_outs.children["classify"]), (2, 3));
    node.stop();
}

#[test]
fn a_request_fails_only_if_all_of_its_branches_fail() {
    let node = service("fail", local("fail")).start().unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new("fail").unwrap());
        let reply = client.infer(find(&[1.0, FAIL]), BUDGET).await.unwrap();
        assert!(reply.degraded);
        let ends: Vec<String> = results(&reply).into_iter().map(|(.., end)| end).collect();
        assert_eq!(ends, ["1", "KSK0008"]);
        let fault = client.infer(find(&[FAIL, FAIL]), BUDGET).await.unwrap_err();
        assert_eq!(fault.code, Code::ModelFailed);
    });
    let counted = node.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (2, 1));
    assert_eq!(counted.faults, BTreeMap::from([("KSK0008".to_owned(), 1)]));
    node.stop();
}

/// The pipeline with a budget for each task.
fn late(app: &str, dropping: Dropping, budget_us: u64) -> Plan {
    let mut plan = local(app);
    plan.dropping = dropping;
    for stage in &mut plan.gears[0].wiring.stages {
        stage.budget_us = Some(budget_us);
    }
    plan
}

#[test]
fn late_requests_are_dropped_or_rerouted_to_a_faster_replica() {
    // Each run is an app of its own: a process that starts follows the plan that is stored.
    let ends = |app: &str, dropping, budget_us| {
        let node = service(app, late(app, dropping, budget_us)).start().unwrap();
        let reply = block_on(async {
            let client = Client::new(node.bus(), App::new(app).unwrap());
            client.infer(find(&[1.0]), BUDGET).await
        });
        node.stop();
        reply.map(|reply| results(&reply)[0].1.to_owned())
    };
    let generous = TIMEOUT.as_micros() as u64;
    assert_eq!(
        ends("late-generous", Dropping::Rerouting, generous).unwrap(),
        "classify-accurate"
    );
    let dropped = ends("late-per-task", Dropping::PerTask, 1).unwrap_err();
    assert_eq!(dropped.code, Code::Dropped);
    assert!(
        dropped.message.contains("longer at a task than its budget"),
        "{}",
        dropped.message
    );
    // The finder exceeds its budget; the backup is four milliseconds faster and makes up for it.
    assert_eq!(ends("late-none", Dropping::None, 1).unwrap(), "classify-accurate");
    match ends("late-rerouted", Dropping::Rerouting, 1) {
        Ok(stage) => assert_eq!(stage, "classify-quick"),
        Err(fault) => assert_eq!(
            fault.code,
            Code::Dropped,
            "a slow machine makes it later than four milliseconds"
        ),
    }
}

#[test]
fn branches_of_one_task_are_split_by_shares() {
    let mut plan = local("share");
    let Exit::FanOut { children } = &mut plan.gears[0].wiring.stages[0].exit else {
        panic!("the first stage fans out");
    };
    children[0].to.shares = BTreeMap::from([("accurate-0".into(), 0.5), ("quick-0".into(), 0.5)]);
    let node = service("share", plan).start().unwrap();
    block_on(async {
        let client = Client::new(node.bus(), App::new("share").unwrap());
        let reply = client.infer(find(&[1.0; 8]), BUDGET).await.unwrap();
        let quick = results(&reply)
            .iter()
            .filter(|(_, stage, _)| *stage == "classify-quick")
            .count();
        assert!((3..=5).contains(&quick), "{quick} of 8 at equal shares");
    });
    node.stop();
}

#[test]
fn requests_survive_the_loss_of_a_classifier() {
    let server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions {
        jetstream: true,
        ..kaskade_testkit::NatsOptions::default()
    });
    let plan = pipeline("loss", |name| {
        if name == "accurate" { "b" } else { "a" }.to_owned()
    });
    let node = |worker: &str, ingress: bool| {
        let bus = BusConfig {
            url: Some(server.url().clone()),
            ..BusConfig::new("loss")
        };
        let worker = WorkerConfig {
            name: worker.to_owned(),
            queue_capacity: 1024,
            ..WorkerConfig::default()
        };
        let service = service("loss", plan.clone()).bus(bus).worker(worker);
        let service = if ingress { service } else { service.ingress(None) };
        service.start().unwrap()
    };
    let lost = node("b", false);
    let ingress = node("a", true);
    let answered = Arc::new(AtomicU64::new(0));
    block_on(async {
        let client = Client::new(ingress.bus(), App::new("loss").unwrap());
        let asked = (0..60).map(|_| async {
            let reply = client.infer(find(&[1.0, 2.0]), BUDGET).await.unwrap();
            answered.fetch_add(1, Ordering::Relaxed);
            assert_eq!(reply.branches.len(), 2);
            assert!(!reply.degraded, "{reply:?}");
        });
        let losing = async {
            client.infer(find(&[1.0]), BUDGET).await.unwrap();
            tokio::task::spawn_blocking(move || drop(lost)).await.unwrap();
            // From here on the backup answers.
            let reply = client.infer(find(&[3.0]), BUDGET).await.unwrap();
            assert_eq!(results(&reply)[0].1, "classify-quick");
        };
        futures::future::join(join_all(asked), losing).await;
    });
    assert_eq!(answered.load(Ordering::Relaxed), 60);
    let counted = ingress.metrics().read();
    assert_eq!((counted.accepted, counted.answered), (62, 62));
    ingress.stop();
}
