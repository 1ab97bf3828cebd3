//! Clients in the process of an ingress: requests do not pass the broker, and are answered as any others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{BUDGET, FAIL, Scripted, ask, label, service};
use futures::{FutureExt as _, StreamExt as _};
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::wire::headers::Trace;
use kaskade_actors::wire::{InferReply, InferRequest, RequestOptions};
use kaskade_actors::{App, Client, Code, Fault, Node, Service};
use kaskade_models::{Continuous, Inputs, Model, ModelError, Outputs, Progress, Tensor, Waker};
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT, wait_until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Clients over the broker and beside the node's ingress.
fn both(node: &Node, app: &str) -> [Client; 2] {
    let client = Client::new(node.bus(), App::new(app).unwrap()).retry(false);
    [client.clone(), client.with_local_ingress(node.local_intake())]
}

fn request(inputs: Vec<Tensor>) -> InferRequest {
    InferRequest {
        inputs,
        ..InferRequest::default()
    }
}

fn options(id: &str, budget: Duration) -> RequestOptions {
    RequestOptions {
        id: id.to_owned(),
        has_unique_id: false,
        budget,
        trace: Trace::start(),
    }
}

async fn asked(client: &Client, inputs: Vec<Tensor>, budget: Duration) -> Result<InferReply, Fault> {
    client.request(request(inputs), &options("one", budget)).await
}

#[test]
fn requests_get_the_same_answers_and_faults_without_the_broker() {
    let app = "local-same";
    let node = service(app).start().unwrap();
    runtime().block_on(async {
        let [over_bus, beside] = both(&node, app);
        let mut seen = node
            .bus()
            .subscribe(App::new(app).unwrap().infer(), None)
            .await
            .unwrap();
        node.bus().barrier().await.unwrap();
        for margin in [4.0, 1.8, 0.3] {
            let mut replies = Vec::new();
            for client in [&over_bus, &beside] {
                let mut reply = asked(client, ask(2.0, margin), BUDGET).await.unwrap();
                assert_eq!(label(&reply.outputs), 2);
                for hop in &mut reply.hops {
                    (hop.wait_us, hop.run_us) = (0, 0);
                }
                replies.push(reply);
            }
            assert_eq!(replies[0], replies[1]);
        }
        let wrong = vec![Tensor::from_f32("x", &[3], &[1.0; 3]).unwrap()];
        let mut broken = ask(1.0, 1.0);
        broken[0].shape = vec![7];
        let large = vec![Tensor::from_f32("x", &[3 << 20], &vec![0.0; 3 << 20]).unwrap()];
        for (inputs, budget, code) in [
            (ask(FAIL, 0.0), BUDGET, Code::ModelFailed),
            (wrong, BUDGET, Code::InvalidInput),
            (Vec::new(), BUDGET, Code::InvalidInput),
            (broken, BUDGET, Code::Malformed),
            (ask(1.0, 1.0), Duration::ZERO, Code::Expired),
            (large, BUDGET, Code::TooLarge),
        ] {
            for client in [&over_bus, &beside] {
                let fault = asked(client, inputs.clone(), budget).await.unwrap_err();
                assert_eq!(fault.code, code, "{fault}");
            }
        }
        for client in [&over_bus, &beside] {
            let odd = options("not\nan id", BUDGET);
            let fault = client.request(request(ask(1.0, 1.0)), &odd).await.unwrap_err();
            assert_eq!(fault.code, Code::Malformed);
        }
        node.bus().barrier().await.unwrap();
        let mut published = 0;
        while seen.next().now_or_never().is_some() {
            published += 1;
        }
        // The three answers, and all faults but that of the size and of the id, which the client finds out itself.
        assert_eq!(published, 8, "requests on the bus");
    });
    let counted = node.metrics().read();
    assert_eq!(counted.answered, 6);
    node.stop();
}

#[test]
fn a_full_ingress_refuses_at_once() {
    let app = "local-full";
    let limits = IngressConfig {
        max_in_flight: 1,
        ..IngressConfig::default()
    };
    let slow = || {
        Ok::<_, String>(Scripted {
            strength: 1.0,
            run: Duration::from_millis(300),
        })
    };
    let node = Service::new(app)
        .ingress(limits)
        .model("slow", slow)
        .start()
        .unwrap();
    runtime().block_on(async {
        let [_, beside] = both(&node, app);
        let (first, second) = tokio::join!(
            asked(&beside, ask(1.0, 4.0), BUDGET),
            asked(&beside, ask(1.0, 4.0), BUDGET)
        );
        assert!(first.is_ok(), "{first:?}");
        assert_eq!(second.unwrap_err().code, Code::Overloaded);
        // One that is sent again goes over the broker and finds room.
        let patient = beside.clone().retry(true);
        let (first, second) = tokio::join!(
            asked(&beside, ask(1.0, 4.0), BUDGET),
            asked(&patient, ask(1.0, 4.0), BUDGET)
        );
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    });
    node.stop();
}

