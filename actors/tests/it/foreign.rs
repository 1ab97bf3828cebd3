//! Results of foreign stages: what a program of another vendor or language publishes is checked like any input.

mod streams;
mod tokens;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::common::BUDGET;
use futures::{FutureExt, StreamExt};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::wire::{
    Heartbeat, InferRequest, Message as _, ReplicaBeat, StageOutcome, StageReply, StageRequest, headers,
};
use kaskade_actors::{App, Client, Code, Fault, Node, Service};
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::fan_in::{Branch, MAX_BRANCHES};
use kaskade_policy::plan::{Plan, Replica};
use kaskade_testkit::{TIMEOUT, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

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
    let result = StageOutcome::Outputs {
        outputs,
        confidence,
        routed,
        children: BTreeMap::new(),
    };
    done(result).encode().unwrap().to_vec()
}

pub(crate) fn done(result: StageOutcome) -> StageReply {
    StageReply {
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
        let fault = served.ask(TIMEOUT.min(BUDGET)).await.unwrap_err();
        assert_eq!(fault.code, Code::BadOutput, "{fault}");
        finding.abort();
    });
    served.node.stop();
}

/// Publishes `body` on the subject of a result.
async fn publish(served: &Foreign, subject: String, body: Vec<u8>) {
    let nats = served.node.bus().client();
    nats.publish(subject, body.into()).await.unwrap();
}

/// A request that its stage holds: the request, and where its result goes.
struct Held {
    request: StageRequest,
    reply: String,
    asked: tokio::task::JoinHandle<Result<kaskade_actors::wire::InferReply, Fault>>,
}

/// Sends a request to `served` and takes it out of the queue of `stage` without an answer.
async fn hold(served: &Arc<Foreign>, stage: &str) -> Held {
    let nats = served.node.bus().client().clone();
    let mut requests = nats
        .queue_subscribe(served.app.stage(stage).unwrap(), "q".into())
        .await
        .unwrap();
    served.node.bus().barrier().await.unwrap();
    let asking = Arc::clone(served);
    let asked = tokio::spawn(async move { asking.ask(TIMEOUT).await });
    let message = requests.next().await.unwrap();
    Held {
        request: StageRequest::decode(&message.payload).unwrap(),
        reply: message.reply.unwrap().to_string(),
        asked,
    }
}

#[test]
fn an_unreadable_internal_message_is_the_services_fault_and_is_tried_again() {
    let served = Arc::new(Foreign::start("foreign-unread", one_stage("foreign-unread")));
    runtime().block_on(async {
        let failed = std::sync::atomic::AtomicBool::new(false);
        // What a stage answers to a request that it cannot read, once.
        let serving = served
            .serve("only", move |_| {
                if failed.swap(true, std::sync::atomic::Ordering::SeqCst) {
                    return outputs(vec![logits(&[2.0])], Some(1.0), true);
                }
                let fault = Fault::new(Code::Unreadable, "scripted");
                done(StageOutcome::Fault(fault)).encode().unwrap().to_vec()
            })
            .await;
        assert!(served.ask(BUDGET).await.is_ok());
        let counted = served.node.metrics().read();
        assert_eq!((counted.decode_errors, counted.retried), (1, 1));
        serving.abort();
    });
    Arc::into_inner(served).unwrap().node.stop();
}

#[test]
fn the_bytes_of_requests_in_flight_are_bounded_and_the_rest_is_refused() {
    const LIMIT: usize = 32 << 20;
    const BODY: usize = 1_000_000;
    const REQUESTS: usize = 128;
    let name = "foreign-bytes";
    let node = Service::new(name)
        .plan(one_stage(name))
        .bus(BusConfig::new(name))
        .ingress(IngressConfig {
            max_in_flight_bytes: LIMIT,
            ..IngressConfig::default()
        })
        .start()
        .unwrap();
    runtime().block_on(async {
        let app = App::new(name).unwrap();
        let nats = node.bus().client();
        // The stage takes requests and never answers.
        let _held = nats
            .queue_subscribe(app.stage("only").unwrap(), "q".into())
            .await
            .unwrap();
        let mut replies = nats.subscribe("replies.bytes").await.unwrap();
        node.bus().barrier().await.unwrap();
        let request = InferRequest {
            inputs: vec![Tensor {
                name: "x".into(),
                shape: vec![BODY],
                datatype: Datatype::U8,
                data: vec![7; BODY].into(),
            }],
            ..InferRequest::default()
        };
        let body = request.encode().unwrap();
        let mut context = async_nats::HeaderMap::new();
        headers::put_budget(&mut context, Duration::from_secs(115));
        for number in 1..=REQUESTS as u64 {
            let (subject, context, body) = (app.infer(), context.clone(), body.clone());
            nats.publish_with_reply_and_headers(subject, "replies.bytes", context, body)
                .await
                .unwrap();
            // One at a time: a burst would exceed what the broker keeps for a subscriber.
            tokio::task::block_in_place(|| {
                wait_until("the request has arrived", TIMEOUT, || {
                    node.metrics().read().arrived == number
                });
            });
        }
        let fewest = REQUESTS - LIMIT / BODY;
        for _ in 0..fewest {
            let reply = replies.next().await.unwrap();
            let fault = headers::fault(reply.headers.as_ref()).unwrap();
            assert_eq!(fault.code, Code::Overloaded, "{fault}");
        }
        let counted = node.metrics().read();
        assert!(counted.accepted as usize * BODY <= LIMIT, "{}", counted.accepted);
    });
    drop(node);
}

#[test]
fn a_repeated_answer_makes_no_more_work_for_later_stages() {
    let app = "foreign-repeat";
    let plan = Plan::cascade(app)
        .stage("first", "doubtful")
        .worker(ELSEWHERE)
        .below(0.5)
        .then("second", "sure")
        .worker(ELSEWHERE)
        .build()
        .unwrap();
    let served = Arc::new(Foreign::start(app, plan));
    runtime().block_on(async {
        let (seen, mut asked_second) = tokio::sync::mpsc::unbounded_channel();
        let serving = served
            .serve("second", move |request| {
                seen.send(request.attempt).unwrap();
                // A part without meaning: the request stays in flight.
                let result = StageOutcome::Part {
                    outputs: vec![logits(&[1.0])],
                    from: 0,
                    until: 1,
                    once: false,
                };
                done(result).encode().unwrap().to_vec()
            })
            .await;
        let held = hold(&served, "first").await;
        for stage in ["first"; 30] {
            let result = StageOutcome::Outputs {
                outputs: vec![logits(&[1.0])],
                confidence: Some(0.1),
                routed: false,
                children: BTreeMap::new(),
            };
            let again = StageReply {
                stage: stage.into(),
                ..done(result)
            };
            publish(&served, held.reply.clone(), again.encode().unwrap().to_vec()).await;
        }
        let metrics = Arc::clone(&served);
        tokio::task::block_in_place(|| {
            wait_until("every repetition is dropped", TIMEOUT, || {
                metrics.node.metrics().read().stale == 29
            });
        });
        // The answer of the second stage ends the request.
        publish(
            &served,
            held.reply.clone(),
            outputs(vec![logits(&[2.0])], Some(1.0), true),
        )
        .await;
        assert!(held.asked.await.unwrap().is_ok());
        served.node.bus().barrier().await.unwrap();
        let mut forwarded = 0;
        while asked_second.try_recv().is_ok() {
            forwarded += 1;
        }
        assert_eq!(forwarded, 1, "requests reached the second stage");
        serving.abort();
    });
    drop(served);
}
