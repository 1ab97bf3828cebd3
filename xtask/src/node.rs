//! A process of an app whose models behave as their requests ask: confident or not, slow, invalid, crashing.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use humantime::Duration as Span;
use kaskade::models::{Datatype, Extent, InputSpec, Model, Signature};
use kaskade::policy::plan::Plan;
use kaskade::policy::redelivery::RedeliveryConfig;
use kaskade::{Inputs, ModelError, Outputs, Tensor};
use kaskade_actors::bus::BusConfig;
use kaskade_actors::control::planner::{PlannerConfig, Planning};
use kaskade_actors::control::replan_trigger::ReplanTrigger;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::ingress::durable::DurableConfig;
use kaskade_actors::ops::probes::Probes;
use kaskade_actors::stage::worker::{Loader, WorkerConfig};
use kaskade_actors::{Node, NodeConfig, shutdown};

use crate::deployed_plan::{APP, LARGE};
use crate::remote_model;

/// Special classes, which make a model misbehave.
pub(crate) mod what {
    /// NaN logits.
    pub(crate) const NAN: f32 = -1.0;
    /// A panic.
    pub(crate) const PANIC: f32 = -2.0;
    /// An abort of the process.
    pub(crate) const ABORT: f32 = -3.0;
    /// No outputs.
    pub(crate) const EMPTY: f32 = -4.0;
}

/// A process of the app.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the nats-server.
    #[arg(long)]
    nats: String,
    /// Host an ingress.
    #[arg(long)]
    ingress: bool,
    /// Host a worker of this name, with the replicas that the plan gives it.
    #[arg(long)]
    worker: Option<String>,
    /// Number of shards.
    #[arg(long, default_value = "1")]
    shards: NonZeroUsize,
    /// Host a planner that takes this long for a plan.
    #[arg(long)]
    planner: Option<Span>,
    /// Longest time of a planner for a plan.
    #[arg(long, default_value = "10s")]
    planner_limit: Span,
    /// The first plan [default: the stored plan].
    #[arg(long)]
    plan: Option<PathBuf>,
    #[command(flatten)]
    remote: remote_model::RemoteArgs,
    /// Answer probes, and say at which address in the log.
    #[arg(long)]
    probes: bool,
    /// Run time of a batch.
    #[arg(long, default_value = "2ms")]
    run: Span,
    /// Time to load a model.
    #[arg(long, default_value = "0s")]
    load: Span,
    /// Memory that each model holds, MiB.
    #[arg(long, default_value_t = 0)]
    model_memory: usize,
    /// Capacity of a replica's queue.
    #[arg(long, default_value_t = 1024)]
    queue: usize,
    /// Limit of the bytes of requests in flight in the ingress.
    #[arg(long, default_value_t = 1 << 30)]
    in_flight_bytes: usize,
    /// Accept durable requests too.
    #[arg(long)]
    durable: bool,
    /// Time within which a durable request must be acknowledged.
    #[arg(long, default_value = "2s")]
    ack_wait: Span,
    /// Capacity of the streams of durable requests in bytes.
    #[arg(long, default_value_t = 64 << 20)]
    durable_bytes: u64,
    /// Retention of the results of durable requests.
    #[arg(long, default_value = "1h")]
    durable_results: Span,
}

/// Serves until SIGTERM.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let plan = match &args.plan {
        Some(path) => Some(Plan::from_json(&std::fs::read_to_string(path)?)?),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut stop = shutdown::on_signals(GRACE)?;
        args.remote.log_everything();
        let probes = args.probes.then(listen).transpose()?;
        let node =
            Node::start_sharded(config(args, plan)?, args.shards).context("the node does not start")?;
        if let Some(probes) = &probes {
            probes.watch(node.health().clone());
        }
        println!("serving");
        tokio::select! {
            _ = stop.wait() => {}
            failed = node.failure() => return Err(failed.into()),
        }
        node.stop();
        anyhow::Ok(())
    })
}

/// Starts probes whose address is in the log.
fn listen() -> anyhow::Result<Probes> {
    let probes = Probes::listen(([127, 0, 0, 1], 0).into())?;
    eprintln!("{PROBES}{}", probes.address());
    Ok(probes)
}

