//! Language models over a broker: streaming, cancellation, escalation and typed errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use futures::future::join_all;
use kaskade::models::generation::{Cpu, SamplingOptions};
use kaskade::models::language::LanguageModel;
use kaskade::models::{
    Checkpoint, Continuous, Generation, Inputs, Model, ModelError, Outputs, Progress, Tensor,
};
use kaskade::policy::confidence::{Calibration, Estimator};
use kaskade::policy::plan::{
    Band, Batching, Edge, Exit, Plan, PlannedVariant, Replica, Stage, Target, Wiring,
};
use kaskade_actors::bus::Bus;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_actors::{App, Client, Code, Fault, Service};
use kaskade_testkit::{ROOT, eventually};

const BUDGET: Duration = Duration::from_secs(20);

/// A small random GPT-2 that transformers saved.
fn gpt2() -> Result<LanguageModel<Cpu>, String> {
    let folder = Path::new(ROOT).join("models/fixtures/gpt2");
    let generation = Generation {
        sampling: SamplingOptions {
            max_tokens: Some(40),
            ..SamplingOptions::default()
        },
        ..Generation::default()
    };
    let checkpoint = Checkpoint::open(&folder).map_err(|error| error.to_string())?;
    let made = LanguageModel::new(Cpu, checkpoint, &generation);
    made.map(|(model, _)| model).map_err(|error| error.to_string())
}

/// A model that generates one letter per request and step, with a fixed confidence. The test triggers each step.
struct Stepped {
    steps: Receiver<()>,
    running: Running,
    letters: usize,
    confidence: f32,
}

/// Letters generated so far, by request in the model.
type Running = Arc<Mutex<BTreeMap<u64, usize>>>;

/// The test's control of a [`Stepped`] model.
struct Control {
    steps: Sender<()>,
    running: Running,
}

impl Control {
    fn step(&self) {
        self.steps.send(()).unwrap();
    }

    /// Moves the control behind the node: the last declared value is dropped first, and a model without a control finishes, so
    /// that the node of a failing test can stop.
    fn dropped_first(self) -> Self {
        self
    }
}

fn stepped(letters: usize, confidence: f32) -> (impl Fn() -> Result<Stepped, String> + Send + Sync, Control) {
    let (steps, receiver) = channel();
    let running = Running::default();
    let control = Control {
        steps,
        running: Arc::clone(&running),
    };
    let receiver = Mutex::new(Some(receiver));
    let make = move || {
        Ok(Stepped {
            steps: receiver.lock().unwrap().take().ok_or("one replica only")?,
            running: Arc::clone(&running),
            letters,
            confidence,
        })
    };
    (make, control)
}

impl Continuous for Stepped {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        if inputs[0].to_texts()?[0] == "refuse" {
            return Err(ModelError::BadInput {
                name: "text".into(),
                reason: "the request asks to be refused".into(),
            });
        }
        self.running.lock().unwrap().insert(number, 0);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.running.lock().unwrap().remove(&number);
    }

    fn step(&mut self) -> Vec<Progress> {
        let released = self.steps.recv().is_err();
        let mut running = self.running.lock().unwrap();
        let mut news = Vec::new();
        running.retain(|number, typed| {
            *typed += 1;
            let whole = *typed == self.letters || released;
            let text = |letters: usize| Tensor::from_texts("text", &["x".repeat(letters).as_str()]).unwrap();
            let outputs = || {
                vec![
                    text(*typed),
                    Tensor::from_f32("confidence", &[1], &[self.confidence]).unwrap(),
                ]
            };
            news.push(Progress {
                number: *number,
                pieces: u32::try_from(*typed).unwrap(),
                part: vec![text(1)],
                end: whole.then(|| Ok(outputs())),
            });
            !whole
        });
        news
    }
}

