//! Tests of a node whose core tasks fail.

use bytes::Bytes;
use kaskade_models::{
    Continuous, Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Progress, Signature, Tensor,
};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{NatsOptions, NatsServer, wait_until};

use super::*;
use crate::bus::BusConfig;
use crate::client::Client;
use crate::control::planner::PlannerConfig;
use crate::control::replan_trigger::ReplanTrigger;
use crate::dispatch::subscribe;
use crate::error::Code;
use crate::ingress::durable::DurableConfig;
use crate::ingress::{IngressConfig, PANICS};
use crate::node::service::Service;
use crate::ops::health::NotReady;
use crate::stage::worker::{Loader, WorkerConfig};
use crate::stage::{batcher, generator};
use crate::subjects::App;
use crate::wire::headers;

const TIMEOUT: Duration = Duration::from_secs(20);

struct Constant;

impl Model for Constant {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(1)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let one = |_| Ok(vec![Tensor::from_f32("logits", &[2], &[0.0, 1.0])?]);
        batch.iter().map(one).collect()
    }
}

/// A model that answers every request in one step.
#[derive(Default)]
struct OneStep(Vec<u64>);

impl Model for OneStep {
    fn signature(&self) -> Signature {
        Constant.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        Constant.run(batch)
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

impl Continuous for OneStep {
    fn submit(&mut self, number: u64, _: &Inputs) -> Result<(), ModelError> {
        self.0.push(number);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.0.retain(|other| *other != number);
    }

    fn step(&mut self) -> Vec<Progress> {
        let ended = |number| Progress {
            number,
            pieces: 1,
            part: Outputs::new(),
            end: Constant.run(&[Inputs::new()]).pop(),
        };
        std::mem::take(&mut self.0).into_iter().map(ended).collect()
    }
}

fn start(app: &str) -> Node {
    Service::new(app)
        .model("only", || Ok::<_, String>(Constant))
        .start()
        .unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn an_ingress_that_panics_ends_its_node_and_takes_no_more_requests() {
    let app = App::new("supervised").unwrap();
    let node = start(app.name());
    let health = node.health().clone();
    runtime().block_on(async {
        let bus = Bus::connect(BusConfig::new(app.name()).url(node.bus().url()))
            .await
            .unwrap();
        let client = Client::new(&bus, app.clone());
        let ask = || client.infer(vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()], TIMEOUT);
        ask().await.unwrap();
        assert_eq!(health.live().await, Ok(()));
        let mut cancel = async_nats::HeaderMap::new();
        headers::put_request_id(&mut cancel, PANICS).unwrap();
        bus.publish(app.cancel(), None, Some(cancel), Bytes::new())
            .await
            .unwrap();
        let failure = tokio::time::timeout(TIMEOUT, node.failure()).await.unwrap();
        assert!(
            matches!(failure, NodeError::Ended { task: "ingress" }),
            "{failure}"
        );
        assert_eq!(health.live().await, Err(NotReady::Ended { task: "ingress" }));
        // No request is dropped silently: the pump refuses it, or the server finds no subscriber.
        let refused = ask().await.unwrap_err();
        assert!(
            matches!(
                refused.code,
                Code::Draining | Code::UnknownApp | Code::Unavailable
            ),
            "{refused}"
        );
    });
    wait_until("the node's thread ends", TIMEOUT, || {
        node.thread.as_ref().is_some_and(thread::JoinHandle::is_finished)
    });
    node.stop();
}

#[test]
fn a_node_whose_connection_is_closed_is_not_live_and_ends() {
    let node = start("closed-connection");
    let health = node.health().clone();
    runtime().block_on(async {
        assert_eq!(health.live().await, Ok(()));
        node.bus().close().await;
        tokio::time::timeout(TIMEOUT, node.failure()).await.unwrap();
        assert!(matches!(
            health.live().await,
            Err(NotReady::Ended { .. } | NotReady::Closed { .. })
        ));
    });
    wait_until("the node's thread ends", TIMEOUT, || {
        node.thread.as_ref().is_some_and(thread::JoinHandle::is_finished)
    });
}

#[test]
fn a_node_that_is_stopped_has_not_failed() {
    let node = start("stopped-well");
    let supervisor = node.dispatcher().supervisor().clone();
    node.stop();
    assert_eq!(supervisor.ended_task(), None);
}

/// Makes a part of a node's replica panic. The request that causes the panic ends at once, and the node ends.
fn ends_with(task: &'static str, node: &Node, app: &str) {
    let app = App::new(app).unwrap();
    let supervisor = node.dispatcher().supervisor().clone();
    let replica = node.plans().newest().unwrap().plan.placement[0].id.clone();
    runtime().block_on(async {
        let bus = Bus::connect(BusConfig::new(app.name()).url(node.bus().url()))
            .await
            .unwrap();
        let client = Client::new(&bus, app.clone());
        let ask = || client.infer(vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()], TIMEOUT);
        ask().await.unwrap();
        supervisor.make_panic(task);
        if task == subscribe::TASK {
            // Requests of the same process would bypass the subscription.
            let subject = app.replica(&replica).unwrap();
            bus.publish(subject, None, None, Bytes::new()).await.unwrap();
        } else {
            let failed = ask().await.unwrap_err();
            assert_ne!(failed.code, Code::Expired, "{failed}");
        }
        let failure = tokio::time::timeout(TIMEOUT, node.failure()).await.unwrap();
        assert!(
            matches!(failure, NodeError::Ended { task: ended } if ended == task),
            "{failure}"
        );
    });
    wait_until("the node's thread ends", TIMEOUT, || {
        node.thread.as_ref().is_some_and(thread::JoinHandle::is_finished)
    });
}

#[test]
fn a_batcher_that_panics_ends_its_node() {
    ends_with(batcher::TASK, &start("panicking-batcher"), "panicking-batcher");
}

#[test]
fn a_subscription_of_a_replica_that_panics_ends_its_node() {
    ends_with(
        subscribe::TASK,
        &start("panicking-subscription"),
        "panicking-subscription",
    );
}

#[test]
fn a_generator_that_panics_ends_its_node() {
    let node = Service::new("panicking-generator")
        .model("only", || Ok::<_, String>(OneStep::default()))
        .start()
        .unwrap();
    ends_with(generator::TASK, &node, "panicking-generator");
}

/// Starts a node with all optional parts and two shards.
fn whole(app: &str, server: &NatsServer) -> Node {
    let plan = Plan::cascade(app)
        .stage("only", "only")
        .worker("w")
        .build()
        .unwrap();
    let loader: Loader = Arc::new(|_| Ok(Box::new(Constant) as Box<dyn Model>));
    let worker = WorkerConfig {
        name: "w".to_owned(),
        queue_capacity: 16,
        ..WorkerConfig::default()
    };
    let config = NodeConfig {
        app: app.to_owned(),
        bus: BusConfig::new(app).url(server.url()),
        ingress: Some(IngressConfig {
            durable: Some(DurableConfig::default()),
            ..IngressConfig::default()
        }),
        worker: Some((worker, loader)),
        plan: Some(plan),
        planner: Some(PlannerConfig {
            planning: Arc::new(|_, _| Err("no plan".to_owned())),
            limit: TIMEOUT,
            replan_on_load_drift: true,
            trigger: ReplanTrigger::OnRequest,
        }),
        power: None,
        grace: Duration::ZERO,
    };
    Node::start_sharded(config, NonZeroUsize::MIN.saturating_add(1)).unwrap()
}

#[test]
fn any_core_task_that_panics_ends_its_node() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = whole("panicking-0", &server);
    // Without progress notices, which end with the intake, no durable requests are accepted.
    let mut tasks = node.dispatcher().supervisor().core_tasks();
    tasks.insert("progress of durable requests");
    node.stop();
    for task in [
        "durable requests",
        "publisher",
        "subscription to requests",
        "subscription to results",
        "state of the ingress",
        "subscriptions of the planner",
    ] {
        assert!(tasks.contains(task), "{task} is none of {tasks:?}");
    }
    for (number, task) in (1..).zip(tasks) {
        let node = whole(&format!("panicking-{number}"), &server);
        let health = node.health().clone();
        node.dispatcher().supervisor().make_panic(task);
        runtime().block_on(async {
            let failure = tokio::time::timeout(TIMEOUT, node.failure()).await;
            let failure = failure.unwrap_or_else(|_| panic!("the node outlives its task `{task}`"));
            assert!(
                matches!(failure, NodeError::Ended { task: ended } if ended == task),
                "{task}: {failure}"
            );
            assert_eq!(health.live().await, Err(NotReady::Ended { task }));
        });
        node.stop();
    }
}
