//! Overload, changing load, and cancellation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;
use kaskade_actors::wire::headers;
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::{APP, geared, plan};
use crate::faults::oracle::{Load, Tally, under, undisturbed};
use crate::faults::rig::{Rig, Start, pair};
use crate::faults::verdict::Verdict;
use crate::node::inputs;

scenarios! {
    "overload" "The offered load is two, five and ten times the capacity; the excess is refused early, and goodput stays level." overload;
    "slow-overload" "A model that takes 400 ms is offered three times its capacity; once requests have expired, the excess is refused early instead." slow_overload;
    "full-queue" "A burst meets a queue with a capacity of four; the excess is refused at once with a typed error, and the worker stays ready and says that it is full." full_queue;
    "oscillating-load" "The load alternates between two gears twice a second; no request fails." oscillating;
    "client-cancels" "Clients cancel a third of their requests; each ends with an answer or as cancelled." cancels;
}

/// One worker that takes 40 ms for up to 8: 200 requests a second.
const CAPACITY: f64 = 200.0;

async fn overload() -> anyhow::Result<Verdict> {
    let plan = plan(&[("w1", &["small", "large"])]);
    let rig = Rig::with(NatsOptions::jetstream(), &plan)?;
    let _worker = rig.start(&Start::worker("w1").flag("--run").flag("40ms"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let mut verdict = Verdict::default();
    let mut best = 0.0_f64;
    for times in [0.8, 2.0, 5.0, 10.0] {
        let rate = CAPACITY * times;
        let load = Load {
            rate,
            total: (rate * 3.0) as u64,
            budget: Duration::from_millis(500),
            ..Load::at(&rig.nats.url())
        };
        let tally = undisturbed(&load).await?;
        let goodput = tally.answered() as f64 / 3.0;
        best = best.max(goodput);
        let mut next = Verdict::from_tally(&tally)
            .only(&tally, &["KSK0005", "KSK0006"])
            .demand(
                goodput > 0.8 * best,
                &format!("goodput stays level at {times} times the capacity"),
            );
        next.notes = std::mem::take(&mut verdict.notes);
        next.broken.splice(0..0, std::mem::take(&mut verdict.broken));
        verdict = next.note(format!(
            "{times} times: {goodput:.0} answered a second, {}",
            refusals(&tally)
        ));
    }
    Ok(verdict)
}

/// Up to 8 requests in 400 ms: 20 a second, of which a budget of 1.5 s leaves room for fewer than the 64 that are accepted without a
/// prediction.
async fn slow_overload() -> anyhow::Result<Verdict> {
    let plan = plan(&[("w1", &["small", "large"])]);
    let rig = Rig::with(NatsOptions::jetstream(), &plan)?;
    let _worker = rig.start(&Start::worker("w1").flag("--run").flag("400ms"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let load = |total| Load {
        rate: 60.0,
        total,
        budget: Duration::from_millis(1_500),
        ..Load::at(&rig.nats.url())
    };
    undisturbed(&load(300)).await?;
    let tally = undisturbed(&load(600)).await?;
    let with = |code: &str| {
        let requests = 0..tally.requests();
        requests
            .filter(|number| tally.fault_of(*number) == Some(code))
            .count()
    };
    let (expired, refused) = (with("KSK0005"), with("KSK0006"));
    let answered = tally.answered();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0005", "KSK0006"])
        .demand(answered >= 140, "goodput is at least 0.7 of the capacity")
        .demand(expired * 5 < refused, "most of the excess is refused early")
        .note(format!(
            "{answered} answered in 10 s, {expired} expired, {refused} refused, {}",
            refusals(&tally)
        )))
}

fn refusals(tally: &Tally) -> String {
    let refused = (0..tally.requests()).filter(|number| tally.fault_of(*number).is_some());
    let mut times: Vec<Duration> = refused
        .filter_map(|number| tally.fates.get(number)?.replies.first().map(|(after, _)| *after))
        .collect();
    times.sort_unstable();
    match times.get(times.len() / 2) {
        Some(median) => format!("refused in {:.1} ms (median)", median.as_secs_f64() * 1e3),
        None => "none refused".to_owned(),
    }
}

async fn full_queue() -> anyhow::Result<Verdict> {
    let plan = plan(&[("w1", &["small", "large"])]);
    let rig = Rig::with(NatsOptions::jetstream(), &plan)?;
    let slow = Start::worker("w1")
        .flag("--run")
        .flag("50ms")
        .flag("--queue")
        .flag("4")
        .flag("--probes");
    let _worker = rig.start(&slow)?;
    let _ingress = rig.start(&Start::ingress())?;
    let load = Load {
        rate: 20_000.0,
        total: 200,
        ..Load::at(&rig.nats.url())
    };
    let asked = AtomicBool::new(false);
    let probing = async {
        let mut probes = Vec::new();
        while !asked.load(Ordering::Relaxed) {
            probes.push(rig.probe("w1", "/ready")?);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        anyhow::Ok(probes)
    };
    let asking = async {
        let tally = undisturbed(&load).await;
        asked.store(true, Ordering::Relaxed);
        tally
    };
    let (tally, probes) = tokio::join!(asking, probing);
    let (tally, probes) = (tally?, probes?);
    let full = probes.iter().filter(|probe| probe.contains("full")).count();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0006"])
        .demand(
            probes.iter().all(|probe| probe.contains(" 200 ")),
            "the worker stays ready",
        )
        .demand(full > 0, "the worker says that it is full")
        .note(format!("{full} of {} probes said that it is full", probes.len()))
        .demand(tally.answered() >= 4, "queued requests are answered")
        .demand(tally.answered() < 200, "the excess is refused"))
}

async fn oscillating() -> anyhow::Result<Verdict> {
    let rig = Rig::with(NatsOptions::jetstream(), &geared(pair(), 200.0))?;
    let _processes = rig.start_all()?;
    let bus = rig.bus().await?;
    let mut shifts = bus
        .subscribe(kaskade_actors::App::new(APP)?.event("gear")?, None)
        .await?;
    bus.barrier().await?;
    let mut tallies = Vec::new();
    for change in 0..10 {
        let rate = if change % 2 == 0 { 50.0 } else { 600.0 };
        let load = Load {
            rate,
            total: (rate / 2.0) as u64,
            ..Load::at(&rig.nats.url())
        };
        tallies.push(undisturbed(&load).await?);
    }
    let mut count = 0;
    while let Ok(Some(_)) =
        tokio::time::timeout(Duration::from_millis(200), futures::StreamExt::next(&mut shifts)).await
    {
        count += 1;
    }
    let fates = tallies
        .iter()
        .flat_map(|tally| tally.fates.iter().cloned())
        .collect();
    let whole = Tally {
        fates,
        budget: Duration::from_secs(5),
        struck: None,
    };
    Ok(Verdict::from_tally(&whole)
        .without_faults()
        .demand(count > 0, "gears shift")
        .demand(count <= 20, "hysteresis limits the shifts")
        .note(format!("{count} shifts in 10 changes of load")))
}

async fn cancels() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let slow = |name| Start::worker(name).flag("--run").flag("20ms");
    let _first = rig.start(&slow("w1"))?;
    let _second = rig.start(&slow("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let bus = rig.bus().await?;
    let load = Load {
        named: true,
        asks: |_| inputs(1.0, 9.0),
        ..Load::at(&rig.nats.url())
    };
    let cancelling = async {
        for number in (0..load.total).step_by(3) {
            let mut headers = HeaderMap::new();
            headers::put_request_id(&mut headers, &number.to_string())?;
            let cancel = kaskade_actors::App::new(APP)?.cancel();
            bus.publish(cancel, None, Some(headers), Bytes::new()).await?;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        anyhow::Ok(())
    };
    let (tally, cancelled) = tokio::join!(under(&load, async || Ok(Instant::now())), cancelling);
    cancelled?;
    let mut tally = tally?;
    tally.struck = None;
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0019"])
        .demand(!tally.faults().is_empty(), "requests in flight end as cancelled"))
}
