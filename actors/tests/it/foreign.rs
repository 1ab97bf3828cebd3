//! Results of foreign stages: what a program of another vendor or language publishes is checked like any input.

use std::{collections::BTreeMap, time::Duration};

use crate::common::BUDGET;
use futures::StreamExt;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::wire::{Done, DoneResult, Message as _, StageRequest};
use kaskade_actors::{App, Client, Code, Fault, Node, Service};
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::gather::{Branch, MAX_BRANCHES};
use kaskade_policy::plan::Plan;
use kaskade_testkit::PATIENCE;

/// The worker of replicas that no process of the tests hosts.
const ELSEWHERE: &str = "elsewhere";

/// One stage that only foreign programs serve.
fn one_stage(app: &str) -> Plan {
    Plan::cascade(app)
        .stage("only", "foreign")
        .worker(ELSEWHERE)
        .build()
        .unwrap()
}

/// An app without workers: the test plays the foreign stages with a plain NATS client.
pub(crate) struct Foreign {
    pub(crate) node: Node,
    pub(crate) app: App,
    pub(crate) client: Client,
}

impl Foreign {
    pub(crate) fn start(name: &str, plan: Plan) -> Self {
        let node = Service::new(name)
            .plan(plan)
            .bus(BusConfig::new(name))
            .start()
            .unwrap();
        let app = App::new(name).unwrap();
        let client = Client::new(node.bus(), app.clone());
        Self { node, app, client }
    }

    /// Serves `stage`: `answer` makes the body of each reply, which goes to the reply subject of the request.
    pub(crate) async fn serve(
        &self,
        stage: &str,
        answer: impl Fn(StageRequest) -> Vec<u8> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let nats = self.node.bus().client().clone();
        let mut requests = nats
            .queue_subscribe(self.app.stage(stage).unwrap(), "q".into())
            .await
            .unwrap();
        self.node.bus().barrier().await.unwrap();
        tokio::spawn(async move {
            while let Some(message) = requests.next().await {
                let (Some(reply), Ok(request)) = (message.reply, StageRequest::decode(&message.payload))
                else {
                    continue;
                };
                nats.publish(reply, answer(request).into()).await.unwrap();
            }
        })
    }

    pub(crate) async fn ask(&self, budget: Duration) -> Result<kaskade_actors::wire::InferReply, Fault> {
        let inputs = vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()];
        self.client.infer(inputs, budget).await
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// The body of a result with these outputs.
pub(crate) fn outputs(outputs: Vec<Tensor>, confidence: Option<f64>, routed: bool) -> Vec<u8> {
    let result = DoneResult::Outputs {
        outputs,
        confidence,
        routed,
        children: BTreeMap::new(),
    };
    done(result).encode().unwrap().to_vec()
}

pub(crate) fn done(result: DoneResult) -> Done {
    Done {
        id: 0,
        attempt: 0,
        branch: Branch::ROOT,
        stage: String::new(),
        replica: String::new(),
        hops: Vec::new(),
        result,
    }
}

fn logits(values: &[f32]) -> Tensor {
    Tensor::from_f32("logits", &[values.len()], values).unwrap()
}

fn empty(name: &str, shape: &[usize]) -> Tensor {
    Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        datatype: Datatype::F32,
        data: bytes::Bytes::new(),
    }
}

#[test]
fn an_invalid_output_of_a_foreign_stage_never_leaves_as_an_answer() {
    let served = Foreign::start("foreign-outputs", one_stage("foreign-outputs"));
    let bad: Vec<(&str, Vec<Tensor>)> = vec![
        ("NaN", vec![logits(&[f32::NAN, 1.0])]),
        ("infinity", vec![logits(&[1.0, f32::INFINITY])]),
        ("no outputs", Vec::new()),
        ("an empty output", vec![empty("logits", &[0])]),
        ("a huge shape without data", vec![empty("logits", &[1 << 40, 0])]),
        (
            "NaN in the second output",
            vec![logits(&[1.0]), logits(&[f32::NAN])],
        ),
    ];
    runtime().block_on(async {
        for (what, tensors) in bad {
            for routed in [false, true] {
                let body = outputs(tensors.clone(), Some(0.99), routed);
                let serving = served.serve("only", move |_| body.clone()).await;
                let fault = served.ask(BUDGET).await.unwrap_err();
                assert_eq!(fault.code, Code::BadOutput, "{what}, routed {routed}: {fault}");
                serving.abort();
                let _ = serving.await;
            }
        }
        let body = outputs(vec![logits(&[0.5, 1.0])], Some(0.99), false);
        let serving = served.serve("only", move |_| body.clone()).await;
        assert_eq!(served.ask(BUDGET).await.unwrap().confidence, Some(0.99));
        serving.abort();
    });
    served.node.stop();
}

/// A task `find` that fans out to `classify`, both served by foreign programs.
fn pipeline(app: &str) -> Plan {
    let mut plan = crate::pipelines::pipeline(app, |_| ELSEWHERE.into());
    for gear in &mut plan.gears {
        gear.wiring.entry.shares.clear();
        for stage in &mut gear.wiring.stages {
            if let kaskade_policy::plan::Exit::FanOut { children } = &mut stage.exit {
                for child in children {
                    child.to.shares.clear();
                    child.to.backup.clear();
                }
            }
        }
    }
    plan
}

#[test]
fn a_fan_out_beyond_the_limit_is_refused_before_any_child_is_dispatched() {
    let served = Foreign::start("foreign-rows", pipeline("foreign-rows"));
    let rows = MAX_BRANCHES + 904;
    let many = Tensor::from_f32("classify/x", &[rows, 2], &vec![1.0; 2 * rows]).unwrap();
    let (seen, mut children) = tokio::sync::mpsc::unbounded_channel();
    runtime().block_on(async {
        let body = outputs(vec![many], None, false);
        let finding = served.serve("find-finder", move |_| body.clone()).await;
        let classifying = served
            .serve("classify-accurate", move |request| {
                seen.send(request.branch).unwrap();
                outputs(vec![logits(&[1.0])], None, false)
            })
            .await;
        let fault = served.ask(BUDGET).await.unwrap_err();
        assert_eq!(fault.code, Code::BadOutput, "{fault}");
        assert!(fault.message.contains("5000"), "{fault}");
        // What was published before the refusal is delivered before the round trip ends.
        served.node.bus().barrier().await.unwrap();
        assert!(children.try_recv().is_err(), "a child was dispatched");
        finding.abort();
        classifying.abort();
    });
    served.node.stop();
}

#[test]
fn a_huge_first_axis_without_data_is_refused_without_an_allocation() {
    let served = Foreign::start("foreign-axis", pipeline("foreign-axis"));
    runtime().block_on(async {
        let own = logits(&[1.0]);
        let body = outputs(vec![own, empty("classify/x", &[1 << 40, 0])], None, false);
        let finding = served.serve("find-finder", move |_| body.clone()).await;
        let fault = served.ask(PATIENCE.min(BUDGET)).await.unwrap_err();
        assert_eq!(fault.code, Code::BadOutput, "{fault}");
        finding.abort();
    });
    served.node.stop();
}
