//! A model partitioned by layers over worker processes answers like the whole model, also after a partition died.
#![allow(clippy::print_stdout, reason = "the figures belong into the documentation")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kaskade::Tensor;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::{App, Client, Code, Fault};
use kaskade_policy::plan::{Batching, Edge, Exit, Partition, Plan, PlannedVariant, Replica, Stage, Wiring};
use kaskade_testkit::{NatsOptions, NatsServer, ROOT, ServeProcess, command};

const APP: &str = "partitions";
/// A model: its name, and the folder of its weights.
type Model = (&'static str, &'static str);
const ENCODER: Model = ("sentiment-mini", "examples/sentiment/weights/sentiment-mini");
/// A small random GPT-2 that transformers saved.
const DECODER: Model = ("gpt2", "models/fixtures/gpt2");
/// Longest wait for the workers to learn of each other.
const TIMEOUT: Duration = Duration::from_secs(20);

const BUDGET: Duration = Duration::from_secs(5);
const TEXTS: [&str; 3] = [
    "a warm , funny and moving film",
    "it is dull",
    "the worst thing about it is that it knows how bad it is and goes on , and on , and on",
];

/// One replica of the model in `of` partitions, each on its own worker.
fn plan((variant, _): Model, of: u32) -> Plan {
    let partition = |index: u32| (of > 1).then_some(Partition { index, of });
    let stage = |index: u32| Stage {
        partition: partition(index),
        ..Stage::new(
            format!("partition-{index}"),
            variant,
            if index + 1 == of {
                Exit::Reply
            } else {
                Exit::Next {
                    to: Edge::to(format!("partition-{}", index + 1)),
                }
            },
            Batching::default(),
        )
    };
    let replica = |index: u32| Replica {
        id: format!("partition-{index}"),
        variant: variant.into(),
        worker: format!("w{index}"),
        device: "cpu".into(),
        partition: partition(index),
        checkpoint: None,
    };
    Plan {
        made_by: "test".into(),
        ..Plan::one_gear(
            APP,
            vec![PlannedVariant {
                name: variant.into(),
                calibration: None,
            }],
            (0..of).map(replica).collect(),
            Wiring {
                entry: Edge::to("partition-0"),
                ensemble: Vec::new(),
                stages: (0..of).map(stage).collect(),
            },
        )
    }
}

/// Starts a process of the app, and returns when it serves.
fn start(folder: &Path, nats: &str, role: &str, worker: &str) -> ServeProcess {
    let app = ["serve", "--app", "app.toml", "--plan", "plan.json"];
    let place = ["--nats", nats, "--role", role, "--worker", worker];
    let mut served = ServeProcess::run(&mut command(folder, &[&app[..], &place].concat()));
    served.line("serving");
    served
}

/// A served model in partitions.
struct Chain {
    nats: NatsServer,
    workers: Vec<ServeProcess>,
    _ingress: ServeProcess,
    folder: tempfile::TempDir,
}

impl Chain {
    fn start(of: u32) -> Self {
        Self::over(ENCODER, of, NatsOptions::jetstream())
    }

    fn over(model: Model, of: u32, options: NatsOptions) -> Self {
        let (variant, weights) = model;
        let nats = NatsServer::start(options);
        let folder = tempfile::tempdir().unwrap();
        let weights = Path::new(ROOT).join(weights);
        let workers: Vec<String> = (0..of)
            .map(|index| format!("[[workers]]\nname = \"w{index}\"\n"))
            .collect();
        let task = if model == DECODER {
            "generation"
        } else {
            "classification"
        };
        let app = format!(
            "name = \"{APP}\"\ntask = \"{task}\"\n[[variants]]\nname = \"{variant}\"\ndir = \"{}\"\n{}",
            weights.display(),
            workers.concat()
        );
        std::fs::write(folder.path().join("app.toml"), app).unwrap();
        std::fs::write(
            folder.path().join("plan.json"),
            plan(model, of).to_json().unwrap(),
        )
        .unwrap();
        let start = |role: &str, worker: &str| start(folder.path(), &nats.url(), role, worker);
        let workers = (0..of)
            .map(|index| start("worker", &format!("w{index}")))
            .collect();
        Self {
            _ingress: start("ingress", "w0"),
            workers,
            nats,
            folder,
        }
    }
}

fn ask(text: &str) -> Vec<Tensor> {
    vec![Tensor::from_texts("text", &[text]).unwrap()]
}

async fn bus(chain: &Chain) -> Bus {
    let bus = BusConfig {
        url: Some(chain.nats.url()),
        ..BusConfig::new("test")
    };
    Bus::connect(bus).await.unwrap()
}

async fn client(chain: &Chain) -> Client {
    Client::new(&bus(chain).await, App::new(APP).unwrap())
}

/// The bytes (bodies and headers) and messages that one request moves between the processes, and its logits.
async fn moved(chain: &Chain, text: &str) -> (usize, usize, Vec<f32>) {
    let bus = bus(chain).await;
    let client = Client::new(&bus, App::new(APP).unwrap());
    let mut subjects = Vec::new();
    for of in ["stage", "replica", "done"] {
        let subject = format!("kaskade.{APP}.{of}.>");
        subjects.push(bus.subscribe(subject.into(), None).await.unwrap());
    }
    bus.barrier().await.unwrap();
    let outputs = client.infer(ask(text), BUDGET).await.unwrap().outputs;
    bus.barrier().await.unwrap();
    let (mut bytes, mut messages) = (0, 0);
    for subject in &mut subjects {
        while let Some(Some(message)) = futures::FutureExt::now_or_never(subject.next()) {
            bytes += message.length;
            messages += 1;
        }
    }
    (bytes, messages, logits(&outputs))
}