/// Prefix of the log line that states the address of the probes.
pub(crate) const PROBES: &str = "probes at ";

/// Time for requests in flight at a graceful shutdown.
const GRACE: Duration = Duration::from_secs(5);

fn config(args: &Args, plan: Option<Plan>) -> anyhow::Result<NodeConfig> {
    let ingress = IngressConfig {
        durable: args.durable.then(|| durable(args)),
        max_in_flight_bytes: args.in_flight_bytes,
        ..IngressConfig::default()
    };
    let worker = args.worker.as_ref().map(|name| WorkerConfig {
        name: name.clone(),
        queue_capacity: args.queue,
        ..WorkerConfig::default()
    });
    let (run, load): (Duration, Duration) = (args.run.into(), args.load.into());
    let model_memory = args.model_memory << 20;
    let scripted: Loader = Arc::new(move |replica| {
        std::thread::sleep(load);
        let strength = if replica.variant == LARGE { 4.0 } else { 1.0 };
        Ok(Box::new(Scripted {
            strength,
            run,
            _memory: vec![1; model_memory],
        }))
    });
    let loader = args.remote.loader()?.unwrap_or(scripted);
    Ok(NodeConfig {
        app: APP.to_owned(),
        bus: BusConfig::new(APP).url(&args.nats),
        ingress: args.ingress.then_some(ingress),
        worker: worker.map(|worker| (worker, loader)),
        plan,
        planner: args
            .planner
            .map(|after| planner(after.into(), args.planner_limit.into())),
        power: None,
        grace: GRACE,
    })
}

fn durable(args: &Args) -> DurableConfig {
    DurableConfig {
        redelivery: RedeliveryConfig {
            max_deliver: 3,
            backoff_us: 100_000,
            max_backoff_us: 1_000_000,
            ..RedeliveryConfig::default()
        },
        ack_wait: args.ack_wait.into(),
        max_bytes: args.durable_bytes,
        results: args.durable_results.into(),
        ..DurableConfig::default()
    }
}

/// A planner that returns the running plan under another name after a pause.
fn planner(after: Duration, limit: Duration) -> PlannerConfig {
    let planning: Planning = Arc::new(move |request, current| {
        // The faults kill the planner during this time.
        std::thread::sleep(after);
        let mut plan = current.cloned().ok_or("there is no running plan")?;
        plan.made_by.clone_from(&request.reason);
        Ok(plan)
    });
    PlannerConfig {
        planning,
        limit,
        replan_on_load_drift: false,
        trigger: ReplanTrigger::OnRequest,
    }
}

/// A request for a class whose logit leads by `margin`: at 9 the small model is confident, at 0.1 it is not.
pub(crate) fn inputs(of: f32, margin: f32) -> Inputs {
    // Cannot fail: the shape fits the data.
    Tensor::from_f32("x", &[2], &[of, margin]).into_iter().collect()
}

/// Answers with the class and the margin in the request, or misbehaves as the request asks.
struct Scripted {
    strength: f32,
    run: Duration,
    /// Held, as weights are.
    _memory: Vec<u8>,
}

impl Model for Scripted {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(2)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        std::thread::sleep(self.run);
        batch.iter().map(|inputs| self.one(inputs)).collect()
    }
}

impl Scripted {
    #[allow(clippy::panic, reason = "the request asks for it")]
    fn one(&self, inputs: &Inputs) -> Result<Outputs, ModelError> {
        let asked = inputs
            .first()
            .map(Tensor::to_f32)
            .transpose()?
            .unwrap_or_default();
        let [of, margin] = asked.as_slice() else {
            return Ok(Outputs::new());
        };
        let mut logits = [0.0; 4];
        match *of {
            what::NAN => logits = [f32::NAN; 4],
            what::PANIC => panic!("asked to panic"),
            what::ABORT => std::process::abort(),
            what::EMPTY => return Ok(Outputs::new()),
            of => {
                if let Some(logit) = logits.get_mut(of as usize) {
                    *logit = margin * self.strength;
                }
            }
        }
        Ok(vec![Tensor::from_f32("logits", &[4], &logits)?])
    }
}
