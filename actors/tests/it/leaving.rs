//! Processes that leave behind a connection that is slow from the server to the client: no request is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::gears::block_on;
use crate::common::{Scripted, ask, label};
use futures::StreamExt;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::stage::worker::{Loader, WorkerConfig};
use kaskade_actors::wire::{IngressState, Message as _, StageRequest};
use kaskade_actors::{
    App, AttachConfig, Client, Code, Fault, Node, NodeConfig, Stage, StageInput, StageOutput, attach_stage,
};
use kaskade_models::{Inputs, Model, ModelError, Outputs};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::{Plan, Replica};
use kaskade_testkit::{DelayProxy, NatsOptions, NatsServer, wait_until};
use tokio::time::timeout;

const DELAY: Duration = Duration::from_millis(50);
const BUDGET: Duration = Duration::from_secs(5);
/// 1,000 requests per second, which a test build on a busy machine serves.
const PERIOD: Duration = Duration::from_millis(1);

fn plan(app: &str, workers: &[&str]) -> Plan {
    let mut plan = Plan::cascade(app)
        .stage("only", "small")
        .worker(workers[0])
        .build()
        .unwrap();
    let first = plan.placement[0].clone();
    plan.placement = workers
        .iter()
        .map(|worker| Replica {
            id: format!("small-{worker}"),
            worker: (*worker).to_owned(),
            ..first.clone()
        })
        .collect();
    plan
}

fn node(app: &str, bus: BusConfig, worker: Option<&str>, workers: &[&str]) -> Node {
    let worker = worker.map(|name| {
        let config = WorkerConfig {
            name: name.to_owned(),
            queue_capacity: 10_000,
            ..WorkerConfig::default()
        };
        let loader: Loader = Arc::new(|_: &Replica| {
            Ok(Box::new(Scripted {
                strength: 9.0,
                run: Duration::from_millis(2),
            }) as Box<dyn Model>)
        });
        (config, loader)
    });
    Node::start(NodeConfig {
        app: app.to_owned(),
        bus,
        ingress: worker.is_none().then(IngressConfig::default),
        worker,
        plan: Some(plan(app, workers)),
        planner: None,
        power: None,
        grace: Duration::from_secs(20),
    })
    .unwrap()
}

/// Sends requests at a steady rate until `over`; returns the faults by code, and how many requests there were. Refused
/// requests of a busy machine do not count.
async fn load(client: &Client, over: &AtomicBool) -> (BTreeMap<&'static str, Fault>, usize) {
    let mut pace = tokio::time::interval(PERIOD);
    let mut asked = Vec::new();
    while !over.load(Ordering::SeqCst) {
        pace.tick().await;
        let client = client.clone();
        asked.push(tokio::spawn(
            async move { client.infer(ask(1.0, 1.0), BUDGET).await },
        ));
    }
    let count = asked.len();
    let mut faults = BTreeMap::new();
    for one in asked {
        match one.await.unwrap() {
            Ok(reply) => assert_eq!(label(&reply.outputs), 1),
            Err(fault) if fault.code == Code::Overloaded => {}
            Err(fault) => drop(faults.insert(fault.code.id(), fault)),
        }
    }
    (faults, count)
}

/// Runs `leave` under load, after a while of it, and demands that every request is answered.
async fn loses_nothing(client: Client, leave: impl Future<Output = ()>) {
    let over = AtomicBool::new(false);
    let leaving = async {
        for _ in 0..20 {
            if let Err(fault) = client.infer(ask(1.0, 1.0), BUDGET).await {
                assert_eq!(fault.code, Code::Overloaded, "{fault}");
            }
        }
        leave.await;
        over.store(true, Ordering::SeqCst);
    };
    let ((faults, count), ()) = tokio::join!(load(&client, &over), leaving);
    assert!(faults.is_empty(), "of {count} requests: {faults:?}");
}

async fn stop(node: Node) {
    tokio::task::spawn_blocking(|| node.stop()).await.unwrap();
}

