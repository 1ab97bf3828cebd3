//! Readiness and liveness of a node.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::{ask, cascade};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::service::SOLE_WORKER;
use kaskade_actors::vitals::{Unwell, Vitals};
use kaskade_actors::worker::WorkerConfig;
use kaskade_actors::{App, Client, Node, Service};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_testkit::wait_until;

const PATIENCE: Duration = Duration::from_secs(20);

/// A model that reports the start of each batch, and ends it on the test's signal.
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

/// A service of [`Held`] models, the receiver of starts, and the sender that releases a batch.
fn held(app: &str) -> (Service, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (begun, begins) = mpsc::channel();
    let (release, go_on) = mpsc::channel();
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
    (service, begins, release)
}

/// Sends `count` requests; each thread returns whether its request was answered.
fn send(node: &Node, app: &str, count: usize) -> Vec<std::thread::JoinHandle<bool>> {
    (0..count)
        .map(|_| {
            let client = Client::new(node.bus(), App::new(app).unwrap());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(client.infer(ask(1.0, 1.0), PATIENCE)).is_ok()
            })
        })
        .collect()
}

fn live(vitals: &Vitals) -> Result<(), Unwell> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(vitals.live())
}

#[test]
fn a_node_is_ready_then_draining_then_gone() {
    let (service, begins, release) = held("drained");
    let node = service.start().unwrap();
    let vitals = node.vitals().clone();
    assert_eq!(vitals.ready(), Ok(()));
    assert_eq!(live(&vitals), Ok(()));
    let asked = send(&node, "drained", 1);
    begins.recv_timeout(PATIENCE).unwrap();
    let stopping = std::thread::spawn(move || node.stop());
    wait_until("the node drains", PATIENCE, || {
        vitals.ready() == Err(Unwell::Draining)
    });
    assert_eq!(live(&vitals), Ok(()), "a draining node is live");
    release.send(()).unwrap();
    stopping.join().unwrap();
    assert!(
        asked.into_iter().all(|asked| asked.join().unwrap()),
        "accepted requests are answered"
    );
    assert_eq!(live(&vitals), Err(Unwell::Stuck));
}

#[test]
fn a_node_with_a_full_queue_is_not_ready() {
    let (service, begins, release) = held("full");
    let node = service
        .worker(WorkerConfig {
            name: SOLE_WORKER.to_owned(),
            queue_capacity: 2,
        })
        .start()
        .unwrap();
    let vitals = node.vitals().clone();
    let running = send(&node, "full", 1);
    begins.recv_timeout(PATIENCE).unwrap();
    let waiting = send(&node, "full", 2);
    wait_until("the queue is full", PATIENCE, || {
        matches!(vitals.ready(), Err(Unwell::QueueFull { waiting: 2, .. }))
    });
    assert!(
        vitals
            .page()
            .contains("kaskade_in_flight_requests{app=\"full\"} 3\n"),
        "{}",
        vitals.page()
    );
    assert!(
        vitals
            .page()
            .contains("kaskade_queued_requests{app=\"full\",variant=\"small\"} 2\n")
    );
    assert!(
        vitals
            .page()
            .contains("kaskade_ready_processes{app=\"full\"} 0\n")
    );
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    for asked in running.into_iter().chain(waiting) {
        assert!(asked.join().unwrap());
    }
    wait_until("the queue has room again", PATIENCE, || vitals.ready().is_ok());
    node.stop();
}

#[test]
fn a_node_at_its_limit_of_requests_in_flight_is_not_ready() {
    let (service, begins, release) = held("limited");
    let node = service
        .ingress(IngressConfig {
            max_in_flight: 1,
            ..IngressConfig::default()
        })
        .start()
        .unwrap();
    let vitals = node.vitals().clone();
    let asked = send(&node, "limited", 1);
    begins.recv_timeout(PATIENCE).unwrap();
    assert_eq!(vitals.ready(), Err(Unwell::DoorFull { in_flight: 1 }));
    release.send(()).unwrap();
    assert!(asked.into_iter().all(|asked| asked.join().unwrap()));
    node.stop();
}

#[test]
fn a_node_without_its_broker_is_not_ready() {
    let mut server = kaskade_testkit::NatsServer::start(kaskade_testkit::NatsOptions::jetstream());
    let (service, _begins, _release) = held("cut");
    let node = service
        .bus(BusConfig::new("cut").url(server.url()))
        .start()
        .unwrap();
    let vitals = node.vitals().clone();
    assert_eq!(vitals.ready(), Ok(()));
    server.kill();
    wait_until("the loss is noticed", PATIENCE, || {
        matches!(vitals.ready(), Err(Unwell::NoBroker { .. }))
    });
    assert_eq!(
        live(&vitals),
        Ok(()),
        "a lost broker does not make the node unhealthy"
    );
    server.restart();
    wait_until("the broker is back", PATIENCE, || vitals.ready().is_ok());
    node.stop();
}
