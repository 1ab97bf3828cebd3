//! Health of a node: ready, full, draining.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{ask, cascade};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::node::service::SOLE_WORKER;
use kaskade_actors::ops::health::{Full, Health, NotReady};
use kaskade_actors::ops::probes::Probes;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::{App, Client, Node, Service};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_testkit::{http_get, wait_until};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A model that reports when a batch has begun, and ends it when it is told to.
struct Held {
    begun: mpsc::Sender<()>,
    go_on: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Model for Held {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(2)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let _ = self.begun.send(());
        let _ = self.go_on.lock().unwrap().recv();
        batch
            .iter()
            .map(|_| Ok(vec![Tensor::from_f32("logits", &[4], &[9.0, 0.0, 0.0, 0.0])?]))
            .collect()
    }
}

/// A service whose first model blocks, a channel that reports its start, and one that releases it.
pub(crate) fn held(app: &str) -> (Service, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (begun, begins) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let go_on = Arc::new(Mutex::new(go_on));
    let mut plan = cascade(app);
    for stage in plan.gears.iter_mut().flat_map(|gear| &mut gear.wiring.stages) {
        stage.batching.max_batch = 1;
    }
    let service =
        ["small", "medium", "large"]
            .into_iter()
            .fold(Service::new(app).plan(plan), |service, name| {
                let (begun, go_on) = (begun.clone(), Arc::clone(&go_on));
                service.model(name, move || {
                    Ok::<_, String>(Held {
                        begun: begun.clone(),
                        go_on: Arc::clone(&go_on),
                    })
                })
            });
    (service, begins, let_go)
}

/// Sends that many requests without waiting for their answers.
fn send(node: &Node, app: &str, count: usize) -> Vec<std::thread::JoinHandle<bool>> {
    (0..count)
        .map(|_| {
            let client = Client::new(node.bus(), App::new(app).unwrap());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(client.infer(ask(1.0, 1.0), TIMEOUT)).is_ok()
            })
        })
        .collect()
}

fn live(health: &Health) -> Result<(), NotReady> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(health.live())
}

#[test]
fn a_node_is_ready_then_draining_then_gone() {
    let (service, begins, let_go) = held("drained");
    let node = service.start().unwrap();
    let health = node.health().clone();
    assert_eq!(health.ready(), Ok(()));
    assert_eq!(live(&health), Ok(()));
    let asked = send(&node, "drained", 1);
    begins.recv_timeout(TIMEOUT).unwrap();
    let stopping = std::thread::spawn(move || node.stop());
    wait_until("the node drains", TIMEOUT, || {
        health.ready() == Err(NotReady::Draining)
    });
    assert_eq!(live(&health), Ok(()), "it drains, and turns");
    let_go.send(()).unwrap();
    stopping.join().unwrap();
    assert!(
        asked.into_iter().all(|asked| asked.join().unwrap()),
        "what was taken is answered"
    );
    assert_eq!(live(&health), Err(NotReady::Stuck));
}

#[test]
fn a_process_with_a_full_queue_is_ready_and_says_that_it_is_full() {
    let (service, begins, let_go) = held("full");
    let node = service
        .worker(WorkerConfig {
            name: SOLE_WORKER.to_owned(),
            queue_capacity: 2,
            ..WorkerConfig::default()
        })
        .start()
        .unwrap();
    let health = node.health().clone();
    let running = send(&node, "full", 1);
    begins.recv_timeout(TIMEOUT).unwrap();
    let waiting = send(&node, "full", 2);
    wait_until("the queue is full", TIMEOUT, || {
        matches!(health.full(), Some(Full::Queue { waiting: 2, .. }))
    });
    assert_eq!(health.ready(), Ok(()));
    assert!(
        health
            .page()
            .contains("kaskade_in_flight_requests{app=\"full\"} 3\n"),
        "{}",
        health.page()
    );
    assert!(
        health
            .page()
            .contains("kaskade_queued_requests{app=\"full\",variant=\"small\"} 2\n")
    );
    assert!(health.page().contains("kaskade_ready{app=\"full\"} 1\n"));
    assert!(health.page().contains("kaskade_saturated{app=\"full\"} 1\n"));
    for _ in 0..3 {
        let_go.send(()).unwrap();
    }
    for asked in running.into_iter().chain(waiting) {
        assert!(asked.join().unwrap());
    }
    wait_until("there is room again", TIMEOUT, || health.full().is_none());
    node.stop();
}

#[test]
fn an_ingress_at_its_limit_is_ready_and_the_probe_says_that_it_is_full() {
    let (service, begins, let_go) = held("limited");
    let node = service
        .ingress(IngressConfig {
            max_in_flight: 1,
            ..IngressConfig::default()
        })
        .start()
        .unwrap();
    let health = node.health().clone();
    let asked = send(&node, "limited", 1);
    begins.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(health.full(), Some(Full::Ingress { in_flight: 1 }));
    assert_eq!(health.ready(), Ok(()));
    let probes = Probes::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    probes.watch(health);
    let (status, text) = http_get(&probes.address().to_string(), "/ready").unwrap();
    assert!(status.contains("200"), "{status}");
    assert!(text.contains("full: 1 requests are in flight"), "{text}");
    let_go.send(()).unwrap();
    assert!(asked.into_iter().all(|asked| asked.join().unwrap()));
    node.stop();
}

#[test]
fn without_its_broker_a_node_is_not_ready_until_it_is_back() {
    let mut server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions::jetstream());
    let (service, _begins, _let_go) = held("cut");
    let node = service
        .bus(BusConfig::new("cut").url(server.url()))
        .start()
        .unwrap();
    let health = node.health().clone();
    assert_eq!(health.ready(), Ok(()));
    server.kill();
    wait_until("the loss is noticed", TIMEOUT, || {
        matches!(health.ready(), Err(NotReady::NoBroker { .. }))
    });
    assert_eq!(live(&health), Ok(()), "a lost broker is no reason to restart");
    server.restart();
    wait_until("it is back", TIMEOUT, || health.ready().is_ok());
    node.stop();
}