/// Generates a letter per step and request, `count` of them, and shows each, or all at the end. Counts the requests that it has.
struct Letters {
    running: Vec<(u64, u32)>,
    count: u32,
    at_once: bool,
    /// Whether its steps wait for others, as those of a remote variant do.
    waits: bool,
    has: Arc<AtomicUsize>,
}

impl Model for Letters {
    fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        panic!("it is continuous")
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

impl Continuous for Letters {
    fn submit(&mut self, number: u64, _: &Inputs) -> Result<(), ModelError> {
        self.running.push((number, 0));
        self.has.store(self.running.len(), Ordering::SeqCst);
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.running.retain(|(found, _)| *found != number);
        self.has.store(self.running.len(), Ordering::SeqCst);
    }

    fn waker(&self) -> Option<Waker> {
        self.waits.then(|| Arc::new(|| {}) as Waker)
    }

    fn step(&mut self) -> Vec<Progress> {
        std::thread::sleep(Duration::from_millis(2));
        let text = |letters: u32| Tensor::from_texts("text", &[&"x".repeat(letters as usize)]).unwrap();
        let stepped = self.running.iter_mut().map(|(number, done)| {
            *done += 1;
            let is_last = *done == self.count;
            let shown = match (self.at_once, is_last) {
                (false, _) => 1,
                (true, false) => 0,
                (true, true) => self.count,
            };
            Progress {
                number: *number,
                pieces: if self.at_once && !is_last { 0 } else { *done },
                part: (shown > 0).then(|| text(shown)).into_iter().collect(),
                end: is_last.then(|| Ok(vec![text(*done)])),
            }
        });
        let stepped = stepped.collect();
        self.running.retain(|(_, done)| *done < self.count);
        self.has.store(self.running.len(), Ordering::SeqCst);
        stepped
    }
}

fn letters(app: &str, letters: u32, at_once: bool) -> (Node, Arc<AtomicUsize>) {
    writer(app, letters, at_once, false)
}

fn writer(app: &str, letters: u32, at_once: bool, waits: bool) -> (Node, Arc<AtomicUsize>) {
    let has = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&has);
    let service = Service::new(app).model("letters", move || {
        Ok::<_, String>(Letters {
            running: Vec::new(),
            count: letters,
            at_once,
            waits,
            has: Arc::clone(&counter),
        })
    });
    (service.start().unwrap(), has)
}

fn prompt() -> InferRequest {
    request(vec![Tensor::from_texts("text", &["say"]).unwrap()])
}

#[test]
fn parts_of_a_streamed_answer_come_in_order_before_the_reply() {
    let app = "local-parts";
    let (node, _) = letters(app, 20, false);
    runtime().block_on(async {
        for client in both(&node, app) {
            let mut parts = Vec::new();
            let asked = options("one", BUDGET);
            let reply = client.request_streamed(prompt(), &asked, |part| parts.push(part.part));
            let reply = reply.await.unwrap();
            assert_eq!(reply.outputs[0].to_texts().unwrap(), ["x".repeat(20)]);
            assert_eq!(parts, (0..20).map(Some).collect::<Vec<_>>());
        }
    });
    node.stop();
}

/// Wake-ups of a model that waits for an endpoint counted as its batches, each as long as the processor time of a wake-up.
#[test]
fn a_model_that_waits_for_others_runs_neither_batches_nor_steps() {
    for (app, waits) in [("local-steps", false), ("local-waits", true)] {
        let (node, _) = writer(app, 20, false, waits);
        runtime().block_on(async {
            let [_, beside] = both(&node, app);
            beside.request(prompt(), &options("one", BUDGET)).await.unwrap();
        });
        let counts = node.metrics().read().variants["letters"];
        let steps = if waits { 0..=0 } else { 20..=20 };
        assert!(steps.contains(&counts.steps), "{counts:?}");
        assert_eq!((counts.requests, counts.batches), (1, 0), "{counts:?}");
        node.stop();
    }
}

/// As of a beam search: its run time was that of the last step.
#[test]
fn an_answer_that_comes_at_once_has_run_since_its_first_step() {
    let app = "local-at-once";
    let (node, _) = letters(app, 20, true);
    runtime().block_on(async {
        for client in both(&node, app) {
            let mut parts = Vec::new();
            let asked = options("one", BUDGET);
            let reply = client.request_streamed(prompt(), &asked, |part| parts.push(part.part));
            let reply = reply.await.unwrap();
            assert_eq!(reply.outputs[0].to_texts().unwrap(), ["x".repeat(20)]);
            assert_eq!(parts, [Some(0)]);
            let hop = &reply.hops[0];
            // Steps take two milliseconds each.
            assert!(hop.run_us >= 38_000 && hop.batch == 1, "{hop:?}");
        }
    });
    node.stop();
}

