//! Plans that move, swap and recut models while requests are under way. Loading is held by the test, not by time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::BUDGET;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::node::NodeConfig;
use kaskade_actors::ops::health::NotReady;
use kaskade_actors::plan::store;
use kaskade_actors::stage::worker::{Loader, WorkerConfig};
use kaskade_actors::wire::{InferReply, InferRequest, Message as _, headers};
use kaskade_actors::{App, Client, Code, Node};
use kaskade_models::{
    Continuous, Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Progress, Signature, Tensor,
};
use kaskade_policy::plan::{Edge, Exit, Partition, Plan, Replica};
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT, wait_until};

/// Time in which a request must be answered while models load: far less than the loads take, since these wait for the test.
const SOON: Duration = Duration::from_secs(2);

/// Says which replica ran. A partition passes on how many partitions the request has passed, and refuses what a partition of another cut sent.
///
/// The variant [`WRITER`] runs step by step, as language models do.
struct Named {
    replica: Replica,
    loading: Arc<Loading>,
    /// The requests of the next step.
    pending: Vec<(u64, Inputs)>,
}

const WRITER: &str = "writer";

impl Model for Named {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(2)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        batch.iter().map(|inputs| self.one(inputs)).collect()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        (self.replica.variant == WRITER).then_some(self as &mut dyn Continuous)
    }
}

impl Continuous for Named {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.pending.push((number, inputs.clone()));
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.pending.retain(|(pending, _)| *pending != number);
    }

    fn step(&mut self) -> Vec<Progress> {
        let pending = std::mem::take(&mut self.pending);
        let answer = |(number, inputs): (u64, Inputs)| Progress {
            number,
            pieces: 1,
            part: Outputs::new(),
            end: Some(self.one(&inputs)),
        };
        pending.into_iter().map(answer).collect()
    }
}

impl Named {
    fn one(&self, inputs: &Inputs) -> Result<Outputs, ModelError> {
        let x = inputs[0].to_f32()?;
        let Partition { index, of } = self.replica.partition.unwrap_or(Partition { index: 0, of: 1 });
        let (passed, cut) = (x[0] as u32, x[1] as u32);
        if passed != index || (index > 0 && cut != of) {
            let reason = format!("partition {index} of {of} gets what {passed} partitions of {cut} made");
            return Err(ModelError::Failed { reason });
        }
        let x = Tensor::from_f32("x", &[2], &[(passed + 1) as f32, of as f32])?;
        if index + 1 < of {
            return Ok(vec![x]);
        }
        let Replica {
            variant,
            worker,
            checkpoint,
            ..
        } = &self.replica;
        let checkpoint = checkpoint.as_deref().unwrap_or_default();
        Ok(vec![
            x,
            Tensor::from_texts("by", &[variant, worker, checkpoint])?,
            Tensor::from_f32("confidence", &[1], &[1.0])?,
        ])
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut state = self.loading.state.lock().unwrap();
        state.leaving += 1;
        while state.stays {
            state = self.loading.changed.wait(state).unwrap();
        }
        state.leaving -= 1;
        state.unloaded += 1;
    }
}

/// Lets models load, holds them, or makes them fail.
#[derive(Default)]
struct Loading {
    state: Mutex<Hold>,
    changed: Condvar,
}

#[derive(Default)]
struct Hold {
    held: bool,
    waiting: usize,
    fails: bool,
    /// Models that leave memory take as long as this is set.
    stays: bool,
    leaving: usize,
    unloaded: usize,
}

impl Loading {
    fn set(&self, change: impl FnOnce(&mut Hold)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn waits(&self, loads: usize) {
        wait_until("the models are being loaded", TIMEOUT, || {
            self.state.lock().unwrap().waiting == loads
        });
    }

    fn unloaded(&self, models: usize) {
        wait_until("the old models have left memory", TIMEOUT, || {
            self.state.lock().unwrap().unloaded == models
        });
    }

    fn leaves(&self, models: usize) {
        wait_until("the old models leave memory", TIMEOUT, || {
            self.state.lock().unwrap().leaving == models
        });
    }

    fn loader(self: &Arc<Self>) -> Loader {
        let loading = Arc::clone(self);
        Arc::new(move |replica| {
            let mut state = loading.state.lock().unwrap();
            state.waiting += 1;
            while state.held {
                state = loading.changed.wait(state).unwrap();
            }
            state.waiting -= 1;
            if state.fails {
                return Err("no such file".to_owned());
            }
            Ok(Box::new(Named {
                replica: replica.clone(),
                loading: Arc::clone(&loading),
                pending: Vec::new(),
            }))
        })
    }
}

/// Lets every model load in the end, so that a test that fails comes to an end.
struct LetGo(Arc<Loading>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.set(|hold| (hold.held, hold.stays) = (false, false));
    }
}

