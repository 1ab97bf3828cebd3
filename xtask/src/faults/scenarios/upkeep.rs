//! Resource use, release of resources, and status reports of a process.

use std::time::{Duration, Instant};

use anyhow::bail;
use kaskade::policy::plan::Plan;
use kaskade_actors::App;
use kaskade_actors::bus::Bus;
use kaskade_actors::plan::store;
use kaskade_actors::wire::{Message as _, PlanReport};
use kaskade_testkit::NatsOptions;

use super::plans::{adopted, epoch};
use super::scenarios;
use crate::deployed_plan::{APP, plan};
use crate::faults::oracle::{Load, under};
use crate::faults::rig::{Rig, Start, mebibytes, pair};
use crate::faults::shipped;
use crate::faults::verdict::Verdict;

scenarios! {
    "plan-store-away" "The nats-server comes back without JetStream, later with it; with the client that Kaskade ships no request fails, `/ready` stays 200 and says that the plan store cannot be read, and a plan written afterwards is adopted." store_away;
    "model-unloaded" "A new plan takes a model of 64 MiB from a worker; the worker gives its memory back, and no request fails." unloaded;
    "planner-hangs" "The run of a planner exceeds its limit and does not end; further requests for a plan are answered that it is busy and start no run, and the running plan stays." planner_hangs;
}

/// Time within which a process must notice.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `holds`.
async fn until(what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !holds()? {
        if Instant::now() > end {
            bail!("in time: {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn store_away() -> anyhow::Result<Verdict> {
    let mut rig = Rig::new()?;
    let _workers = (
        rig.start(&Start::worker("w1").flag("--probes"))?,
        rig.start(&Start::worker("w2"))?,
    );
    let _ingress = rig.start(&Start::ingress())?;
    let load = Load {
        total: 3_000,
        ..Load::at(&rig.nats.url())
    };
    let mut reason = String::new();
    let tally = shipped::under(&load, async || {
        let struck = Instant::now();
        rig.nats.restart_with(NatsOptions::default());
        // At first the reason is that the connection is broken.
        until("the worker is ready and says that the plan store is away", || {
            reason = rig.probe("w1", "/ready")?;
            Ok(reason.contains(" 200 ") && reason.contains("the plan store"))
        })
        .await?;
        rig.nats.restart_with(NatsOptions::jetstream());
        until("the worker reads the plan store again", || {
            let said = rig.probe("w1", "/ready")?;
            Ok(said.contains(" 200 ") && !said.contains("the plan store"))
        })
        .await?;
        Ok(struck)
    })
    .await?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let stored = store.get().await?;
    let mut newer = stored.as_ref().map_or_else(pair, |stored| stored.plan.clone());
    "after the store came back".clone_into(&mut newer.made_by);
    let newest = store.put(&newer, stored.map(|stored| stored.epoch)).await?;
    let told = adopted(&bus, &app, newest).await?;
    let said: String = reason.lines().skip(1).collect();
    let said = said.split(';').take(2).collect::<Vec<_>>().join(";");
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            !told.is_empty() && told.values().all(|epoch| *epoch == newest),
            "every process adopts the next plan",
        )
        .note(format!("`/ready` said: {said}")))
}

async fn unloaded() -> anyhow::Result<Verdict> {
    let both = plan(&[("w1", &["small", "large"]), ("w2", &["small"])]);
    let without = plan(&[("w1", &["large"]), ("w2", &["small"])]);
    let rig = Rig::with(NatsOptions::jetstream(), &both)?;
    let worker = |name| Start::worker(name).flag("--model-memory").flag("64");
    let first = rig.start(&worker("w1"))?;
    let _second = rig.start(&worker("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let before = mebibytes(first.id())?;
    let mut after = before;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let struck = Instant::now();
        write(&bus, &app, &without).await?;
        until("the memory is given back", || {
            after = mebibytes(first.id())?;
            Ok(after < before - 48.0)
        })
        .await?;
        Ok(struck)
    })
    .await?;
    Ok(Verdict::from_tally(&tally).without_faults().note(format!(
        "the worker used {before:.0} MiB before and {after:.0} MiB after"
    )))
}

/// Writes a plan in place of the running one.
async fn write(bus: &Bus, app: &App, plan: &Plan) -> anyhow::Result<()> {
    let store = store::open(bus, app).await?;
    let stored = store.get().await?;
    store.put(plan, stored.map(|stored| stored.epoch)).await?;
    Ok(())
}

async fn planner_hangs() -> anyhow::Result<Verdict> {
    const ASKED: usize = 20;
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let planner = rig.start(&Start::planner("1h").flag("--planner-limit").flag("200ms"))?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let before = epoch(&store).await?;
    let threads = || anyhow::Ok(std::fs::read_dir(format!("/proc/{}/task", planner.id()))?.count());
    let (mut reports, mut running) = (Vec::new(), Vec::new());
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let struck = Instant::now();
        for _ in 0..=ASKED {
            let reply = bus.client().request(app.replan(), "".into()).await?;
            reports.push(PlanReport::decode(&reply.payload)?);
            running.push(threads()?);
        }
        Ok(struck)
    })
    .await?;
    let after = epoch(&store).await?;
    let busy = reports
        .iter()
        .filter(|report| **report == PlanReport::Busy)
        .count();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            reports.first() == Some(&PlanReport::TimedOut { limit_ms: 200 }),
            "the first request for a plan ends at the limit",
        )
        .demand(busy == ASKED, "later ones are answered that the planner is busy")
        .demand(
            running.iter().all(|count| Some(count) == running.first()),
            "no run is added",
        )
        .demand(after == before, "the running plan stays")
        .note(format!(
            "{busy} of {ASKED} further requests were answered that the planner is busy"
        )))
}
