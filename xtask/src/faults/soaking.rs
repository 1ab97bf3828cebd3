//! A soak: a steady load under which no resource may grow.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use async_nats::HeaderMap;
use comfy_table::Table;
use kaskade::Inputs;
use kaskade_actors::wire::InferRequest;
use kaskade_actors::{App, Client};
use tokio::task::JoinSet;

use super::monitor::{Held, Monitor};
use super::oracle::{Load, undisturbed};
use super::rig::{Rig, Start, mebibytes, pair};
use crate::deployed_plan::APP;
use crate::node::inputs;

/// Time between two snapshots.
const SLICE: Duration = Duration::from_secs(20);

/// Length of the measurement of the capacity, and of the warm-up before it.
const TRIAL: Duration = Duration::from_secs(12);
const START: Duration = Duration::from_secs(3);

/// Budget of each request.
const BUDGET: Duration = Duration::from_secs(5);

/// Closed-loop clients that measure the capacity.
const ASKERS: usize = 64;

/// Retention of results as a share of the duration, so that the server holds its final number of results at the end of the
/// warm-up.
const KEPT: f64 = 0.1;

/// Capacity in bytes for the results of that time.
const BYTES: u64 = 4 << 30;

/// Share of the duration after which caches and pools count as full.
const WARM: f64 = 0.2;

/// Fewest snapshots from the warm one to the last, these included, whose comparison says something about growth.
const COMPARED: usize = 5;

/// Allowed growth of a process's memory from then to the end: a factor, and MiB. The memory of the nats-server, which has a
/// garbage collector, may grow by a third.
const GROWTH: (f64, f64) = (1.1, 8.0);
const SERVER_GROWTH: f64 = 1.33;

/// The load of a soak.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Steady {
    /// A share of the capacity.
    Share(f64),
    /// Requests per second.
    Rate(f64),
}

/// The resources of all processes at one moment.
#[derive(Debug, Clone)]
struct Snapshot {
    /// Name, memory in MiB and open files of each process.
    processes: Vec<(&'static str, f64, usize)>,
    server: Held,
}

/// Runs a steady load of core and durable requests in equal parts.
pub(crate) async fn soak(duration: Duration, load: Steady) -> anyhow::Result<()> {
    let monitor = Monitor::new();
    let rig = Rig::with(monitor.options(), &pair())?;
    let first = rig.start(&Start::worker("w1"))?;
    let second = rig.start(&Start::worker("w2"))?;
    let kept = humantime::format_duration(Duration::from_secs(duration.mul_f64(KEPT).as_secs().max(1)));
    let ingress = Start::ingress().flag("--durable").flag("--durable-results");
    let ingress = ingress.flag(&kept.to_string()).flag("--durable-bytes");
    let ingress = rig.start(&ingress.flag(&BYTES.to_string()))?;
    let ids = [
        ("nats-server", rig.nats.pid()),
        ("w1", first.id()),
        ("w2", second.id()),
        ("ingress", ingress.id()),
    ];
    let bus = rig.bus().await?;
    let client = Client::new(&bus, App::new(APP)?);
    let rate = match load {
        Steady::Rate(rate) => rate,
        Steady::Share(share) => {
            let carried = capacity(&client).await?;
            println!("capacity: {carried:.0} requests/s with {ASKERS} clients; the load is {share} of it");
            carried * share
        }
    };
    ensure!(
        rate.is_finite() && rate > 0.0,
        "{rate} requests/s is not a load; use `--rate` or `--share` above 0"
    );
    let (begun, mut snapshots, mut requests, mut failed) = (Instant::now(), Vec::new(), 0, 0);
    while begun.elapsed() < duration {
        let load = Load {
            rate: rate / 2.0,
            total: (rate / 2.0 * SLICE.as_secs_f64()) as u64,
            ..Load::at(&rig.nats.url())
        };
        let (tally, durable) = tokio::join!(undisturbed(&load), submit(&client, &load));
        let tally = tally?;
        requests += tally.requests() as u64 + load.total;
        failed += (tally.requests() - tally.answered()) as u64 + durable;
        let snapshot = Snapshot {
            processes: ids
                .iter()
                .map(|(name, id)| Ok((*name, mebibytes(*id)?, files(*id)?)))
                .collect::<anyhow::Result<_>>()?,
            server: monitor.held()?,
        };
        let so_far = begun.elapsed().as_secs_f64();
        println!(
            "{so_far:>5.0} s  {requests} requests, {:.0} a second, {failed} failed  {snapshot:?}",
            requests as f64 / so_far,
        );
        snapshots.push(snapshot);
    }
    judge(&snapshots, failed)
}

/// The capacity in requests per second: closed-loop clients send core and durable requests alternately.
async fn capacity(client: &Client) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let clients: Vec<_> = (0..ASKERS)
        .map(|_| tokio::spawn(ask(client.clone(), begun)))
        .collect();
    let mut answered = 0;
    for client in clients {
        answered += client.await??;
    }
    Ok(answered as f64 / TRIAL.as_secs_f64())
}