fn a_worker_leaves(app: &str, url: &str, port: u16) {
    let proxy = DelayProxy::start(port, DELAY);
    let workers = ["slow", "fast"];
    let direct = || BusConfig::new(app).url(url);
    let slow = node(app, BusConfig::new(app).url(proxy.url()), Some("slow"), &workers);
    let fast = node(app, direct(), Some("fast"), &workers);
    let ingress = node(app, direct(), None, &workers);
    let client = Client::new(ingress.bus(), App::new(app).unwrap());
    block_on(loses_nothing(client, stop(slow)));
    assert_eq!(ingress.metrics().read().retried, 0, "nothing was sent twice");
    ingress.stop();
    fast.stop();
}

#[test]
fn a_worker_leaves_without_losing_a_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    a_worker_leaves("leaving-worker", &server.url(), server.port());
}

#[test]
fn a_worker_answers_everything_that_its_queue_groups_were_given_before_it_left() {
    const SENDER: &str = "me";
    let server = NatsServer::start(NatsOptions::jetstream());
    let app = App::new("leaving-groups").unwrap();
    let proxy = DelayProxy::start(server.port(), DELAY);
    let behind = BusConfig::new(app.name()).url(proxy.url());
    let worker = node(app.name(), behind, Some("slow"), &["slow"]);
    block_on(async {
        let config = BusConfig::new(app.name()).url(server.url());
        let bus = Bus::connect(config).await.unwrap();
        let mut results = bus.subscribe(app.done_all(SENDER).unwrap(), None).await.unwrap();
        bus.barrier().await.unwrap();
        let mut leaving = std::pin::pin!(stop(worker));
        let (mut pace, mut unanswered) = (tokio::time::interval(PERIOD), BTreeSet::new());
        // A sender that has not heard that the worker leaves.
        for id in 0.. {
            let request = StageRequest {
                id,
                ingress: SENDER.to_owned(),
                attempt: 1,
                epoch: 1,
                stage: "only".to_owned(),
                inputs: ask(1.0, 1.0),
                ..StageRequest::default()
            };
            let reply = app.done(SENDER, id, 1, &request.token.to_string()).unwrap();
            let (subject, payload) = (app.stage("only").unwrap(), request.encode().unwrap());
            bus.publish(subject, Some(reply), None, payload).await.unwrap();
            unanswered.insert(id);
            tokio::select! {
                () = &mut leaving => break,
                _ = pace.tick() => {}
            }
        }
        let sent = unanswered.len();
        // The worker answers, or the server says that there is no worker.
        while !unanswered.is_empty() {
            let Ok(result) = timeout(BUDGET, results.next()).await else {
                panic!(
                    "{} of {sent} requests have no answer: {unanswered:?}",
                    unanswered.len()
                );
            };
            let (id, ..) = app.parse_done(&result.unwrap().subject).unwrap();
            unanswered.remove(&id);
        }
    });
}

#[test]
fn an_ingress_leaves_without_losing_a_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, workers) = ("leaving-ingress", ["only"]);
    let proxy = DelayProxy::start(server.port(), DELAY);
    let direct = || BusConfig::new(app).url(server.url());
    let worker = node(app, direct(), Some("only"), &workers);
    let staying = node(app, direct(), None, &workers);
    let slow = node(app, BusConfig::new(app).url(proxy.url()), None, &workers);
    let client = Client::new(staying.bus(), App::new(app).unwrap());
    block_on(loses_nothing(client, stop(slow)));
    staying.stop();
    worker.stop();
}

/// A cascade on each of these workers. Its first stage may send requests on.
fn two_stages(app: &str, workers: &[&str]) -> Plan {
    let first = Plan::cascade(app)
        .stage("only", "small")
        .worker(workers[0])
        .below(0.5);
    let mut plan = first.then("second", "large").worker(workers[0]).build().unwrap();
    for variant in &mut plan.variants {
        variant.calibration = Some(Calibration {
            estimator: Estimator::MaxSquared,
            temperature: 1.0,
        });
    }
    let placed = std::mem::take(&mut plan.placement);
    for worker in workers {
        plan.placement.extend(placed.iter().map(|replica| Replica {
            id: format!("{}-{worker}", replica.variant),
            worker: (*worker).to_owned(),
            ..replica.clone()
        }));
    }
    plan
}