/// Two workers and an ingress, each a node of its own.
struct Cluster {
    _let_go: LetGo,
    ingress: Node,
    workers: Vec<Node>,
    loading: Arc<Loading>,
    client: Client,
    runtime: tokio::runtime::Runtime,
    app: App,
}

impl Cluster {
    fn start(app: &str, bus: &BusConfig, plan: &Plan) -> Self {
        let loading = Arc::new(Loading::default());
        let node = |worker: Option<&str>| {
            Node::start(NodeConfig {
                app: app.to_owned(),
                bus: bus.clone(),
                ingress: worker.is_none().then(IngressConfig::default),
                worker: worker.map(|name| {
                    let config = WorkerConfig {
                        name: name.to_owned(),
                        queue_capacity: 256,
                        ..WorkerConfig::default()
                    };
                    (config, loading.loader())
                }),
                plan: Some(plan.clone()),
                planner: None,
                power: None,
                grace: Duration::from_secs(1),
            })
            .unwrap()
        };
        let workers = vec![node(Some("w1")), node(Some("w2"))];
        let ingress = node(None);
        wait_until("the first plan is in place", TIMEOUT, || {
            ingress.plans().is_admitted()
        });
        let app = App::new(app).unwrap();
        Self {
            _let_go: LetGo(Arc::clone(&loading)),
            client: Client::new(ingress.bus(), app.clone()),
            ingress,
            workers,
            loading,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
            app,
        }
    }

    /// Writes the next plan, and returns its epoch.
    fn apply(&self, plan: &Plan) -> u64 {
        self.runtime.block_on(async {
            let store = store::open(self.ingress.bus(), &self.app).await.unwrap();
            let stored = store.get().await.unwrap().unwrap();
            store.put(plan, Some(stored.epoch)).await.unwrap()
        })
    }

    fn epoch(&self) -> u64 {
        self.ingress.plans().current().unwrap().0.epoch
    }

    fn admits(&self, epoch: u64) {
        wait_until("the ingress admits under the epoch", TIMEOUT, || {
            self.epoch() == epoch
        });
    }

