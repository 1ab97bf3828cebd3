//! Durable requests: what is accepted is answered once.

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use futures::stream::{self, StreamExt as _};
use kaskade_actors::bus::Bus;
use kaskade_actors::metrics::ARRIVED_REQUESTS;
use kaskade_actors::wire::InferRequest;
use kaskade_actors::wire::headers;
use kaskade_actors::{App, Client, Code};
use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::APP;
use crate::faults::oracle::{End, Fate, Load, Tally, under};
use crate::faults::rig::{Process, Rig, Start, ended, pair};
use crate::faults::verdict::Verdict;
use crate::node::{inputs, what};

scenarios! {
    "durable-power-loss" "The nats-server (`sync_interval: always`) and every process are killed at once in the middle of durable load; every accepted request is answered after a restart." power_loss;
    "durable-ingress-killed" "One of two ingresses is killed while it holds durable requests; the other one takes them over." ingress_killed;
    "durable-nats-restarted" "The nats-server is killed and restarted under durable load; every accepted request is answered." nats_restarted;
    "durable-poison" "Durable requests that make models panic become dead letters after three deliveries, with the reason; the other requests of their batches are answered." poison;
    "durable-short-ack" "The consumer of durable requests was created with a time for acknowledgements of two seconds, and requests take three; the ingress that is configured for a minute keeps them, and each runs once." short_ack;
    "disk-full" "JetStream has no space left; further durable requests are refused with a typed error, and other requests are served." disk_full;
}

/// Time within which an accepted request must have its result after a restart of all processes.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Submitting {
    _bus: Bus,
    client: Client,
    /// The budget of each request; `None` leaves it to the ingress.
    budget: Option<Duration>,
}

impl Submitting {
    async fn at(rig: &Rig) -> anyhow::Result<Self> {
        let bus = rig.bus().await?;
        Ok(Self {
            client: Client::new(&bus, App::new(APP)?),
            _bus: bus,
            budget: None,
        })
    }

    /// Submits up to `total` requests, 32 at a time, and returns the accepted ones, each with its time of sending.
    async fn submit(&self, from: u64, total: u64, of: fn(u64) -> f32) -> Vec<(u64, Instant)> {
        self.submit_until(None, from, total, of).await
    }

    /// Submits requests in the same way, but none after `end`.
    async fn submit_until(
        &self,
        end: Option<Instant>,
        from: u64,
        total: u64,
        of: fn(u64) -> f32,
    ) -> Vec<(u64, Instant)> {
        let submitting = stream::iter(from..from + total).map(async |number| {
            if end.is_some_and(|end| Instant::now() > end) {
                return None;
            }
            let request = InferRequest {
                inputs: inputs(of(number), 9.0),
                ..InferRequest::default()
            };
            let mut headers = HeaderMap::new();
            headers::put_request_id(&mut headers, &format!("r{number}")).ok()?;
            if let Some(budget) = self.budget {
                headers::put_budget(&mut headers, budget);
            }
            let sent = Instant::now();
            self.client.submit(&request, headers).await.ok()?;
            Some((number, sent))
        });
        submitting
            .buffered(32)
            .filter_map(async |accepted| accepted)
            .collect()
            .await
    }

    /// Returns the outcomes of the accepted requests.
    async fn fates(&self, accepted: &[(u64, Instant)], struck: Option<Instant>) -> Tally {
        let asking = stream::iter(accepted.iter().copied()).map(async |(number, sent)| {
            let result = self.client.wait_for(&format!("r{number}"), TIMEOUT).await;
            let end = match result {
                Ok(reply) => Some(End::Answer {
                    degraded: reply.degraded,
                }),
                Err(fault) if fault.code == Code::NoReply => None,
                Err(fault) => Some(End::Fault(fault.code.id())),
            };
            Fate {
                sent,
                replies: end.map(|end| (sent.elapsed(), end)).into_iter().collect(),
            }
        });
        Tally {
            fates: asking.buffered(64).collect().await,
            budget: Duration::from_mins(1),
            struck,
        }
    }
}

fn always() -> NatsOptions {
    NatsOptions {
        jetstream_config: "sync_interval: always".to_owned(),
        ..NatsOptions::jetstream()
    }
}

fn start_all(rig: &Rig) -> anyhow::Result<Vec<Process>> {
    Ok(vec![
        rig.start(&Start::worker("w1"))?,
        rig.start(&Start::worker("w2"))?,
        rig.start(&Start::ingress().flag("--durable"))?,
    ])
}

async fn short_ack() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let slow = |name| Start::worker(name).flag("--run").flag("3s");
    let _workers = (rig.start(&slow("w1"))?, rig.start(&slow("w2"))?);
    let mut creator = rig.start(&Start::ingress().flag("--durable"))?;
    creator.terminate();
    ended(&mut creator).await?;
    let patient = Start::ingress().flag("--durable").flag("--ack-wait").flag("1m");
    let _ingress = rig.start(&patient.flag("--probes"))?;
    // A request may wait for the batches before its own; if its budget ended there, it would be delivered again.
    let submitting = Submitting {
        budget: Some(Duration::from_mins(1)),
        ..Submitting::at(&rig).await?
    };
    let accepted = submitting.submit(0, 8, |_| 1.0).await;
    let tally = submitting.fates(&accepted, None).await;
    let metrics = rig.probe("other", "/metrics")?;
    let arrived = metrics.lines().find(|line| line.starts_with(ARRIVED_REQUESTS));
    let once = arrived.is_some_and(|line| line.ends_with(" 8"));
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(accepted.len() == 8, "the requests are accepted")
        .demand(once, &format!("each request arrives once ({arrived:?})")))
}