impl Model for Stepped {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        panic!("{} requests came as a batch", batch.len())
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

/// All tests share the broker of this process, so each uses an app name of its own.
async fn client(app: &str) -> Client {
    let bus = Bus::connect(BusConfig::new(app)).await.unwrap();
    Client::new(&bus, App::new(app).unwrap())
}

fn asking(text: &str, id: Option<&str>) -> InferRequest {
    InferRequest {
        inputs: vec![Tensor::from_texts("text", &[text]).unwrap()],
        id: id.map(ToOwned::to_owned),
        ..InferRequest::default()
    }
}

fn text(reply: &InferReply) -> String {
    let text = reply.outputs.iter().find(|output| output.name == "text").unwrap();
    text.to_texts().unwrap()[0].to_owned()
}

/// Sends a request and reads its stream: the parts, each with the number of its first token, and the terminal reply.
async fn read(client: &Client, request: InferRequest) -> (Vec<(u32, String)>, Result<InferReply, Fault>) {
    let mut parts = Vec::new();
    let note = |part: InferReply| parts.push((part.part.unwrap(), text(&part)));
    let reply = client.stream(request, HeaderMap::new(), BUDGET, note).await;
    (parts, reply)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(test)
}

#[test]
fn streamed_answers_equal_those_of_the_model_alone() {
    let node = Service::new("along").model("gpt2", gpt2).start().unwrap();
    let prompts = ["the inner thing", "a tour of", "one", "on the one hand", "tour"];
    let alone = gpt2()
        .unwrap()
        .run(&prompts.map(|prompt| asking(prompt, None).inputs));
    run(async {
        let client = client("along").await;
        let asked = prompts.map(|prompt| read(&client, asking(prompt, None)));
        for ((parts, reply), expected) in join_all(asked).await.into_iter().zip(alone) {
            let reply = reply.unwrap();
            assert_eq!(reply.outputs, expected.unwrap());
            assert_eq!(reply.part, None);
            assert_eq!(parts.len(), 40, "a part for every token");
            assert!(parts.iter().map(|(from, _)| *from).eq(0..40));
            let read: String = parts.into_iter().map(|(_, text)| text).collect();
            assert_eq!(read, text(&reply));
        }
        let plain = client.infer(asking("tour", None).inputs, BUDGET).await.unwrap();
        assert!(!plain.outputs.is_empty());
    });
    let counted = node.metrics().read().variants["gpt2"];
    assert_eq!(
        (counted.requests, counted.tokens.count, counted.tokens.first),
        (6, 240, 6)
    );
    assert!(counted.tokens.to_first_s().unwrap() > 0.0 && counted.tokens.between_s().unwrap() > 0.0);
    node.stop();
}

#[test]
fn a_cancelled_request_leaves_the_model_at_the_next_step() {
    let (make, control) = stepped(3, 1.0);
    let node = Service::new("cancelled").model("stepped", make).start().unwrap();
    let control = control.dropped_first();
    run(async {
        let client = client("cancelled").await;
        let (one, two) = (asking("a", Some("one")), asking("b", Some("two")));
        let (reader, other) = (client.clone(), client.clone());
        let first = tokio::spawn(async move { read(&reader, one).await });
        let second = tokio::spawn(async move { read(&other, two).await });
        eventually("both are accepted", BUDGET, async || {
            node.metrics().read().accepted == 2
        })
        .await;
        control.step();
        eventually("both are in the model", BUDGET, async || {
            control.running.lock().unwrap().len() == 2
        })
        .await;
        client.cancel("one").await.unwrap();
        let (_, cancelled) = first.await.unwrap();
        assert_eq!(cancelled.unwrap_err().code, Code::Cancelled);
        // The cancellation takes a moment to reach the worker, which handles it between steps.
        eventually("the cancelled request leaves the model", BUDGET, async || {
            control.step();
            control.running.lock().unwrap().len() < 2
        })
        .await;
        for _ in 0..3 {
            control.step();
        }
        let (_, answered) = second.await.unwrap();
        assert_eq!(text(&answered.unwrap()), "xxx");
        client.cancel("two").await.unwrap();
        client.cancel("unknown").await.unwrap();
        assert_eq!(
            client.cancel("not\nan id").await.unwrap_err().code,
            Code::Malformed
        );
    });
    node.stop();
}

#[test]
fn an_expired_request_leaves_the_model() {
    let (make, control) = stepped(1000, 1.0);
    let node = Service::new("late").model("stepped", make).start().unwrap();
    let control = control.dropped_first();
    run(async {
        let client = client("late").await;
        let late = client
            .infer(asking("a", None).inputs, Duration::from_millis(30))
            .await;
        assert_eq!(late.unwrap_err().code, Code::Expired);
        eventually("the expired request leaves the model", BUDGET, async || {
            control.step();
            control.running.lock().unwrap().is_empty()
        })
        .await;
    });
    node.stop();
}

#[test]
fn only_the_final_stage_streams_and_an_unsure_answer_escalates() {
    let (small, left) = stepped(2, 0.4);
    let (large, right) = stepped(4, 0.9);
    let service = Service::new("cascade")
        .model("small", small)
        .model("large", large);
    let node = service.plan(cascade("cascade")).start().unwrap();
    let (left, right) = (left.dropped_first(), right.dropped_first());
    run(async {
        let client = client("cascade").await;
        let asked = read(&client, asking("a", None));
        for _ in 0..2 {
            left.step();
        }
        for _ in 0..4 {
            right.step();
        }
        let (parts, reply) = asked.await;
        let reply = reply.unwrap();
        assert_eq!((reply.variant.as_str(), text(&reply).as_str()), ("large", "xxxx"));
        assert!((reply.confidence.unwrap() - 0.9).abs() < 1e-6);
        let stages: Vec<&str> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
        assert_eq!(stages, ["small", "large"]);
        assert_eq!(parts.len(), 4, "no part comes from the small model");
    });
    node.stop();
}

#[test]
fn refused_and_broken_answers_are_typed_errors() {
    let (make, control) = stepped(2, f32::NAN);
    let node = Service::new("broken").model("stepped", make).start().unwrap();
    let control = control.dropped_first();
    run(async {
        let client = client("broken").await;
        let refused = client.infer(asking("refuse", None).inputs, BUDGET).await;
        assert_eq!(refused.unwrap_err().code, Code::InvalidInput);
        for _ in 0..2 {
            control.step();
        }
        let broken = client.infer(asking("a", None).inputs, BUDGET).await;
        assert_eq!(broken.unwrap_err().code, Code::BadOutput, "its confidence is NaN");
        let mut odd = asking("a", None);
        odd.parameters.insert("stream".into(), "perhaps".into());
        let odd = client.stream(odd, HeaderMap::new(), BUDGET, |_| ()).await;
        assert_eq!(odd.unwrap_err().code, Code::Malformed);
    });
    node.stop();
}

/// The small model answers at a confidence of at least 0.5, otherwise the large one does.
fn cascade(app: &str) -> Plan {
    let variant = |name: &str| PlannedVariant {
        name: name.into(),
        calibration: Some(Calibration {
            estimator: Estimator::Given,
            temperature: 1.0,
        }),
    };
    let replica = |name: &str| Replica {
        id: format!("{name}-0"),
        variant: name.into(),
        worker: "local".into(),
        device: "cpu".into(),
        partition: None,
        checkpoint: None,
    };
    let stage = |name: &str, exit| Stage::new(name, name, exit, Batching::default());
    let bands = vec![
        Band {
            from: 0.0,
            to: Target::Stage(Edge::to("large")),
        },
        Band {
            from: 0.5,
            to: Target::Reply,
        },
    ];
    Plan {
        made_by: "test".into(),
        ..Plan::one_gear(
            app,
            vec![variant("small"), variant("large")],
            vec![replica("small"), replica("large")],
            Wiring {
                entry: Edge::to("small"),
                ensemble: Vec::new(),
                stages: vec![stage("small", Exit::Bands { bands }), stage("large", Exit::Reply)],
            },
        )
    }
}