    /// Sends requests one after another from four clients until `during` returns; the replies and how long the slowest took.
    fn under_load(&self, during: impl FnOnce()) -> (Vec<InferReply>, Duration) {
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (client, stop) = (self.client.clone(), Arc::clone(&stop));
                self.runtime.spawn(async move {
                    let (mut replies, mut slowest) = (Vec::new(), Duration::ZERO);
                    while !stop.load(Ordering::SeqCst) {
                        let asked = Instant::now();
                        replies.push(client.infer(question(), BUDGET).await.unwrap());
                        slowest = slowest.max(asked.elapsed());
                    }
                    (replies, slowest)
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::SeqCst);
        let (mut replies, mut slowest) = (Vec::new(), Duration::ZERO);
        for client in clients {
            let (more, longest) = self.runtime.block_on(client).unwrap();
            replies.extend(more);
            slowest = slowest.max(longest);
        }
        (replies, slowest)
    }

    /// Answers some requests, and returns the reply to the last.
    fn ask(&self) -> InferReply {
        let ask = self.client.infer(question(), BUDGET);
        self.runtime.block_on(ask).unwrap()
    }

    fn stop(self) {
        assert_eq!(self.ingress.metrics().read().faults, BTreeMap::new());
        self.ingress.stop();
        for worker in self.workers {
            worker.stop();
        }
    }
}

fn question() -> Vec<Tensor> {
    vec![Tensor::from_f32("x", &[2], &[0.0, 0.0]).unwrap()]
}

/// The variant and the worker that answered.
fn by(reply: &InferReply) -> (String, String) {
    let by = reply.outputs.iter().find(|output| output.name == "by").unwrap();
    let texts = by.to_texts().unwrap();
    (texts[0].to_owned(), texts[1].to_owned())
}

/// A variant on a worker that answers everything, and another one that nothing reaches.
fn entry_on(app: &str, entry: (&str, &str), other: (&str, &str)) -> Plan {
    let mut plan = Plan::cascade(app)
        .stage("entry", entry.0)
        .worker(entry.1)
        .below(0.5)
        .then("other", other.0)
        .worker(other.1)
        .build()
        .unwrap();
    plan.gears[0].wiring.stages[0].exit = Exit::Reply;
    plan
}

/// The code of a request that its client sends once; `None` if it is answered.
async fn asked_once(ingress: &Node, app: &App) -> Option<Code> {
    let request = InferRequest {
        inputs: question(),
        ..InferRequest::default()
    };
    let body = request.encode().unwrap();
    let reply = ingress.bus().client().request(app.infer(), body).await.unwrap();
    headers::fault(reply.headers.as_ref()).map(|fault| fault.code)
}

#[test]
fn an_ingress_that_starts_while_the_workers_load_refuses_requests_until_the_plan_is_in_place() {
    let name = "adoption-start";
    let app = App::new(name).unwrap();
    let server = NatsServer::start(NatsOptions::jetstream());
    let loading = Arc::new(Loading::default());
    let let_go = LetGo(Arc::clone(&loading));
    loading.set(|hold| hold.held = true);
    let plan = entry_on(name, ("small", "w1"), ("large", "w1"));
    let node = move |worker: Option<Loader>| {
        Node::start(NodeConfig {
            app: name.to_owned(),
            bus: BusConfig::new(name).url(server.url()),
            ingress: worker.is_none().then(IngressConfig::default),
            worker: worker.map(|loader| {
                let config = WorkerConfig {
                    name: "w1".to_owned(),
                    queue_capacity: 256,
                    ..WorkerConfig::default()
                };
                (config, loader)
            }),
            plan: Some(plan.clone()),
            planner: None,
            power: None,
            grace: Duration::from_secs(1),
        })
        .unwrap()
    };
    let ingress = node(None);
    let loader = loading.loader();
    let worker = std::thread::spawn(move || {
        let started = node(Some(loader));
        (started, node)
    });
    loading.waits(2);
    wait_until("the ingress hears of the load", TIMEOUT, || {
        ingress.plans().is_loading()
    });
    let runtime = crate::foreign::runtime();
    assert_eq!(
        runtime.block_on(asked_once(&ingress, &app)),
        Some(Code::Unavailable)
    );
    let counted = ingress.metrics().read();
    assert_eq!(
        (counted.accepted, counted.retried),
        (0, 0),
        "it is refused at once, without attempts at a stage that has no replicas"
    );
    // A shipped client sends the request again until then.
    let client = Client::new(ingress.bus(), app.clone());
    let waiting = runtime.spawn(async move { client.infer(question(), BUDGET).await });
    let refused = || ingress.metrics().read().faults.values().sum::<u64>();
    wait_until("the client is refused", TIMEOUT, || refused() > 1);
    drop(let_go);
    let reply = runtime.block_on(waiting).unwrap().unwrap();
    assert_eq!(by(&reply), ("small".to_owned(), "w1".to_owned()));
    assert!(ingress.plans().is_admitted() && !ingress.plans().is_loading());
    let (worker, _node) = worker.join().unwrap();
    worker.stop();
    ingress.stop();
}

fn swaps_variants(app: &str, bus: &BusConfig, variant: &str, shares: bool) {
    let plan = |small, large| {
        let mut plan = entry_on(app, (variant, small), ("large", large));
        if shares {
            plan.gears[0].wiring.entry.shares = BTreeMap::from([(format!("{variant}-0"), 1.0)]);
        }
        plan
    };
    let cluster = Cluster::start(app, bus, &plan("w1", "w2"));
    cluster.loading.set(|hold| (hold.held, hold.stays) = (true, true));
    let mut epoch = 0;
    let (replies, slowest) = cluster.under_load(|| {
        epoch = cluster.apply(&plan("w2", "w1"));
        cluster.loading.waits(2);
        // Both workers load; requests go on under the plan before.
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w1");
        }
        assert!(cluster.epoch() < epoch);
        cluster.loading.set(|hold| hold.held = false);
        cluster.admits(epoch);
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w2");
        }
        cluster.loading.leaves(2);
        for worker in &cluster.workers {
            let live = cluster.runtime.block_on(worker.health().live());
            assert_eq!(
                live,
                Ok(()),
                "a model that leaves memory does not block the actors"
            );
        }
        cluster.loading.set(|hold| hold.stays = false);
        cluster.loading.unloaded(2);
    });
    assert!(replies.len() > 20, "{}", replies.len());
    assert!(replies.iter().all(|reply| by(reply).0 == variant));
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    assert_eq!(by(&cluster.ask()).1, "w2");
    cluster.stop();
}

