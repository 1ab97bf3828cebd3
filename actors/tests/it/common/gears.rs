//! Plans with gears, and reading of events.

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::wire::Message;
use kaskade_actors::{App, Node};
use kaskade_policy::{
    load_drift::LoadDriftConfig,
    plan::{Exit, Expected, Plan},
    shifting::ShiftConfig,
};
use tokio::time::timeout;

use super::cascade;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The cascade below 200 requests/s, its first stage alone above.
pub(crate) fn geared(app: &str) -> Plan {
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

/// An ingress whose shifter ticks every 20 ms and holds a gear for 100 ms, so that the tests are quick.
pub(crate) fn quick_shifts() -> IngressConfig {
    IngressConfig {
        shift: ShiftConfig {
            tick_us: 20_000,
            hold_us: 100_000,
            ..ShiftConfig::default()
        },
        load_drift: LoadDriftConfig {
            distance: 0.3,
            memory_ticks: 20,
        },
        ..IngressConfig::default()
    }
}

pub(crate) fn block_on<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { timeout(4 * TIMEOUT, test).await.unwrap() })
}

pub(crate) async fn next<M: Message>(events: &mut Subscriber) -> M {
    let message = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
    M::decode(&message.payload).unwrap()
}

pub(crate) async fn events(node: &Node, app: &str, name: &str) -> Subscriber {
    let subject = App::new(app).unwrap().event(name).unwrap();
    let events = node.bus().subscribe(subject, None).await.unwrap();
    node.bus().barrier().await.unwrap();
    events
}