/// One closed-loop client; returns the number of its answers after the warm-up.
async fn ask(client: Client, begun: Instant) -> anyhow::Result<u64> {
    let mut answered = 0;
    let counts = |at: Duration| u64::from((START..START + TRIAL).contains(&at));
    while begun.elapsed() < START + TRIAL {
        client.infer(sure(), BUDGET).await?;
        answered += counts(begun.elapsed());
        client
            .submit_and_wait(&durable(), HeaderMap::new(), BUDGET)
            .await?;
        answered += counts(begun.elapsed());
    }
    Ok(answered)
}

/// Submits as many durable requests as the load has core ones, evenly spaced; returns how many were not answered.
async fn submit(client: &Client, load: &Load) -> u64 {
    let (begun, mut waiting) = (Instant::now(), JoinSet::new());
    for number in 0..load.total {
        let due = begun + Duration::from_secs_f64(number as f64 / load.rate);
        tokio::time::sleep_until(due.into()).await;
        let client = client.clone();
        waiting.spawn(async move {
            let answer = client.submit_and_wait(&durable(), HeaderMap::new(), BUDGET).await;
            answer.is_ok()
        });
    }
    let answered = waiting.join_all().await;
    answered.iter().filter(|answered| !**answered).count() as u64
}

fn durable() -> InferRequest {
    InferRequest {
        inputs: sure(),
        ..InferRequest::default()
    }
}

/// Inputs for which the small model is confident.
fn sure() -> Inputs {
    inputs(1.0, 9.0)
}

fn judge(snapshots: &[Snapshot], failed: u64) -> anyhow::Result<()> {
    let (_, after) = snapshots.split_at((snapshots.len() as f64 * WARM) as usize);
    ensure!(
        after.len() >= COMPARED,
        "the soak was too short: {} snapshots, one every {SLICE:?}, after the warm-up, and {COMPARED} are needed; use a longer `--duration`",
        after.len()
    );
    let (warm, last) = after
        .first()
        .zip(after.last())
        .context("the soak was too short")?;
    let mut table = Table::new();
    table.set_header(["process", "MiB, warm", "MiB, end", "files, warm", "files, end"]);
    let mut grown = Vec::new();
    for ((name, before, open_before), (_, after, open_after)) in warm.processes.iter().zip(&last.processes) {
        table.add_row([
            (*name).to_owned(),
            format!("{before:.1}"),
            format!("{after:.1}"),
            open_before.to_string(),
            open_after.to_string(),
        ]);
        let (times, plus) = GROWTH;
        let times = if *name == "nats-server" {
            SERVER_GROWTH
        } else {
            times
        };
        if *after > before * times + plus || *open_after > open_before + 4 {
            grown.push(*name);
        }
    }
    println!(
        "{table}\nnats-server, warm: {:?}\nnats-server, end: {:?}",
        warm.server, last.server
    );
    if !grown.is_empty()
        || last.server.consumers > warm.server.consumers
        || last.server.streams > warm.server.streams
    {
        bail!("resources grew: {grown:?}");
    }
    if failed > 0 {
        bail!("{failed} requests failed");
    }
    Ok(())
}

fn files(process: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(memory: f64) -> Snapshot {
        let server = Held {
            subscriptions: 1,
            consumers: 1,
            streams: 1,
        };
        Snapshot {
            processes: vec![("w1", memory, 10)],
            server,
        }
    }

    #[test]
    fn growth_is_found_and_a_soak_without_a_comparison_fails() {
        let said = |memory: &[f64]| {
            let snapshots: Vec<_> = memory.iter().map(|memory| snapshot(*memory)).collect();
            judge(&snapshots, 0).map_err(|error| error.to_string())
        };
        for short in [&[][..], &[100.0], &[100.0; 4]] {
            assert!(said(short).is_err_and(|error| error.contains("too short")));
        }
        assert_eq!(said(&[100.0; 6]), Ok(()));
        assert!(said(&[1.0, 100.0, 100.0, 100.0, 100.0, 200.0]).is_err_and(|error| error.contains("grew")));
    }
}
