//! A soak: does anything grow under a load that goes on?

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use async_nats::HeaderMap;
use comfy_table::Table;
use kaskade::actors::wire::InferRequest;
use kaskade::actors::{App, Client};

use super::monitor::{Held, Monitor};
use super::oracle::{Load, undisturbed};
use super::rig::{Rig, Start, pair};
use crate::node::{APP, inputs};

/// Between two looks.
const SLICE: Duration = Duration::from_secs(10);

/// Part of the time after which caches and pools are taken for full.
const WARM: f64 = 0.2;

/// What may be added to a process's memory from then to the end: a tenth, and some megabytes.
const GROWTH: (f64, f64) = (1.1, 8.0);

/// What a process holds.
#[derive(Debug, Clone)]
struct Look {
    /// By process, MiB and open files.
    processes: Vec<(&'static str, f64, usize)>,
    server: Held,
}

/// A steady load, core and durable requests in turn, for so long.
pub(crate) async fn soak(duration: Duration, rate: f64) -> anyhow::Result<()> {
    let monitor = Monitor::new();
    let rig = Rig::with(monitor.options(), &pair())?;
    let first = rig.start(&Start::worker("w1"))?;
    let second = rig.start(&Start::worker("w2"))?;
    let doors = rig.start(&Start::ingress().flag("--durable"))?;
    let ids = [
        ("nats-server", rig.nats.pid()),
        ("w1", first.id()),
        ("w2", second.id()),
        ("ingress", doors.id()),
    ];
    let bus = rig.bus().await?;
    let client = Client::new(&bus, App::new(APP)?);
    let (begun, mut looks, mut requests, mut failed) = (Instant::now(), Vec::new(), 0, 0);
    while begun.elapsed() < duration {
        let load = Load {
            rate: rate / 2.0,
            total: (rate / 2.0 * SLICE.as_secs_f64()) as u64,
            ..Load::at(&rig.nats.url())
        };
        let (tally, durable) = tokio::join!(undisturbed(&load), submit(&client, rate / 2.0));
        let tally = tally?;
        requests += tally.requests() as u64 + durable.0;
        failed += (tally.requests() - tally.answered()) as u64 + durable.1;
        let look = Look {
            processes: ids
                .iter()
                .map(|(name, id)| Ok((*name, mebibytes(*id)?, files(*id)?)))
                .collect::<anyhow::Result<_>>()?,
            server: monitor.held()?,
        };
        println!(
            "{:>5.0} s  {} requests, {failed} failed  {look:?}",
            begun.elapsed().as_secs_f64(),
            requests
        );
        looks.push(look);
    }
    judge(&looks, failed)
}

/// Durable requests for one slice; how many, and how many of them were not answered.
async fn submit(client: &Client, rate: f64) -> (u64, u64) {
    let (mut sent, mut failed) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < SLICE {
        tokio::time::sleep_until((begun + Duration::from_secs_f64(sent as f64 / rate)).into()).await;
        let request = InferRequest {
            inputs: inputs(1.0, 9.0),
            ..InferRequest::default()
        };
        let answered = client
            .submit_and_wait(&request, HeaderMap::new(), Duration::from_secs(5))
            .await;
        sent += 1;
        failed += u64::from(answered.is_err());
    }
    (sent, failed)
}

fn judge(looks: &[Look], failed: u64) -> anyhow::Result<()> {
    let warm = looks
        .get((looks.len() as f64 * WARM) as usize)
        .context("it was too short to tell")?;
    let last = looks.last().context("it was too short to tell")?;
    let mut table = Table::new();
    table.set_header([
        "process",
        "MiB, warm",
        "MiB, at the end",
        "files, warm",
        "files, at the end",
    ]);
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
        // The server keeps results for an hour, and caches of their blocks.
        if *name != "nats-server" && (*after > before * times + plus || *open_after > open_before + 4) {
            grown.push(*name);
        }
    }
    println!(
        "{table}\nthe server, warm: {:?}\nat the end: {:?}",
        warm.server, last.server
    );
    if !grown.is_empty()
        || last.server.consumers > warm.server.consumers
        || last.server.streams > warm.server.streams
    {
        bail!("it grew: {grown:?}");
    }
    if failed > 0 {
        bail!("{failed} requests failed");
    }
    Ok(())
}

fn mebibytes(process: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes.context("no VmRSS")?.trim().parse::<f64>()? / 1024.0)
}

fn files(process: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{process}/fd"))?.count())
}