#[test]
fn two_workers_swap_variants_under_load_on_the_embedded_broker() {
    swaps_variants("swap-embedded", &BusConfig::new("swap-embedded"), "small", false);
}

#[test]
fn two_workers_swap_variants_under_load_on_a_nats_server() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = |app: &str| BusConfig::new(app).url(server.url().clone());
    swaps_variants("swap-nats", &bus("swap-nats"), "small", false);
    swaps_variants("swap-shares", &bus("swap-shares"), "small", true);
}

#[test]
fn a_language_model_that_moved_leaves_memory() {
    swaps_variants("swap-writer", &BusConfig::new("swap-writer"), WRITER, false);
}

#[test]
fn a_stage_that_changes_its_variant_is_answered_by_the_one_of_the_requests_plan() {
    let app = "swap-names";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let small = entry_on(app, ("small", "w1"), ("large", "w2"));
    let large = entry_on(app, ("large", "w2"), ("small", "w1"));
    let cluster = Cluster::start(app, &bus, &small);
    let (replies, slowest) = cluster.under_load(|| {
        for plan in [&large, &small, &large] {
            let epoch = cluster.apply(plan);
            cluster.admits(epoch);
            for _ in 0..30 {
                assert_eq!(by(&cluster.ask()).0, plan.gears[0].wiring.stages[0].variant);
            }
        }
    });
    for reply in &replies {
        assert_eq!(
            by(reply).0,
            reply.variant,
            "the ingress names the variant that its plan has"
        );
    }
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    let unloaded = cluster.loading.state.lock().unwrap().unloaded;
    assert_eq!(unloaded, 0, "no model moved");
    cluster.stop();
}

#[test]
fn a_load_that_fails_leaves_the_plan_before_in_force() {
    let app = "load-fails";
    let bus = BusConfig::new(app);
    let (before, moved) = (
        entry_on(app, ("small", "w1"), ("large", "w2")),
        entry_on(app, ("small", "w2"), ("large", "w2")),
    );
    let cluster = Cluster::start(app, &bus, &before);
    cluster.loading.set(|hold| hold.fails = true);
    let (_, slowest) = cluster.under_load(|| {
        let epoch = cluster.apply(&moved);
        let health = cluster.workers[1].health();
        wait_until("the worker says why", TIMEOUT, || {
            matches!(health.lacking(), Some(NotReady::Failed(reasons)) if reasons["small-0"].contains("no such file"))
        });
        let ingress = cluster.ingress.health();
        // Out of service, they would not answer under the plan before.
        assert_eq!((health.ready(), ingress.ready()), (Ok(()), Ok(())));
        wait_until("the ingress says so", TIMEOUT, || {
            let said = ingress.notes().join("; ");
            said.contains("loading the replicas of epoch 2; epoch 1 is in place")
        });
        let has = |page: &str, line: &str| assert!(page.lines().any(|found| found == line), "{line} in {page}");
        has(&health.page(), "kaskade_failed_replicas{app=\"load-fails\"} 1");
        has(&ingress.page(), "kaskade_plan_epoch{app=\"load-fails\"} 2");
        has(&ingress.page(), "kaskade_plan_epoch_in_place{app=\"load-fails\"} 1");
        for _ in 0..50 {
            assert_eq!(by(&cluster.ask()).1, "w1");
        }
        assert!(cluster.epoch() < epoch);
        // The next plan is another try.
        cluster.loading.set(|hold| hold.fails = false);
        let mut again = moved.clone();
        "again".clone_into(&mut again.made_by);
        let epoch = cluster.apply(&again);
        cluster.admits(epoch);
        assert_eq!(by(&cluster.ask()).1, "w2");
        assert_eq!((health.ready(), health.lacking()), (Ok(()), None));
        assert_eq!(ingress.notes(), Vec::<String>::new());
    });
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}