fn logits(outputs: &[Tensor]) -> Vec<f32> {
    outputs
        .iter()
        .find(|output| output.name == "logits")
        .unwrap()
        .to_f32()
        .unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn partitions_over_processes_answer_as_the_whole_model() {
    let mut answers: BTreeMap<u32, Vec<Vec<f32>>> = BTreeMap::new();
    for of in [1, 2, 3, 4] {
        let chain = Chain::start(of);
        let told = block_on(async {
            let client = client(&chain).await;
            let mut told = Vec::new();
            for text in TEXTS {
                let reply = client.infer(ask(text), BUDGET).await.unwrap();
                assert_eq!(reply.hops.len(), of as usize);
                told.push(logits(&reply.outputs));
            }
            let begun = Instant::now();
            let asked = (0..64).map(|place| client.infer(ask(TEXTS[place % TEXTS.len()]), BUDGET));
            let replies = futures::future::join_all(asked).await;
            assert!(replies.iter().all(Result::is_ok));
            let rate = 64.0 / begun.elapsed().as_secs_f64();
            // Per token: 256 hidden values and the mask. Also the request itself.
            let direct = of as usize + 1;
            let mut counted = moved(&chain, TEXTS[2]).await;
            // An ingress that has just started sends to every partition by itself until it has told which replicas live.
            let told_by = Instant::now() + TIMEOUT;
            while counted.1 > direct && Instant::now() < told_by {
                counted = moved(&chain, TEXTS[2]).await;
            }
            let (bytes, messages, _) = counted;
            println!(
                "{of} partitions: {rate:.0} requests/s, {bytes} bytes in {messages} messages for one request"
            );
            assert_eq!(messages, direct);
            told
        });
        answers.insert(of, told);
    }
    for (of, told) in &answers {
        for (whole, split) in answers[&1].iter().zip(told) {
            let apart = whole
                .iter()
                .zip(split)
                .map(|(one, other)| (one - other).abs())
                .fold(0.0, f32::max);
            assert!(apart <= 1e-5, "{of} partitions: {apart}");
        }
    }
}

#[test]
fn a_partitioned_decoder_predicts_the_token_of_the_whole_one() {
    let output = |outputs: &[Tensor], name: &str| {
        let found = outputs.iter().find(|output| output.name == name);
        found.unwrap().clone()
    };
    let told = |of: u32, more: &[Tensor]| {
        let chain = Chain::over(DECODER, of, NatsOptions::jetstream());
        block_on(async {
            let client = client(&chain).await;
            let mut told = Vec::new();
            for text in ["the inner thing, a tour", "one", "on the one hand"] {
                let inputs = [ask(text), more.to_vec()].concat();
                let reply = client.infer(inputs, BUDGET).await.unwrap();
                assert_eq!(reply.hops.len(), of as usize);
                let tokens = output(&reply.outputs, "tokens").to_i64().unwrap();
                told.push((tokens, output(&reply.outputs, "probabilities").to_f32().unwrap()));
            }
            told
        })
    };
    let one = Tensor::from_i64("max_tokens", &[1], &[1]).unwrap();
    let (whole, split) = (told(1, &[one]), told(2, &[]));
    for ((token, sure), (split, surely)) in whole.iter().zip(&split) {
        assert_eq!((token.len(), token), (1, split));
        assert!((sure[0] - surely[0]).abs() <= 1e-5, "{sure:?} {surely:?}");
    }
}

#[test]
fn hidden_states_over_max_payload_travel_in_chunks() {
    const CARRIED: usize = 16 << 10;
    let long = TEXTS.join(" and ");
    let whole = block_on(moved(&Chain::start(1), &long));
    let options = NatsOptions {
        max_payload: Some(CARRIED),
        ..NatsOptions::jetstream()
    };
    let chain = Chain::over(ENCODER, 3, options);
    let (bytes, messages, told) = block_on(moved(&chain, &long));
    println!("{bytes} bytes in {messages} messages");
    assert!(
        bytes > 2 * CARRIED && messages > 1 + 2 * 2,
        "{bytes} bytes in {messages} messages"
    );
    let apart = whole.2.iter().zip(&told).map(|(one, other)| (one - other).abs());
    assert!(apart.fold(0.0, f32::max) <= 1e-5);
}

#[test]
fn a_dead_partition_causes_typed_errors_and_no_wrong_answer() {
    let mut chain = Chain::start(3);
    let nats = chain.nats.url();
    block_on(async {
        let client = client(&chain).await;
        let right = logits(&client.infer(ask(TEXTS[0]), BUDGET).await.unwrap().outputs);
        chain.workers[1].kill();
        let fault: Fault = client
            .infer(ask(TEXTS[0]), Duration::from_millis(800))
            .await
            .unwrap_err();
        let expected = [Code::Unavailable, Code::Expired, Code::ReplicasLost];
        assert!(expected.contains(&fault.code), "{fault:?}");
        let killed = Instant::now();
        chain.workers[1] = start(chain.folder.path(), &nats, "worker", "w1");
        let back = loop {
            if let Ok(reply) = client.infer(ask(TEXTS[0]), Duration::from_secs(2)).await {
                break logits(&reply.outputs);
            }
            assert!(
                killed.elapsed() < Duration::from_secs(20),
                "the partition did not come back"
            );
        };
        println!(
            "answered again {:.0} ms after the restart of the partition",
            killed.elapsed().as_secs_f64() * 1e3
        );
        assert_eq!(back, right);
    });
}
