//! A soak: does anything grow under a load that goes on?

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use async_nats::HeaderMap;
use comfy_table::Table;
use kaskade::Inputs;
use kaskade::actors::wire::InferRequest;
use kaskade::actors::{App, Client};
use tokio::task::JoinSet;

use super::monitor::{Held, Monitor};
use super::oracle::{Load, undisturbed};
use super::rig::{Rig, Start, pair};
use crate::node::{APP, inputs};

/// Between two looks.
const SLICE: Duration = Duration::from_secs(20);

/// How long it is measured what the machine carries, and how long they ask before anything counts.
const TRIAL: Duration = Duration::from_secs(12);
const START: Duration = Duration::from_secs(3);

/// How long each waits for its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who asks meanwhile, each again as soon as it is answered.
const ASKERS: usize = 64;

/// Results are kept for this part of the time, so that the server, too, has as many of them as it will ever have when a soak is warm.
const KEPT: f64 = 0.1;

/// Bytes for as many results as come in that time.
const BYTES: u64 = 4 << 30;

/// Part of the time after which caches and pools are taken for full.
const WARM: f64 = 0.2;

/// What may be added to a process's memory from then to the end: a tenth, and some megabytes; to a server's, whose memory is
/// collected when it likes, a third.
const GROWTH: (f64, f64) = (1.1, 8.0);
const SERVER_GROWTH: f64 = 1.33;

/// How much is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Steady {
    /// This part of what the machine carries.
    Share(f64),
    /// So many requests a second.
    Rate(f64),
}

/// What a process holds.
#[derive(Debug, Clone)]
struct Look {
    /// By process, MiB and open files.
    processes: Vec<(&'static str, f64, usize)>,
    server: Held,
}

/// A steady load, core and durable requests in turn, for so long.
pub(crate) async fn soak(duration: Duration, load: Steady) -> anyhow::Result<()> {
    let monitor = Monitor::new();
    let rig = Rig::with(monitor.options(), &pair())?;
    let first = rig.start(&Start::worker("w1"))?;
    let second = rig.start(&Start::worker("w2"))?;
    let kept = humantime::format_duration(Duration::from_secs(duration.mul_f64(KEPT).as_secs().max(1)));
    let doors = Start::ingress().flag("--durable").flag("--durable-results");
    let doors = doors.flag(&kept.to_string()).flag("--durable-bytes");
    let doors = rig.start(&doors.flag(&BYTES.to_string()))?;
    let ids = [
        ("nats-server", rig.nats.pid()),
        ("w1", first.id()),
        ("w2", second.id()),
        ("ingress", doors.id()),
    ];
    let bus = rig.bus().await?;
    let client = Client::new(&bus, App::new(APP)?);
    let rate = match load {
        Steady::Rate(rate) => rate,
        Steady::Share(share) => {
            let carried = capacity(&client).await?;
            println!("{ASKERS} at once are answered {carried:.0} requests a second; {share} of that it is");
            carried * share
        }
    };
    ensure!(
        rate.is_finite() && rate > 0.0,
        "{rate} requests a second are no load; use `--rate` or `--share` above 0"
    );
    let (begun, mut looks, mut requests, mut failed) = (Instant::now(), Vec::new(), 0, 0);
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
        let look = Look {
            processes: ids
                .iter()
                .map(|(name, id)| Ok((*name, mebibytes(*id)?, files(*id)?)))
                .collect::<anyhow::Result<_>>()?,
            server: monitor.held()?,
        };
        let so_far = begun.elapsed().as_secs_f64();
        println!(
            "{so_far:>5.0} s  {requests} requests, {:.0} a second, {failed} failed  {look:?}",
            requests as f64 / so_far,
        );
        looks.push(look);
    }
    judge(&looks, failed)
}

/// Requests a second that are answered where as many as may wait always do, core and durable ones in turn.
async fn capacity(client: &Client) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let askers: Vec<_> = (0..ASKERS)
        .map(|_| tokio::spawn(ask(client.clone(), begun)))
        .collect();
    let mut answered = 0;
    for asker in askers {
        answered += asker.await??;
    }
    Ok(answered as f64 / TRIAL.as_secs_f64())
}

/// Asks again and again; how many answers it got in the time that counts.
async fn ask(client: Client, begun: Instant) -> anyhow::Result<u64> {
    let mut answered = 0;
    let counts = |at: Duration| u64::from((START..START + TRIAL).contains(&at));
    while begun.elapsed() < START + TRIAL {
        client.infer(sure(), PATIENCE).await?;
        answered += counts(begun.elapsed());
        client
            .submit_and_wait(&durable(), HeaderMap::new(), PATIENCE)
            .await?;
        answered += counts(begun.elapsed());
    }
    Ok(answered)
}

/// Durable requests, as many and as evenly spaced as the core ones; how many of them were not answered.
async fn submit(client: &Client, load: &Load) -> u64 {
    let (begun, mut waiting) = (Instant::now(), JoinSet::new());
    for number in 0..load.total {
        let due = begun + Duration::from_secs_f64(number as f64 / load.rate);
        tokio::time::sleep_until(due.into()).await;
        let client = client.clone();
        waiting.spawn(async move {
            let answer = client
                .submit_and_wait(&durable(), HeaderMap::new(), PATIENCE)
                .await;
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

/// What the small model is sure of.
fn sure() -> Inputs {
    inputs(1.0, 9.0)
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