#[test]
fn a_process_stays_ready_while_it_loads_the_next_plan() {
    let app = "load-held";
    let bus = BusConfig::new(app);
    let (before, moved) = (
        entry_on(app, ("small", "w1"), ("large", "w2")),
        entry_on(app, ("small", "w2"), ("large", "w2")),
    );
    let cluster = Cluster::start(app, &bus, &before);
    cluster.loading.set(|hold| hold.held = true);
    let epoch = cluster.apply(&moved);
    cluster.loading.waits(1);
    let (worker, ingress) = (cluster.workers[1].health(), cluster.ingress.health());
    let loading = NotReady::Loading { epoch, in_place: 1 };
    for health in [worker, ingress] {
        wait_until("it knows the plan", TIMEOUT, || {
            health.lacking() == Some(loading.clone())
        });
        assert_eq!(health.ready(), Ok(()));
    }
    assert_eq!(by(&cluster.ask()).1, "w1");
    cluster.loading.set(|hold| hold.held = false);
    cluster.admits(epoch);
    assert_eq!((worker.lacking(), ingress.lacking()), (None, None));
    cluster.stop();
}

/// One variant in so many partitions, in turns on the two workers. Ids and names of stages do not tell the cut.
fn cut(app: &str, of: u32) -> Plan {
    let mut plan = Plan::cascade(app).stage("large", "large").build().unwrap();
    let stage = plan.gears[0].wiring.stages[0].clone();
    let replica = plan.placement[0].clone();
    let (name, id) = (|part| format!("large-p{part}"), |part| format!("large-0-p{part}"));
    plan.placement = (0..of)
        .map(|index| Replica {
            id: id(index),
            worker: ["w1", "w2"][index as usize % 2].to_owned(),
            partition: Some(Partition { index, of }),
            ..replica.clone()
        })
        .collect();
    let to = |part| Edge {
        shares: BTreeMap::from([(id(part), 1.0)]),
        ..Edge::to(name(part))
    };
    let wiring = &mut plan.gears[0].wiring;
    wiring.entry = to(0);
    wiring.stages = (0..of)
        .map(|index| kaskade_policy::plan::Stage {
            name: name(index),
            partition: Some(Partition { index, of }),
            exit: if index + 1 < of {
                Exit::Next { to: to(index + 1) }
            } else {
                Exit::Reply
            },
            ..stage.clone()
        })
        .collect();
    plan
}

#[test]
fn a_model_that_is_cut_anew_under_the_same_ids_answers_every_request() {
    let app = "recut";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let cluster = Cluster::start(app, &bus, &cut(app, 2));
    let partitions = |reply: &InferReply| reply.outputs[0].to_f32().unwrap()[0] as u32;
    assert_eq!(partitions(&cluster.ask()), 2);
    let (replies, slowest) = cluster.under_load(|| {
        for of in [3, 2, 3] {
            let epoch = cluster.apply(&cut(app, of));
            cluster.admits(epoch);
            for _ in 0..30 {
                assert_eq!(partitions(&cluster.ask()), of);
            }
        }
    });
    assert!(replies.iter().all(|reply| [2, 3].contains(&partitions(reply))));
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}

/// A plan that names other weights under the same ids changes them without a restart.
#[test]
fn retrained_weights_replace_the_old_ones_under_load() {
    let app = "retrained";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(app).url(server.url().clone());
    let holding = |checkpoint: &str| {
        let mut plan = entry_on(app, ("small", "w1"), ("large", "w2"));
        let replica = plan.placement[0].clone();
        plan.placement[0] = replica.with_checkpoint(Some(checkpoint));
        plan
    };
    let cluster = Cluster::start(app, &bus, &holding("first"));
    let weights = |reply: &InferReply| {
        let by = reply.outputs.iter().find(|output| output.name == "by").unwrap();
        by.to_texts().unwrap()[2].to_owned()
    };
    assert_eq!(weights(&cluster.ask()), "first");
    let (replies, slowest) = cluster.under_load(|| {
        cluster.loading.set(|hold| hold.held = true);
        let epoch = cluster.apply(&holding("second"));
        cluster.loading.waits(1);
        assert_eq!(weights(&cluster.ask()), "first", "while the new ones load");
        cluster.loading.set(|hold| hold.held = false);
        cluster.admits(epoch);
        for _ in 0..30 {
            assert_eq!(weights(&cluster.ask()), "second");
        }
        cluster.loading.unloaded(1);
    });
    assert!(
        replies
            .iter()
            .all(|reply| ["first", "second"].contains(&weights(reply).as_str()))
    );
    assert!(slowest < SOON, "the slowest reply took {slowest:?}");
    cluster.stop();
}