/// Answers after three seconds.
struct Slow(Arc<AtomicBool>);

impl Model for Slow {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.0.store(true, Ordering::SeqCst);
        let model = &mut Scripted {
            strength: 9.0,
            run: Duration::from_secs(3),
        };
        model.run(batch)
    }
}

/// A request that may have moved on waited for the end of its budget.
#[test]
fn what_a_worker_has_not_answered_when_its_grace_time_is_over_is_sent_again() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, began) = ("leaving-late", Arc::<AtomicBool>::default());
    let node = |worker: Option<&str>, is_slow: bool| {
        let began = Arc::clone(&began);
        let loader: Loader = Arc::new(move |_: &Replica| {
            Ok(if is_slow {
                Box::new(Slow(Arc::clone(&began))) as Box<dyn Model>
            } else {
                Box::new(Scripted {
                    strength: 9.0,
                    run: Duration::ZERO,
                })
            })
        });
        let worker = worker.map(|name| {
            let config = WorkerConfig {
                name: name.to_owned(),
                ..WorkerConfig::default()
            };
            (config, loader)
        });
        Node::start(NodeConfig {
            app: app.to_owned(),
            bus: BusConfig::new(app).url(server.url()),
            ingress: worker.is_none().then(IngressConfig::default),
            worker,
            plan: Some(two_stages(app, &["slow", "fast"])),
            planner: None,
            power: None,
            grace: Duration::from_millis(200),
        })
        .unwrap()
    };
    let slow = node(Some("slow"), true);
    let ingress = node(None, false);
    let client = Client::new(ingress.bus(), App::new(app).unwrap()).retry(false);
    let runtime = crate::foreign::runtime();
    let asked = runtime.spawn(async move { client.infer(ask(1.0, 1.0), 2 * BUDGET).await });
    wait_until("the request is at the worker", BUDGET, || {
        began.load(Ordering::SeqCst)
    });
    let fast = node(Some("fast"), false);
    slow.stop();
    let reply = runtime.block_on(asked).unwrap().unwrap();
    assert_eq!((label(&reply.outputs), ingress.metrics().read().retried), (1, 1));
    ingress.stop();
    fast.stop();
}

/// Waits, before it runs a batch, until the sender of its channel is dropped. Counts requests.
struct Held {
    began: mpsc::Sender<()>,
    until: Arc<Mutex<mpsc::Receiver<()>>>,
    ran: Arc<AtomicUsize>,
}

impl Model for Held {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.ran.fetch_add(batch.len(), Ordering::SeqCst);
        let _ = self.began.send(());
        let _ = self.until.lock().unwrap().recv();
        let model = &mut Scripted {
            strength: 9.0,
            run: Duration::ZERO,
        };
        model.run(batch)
    }
}

