//! Processes that do not run for a while, connections that are not read, and requests that fill memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use kaskade::Tensor;
use kaskade_actors::App;
use kaskade_actors::wire::{InferRequest, IngressState, Message as _};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::{APP, plan};
use crate::faults::oracle::{Load, repeated, under};
use crate::faults::proxy::Proxy;
use crate::faults::rig::{Process, Rig, Start};
use crate::faults::shipped;
use crate::faults::verdict::Verdict;

scenarios! {
    "ingress-stalled" "The ingress is suspended (SIGSTOP) for 500 ms: it takes no worker for lost, and no request fails. Then a worker is suspended for 1.5 s: the ingress avoids this worker's replicas and no others." stalled;
    "worker-not-read" "For two seconds the server does not read what one of two workers sends, heartbeats included; its requests are sent to the other one." worker_not_read;
    "ingress-not-read" "For two seconds the server does not read what one of two ingresses sends; the client that Kaskade ships sends its requests again: none is lost, and none fails." ingress_not_read;
    "large-bodies" "512 requests of 1 MiB meet an ingress that may hold 64 MiB of inputs, and a stage that takes them and never answers; the excess is refused, and the memory of the ingress stays bounded." large_bodies;
}

const MIB: usize = 1 << 20;

/// The inputs that the ingress of `large-bodies` may hold. A buffer of the connection that keeps an input alive may be twice
/// as large as the input.
const HELD: usize = 64 * MIB;

/// Memory that the process may use in addition: the program, buffers of the connections, messages in flight.
const BESIDES: usize = 128 * MIB;

/// A worker whose batches take long enough to be interrupted.
fn slow(name: &str) -> Start<'_> {
    Start::worker(name).flag("--run").flag("20ms")
}

/// The replicas that ingresses tell workers to avoid, over time.
#[derive(Clone, Default)]
struct Avoided(Arc<Mutex<BTreeSet<String>>>);

impl Avoided {
    /// Listens to the states of ingresses.
    async fn listen(rig: &Rig) -> anyhow::Result<Self> {
        let avoided = Self::default();
        let (bus, heard) = (rig.bus().await?, avoided.clone());
        let mut states = bus.subscribe(App::new(APP)?.ingresses(), None).await?;
        bus.barrier().await?;
        tokio::spawn(async move {
            // Holds the connection.
            let _bus = bus;
            while let Some(message) = states.next().await {
                if let Ok(state) = IngressState::decode(&message.payload) {
                    let mut avoided = heard.0.lock().unwrap_or_else(PoisonError::into_inner);
                    avoided.extend(state.unavailable);
                }
            }
        });
        Ok(avoided)
    }

    /// The replicas that were avoided since the last call.
    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn stalled() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (first, _second) = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let ingress = rig.start(&Start::ingress())?;
    let avoided = Avoided::listen(&rig).await?;
    let load = Load {
        total: 1_200,
        ..Load::at(&rig.nats.url())
    };
    // What it avoids while it starts.
    tokio::time::sleep(Duration::from_secs(1)).await;
    avoided.take();
    let (mut blamed, mut detected) = (BTreeSet::new(), BTreeSet::new());
    let tally = under(&load, async || {
        ingress.pause();
        tokio::time::sleep(Duration::from_millis(500)).await;
        ingress.resume();
        let resumed = Instant::now();
        tokio::time::sleep(Duration::from_millis(700)).await;
        blamed = avoided.take();
        first.pause();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        first.resume();
        detected = avoided.take();
        Ok(resumed)
    })
    .await?;
    let of_the_first = ["large-w1", "small-w1"].map(ToOwned::to_owned).into();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            blamed.is_empty(),
            &format!("the stall of the ingress blames no replica ({blamed:?})"),
        )
        .demand(
            detected == of_the_first,
            &format!("the stall of a worker is noticed, and blames no other ({detected:?})"),
        ))
}

async fn worker_not_read() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&slow("w1").through(wire.url()))?;
    let _second = rig.start(&slow("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let struck = Instant::now();
        wire.stop_reading();
        wire.heal_after(Duration::from_secs(2));
        Ok(struck)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(3)))
}

async fn ingress_not_read() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _workers = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let first = rig.start(&Start::ingress().through(wire.url()))?;
    let _second = rig.start(&Start::ingress())?;
    let tally = shipped::under(&Load::at(&rig.nats.url()), async || {
        let struck = Instant::now();
        wire.stop_reading();
        wire.heal_after(Duration::from_secs(2));
        Ok(struck)
    })
    .await?;
    let peak = peak_memory(&first)? / MIB;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .note(format!("the ingress used {peak} MiB at most")))
}

async fn large_bodies() -> anyhow::Result<Verdict> {
    let options = NatsOptions {
        max_payload: Some(2 * MIB),
        ..NatsOptions::jetstream()
    };
    let rig = Rig::with(options, &plan(&[("w1", &["small", "large"])]))?;
    let limited = Start::ingress().flag("--in-flight-bytes").flag(&HELD.to_string());
    let ingress = rig.start(&limited)?;
    let bus = rig.bus().await?;
    // The only member of the small stage.
    let mut taken = bus
        .subscribe(App::new(APP)?.stage("small")?, Some("q".to_owned()))
        .await?;
    bus.barrier().await?;
    tokio::spawn(async move { while taken.next().await.is_some() {} });
    let before = peak_memory(&ingress)?;
    let load = Load {
        rate: 30.0,
        total: 512,
        // Longer than the load lasts, so that what was admitted stays.
        budget: Duration::from_secs(30),
        ..Load::at(&rig.nats.url())
    };
    let large = InferRequest {
        inputs: vec![Tensor::from_f32("x", &[MIB / 4], &vec![1.0; MIB / 4])?],
        ..InferRequest::default()
    };
    let tally = repeated(&load, &large.encode()?).await?;
    let peak = peak_memory(&ingress)?;
    let faults = tally.faults();
    let (late, refused) = (faults.get("KSK0005"), faults.get("KSK0006"));
    let held = late.copied().unwrap_or_default();
    // What is held ends with its budget, and its client gets the fault a little later.
    Ok(Verdict::seen(&tally)
        .demand(tally.lost() == 0, "every request gets a reply")
        .demand(tally.doubled() == 0, "no request gets two")
        .only(&tally, &["KSK0005", "KSK0006"])
        .demand(refused.is_some(), "the excess is refused")
        .demand(held > 0 && held * MIB <= HELD, "no more is held than configured")
        .demand(
            peak <= 2 * HELD + BESIDES,
            "the memory of the ingress stays bounded",
        )
        .note(format!(
            "the ingress used {} MiB before and {} MiB at most",
            before / MIB,
            peak / MIB
        )))
}

/// Returns the peak memory of a process so far, bytes.
fn peak_memory(process: &Process) -> anyhow::Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()))?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    let kibibytes: usize = number.context("the kernel tells no VmHWM")?.parse()?;
    Ok(kibibytes * 1024)
}
