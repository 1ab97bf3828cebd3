//! Processes of several shards: each has an ingress and a part of the replicas on every shard.

use std::time::{Duration, Instant};

use super::scenarios;
use crate::faults::oracle::{Load, under};
use crate::faults::rig::{Process, Rig, Start, ended};
use crate::faults::shipped;
use crate::faults::verdict::Verdict;

scenarios! {
    "shards-killed" "One of two processes of three shards each, with ingresses and replicas, is killed (SIGKILL) during batches at 300 requests per second; with the client that Kaskade ships none is lost, and none fails." killed;
    "shards-worker-killed" "One of two workers of three shards each is killed (SIGKILL) during batches; the ingresses of the three shards of another process send its requests to the other one." worker_killed;
    "shards-drained" "One of two processes of three shards each, with ingresses and replicas, is asked to stop (SIGTERM) at 300 requests per second; no request fails." drained;
}

/// Starts a process of several shards whose batches take long enough to be interrupted.
fn start(rig: &Rig, start: Start<'_>) -> anyhow::Result<Process> {
    rig.start(&start.flag("--shards").flag("3").flag("--run").flag("20ms"))
}

/// Starts a worker of that name and an ingress in one process.
fn whole(rig: &Rig, worker: &'static str) -> anyhow::Result<Process> {
    let both = Start {
        ingress: true,
        ..Start::worker(worker)
    };
    start(rig, both)
}

/// Less than one process carries: 400 requests per second.
fn load(rig: &Rig) -> Load {
    Load {
        rate: 300.0,
        total: 900,
        ..Load::at(&rig.nats.url())
    }
}

async fn killed() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (mut first, _second) = (whole(&rig, "w1")?, whole(&rig, "w2")?);
    let tally = shipped::under(&load(&rig), async || {
        first.kill();
        Ok(Instant::now())
    })
    .await?;
    // A client takes a request for lost after four times its usual latency, and a quarter of a second at least.
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(3)))
}

async fn worker_killed() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (mut first, _second) = (
        start(&rig, Start::worker("w1"))?,
        start(&rig, Start::worker("w2"))?,
    );
    let _ingress = start(&rig, Start::ingress())?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        first.kill();
        Ok(Instant::now())
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(1)))
}

async fn drained() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (mut first, _second) = (whole(&rig, "w1")?, whole(&rig, "w2")?);
    let mut well = false;
    let tally = under(&load(&rig), async || {
        let begun = Instant::now();
        first.terminate();
        well = ended(&mut first).await?.success();
        Ok(begun)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(well, "a process that leaves exits with success"))
}