#[test]
fn a_dropped_request_is_cancelled_and_others_of_its_id_are_not() {
    let app = "local-dropped";
    let (node, has) = letters(app, 500, false);
    let runtime = runtime();
    let [over_bus, beside] = both(&node, app);
    let kept = runtime.spawn({
        let beside = beside.clone();
        async move { beside.request(prompt(), &options("same", TIMEOUT)).await }
    });
    wait_until("the model has the request", TIMEOUT, || {
        has.load(Ordering::SeqCst) == 1
    });
    for streamed in [false, true] {
        let beside = beside.clone();
        let dropped = runtime.spawn(async move {
            let options = options("same", TIMEOUT);
            if streamed {
                beside.request_streamed(prompt(), &options, |_| {}).await
            } else {
                beside.request(prompt(), &options).await
            }
        });
        wait_until("the model has both requests", TIMEOUT, || {
            has.load(Ordering::SeqCst) == 2
        });
        dropped.abort();
        wait_until("the model has one request", TIMEOUT, || {
            has.load(Ordering::SeqCst) == 1
        });
    }
    let kept = runtime.block_on(kept).unwrap();
    assert!(kept.is_ok(), "{kept:?}");
    // Over the broker, the requests of an id are cancelled together.
    let dropped = runtime.spawn(async move { over_bus.request(prompt(), &options("other", TIMEOUT)).await });
    wait_until("the model has the request", TIMEOUT, || {
        has.load(Ordering::SeqCst) == 1
    });
    dropped.abort();
    wait_until("the model has no request", TIMEOUT, || {
        has.load(Ordering::SeqCst) == 0
    });
    assert_eq!(node.metrics().read().faults[Code::Cancelled.id()], 3);
    node.stop();
}

/// Answers with its number.
struct Numbered(f32);

impl Model for Numbered {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = || Ok(vec![Tensor::from_f32("number", &[1], &[self.0])?]);
        batch.iter().map(|_| answer()).collect()
    }
}

#[test]
fn a_client_turns_to_other_processes_when_its_own_ingress_leaves() {
    let (app, server) = ("local-leaving", NatsServer::start(NatsOptions::jetstream()));
    let start = |number: f32| {
        let bus = BusConfig::new(app).url(server.url());
        let service = Service::new(app).bus(bus);
        let model = move || Ok::<_, String>(Numbered(number));
        service.model("numbered", model).start().unwrap()
    };
    let runtime = runtime();
    let (own, connection) = (start(1.0), start(2.0));
    let client = Client::new(connection.bus(), App::new(app).unwrap()).with_local_ingress(own.local_intake());
    let failed = Arc::new(Mutex::new(Vec::new()));
    let asking = runtime.spawn({
        let (client, failed) = (client.clone(), Arc::clone(&failed));
        async move {
            loop {
                if let Err(fault) = asked(&client, ask(1.0, 1.0), BUDGET).await {
                    failed.lock().unwrap().push(fault);
                }
            }
        }
    });
    wait_until("the own ingress answers", TIMEOUT, || {
        own.metrics().read().answered > 100
    });
    let before = connection.metrics().read().answered;
    own.stop();
    wait_until("the other process answers", TIMEOUT, || {
        connection.metrics().read().answered > before + 100
    });
    asking.abort();
    let _ = runtime.block_on(asking);
    assert!(failed.lock().unwrap().is_empty(), "{failed:?}");
    drop(client);
    connection.stop();
}

/// A model that runs a request until it is let go.
struct Held {
    begun: Arc<AtomicUsize>,
    let_go: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Model for Held {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.begun.fetch_add(batch.len(), Ordering::SeqCst);
        // The sender is dropped to let all go.
        let _ = self.let_go.lock().unwrap().recv();
        batch.iter().map(|inputs| Ok(inputs.clone())).collect()
    }
}

/// The worker's heartbeats count anew after a connection broke, from which the ingress beside it took its replicas for lost.
#[test]
fn a_request_in_the_process_runs_once_although_the_connection_broke() {
    let app = "local-broken";
    let mut server = NatsServer::start(NatsOptions::jetstream());
    let begun = Arc::<AtomicUsize>::default();
    let (hold, let_go) = std::sync::mpsc::channel::<()>();
    let (counted, let_go) = (Arc::clone(&begun), Arc::new(Mutex::new(let_go)));
    let node = Service::new(app)
        .model("held", move || {
            Ok::<_, String>(Held {
                begun: Arc::clone(&counted),
                let_go: Arc::clone(&let_go),
            })
        })
        .bus(BusConfig::new(app).url(server.url()))
        .start()
        .unwrap();
    let runtime = runtime();
    let [_, beside] = both(&node, app);
    let asked = runtime.spawn(async move { asked(&beside, ask(1.0, 1.0), TIMEOUT).await });
    wait_until("the model runs", TIMEOUT, || begun.load(Ordering::SeqCst) == 1);
    let beats = |url| async {
        let bus = Bus::connect(BusConfig::new(app).url(url)).await.unwrap();
        let mut beats = bus.subscribe(App::new(app).unwrap().beats(), None).await.unwrap();
        for _ in 0..5 {
            beats.next().await.unwrap();
        }
    };
    runtime.block_on(beats(server.url()));
    server.kill();
    server.restart();
    runtime.block_on(beats(server.url()));
    drop(hold);
    assert!(runtime.block_on(asked).unwrap().is_ok());
    assert_eq!(node.metrics().read().retried, 0);
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    node.stop();
}
