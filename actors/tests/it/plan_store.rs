//! Nodes and the plan store: who seeds it, and what happens when it is lost.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use kaskade_actors::bus::{Bus, BusConfig, Embedded};
use kaskade_actors::plan::store::{self, PlanStore};
use kaskade_actors::{App, Node};
use kaskade_broker::BrokerConfig;
use kaskade_policy::plan::Plan;
use kaskade_testkit::{NatsOptions, NatsServer, wait_until};

use crate::common::{cascade, service};

const TIMEOUT: Duration = Duration::from_secs(30);

fn plan(app: &str, made_by: &str) -> Plan {
    Plan {
        made_by: made_by.to_owned(),
        ..cascade(app)
    }
}

fn node(app: &str, bus: &BusConfig, configured: Plan) -> Node {
    service(app).bus(bus.clone()).plan(configured).start().unwrap()
}

/// The running plan of a node: its epoch and maker.
fn running(node: &Node) -> (u64, String) {
    let (version, _) = node.plans().current().unwrap();
    (version.epoch, version.plan.made_by.clone())
}

/// A runtime with a connection to the store.
struct Writer {
    runtime: tokio::runtime::Runtime,
    bus: Bus,
    store: Arc<dyn PlanStore>,
}

impl Writer {
    fn new(app: &str, bus: &BusConfig) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (bus, store) = runtime.block_on(async {
            let bus = Bus::connect(bus.clone()).await.unwrap();
            let store = store::open(&bus, &App::new(app).unwrap()).await.unwrap();
            (bus, store)
        });
        Self { runtime, bus, store }
    }

    fn stored(&self) -> Option<(u64, String)> {
        let stored = self.runtime.block_on(self.store.get()).unwrap()?;
        Some((stored.epoch, stored.plan.made_by))
    }

    fn put(&self, plan: &Plan, expected: Option<u64>) -> u64 {
        self.runtime.block_on(self.store.put(plan, expected)).unwrap()
    }
}

fn a_starting_process_follows_the_store(app: &str, bus: &BusConfig) {
    let first = node(app, bus, plan(app, "configured"));
    assert_eq!(
        running(&first),
        (1, "configured".to_owned()),
        "the store was empty"
    );
    let writer = Writer::new(app, bus);
    let applied = writer.put(&plan(app, "applied"), Some(1));
    let second = node(app, bus, plan(app, "configured"));
    assert_eq!(running(&second), (applied, "applied".to_owned()));
    assert_eq!(writer.stored(), Some((applied, "applied".to_owned())));
    wait_until("the first process adopts the plan", TIMEOUT, || {
        running(&first).0 == applied
    });
}

#[test]
fn a_starting_process_never_overwrites_the_plan_in_memory() {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    a_starting_process_follows_the_store("starts", &BusConfig::new("starts").embedded(&embedded));
}

/// `kaskade top` could not show the wiring of an app on an embedded broker.
#[test]
fn another_process_is_told_the_plan_on_an_embedded_broker() {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let bus = BusConfig::new("told").embedded(&embedded);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = App::new("told").unwrap();
    let ask = || {
        runtime.block_on(async {
            // As another process, it knows the address alone.
            let bus = Bus::connect(BusConfig::new("told").url(embedded.url()))
                .await
                .unwrap();
            let stored = store::ask(&bus, &app).await.unwrap();
            stored.map(|stored| (stored.epoch, stored.plan.made_by))
        })
    };
    assert_eq!(ask(), None, "no process serves the app");
    let node = node("told", &bus, plan("told", "configured"));
    wait_until("the process tells its plan", TIMEOUT, || {
        ask() == Some((1, "configured".to_owned()))
    });
    let applied = Writer::new("told", &bus).put(&plan("told", "applied"), Some(1));
    assert_eq!(ask(), Some((applied, "applied".to_owned())));
    node.stop();
}

#[test]
fn a_starting_process_never_overwrites_the_plan_in_jetstream() {
    let server = NatsServer::start(NatsOptions::jetstream());
    a_starting_process_follows_the_store("starts", &BusConfig::new("starts").url(server.url()));
}

#[test]
fn a_plan_written_to_a_recreated_store_is_adopted_everywhere() {
    const APP: &str = "recreated";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(APP).url(server.url());
    let nodes = [
        node(APP, &bus, plan(APP, "first")),
        node(APP, &bus, plan(APP, "first")),
    ];
    let writer = Writer::new(APP, &bus);
    let mut newest = 1;
    for made_by in ["second", "third", "fourth"] {
        newest = writer.put(&plan(APP, made_by), Some(newest));
    }
    let all_run = |made_by: &str| nodes.iter().all(|node| running(node).1 == made_by);
    wait_until("the newest plan runs", TIMEOUT, || all_run("fourth"));
    writer.runtime.block_on(async {
        let jetstream = jetstream::new(writer.bus.client().clone());
        let bucket = format!("kaskade-{APP}");
        jetstream.delete_key_value(&bucket).await.unwrap();
        let config = jetstream::kv::Config {
            bucket,
            ..jetstream::kv::Config::default()
        };
        jetstream.create_key_value(config).await.unwrap();
    });
    wait_until("a process restores the running plan", TIMEOUT, || {
        writer.stored() == Some((newest, "fourth".to_owned()))
    });
    let epoch = writer.put(&plan(APP, "fifth"), Some(newest));
    assert!(epoch > newest);
    wait_until("the new plan runs", TIMEOUT, || all_run("fifth"));
    assert!(nodes.iter().all(|node| running(node).0 == epoch));
}

#[test]
fn a_deleted_bucket_is_created_again_and_an_older_plan_does_not_run() {
    const APP: &str = "deleted";
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new(APP).url(server.url());
    let writer = Writer::new(APP, &bus);
    let old = writer.put(&plan(APP, "old"), None);
    let newest = writer.put(&plan(APP, "new"), Some(old));
    let first = node(APP, &bus, plan(APP, "old"));
    writer.runtime.block_on(async {
        let jetstream = jetstream::new(writer.bus.client().clone());
        jetstream
            .delete_key_value(format!("kaskade-{APP}"))
            .await
            .unwrap();
    });
    // It finds no bucket, or the restored plan; in both cases the running plan remains.
    let second = node(APP, &bus, plan(APP, "old"));
    wait_until("both run the plan that ran", TIMEOUT, || {
        [&first, &second].map(running) == [(newest, "new".to_owned()), (newest, "new".to_owned())]
    });
    assert_eq!(writer.stored(), Some((newest, "new".to_owned())));
}
