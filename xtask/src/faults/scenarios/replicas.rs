//! Replicas that die, stop, drain, or are missing.

use std::time::{Duration, Instant};

use kaskade_actors::Code;
use kaskade_testkit::DelayProxy;

use super::scenarios;
use crate::deployed_plan::plan;
use crate::faults::oracle::{Load, Tally, under};
use crate::faults::rig::{Process, Rig, Start, ended};
use crate::faults::verdict::Verdict;
use crate::node::{inputs, what};

scenarios! {
    "replica-killed" "One of two workers is killed (SIGKILL) during a batch; its requests are sent to the other one." killed;
    "replica-stopped" "One of two workers is suspended (SIGSTOP) and ejected after three missed heartbeats; later it resumes, and its late results are ignored." stopped;
    "replica-drained" "One of two workers is asked to stop (SIGTERM); it finishes its requests, and no request fails." drained;
    "leaving-behind-latency" "A worker and an ingress whose connections delay what the server sends by 50 ms leave (SIGTERM) at 2,000 requests per second; no request fails." leaving;
    "last-replica-killed" "The only worker is killed; requests fail at once with a typed error until another one serves." last_killed;
    "last-stage-down" "The only worker with the large model is killed; answers of the small model below the threshold are returned and flagged as degraded." last_stage;
    "deadly-request" "One request crashes every process that runs it, and six workers share the load; only this request fails, after six crashes at most." deadly;
    "worker-panics" "Requests that make the model panic share batches with others; only they fail." panics;
}

/// Time within which the other replica must take over.
const SOON: Duration = Duration::from_secs(1);

/// A worker whose batches take long enough to be interrupted.
fn slow(name: &str) -> Start<'_> {
    Start::worker(name).flag("--run").flag("20ms")
}

async fn killed() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (mut first, _second) = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let _ingress = rig.start(&Start::ingress())?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        first.kill();
        Ok(Instant::now())
    })
    .await?;
    Ok(Verdict::from_tally(&tally).without_faults().recovers_within(SOON))
}

async fn stopped() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (first, _second) = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let _ingress = rig.start(&Start::ingress())?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        first.pause();
        let stopped = Instant::now();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        first.resume();
        Ok(stopped)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(2)))
}

async fn drained() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let (mut first, _second) = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let _ingress = rig.start(&Start::ingress())?;
    let mut well = false;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let begun = Instant::now();
        first.terminate();
        well = ended(&mut first).await?.success();
        Ok(begun)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(well, "a drained process exits with success"))
}

async fn leaving() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let proxy = DelayProxy::start(rig.nats.port(), Duration::from_millis(50));
    let mut worker = rig.start(&Start::worker("w1").through(proxy.url()))?;
    let _second = rig.start(&Start::worker("w2"))?;
    let mut ingress = rig.start(&Start::ingress().through(proxy.url()))?;
    let _other = rig.start(&Start::ingress())?;
    let load = Load {
        rate: 2_000.0,
        total: 12_000,
        ..Load::at(&rig.nats.url())
    };
    let mut well = true;
    let tally = under(&load, async || {
        let begun = Instant::now();
        for process in [&mut worker, &mut ingress] {
            process.terminate();
            well &= ended(process).await?.success();
        }
        Ok(begun)
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(well, "a process that leaves exits with success"))
}

async fn last_killed() -> anyhow::Result<Verdict> {
    let rig = Rig::with(
        kaskade_testkit::NatsOptions::jetstream(),
        &plan(&[("w1", &["small", "large"])]),
    )?;
    let mut only = rig.start(&Start::worker("w1"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let mut again: Option<Process> = None;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        only.kill();
        again = Some(rig.start(&Start::worker("w1"))?);
        Ok(Instant::now())
    })
    .await?;
    let slowest = slowest_fault(&tally);
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0007", "KSK0020"])
        .recovers_within(SOON)
        .demand(slowest < SOON, "requests that cannot be served fail at once")
        .note(format!("the slowest error took {} ms", slowest.as_millis())))
}

fn slowest_fault(tally: &Tally) -> Duration {
    let faults = (0..tally.requests()).filter(|number| tally.fault_of(*number).is_some());
    let times = faults.filter_map(|number| tally.fates.get(number)?.replies.first().map(|(after, _)| *after));
    times.max().unwrap_or_default()
}

async fn last_stage() -> anyhow::Result<Verdict> {
    let plan = plan(&[("w1", &["small"]), ("w2", &["small"]), ("w3", &["large"])]);
    let rig = Rig::with(kaskade_testkit::NatsOptions::jetstream(), &plan)?;
    let (_ingress, _first, _second) = rig.start_all()?;
    let mut large = rig.start(&Start::worker("w3"))?;
    let load = Load {
        // Every fourth answer of the small model is below the threshold.
        asks: |number| inputs(1.0, if number % 4 == 0 { 0.1 } else { 9.0 }),
        ..Load::at(&rig.nats.url())
    };
    let tally = under(&load, async || {
        large.kill();
        Ok(Instant::now())
    })
    .await?;
    let degraded = tally.degraded();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(degraded > 50, "answers below the threshold are flagged")
        .note(format!("{degraded} answers flagged as degraded")))
}

async fn deadly() -> anyhow::Result<Verdict> {
    const DEADLY: usize = 100;
    // The first loss may concern any request, and each further one is known to be this one's.
    const MAX_DEATHS: usize = 6;
    const WORKERS: [&str; 6] = ["w1", "w2", "w3", "w4", "w5", "w6"];
    let both: &[&str] = &["small", "large"];
    let plan = plan(&WORKERS.map(|name| (name, both)));
    let rig = Rig::with(kaskade_testkit::NatsOptions::jetstream(), &plan)?;
    let ingress = rig.start(&Start::ingress())?;
    let mut workers = WORKERS
        .iter()
        .map(|name| Ok((*name, rig.start(&Start::worker(name))?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let load = Load {
        asks: |number| inputs(if number == DEADLY as u64 { what::ABORT } else { 1.0 }, 9.0),
        ..Load::at(&rig.nats.url())
    };
    let mut deaths = 0;
    let tally = under(&load, async || {
        // Restarts workers as a supervisor does, while the request may still have attempts.
        let struck = Instant::now();
        while struck.elapsed() < Duration::from_millis(1_500) {
            for (name, worker) in &mut workers {
                if worker.exited().is_some() {
                    deaths += 1;
                    *worker = rig.start(&Start::worker(name))?;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(struck)
    })
    .await?;
    drop(ingress);
    deaths += workers
        .iter_mut()
        .filter_map(|(_, worker)| worker.exited())
        .count();
    let fault = tally.fault_of(DEADLY);
    let others = tally.faults().values().sum::<usize>() - usize::from(fault.is_some());
    Ok(Verdict::from_tally(&tally)
        .demand(
            fault == Some(Code::ReplicasLost.id()),
            "the deadly request ends with the error for lost replicas",
        )
        .demand(deaths <= MAX_DEATHS, "the request is found after six crashes")
        .demand(others == 0, "no other request fails")
        .note(format!("{deaths} workers crashed")))
}

async fn panics() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let load = Load {
        rate: 1_000.0,
        total: 2_000,
        asks: |number| inputs(if number % 20 == 7 { what::PANIC } else { 1.0 }, 9.0),
        ..Load::at(&rig.nats.url())
    };
    let tally = crate::faults::oracle::undisturbed(&load).await?;
    let faults = tally.faults().values().sum::<usize>();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0008"])
        .demand(faults == 100, "only requests that panic fail"))
}
