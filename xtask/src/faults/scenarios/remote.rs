//! Faults of an endpoint behind a cascade's large model. The small model is never sure, so every request asks the endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kaskade::policy::confidence::Estimator;
use kaskade::policy::plan::Plan;
use kaskade::{Inputs, Tensor};
use kaskade_actors::wire::{InferRequest, Message as _};
use kaskade_actors::{App, Code, subjects};
use kaskade_testkit::NatsOptions;
use kaskade_testkit::endpoint::{Does, Request, Server};

use super::scenarios;
use crate::deployed_plan::{APP, LARGE, SMALL, plan};
use crate::faults::oracle::{Load, Tally, under, undisturbed};
use crate::faults::rig::{Process, Rig, Start};
use crate::faults::verdict::Verdict;

scenarios! {
    "endpoint-hangs" "The endpoint of the large model hangs for a second; the small model answers meanwhile, and the large one by itself afterwards." hangs;
    "endpoint-busy" "The endpoint answers some calls with 429 and some with 500; they are repeated, and no request fails." busy;
    "endpoint-cuts" "The endpoint cuts a third of its streams in the middle; each such request is sent again or answered by the small model." cuts;
    "endpoint-garbage" "The endpoint answers HTML or a log probability of NaN; each is a typed error, and none an answer." garbage;
    "key-revoked" "The endpoint refuses the key and repeats it in its message; requests end typed or at the small model, and the key is in no log, error or metric." revoked;
    "spend-limit" "The limit of spending is reached; no call is made beyond it, and the requests that need one are refused with a typed error." spent;
}

/// The key of the endpoint.
const KEY: &str = "sk-that-nothing-may-show";

/// An endpoint, and an app whose large model it has.
struct Deployment {
    rig: Rig,
    endpoint: Server,
    /// Whether the fault is under way.
    broken: Arc<AtomicBool>,
    _processes: [Process; 2],
}

/// A text of one token, streamed as the OpenAI API does.
fn events(logprob: &str) -> Vec<String> {
    vec![
        format!(
            "{{\"choices\": [{{\"delta\": {{\"content\": \"yes\"}}, \"logprobs\": {{\"content\": [{{\"token\": \"yes\", \
             \"logprob\": {logprob}, \"top_logprobs\": []}}]}}}}]}}"
        ),
        "{\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}".to_owned(),
        "[DONE]".to_owned(),
    ]
}

fn answers() -> Does {
    Does::Stream(events("-0.01"), true)
}

fn text() -> Inputs {
    // Cannot fail: one text has the shape of one.
    Tensor::from_texts("text", &["is it so?"]).into_iter().collect()
}

impl Deployment {
    /// Starts everything. While the fault is under way, the endpoint does what `fault` says.
    fn start(fault: fn(&Request, usize) -> Does, flags: &[&str]) -> anyhow::Result<Self> {
        let broken = Arc::new(AtomicBool::new(false));
        let is_broken = Arc::clone(&broken);
        let endpoint = Server::start(move |request, number| {
            if is_broken.load(Ordering::SeqCst) {
                fault(request, number)
            } else {
                answers()
            }
        });
        let rig = Rig::with(NatsOptions::jetstream(), &cascade())?;
        let key = rig.file("key");
        std::fs::write(&key, KEY)?;
        let mut worker = Start::worker("w1")
            .flag("--probes")
            .flag("--remote")
            .flag(&endpoint.url());
        worker = worker.flag("--key").flag(&key.display().to_string());
        for flag in flags {
            worker = worker.flag(flag);
        }
        let processes = [rig.start(&worker)?, rig.start(&Start::ingress())?];
        Ok(Self {
            rig,
            endpoint,
            broken,
            _processes: processes,
        })
    }

    fn load(&self, total: u64) -> Load {
        Load {
            rate: 100.0,
            total,
            asks: |_| text(),
            ..Load::at(&self.rig.nats.url())
        }
    }

    /// Sends a load and makes the fault when a third of it is sent, for this time, or until the end.
    async fn disturbed(&self, total: u64, lasts: Option<Duration>) -> anyhow::Result<Tally> {
        let (broken, down) = (Arc::clone(&self.broken), Arc::clone(&self.endpoint.down));
        under(&self.load(total), async move || {
            broken.store(true, Ordering::SeqCst);
            down.store(true, Ordering::SeqCst);
            let struck = Instant::now();
            if let Some(lasts) = lasts {
                tokio::spawn(async move {
                    tokio::time::sleep(lasts).await;
                    broken.store(false, Ordering::SeqCst);
                    down.store(false, Ordering::SeqCst);
                });
            }
            Ok(struck)
        })
        .await
    }

