//! Helpers of the gear and planner tests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::future_not_send,
    reason = "every test file uses its own part"
)]

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_actors::{App, Node, ingress::IngressConfig, wire::Message};
use kaskade_plans::{
    drift::DriftConfig,
    plan::{Exit, Expected, Plan},
    shifting::ShiftConfig,
};
use tokio::time::timeout;

use super::cascade;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// The cascade below 200 requests/s, only its first stage above.
pub fn geared(app: &str) -> Plan {
    let mut plan = cascade(app);
    let mut fast = plan.gears[0].clone();
    plan.gears[0].load.to_qps = Some(200.0);
    fast.name = "fast".into();
    fast.load.from_qps = 200.0;
    fast.wiring.stages.truncate(1);
    fast.wiring.stages[0].exit = Exit::Reply;
    fast.wiring.stages[0].batching.min_queue = 2;
    plan.gears.push(fast);
    for (gear, time_share) in plan.gears.iter_mut().zip([0.9, 0.1]) {
        gear.expected = Some(Expected {
            time_share,
            accuracy: 0.9,
            p95_us: 10_000,
            utilisation: 0.5,
        });
    }
    plan
}

/// Ticks of 20 ms and a hold of 100 ms keep the tests short.
pub fn brisk() -> IngressConfig {
    IngressConfig {
        shift: ShiftConfig {
            tick_us: 20_000,
            hold_us: 100_000,
            ..ShiftConfig::default()
        },
        drift: DriftConfig {
            distance: 0.3,
            memory_ticks: 20,
        },
        ..IngressConfig::default()
    }
}

pub fn block_on<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { timeout(4 * PATIENCE, test).await.unwrap() })
}

pub async fn next<M: Message>(events: &mut Subscriber) -> M {
    let message = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    M::decode(&message.payload).unwrap()
}

pub async fn events(node: &Node, app: &str, name: &str) -> Subscriber {
    let subject = App::new(app).unwrap().event(name).unwrap();
    let events = node.bus().subscribe(subject, None).await.unwrap();
    node.bus().barrier().await.unwrap();
    events
}
