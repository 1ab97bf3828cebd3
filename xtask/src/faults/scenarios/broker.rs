//! Faults of the nats-server and of the connections to it.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use kaskade_testkit::NatsOptions;

use super::scenarios;
use crate::deployed_plan::APP;
use crate::faults::monitor::Monitor;
use crate::faults::oracle::{Load, Tally, under, undisturbed};
use crate::faults::proxy::Proxy;
use crate::faults::rig::{Rig, Start, pair};
use crate::faults::shipped;
use crate::faults::verdict::Verdict;

scenarios! {
    "nats-restarted" "The nats-server is killed and started again under load. Core NATS stores nothing: only requests that it held at that moment may be lost." restarted;
    "nats-restarted-client" "The same, with the client that Kaskade ships, which sends requests again: none is lost, and none fails." restarted_with_client;
    "nats-partitioned" "For two seconds no byte passes between the server and the ingress and workers; no connection is closed. Recovery counts from the end of the partition." partitioned;
    "worker-cut-off" "One of two workers loses its connection for a second; the other one answers." cut_off;
    "reconnect-storm" "Every connection of the ingress and workers is closed 20 times; the numbers of subscriptions and consumers are the same afterwards." storm;
    "reconnect-storm-client" "The same, with the client that Kaskade ships: none is lost, and none fails." storm_with_client;
    "slow-consumer" "A client subscribes to everything and never reads; the server disconnects it, and no other client is affected." slow;
}

const RECOVERY: Duration = Duration::from_secs(3);

async fn restarted() -> anyhow::Result<Verdict> {
    let mut rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let load = Load::at(&rig.nats.url());
    let tally = under(&load, async || {
        let struck = Instant::now();
        rig.nats.kill();
        rig.nats.restart();
        Ok(struck)
    })
    .await?;
    let lost = tally.lost();
    let held = held_by_the_server(&tally);
    Ok(Verdict::seen(&tally)
        .demand(tally.doubled() == 0, "no request gets two replies")
        .demand(tally.late() == 0, "every reply comes within its budget")
        .demand(lost <= held, "only what the server held is lost")
        .recovers_within(RECOVERY)
        .note(format!(
            "{held} requests were in flight when the server was killed or sent while it was down"
        )))
}

async fn restarted_with_client() -> anyhow::Result<Verdict> {
    let mut rig = Rig::new()?;
    let _processes = rig.start_all()?;
    let load = Load::at(&rig.nats.url());
    let tally = shipped::under(&load, async || {
        let struck = Instant::now();
        rig.nats.kill();
        rig.nats.restart();
        Ok(struck)
    })
    .await?;
    Ok(Verdict::from_tally(&tally).without_faults())
}

/// Requests that were in flight at the fault, or sent within a second of it.
fn held_by_the_server(tally: &Tally) -> usize {
    let Some(struck) = tally.struck else { return 0 };
    let away = struck + Duration::from_secs(1);
    let under_way = tally.fates.iter().filter(|fate| {
        let answered = fate.replies.first().map(|(after, _)| fate.sent + *after);
        fate.sent < away && answered.is_none_or(|at| at > struck)
    });
    under_way.count()
}

async fn partitioned() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&Start::worker("w1").through(wire.url()))?;
    let _second = rig.start(&Start::worker("w2").through(wire.url()))?;
    let _ingress = rig.start(&Start::ingress().through(wire.url()))?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        wire.silence();
        tokio::time::sleep(Duration::from_secs(2)).await;
        wire.heal();
        Ok(Instant::now())
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(RECOVERY))
}

async fn cut_off() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&Start::worker("w1").through(wire.url()))?;
    let _second = rig.start(&Start::worker("w2"))?;
    let _ingress = rig.start(&Start::ingress())?;
    let tally = under(&Load::at(&rig.nats.url()), async || {
        wire.close();
        wire.heal_after(Duration::from_secs(1));
        Ok(Instant::now())
    })
    .await?;
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .recovers_within(Duration::from_secs(2)))
}

async fn storm() -> anyhow::Result<Verdict> {
    let monitor = Monitor::new();
    let rig = Rig::with(monitor.options(), &pair())?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&Start::worker("w1").through(wire.url()))?;
    let _second = rig.start(&Start::worker("w2").through(wire.url()))?;
    let _ingress = rig.start(&Start::ingress().flag("--durable").through(wire.url()))?;
    let before = monitor.settled(None).await?;
    let load = Load {
        total: 1_200,
        ..Load::at(&rig.nats.url())
    };
    let tally = under(&load, async || close_often(&wire).await).await?;
    let after = monitor.settled(Some(before)).await?;
    let healthy = undisturbed(&Load::at(&rig.nats.url())).await?;
    Ok(Verdict::seen(&tally)
        .demand(tally.doubled() == 0, "no request gets two replies")
        .demand(tally.late() == 0, "every reply comes within its budget")
        .recovers_within(RECOVERY)
        .demand(after == before, "no subscription or consumer leaks")
        .demand(
            healthy.answered() == healthy.requests(),
            "every request is answered afterwards",
        )
        .note(format!(
            "{} subscriptions and {} consumers before, {} and {} after",
            before.subscriptions, before.consumers, after.subscriptions, after.consumers
        )))
}

async fn storm_with_client() -> anyhow::Result<Verdict> {
    let rig = Rig::new()?;
    let wire = Proxy::before(rig.nats.port()).await?;
    let _first = rig.start(&Start::worker("w1").through(wire.url()))?;
    let _second = rig.start(&Start::worker("w2").through(wire.url()))?;
    let _ingress = rig.start(&Start::ingress().through(wire.url()))?;
    let load = Load {
        total: 1_200,
        ..Load::at(&rig.nats.url())
    };
    let tally = shipped::under(&load, async || close_often(&wire).await).await?;
    Ok(Verdict::from_tally(&tally).without_faults())
}

/// Closes every connection through the proxy 20 times.
async fn close_often(wire: &Proxy) -> anyhow::Result<Instant> {
    for _ in 0..20 {
        wire.close();
        tokio::time::sleep(Duration::from_millis(20)).await;
        wire.heal();
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    Ok(Instant::now())
}

async fn slow() -> anyhow::Result<Verdict> {
    let options = NatsOptions {
        max_payload: Some(65_536),
        config: "write_deadline: \"1s\"\nmax_pending: 65536".to_owned(),
        ..NatsOptions::jetstream()
    };
    let rig = Rig::with(options, &pair())?;
    let _processes = rig.start_all()?;
    let mut idle = TcpStream::connect((Ipv4Addr::LOCALHOST, rig.nats.port()))?;
    // Subscribes to all subjects of the app, and reads nothing.
    idle.write_all(format!("CONNECT {{\"verbose\":false}}\r\nSUB kaskade.{APP}.> 1\r\nPING\r\n").as_bytes())?;
    let load = Load {
        rate: 2_000.0,
        total: 12_000,
        ..Load::at(&rig.nats.url())
    };
    let tally = undisturbed(&load).await?;
    let dropped = rig.nats.log().contains("Slow Consumer");
    drop(idle);
    Ok(Verdict::from_tally(&tally)
        .without_faults()
        .demand(dropped, "the server disconnects the slow consumer"))
}
