//! Models that run on the thread of their batcher ([`Model::runs_inline`]).

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::common::{BUDGET, EMPTY, FAIL, NAN, PANIC, Scripted, ask, cascade, label, service};
use futures::future::join_all;
use kaskade_actors::{App, Client, Code, Node, Service};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature};

type Threads = Arc<Mutex<HashSet<ThreadId>>>;

struct Inline {
    scripted: Scripted,
    /// Where its batches have run.
    threads: Threads,
}

impl Model for Inline {
    fn signature(&self) -> Signature {
        self.scripted.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.threads.lock().unwrap().insert(thread::current().id());
        self.scripted.run(batch)
    }

    fn runs_inline(&self) -> bool {
        true
    }
}

fn inline(app: &str, threads: &Threads) -> Node {
    let models = [("small", 1.0), ("medium", 2.0), ("large", 4.0)];
    let service = models
        .into_iter()
        .fold(Service::new(app), |service, (name, strength)| {
            let threads = Arc::clone(threads);
            service.model(name, move || {
                Ok::<_, String>(Inline {
                    scripted: Scripted {
                        strength,
                        run: Duration::ZERO,
                    },
                    threads: Arc::clone(&threads),
                })
            })
        });
    service.plan(cascade(app)).start().unwrap()
}

#[test]
fn a_cascade_of_inline_models_answers_as_one_with_threads() {
    let (threads, apps) = (Threads::default(), ["inline-not", "inline"]);
    let nodes = [service(apps[0]).start().unwrap(), inline(apps[1], &threads)];
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = |index: usize| {
            let client = Client::new(nodes[index].bus(), App::new(apps[index]).unwrap());
            client.retry(false)
        };
        let clients = [client(0), client(1)];
        let beside = clients[1].clone().with_local_ingress(nodes[1].local_intake());
        for (value, margin) in [(2.0, 4.0), (1.0, 1.8), (3.0, 0.3)] {
            let mut stages = Vec::new();
            for client in clients.iter().chain([&beside]) {
                let reply = client.infer(ask(value, margin), BUDGET).await.unwrap();
                assert_eq!(label(&reply.outputs), value as usize);
                stages.push((reply.stage, reply.hops.len(), reply.confidence));
            }
            assert!(stages.iter().all(|stage| *stage == stages[0]), "{stages:?}");
        }
        for (wrong, code) in [
            (PANIC, Code::ModelFailed),
            (FAIL, Code::ModelFailed),
            (NAN, Code::BadOutput),
            (EMPTY, Code::BadOutput),
        ] {
            for client in clients.iter().chain([&beside]) {
                let fault = client.infer(ask(wrong, 0.0), BUDGET).await.unwrap_err();
                assert_eq!(fault.code, code, "{fault}");
            }
        }
        // Requests that fail among many others have no influence on them.
        let values = (0..200).map(|number| {
            if number % 10 == 7 {
                PANIC
            } else {
                (number % 4) as f32
            }
        });
        let values: Vec<f32> = values.collect();
        let asked = values.iter().map(|value| {
            let (client, value) = (beside.clone(), *value);
            async move { client.infer(ask(value, 4.0), BUDGET).await }
        });
        for (value, answer) in values.iter().zip(join_all(asked).await) {
            match answer {
                Ok(reply) => assert_eq!(label(&reply.outputs), *value as usize),
                Err(fault) => assert_eq!((fault.code, *value), (Code::ModelFailed, PANIC)),
            }
        }
    });
    let used = threads.lock().unwrap().len();
    assert_eq!(used, 1, "the three models share the thread of their shard");
    for node in nodes {
        node.stop();
    }
}