/// It announced that its replicas leave only after its ingress was idle: other ingresses sent to them until then.
#[test]
fn a_process_with_an_ingress_and_a_worker_gets_no_requests_from_other_ingresses_once_it_stops() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, workers) = ("leaving-all", ["leaves", "stays"]);
    let (began, has_begun) = mpsc::channel();
    let (release, until) = mpsc::channel::<()>();
    let (until, ran) = (Arc::new(Mutex::new(until)), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&ran);
    let held: Loader = Arc::new(move |_: &Replica| {
        Ok(Box::new(Held {
            began: began.clone(),
            until: Arc::clone(&until),
            ran: Arc::clone(&counted),
        }) as Box<dyn Model>)
    });
    let prompt: Loader = Arc::new(|_: &Replica| {
        Ok(Box::new(Scripted {
            strength: 9.0,
            run: Duration::ZERO,
        }) as Box<dyn Model>)
    });
    let node = |worker: &str, loader: &Loader| {
        let config = WorkerConfig {
            name: worker.to_owned(),
            ..WorkerConfig::default()
        };
        Node::start(NodeConfig {
            app: app.to_owned(),
            bus: BusConfig::new(app).url(server.url()),
            ingress: Some(IngressConfig::default()),
            worker: Some((config, Arc::clone(loader))),
            plan: Some(two_stages(app, &workers)),
            planner: None,
            power: None,
            grace: 4 * BUDGET,
        })
        .unwrap()
    };
    let runtime = crate::foreign::runtime();
    let leaves = node("leaves", &held);
    let client = Client::new(leaves.bus(), App::new(app).unwrap()).retry(false);
    let client = client.with_local_ingress(leaves.local_intake());
    // So unsure that it goes to both stages.
    let long = runtime.spawn(async move { client.infer(ask(1.0, 0.01), 4 * BUDGET).await });
    has_begun.recv_timeout(BUDGET).unwrap();

    let stays = node("stays", &prompt);
    let app = App::new(app).unwrap();
    let mut states = runtime.block_on(async {
        let states = stays.bus().subscribe(app.ingresses(), None).await.unwrap();
        stays.bus().barrier().await.unwrap();
        states
    });
    let leaving = std::thread::spawn(|| leaves.stop());
    let is_told = async {
        while let Some(message) = states.next().await {
            let state = IngressState::decode(&message.payload).unwrap();
            let avoids = |variant: &str| state.unavailable.contains(&format!("{variant}-leaves"));
            if stays.ingresses().contains(&state.ingress) && avoids("small") && avoids("large") {
                return;
            }
        }
    };
    let told = runtime.block_on(async { timeout(BUDGET, is_told).await });
    assert!(
        told.is_ok(),
        "the other ingress still sends to the leaving replicas"
    );
    let client = Client::new(stays.bus(), app).retry(false);
    let client = client.with_local_ingress(stays.local_intake());
    let asked = runtime.block_on(async {
        let asked = (0..100).map(|_| client.infer(ask(1.0, 0.01), BUDGET));
        futures::future::join_all(asked).await
    });
    for reply in asked {
        assert_eq!(label(&reply.unwrap().outputs), 1);
    }
    assert_eq!(ran.load(Ordering::SeqCst), 1, "only its own request");

    drop(release);
    let reply = runtime.block_on(long).unwrap().unwrap();
    assert_eq!((label(&reply.outputs), reply.hops.len()), (1, 2));
    assert_eq!(ran.load(Ordering::SeqCst), 2, "its own request, at both stages");
    leaving.join().unwrap();
    stays.stop();
}

/// Answers like the scripted model.
struct Custom;

impl Stage for Custom {
    async fn run(&self, _: StageInput) -> Result<StageOutput, Fault> {
        let outputs = vec![kaskade_models::Tensor::from_f32(
            "logits",
            &[4],
            &[0.0, 9.0, 0.0, 0.0],
        )?];
        Ok(StageOutput::new(outputs).confidence(0.9))
    }
}

#[test]
fn an_attached_stage_leaves_without_losing_a_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, workers) = ("leaving-custom", ["only"]);
    let proxy = DelayProxy::start(server.port(), DELAY);
    let direct = || BusConfig::new(app).url(server.url());
    let worker = node(app, direct(), Some("only"), &workers);
    let ingress = node(app, direct(), None, &workers);
    let client = Client::new(ingress.bus(), App::new(app).unwrap());
    let config = AttachConfig::new(app, "only", "custom").max_in_flight(10_000);
    block_on(async {
        let bus = BusConfig::new(app).url(proxy.url());
        let attached = attach_stage(bus, config, Custom).await.unwrap();
        loses_nothing(client, attached.detach(BUDGET)).await;
    });
    ingress.stop();
    worker.stop();
}