async fn power_loss() -> anyhow::Result<Verdict> {
    let mut rig = Rig::with(always(), &pair())?;
    let mut processes = start_all(&rig)?;
    let submitting = Submitting::at(&rig).await?;
    // A submitting client does not learn of the power loss; it gives up when the stream does not acknowledge.
    let end = Instant::now() + Duration::from_millis(450);
    let (accepted, struck) = tokio::join!(submitting.submit_until(Some(end), 0, 100_000, |_| 1.0), async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        rig.nats.kill();
        for process in &mut processes {
            process.kill();
        }
        Instant::now()
    });
    rig.nats.restart();
    let again = Instant::now();
    let _processes = start_all(&rig)?;
    let submitting = Submitting::at(&rig).await?;
    let tally = submitting.fates(&accepted, None).await;
    let done = again.elapsed();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(accepted.len() > 100, "the fault happens during the load")
        .note(format!(
            "{} accepted before the fault; all answered {} ms after the restart of the server ({} ms after the kill)",
            accepted.len(),
            done.as_millis(),
            struck.elapsed().as_millis()
        )))
}

async fn ingress_killed() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let slow = |name| Start::worker(name).flag("--run").flag("20ms");
    let _workers = [rig.start(&slow("w1"))?, rig.start(&slow("w2"))?];
    let mut first = rig.start(&Start::ingress().flag("--durable"))?;
    let _second = rig.start(&Start::ingress().flag("--durable"))?;
    let submitting = Submitting::at(&rig).await?;
    let (accepted, struck) = tokio::join!(submitting.submit(0, 1_000, |_| 1.0), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        first.kill();
        Instant::now()
    });
    let tally = submitting.fates(&accepted, None).await;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(accepted.len() == 1_000, "every request is accepted")
        .note(format!(
            "all answered {} ms after the kill",
            struck.elapsed().as_millis()
        )))
}

async fn nats_restarted() -> anyhow::Result<Verdict> {
    let mut rig = Rig::with(always(), &pair())?;
    let _processes = start_all(&rig)?;
    let submitting = Submitting::at(&rig).await?;
    let (mut accepted, again) = tokio::join!(submitting.submit(0, 1_000, |_| 1.0), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.nats.kill();
        rig.nats.restart();
        Instant::now()
    });
    let before = accepted.len();
    // A client without an acknowledgement submits again, under the same ids.
    accepted.extend(submitting.submit(0, 1_000, |_| 1.0).await);
    accepted.sort_unstable();
    accepted.dedup_by_key(|(number, _)| *number);
    let tally = submitting.fates(&accepted, None).await;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            accepted.len() == 1_000,
            "every request is accepted after resubmission",
        )
        .note(format!(
            "{before} accepted at the first try; all answered {} ms after the restart of the server",
            again.elapsed().as_millis()
        )))
}

async fn poison() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let _processes = start_all(&rig)?;
    let bus = rig.bus().await?;
    let mut letters = bus.subscribe(App::new(APP)?.dead_letters(), None).await?;
    bus.barrier().await?;
    let submitting = Submitting::at(&rig).await?;
    let of = |number| if number % 50 == 7 { what::PANIC } else { 1.0 };
    let accepted = submitting.submit(0, 500, of).await;
    let tally = submitting.fates(&accepted, None).await;
    let mut dead = 0;
    while let Ok(Some(letter)) = tokio::time::timeout(Duration::from_millis(500), letters.next()).await {
        let fault = headers::fault(letter.headers.as_ref());
        dead += usize::from(fault.is_some_and(|fault| fault.code == Code::ModelFailed));
    }
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &["KSK0008"])
        .demand(tally.answered() == 490, "the other requests are answered")
        .demand(dead == 10, "each becomes a dead letter with its reason"))
}

async fn disk_full() -> anyhow::Result<Verdict> {
    let options = NatsOptions {
        jetstream_config: "max_file_store: 4MB".to_owned(),
        ..NatsOptions::jetstream()
    };
    let rig = Rig::with(options, &pair())?;
    let _workers = [rig.start(&Start::worker("w1"))?, rig.start(&Start::worker("w2"))?];
    // An ingress for durable requests creates the streams and stops, so that nothing empties them.
    let small = Start::ingress()
        .flag("--durable")
        .flag("--durable-bytes")
        .flag("1000000");
    drop(rig.start(&small)?);
    let _ingress = rig.start(&Start::ingress())?;
    let submitting = Submitting::at(&rig).await?;
    let mut accepted = Vec::new();
    let mut refusals = Vec::new();
    let tally = under(&Load::at(&rig.nats.url()), async || {
        let struck = Instant::now();
        for number in 0..20_000 {
            let request = InferRequest {
                inputs: inputs(1.0, 9.0),
                // Large requests fill the store sooner.
                parameters: [("filler".to_owned(), "x".repeat(8_000))].into(),
                ..InferRequest::default()
            };
            let mut headers = HeaderMap::new();
            headers::put_request_id(&mut headers, &format!("r{number}"))?;
            match submitting.client.submit(&request, headers).await {
                Ok(_) => accepted.push((number, Instant::now())),
                Err(fault) => refusals.push(fault.code),
            }
            if refusals.len() > 20 {
                break;
            }
        }
        Ok(struck)
    })
    .await?;
    let full = accepted.len();
    let _taking = rig.start(&small)?;
    let durable = submitting.fates(&accepted, None).await;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(
            refusals.iter().all(|code| *code == Code::Overloaded) && !refusals.is_empty(),
            &format!("requests without space are refused as overloaded ({refusals:?})"),
        )
        .demand(durable.answered() == full, "every accepted request is answered")
        .note(format!("{full} accepted, then {} refused", refusals.len())))
}
