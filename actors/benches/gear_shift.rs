//! The time that a gear shift takes to reach all nodes under load.
//!
//! ```text
//! cargo bench -p kaskade-actors --bench gear_shift -- [embedded|URL] [SHIFTS]
//! ```
//!
//! Two ingress nodes and four worker nodes, each with its own connection. The bench publishes each shift as the shifter
//! does, and measures until the plan versions of the last node have the gear; batchers then learn of it through their mailboxes.
//! Prints one line of JSON.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use kaskade_actors::bus::{BusConfig, PlanStorage};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::plan::versions::PlanVersions;
use kaskade_actors::stage::worker::WorkerConfig;
use kaskade_actors::wire::{GearShift, Message as _};
use kaskade_actors::{App, Client, Node, Service};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::{
    plan::{
        Batching, Dropping, Edge, Exit, Gear, LoadRange, PLAN_VERSION, Plan, PlannedVariant, Replica,
        Sharing, Stage, Wiring,
    },
    shifting::ShiftConfig,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const APP: &str = "shifting";
const WORKERS: usize = 4;
const BUDGET: Duration = Duration::from_secs(10);

/// A model that gives the same answer to every request.
struct Yes;

impl Model for Yes {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(64)])],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let yes = || Ok(vec![Tensor::from_f32("logits", &[2], &[1.0, 0.0])?]);
        batch.iter().map(|_| yes()).collect()
    }
}

/// Two gears that differ in their batching.
fn plan() -> Plan {
    let gear = |name: &str, load: LoadRange, min_queue: u32| Gear {
        name: name.to_owned(),
        load,
        expected: None,
        wiring: Wiring {
            entry: Edge::to("only"),
            ensemble: Vec::new(),
            stages: vec![Stage::new(
                "only",
                "only",
                Exit::Reply,
                Batching {
                    min_queue,
                    max_batch: 32,
                    max_wait_us: 500,
                },
            )],
        },
    };
    let bound = 1e9;
    let low = LoadRange {
        from_qps: 0.0,
        to_qps: Some(bound),
    };
    let high = LoadRange {
        from_qps: bound,
        to_qps: None,
    };
    let replica = |number: usize| Replica {
        id: format!("only-{number}"),
        variant: "only".to_owned(),
        worker: format!("w{number}"),
        device: "cpu".to_owned(),
        partition: None,
        checkpoint: None,
    };
    Plan {
        version: PLAN_VERSION,
        app: APP.to_owned(),
        made_by: "gear_shift".to_owned(),
        variants: vec![PlannedVariant {
            name: "only".to_owned(),
            calibration: None,
        }],
        placement: (0..WORKERS).map(replica).collect(),
        sharing: Sharing::Concurrent,
        dropping: Dropping::None,
        slo: None,
        certificate: None,
        certified: None,
        gears: vec![gear("low", low, 1), gear("high", high, 4)],
    }
}

fn node(name: &str, url: Option<&str>, ingress: bool) -> Result<Node, Failure> {
    let service = Service::new(APP)
        .plan(plan())
        .model("only", || Ok::<_, String>(Yes))
        .bus(BusConfig {
            url: url.map(str::to_owned),
            plans: PlanStorage::Memory,
            ..BusConfig::new(APP)
        })
        .worker(WorkerConfig {
            name: name.to_owned(),
            queue_capacity: 1024,
            ..WorkerConfig::default()
        });
    // The bench shifts gears itself, so the nodes' own shifters never tick.
    let asleep = IngressConfig {
        shift: ShiftConfig {
            tick_us: 3_600_000_000,
            ..ShiftConfig::default()
        },
        ..IngressConfig::default()
    };
    let service = service.ingress(ingress.then_some(asleep));
    Ok(service.start()?)
}

/// Waits until the plan versions are in that gear.
async fn reached(plans: &PlanVersions, gear: u32) {
    let mut changes = plans.changes();
    while plans.current().is_some_and(|(_, now)| now != gear) {
        changes.next().await;
    }
}

async fn shift(nodes: &[Node], gear: u32) -> Result<Duration, Failure> {
    let Some(leader) = nodes.first() else {
        return Err("no nodes".into());
    };
    let payload = GearShift { epoch: 1, gear }.encode()?;
    let begun = Instant::now();
    leader.plans().shift(1, gear)?;
    leader
        .dispatcher()
        .publish(App::new(APP)?.gear(), None, None, payload);
    join_all(nodes.iter().map(|node| reached(node.plans(), gear))).await;
    Ok(begun.elapsed())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // `cargo bench` adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let url = arguments.next().filter(|url| url != "embedded");
    let shifts: u32 = arguments.next().map_or(Ok(500), |text| text.parse())?;
    let first = node("i0", url.as_deref(), true)?;
    let shared = first.bus().url().to_owned();
    let mut nodes = vec![first, node("i1", Some(&shared), true)?];
    for number in 0..WORKERS {
        nodes.push(node(&format!("w{number}"), Some(&shared), false)?);
    }
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let app = App::new(APP)?;
    let client = nodes.first().map(|node| Client::new(node.bus(), app));
    let load = (0..16).filter_map(|_| client.clone()).map(|client| {
        let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let x = Tensor::from_f32("x", &[64], &[0.5; 64])?;
                client.infer(vec![x], BUDGET).await?;
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, Failure>(())
        })
    });
    let load: Vec<_> = load.collect();
    let (mut times, begun) = (Vec::new(), Instant::now());
    for number in 0..shifts {
        times.push(shift(&nodes, (number + 1) % 2).await?);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for client in load {
        client.await??;
    }
    times.sort_unstable();
    let quantile = |q: f64| {
        let place = ((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1));
        times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    println!(
        "{{\"nodes\": {}, \"shifts\": {shifts}, \"requests_per_s\": {:.0}, \"p50_ms\": {:.3}, \"p99_ms\": {:.3}, \"max_ms\": {:.3}}}",
        nodes.len(),
        asked.load(Ordering::Relaxed) as f64 / seconds,
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
    );
    for node in nodes {
        node.stop();
    }
    Ok(())
}