    /// Demands that the key is in no log, statistics, metric or reply.
    async fn key_is_shown_nowhere(&self, verdict: Verdict) -> anyhow::Result<Verdict> {
        let log = ["w1.log", "other.log"].map(|name| std::fs::read_to_string(self.rig.file(name)));
        let log = log.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        let metrics = self.rig.probe("w1", "/metrics")?;
        let bus = self.rig.bus().await?;
        let [_, statistics, _] = subjects::discovery("STATS", APP, "any")?;
        let statistics = bus.client().request(statistics, "".into()).await;
        let request = InferRequest {
            inputs: text(),
            ..InferRequest::default()
        };
        let reply = bus
            .client()
            .request(App::new(APP)?.infer(), request.encode()?)
            .await?;
        let mut shown = vec![log.clone(), metrics.clone()];
        shown.push(String::from_utf8_lossy(&reply.payload).into_owned());
        shown.push(format!("{:?}", reply.headers));
        if let Ok(statistics) = statistics {
            shown.push(String::from_utf8_lossy(&statistics.payload).into_owned());
        }
        Ok(verdict
            .demand(log.contains("the circuit breaker opened"), "the log is read")
            .demand(
                metrics.contains("kaskade_variant_requests_total"),
                "the metrics are read",
            )
            .demand(
                shown.iter().all(|text| !text.contains(KEY)),
                "the key is in no log, metric or reply",
            ))
    }
}

/// The cascade of both models on one worker, whose confidences are their own.
fn cascade() -> Plan {
    let mut plan = plan(&[("w1", &[SMALL, LARGE])]);
    for variant in &mut plan.variants {
        if let Some(calibration) = &mut variant.calibration {
            calibration.estimator = Estimator::Given;
        }
    }
    plan
}

async fn hangs() -> anyhow::Result<Verdict> {
    let deployment = Deployment::start(|_, _| Does::Hang, &[])?;
    let tally = deployment.disturbed(600, Some(Duration::from_secs(1))).await?;
    // The pause of the circuit breaker doubles while the endpoint is down.
    let again = Instant::now();
    let after = loop {
        let after = undisturbed(&deployment.load(100)).await?;
        if after.degraded() == 0 || again.elapsed() > Duration::from_secs(20) {
            break after;
        }
    };
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &[Code::EndpointUnavailable.id()])
        .demand(tally.degraded() > 0, "the small model answers meanwhile")
        .demand(
            after.degraded() == 0 && after.faults().is_empty(),
            "the large model answers by itself afterwards",
        )
        .note(format!("{} answers of the small model", tally.degraded())))
}

async fn busy() -> anyhow::Result<Verdict> {
    let fault = |_: &Request, number: usize| match number {
        number if number % 5 == 1 => Does::Answer(
            429,
            "retry-after-ms: 20\r\n".to_owned(),
            b"{\"error\": {\"message\": \"slow down\"}}".to_vec(),
        ),
        number if number % 7 == 2 => Does::Answer(500, String::new(), b"oops".to_vec()),
        _ => answers(),
    };
    let deployment = Deployment::start(fault, &[])?;
    let tally = deployment.disturbed(600, None).await?;
    let calls = deployment.endpoint.calls();
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(calls > 650, "calls are repeated")
        .note(format!("{calls} calls for 600 requests")))
}

async fn cuts() -> anyhow::Result<Verdict> {
    let fault = |_: &Request, number: usize| match number % 3 {
        0 => Does::Stream(events("-0.01").into_iter().take(1).collect(), false),
        _ => answers(),
    };
    let deployment = Deployment::start(fault, &[])?;
    let tally = deployment.disturbed(600, None).await?;
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &[Code::EndpointUnavailable.id()])
        .demand(tally.answered() > 580, "almost every request is answered")
        .note(format!("{} answers of the small model", tally.degraded())))
}

async fn garbage() -> anyhow::Result<Verdict> {
    let fault = |_: &Request, number: usize| match number % 5 {
        0 => Does::Stream(events("NaN"), true),
        1 => Does::Stream(vec!["<html>".to_owned()], true),
        _ => answers(),
    };
    let deployment = Deployment::start(fault, &[])?;
    let tally = deployment.disturbed(600, None).await?;
    let refused = tally
        .faults()
        .get(Code::BadOutput.id())
        .copied()
        .unwrap_or_default();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &[Code::BadOutput.id(), Code::EndpointUnavailable.id()])
        .demand(refused > 0, "garbage is a typed error"))
}

async fn revoked() -> anyhow::Result<Verdict> {
    let fault = |_: &Request, _: usize| {
        let said = format!("{{\"error\": {{\"message\": \"Incorrect API key provided: {KEY}.\"}}}}");
        Does::Answer(401, String::new(), said.into_bytes())
    };
    let deployment = Deployment::start(fault, &[])?;
    let tally = deployment.disturbed(600, None).await?;
    let refused = tally
        .faults()
        .get(Code::EndpointRefused.id())
        .copied()
        .unwrap_or_default();
    let verdict = Verdict::from_tally(&tally)
        .only(
            &tally,
            &[Code::EndpointRefused.id(), Code::EndpointUnavailable.id()],
        )
        .demand(refused > 0, "the refusal is a typed error")
        .demand(tally.degraded() > 0, "the small model answers then");
    deployment.key_is_shown_nowhere(verdict).await
}

async fn spent() -> anyhow::Result<Verdict> {
    let deployment = Deployment::start(|_, _| answers(), &["--spend-limit", "100"])?;
    let tally = undisturbed(&deployment.load(300)).await?;
    let calls = deployment.endpoint.calls();
    Ok(Verdict::from_tally(&tally)
        .only(&tally, &[Code::EndpointRefused.id()])
        .demand(calls <= 100, "no call is made beyond the limit")
        .demand(
            tally.answered() == calls && calls > 50,
            "what was paid for is answered",
        )
        .note(format!("{calls} calls within a limit of 100")))
}
