//! Plans that move models between workers while requests are under way.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures::StreamExt as _;
use kaskade::policy::plan::Plan;
use kaskade_actors::App;
use kaskade_actors::bus::Bus;
use kaskade_actors::plan::store;
use kaskade_actors::wire::{IngressState, Message as _};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::{APP, plan};
use crate::faults::oracle::{Load, under};
use crate::faults::rig::{Rig, Start};
use crate::faults::verdict::Verdict;
use crate::node::inputs;

scenarios! {
    "replicas-moved" "A new plan moves the small model from one worker to the other, where it loads for three seconds; no request fails." moved;
    "workers-swapped" "A new plan swaps the models of two workers, each of which loads for three seconds; no request fails." swapped;
}

/// Time to load a model.
const LOAD: Duration = Duration::from_secs(3);

async fn moved() -> anyhow::Result<Verdict> {
    replaced(
        &plan(&[("w1", &["small", "large"])]),
        &plan(&[("w2", &["small"]), ("w1", &["large"])]),
    )
    .await
}

async fn swapped() -> anyhow::Result<Verdict> {
    replaced(
        &plan(&[("w1", &["small"]), ("w2", &["large"])]),
        &plan(&[("w2", &["small"]), ("w1", &["large"])]),
    )
    .await
}

/// Serves `before`, and writes `after` under load. The ids do not tell where a replica is.
async fn replaced(before: &Plan, after: &Plan) -> anyhow::Result<Verdict> {
    let (before, after) = (with_equal_ids(before), with_equal_ids(after));
    let rig = Rig::with(NatsOptions::jetstream(), &before)?;
    let worker = |name| Start::worker(name).flag("--load").flag("3s");
    let _workers = (rig.start(&worker("w1"))?, rig.start(&worker("w2"))?);
    let _ingress = rig.start(&Start::ingress())?;
    let (bus, app) = (rig.bus().await?, App::new(APP)?);
    let store = store::open(&bus, &app).await?;
    let load = Load {
        total: 2_400,
        // Every fourth answer of the small model is below the threshold.
        asks: |number| inputs((number % 4) as f32, if number % 4 == 0 { 0.1 } else { 9.0 }),
        ..Load::at(&rig.nats.url())
    };
    let mut took = Duration::ZERO;
    let tally = under(&load, async || {
        let begun = Instant::now();
        let stored = store.get().await?;
        let epoch = store.put(&after, stored.map(|stored| stored.epoch)).await?;
        admitted(&bus, &app, epoch).await?;
        took = begun.elapsed();
        Ok(begun)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_millis(500))
        .demand(tally.degraded() == 0, "no answer is degraded")
        .demand(
            took >= LOAD,
            "requests are admitted under the new plan once its models are loaded",
        )
        .note(format!("the new plan was admitted after {} ms", took.as_millis())))
}

fn with_equal_ids(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for replica in &mut plan.placement {
        replica.id = format!("{}-0", replica.variant);
    }
    plan
}

/// Waits until the ingress admits requests under that epoch.
async fn admitted(bus: &Bus, app: &App, epoch: u64) -> anyhow::Result<()> {
    let mut states = bus.subscribe(app.ingresses(), None).await?;
    let until = Instant::now() + 5 * LOAD;
    while let Ok(Some(message)) = tokio::time::timeout_at(until.into(), states.next()).await {
        if IngressState::decode(&message.payload).is_ok_and(|state| state.admits == epoch) {
            return Ok(());
        }
    }
    bail!("epoch {epoch} was not admitted in time")
}
