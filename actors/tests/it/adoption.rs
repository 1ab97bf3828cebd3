//! Plans that move, swap and recut models while requests are under way. Loading is held by the test, not by time.

mod loading;
mod swaps;

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
