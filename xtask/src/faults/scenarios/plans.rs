//! Faults of planners and of plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use kaskade_actors::App;
use kaskade_actors::bus::Bus;
use kaskade_actors::plan::store;
use kaskade_actors::plan::store::{PlanStore, StoreError};
use kaskade_actors::wire::{Heartbeat, Message as _};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::APP;
use crate::faults::oracle::{Load, under};
use crate::faults::proxy::Proxy;
use crate::faults::rig::{Process, Rig, Start, pair};
use crate::faults::verdict::Verdict;

scenarios! {
    "planner-killed-before" "A planner is killed while it makes a plan; the running plan stays in force." killed_before;
    "planner-killed-during" "A planner is killed at the moment at which its plan is written." killed_during;
    "planner-killed-after" "A planner is killed as soon as its plan is written; every process adopts it." killed_after;
    "two-planners" "Two planners and two other writers race for 20 epochs; each epoch is written once, and every process adopts the newest." two;
    "split-epochs" "One of two workers is cut off while a new plan is written; requests of the new epoch go to the other one, and the worker catches up." split;
    "missing-calibration" "A plan that exits by confidence, without a calibration, is put into the store directly; no process adopts it." uncalibrated;
}

/// Asks for another plan without waiting for it.
async fn replan(bus: &Bus, app: &App) -> anyhow::Result<()> {
    let reply = bus.client().new_inbox();
    bus.publish(app.replan(), Some(reply.into()), None, Bytes::new())
        .await?;
    Ok(())
}

pub(super) async fn epoch(store: &Arc<dyn PlanStore>) -> anyhow::Result<u64> {
    Ok(store.get().await?.map_or(0, |stored| stored.epoch))
}

/// The epoch in the heartbeats of each process, once all report `wanted` or five seconds have passed.
pub(super) async fn adopted(bus: &Bus, app: &App, wanted: u64) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut beats = bus.subscribe(app.beats(), None).await?;
    let mut told = BTreeMap::new();
    let until = Instant::now() + Duration::from_secs(5);
    while let Ok(Some(message)) = tokio::time::timeout_at(until.into(), beats.next()).await {
        if let Ok(beat) = Heartbeat::decode(&message.payload) {
            told.insert(beat.actor, beat.epoch);
        }
        if told.len() >= 2 && told.values().all(|epoch| *epoch == wanted) {
            break;
        }
    }
    Ok(told)
}

/// The moment at which a planner is killed.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    Before,
    During,
    After,
}

async fn killed_before() -> anyhow::Result<Verdict> {
    planner_killed(Moment::Before).await
}

async fn killed_during() -> anyhow::Result<Verdict> {
    planner_killed(Moment::During).await
}

async fn killed_after() -> anyhow::Result<Verdict> {
    planner_killed(Moment::After).await
}

async fn planner_killed(moment: Moment) -> anyhow::Result<Verdict> {
    const PLANS_FOR: Duration = Duration::from_millis(300);
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let mut planner = rig.start(&Start::planner("300ms"))?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let before = epoch(&store).await?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        replan(&bus, &app).await?;
        match moment {
            Moment::Before => tokio::time::sleep(PLANS_FOR / 2).await,
            Moment::During => tokio::time::sleep(PLANS_FOR).await,
            Moment::After => {
                while epoch(&store).await? == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        planner.kill();
        Ok(Instant::now())
    })
    .await?;
    let after = epoch(&store).await?;
    let told = adopted(&bus, &app, after).await?;
    let expected = match moment {
        Moment::Before => after == before,
        Moment::During => after == before || after == before + 1,
        Moment::After => after == before + 1,
    };
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(expected, "the store holds the previous plan or the next one")
        .demand(
            !told.is_empty() && told.values().all(|epoch| *epoch == after),
            "every process serves the stored plan",
        )
        .note(format!("epoch {before} before, {after} after")))
}

async fn two() -> anyhow::Result<Verdict> {
    const WRITES: u64 = 20;
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let _planners: [Process; 2] = [
        rig.start(&Start::planner("5ms"))?,
        rig.start(&Start::planner("5ms"))?,
    ];
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let before = epoch(&store).await?;
    let mut written = [0_u64; 2];
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let begun = Instant::now();
        let [one, other] = &mut written;
        let asking = async {
            for _ in 0..WRITES {
                replan(&bus, &app).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        let (first, second, asked) = tokio::join!(
            write(&store, "one", WRITES, one),
            write(&store, "other", WRITES, other),
            asking
        );
        first?;
        second?;
        asked?;
        Ok(begun)
    })
    .await?;
    let after = epoch(&store).await?;
    let told = adopted(&bus, &app, after).await?;
    let ours: u64 = written.iter().sum();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            ours == 2 * WRITES,
            "a writer that loses the race reads again and writes again",
        )
        .demand(after - before >= ours, "each epoch is written once")
        .demand(
            !told.is_empty() && told.values().all(|epoch| *epoch == after),
            "every process adopts the newest epoch",
        )
        .note(format!("{} epochs written", after - before)))
}

/// Writes `times` plans, reading again after each lost race.
async fn write(store: &Arc<dyn PlanStore>, name: &str, times: u64, written: &mut u64) -> anyhow::Result<()> {
    while *written < times {
        let Some(stored) = store.get().await? else {
            continue;
        };
        let mut plan = stored.plan;
        plan.made_by = format!("{name} {written}");
        match store.put(&plan, Some(stored.epoch)).await {
            Ok(_) => *written += 1,
            Err(StoreError::Stale { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn split() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&Start::worker("w1").through(wire.url()))?;
    let _second = rig.start(&Start::worker("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        wire.silence();
        let stored = store.get().await?;
        if let Some(mut stored) = stored {
            "the newer".clone_into(&mut stored.plan.made_by);
            store.put(&stored.plan, Some(stored.epoch)).await?;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        wire.heal();
        Ok(Instant::now())
    })
    .await?;
    let newest = epoch(&store).await?;
    let told = adopted(&bus, &app, newest).await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(3))
        .demand(
            told.values().all(|epoch| *epoch == newest),
            "the worker that was cut off catches up",
        ))
}

async fn uncalibrated() -> anyhow::Result<Verdict> {
    let rig = Rig::with(NatsOptions::jetstream(), &pair())?;
    let _processes = rig.start_all()?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let mut refused = false;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let mut plan = pair();
        for variant in &mut plan.variants {
            variant.calibration = None;
        }
        // Kaskade's own plan store would refuse it.
        let key_value = async_nats::jetstream::new(bus.client().clone())
            .get_key_value(format!("kaskade-{APP}"))
            .await?;
        key_value.put("plan", serde_json::to_vec(&plan)?.into()).await?;
        refused = plan.validate().is_err();
        Ok(Instant::now())
    })
    .await?;
    drop(store);
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(refused, "such a plan is not valid"))
}
