//! A node of several shards, over a real nats-server: every ingress is visible and takes its part, the metrics add up, and a
//! node that leaves or vanishes loses no request.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::metrics::Snapshot;
use kaskade_actors::stage::worker::{Loader, WorkerConfig};
use kaskade_actors::wire::{IngressState, Message as _};
use kaskade_actors::{App, Client, Node, NodeConfig};
use kaskade_models::Model;
use kaskade_policy::plan::{Plan, Replica};
use kaskade_testkit::{DelayProxy, NatsOptions, NatsServer, eventually};
use serde_json::Value;
use tokio::time::timeout;

use crate::common::gears::{PATIENCE, block_on};
use crate::common::{Scripted, ask, cascade, label};

const BUDGET: Duration = Duration::from_secs(10);
const SHARDS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);

/// The cascade with a replica of every variant on each of these workers.
fn plan(app: &str, workers: &[&str]) -> Plan {
    let mut plan = cascade(app);
    let once = std::mem::take(&mut plan.placement);
    plan.placement = workers
        .iter()
        .flat_map(|worker| {
            once.iter().map(move |replica| Replica {
                id: format!("{}-{worker}", replica.variant),
                worker: (*worker).to_owned(),
                ..replica.clone()
            })
        })
        .collect();
    plan
}

/// A node of two shards with an ingress each and a worker.
fn node(app: &str, url: &str, worker: &str, workers: &[&str]) -> Node {
    let loader: Loader = Arc::new(|replica: &Replica| {
        let strength = match replica.variant.as_str() {
            "small" => 1.0,
            "medium" => 2.0,
            _ => 4.0,
        };
        Ok(Box::new(Scripted {
            strength,
            run: Duration::from_micros(200),
        }) as Box<dyn Model>)
    });
    let config = WorkerConfig {
        name: worker.to_owned(),
        queue_capacity: 10_000,
    };
    let config = NodeConfig {
        app: app.to_owned(),
        bus: BusConfig::new(app).url(url),
        ingress: Some(IngressConfig::default()),
        worker: Some((config, loader)),
        plan: Some(plan(app, workers)),
        planner: None,
        power: None,
        grace: Duration::from_secs(20),
    };
    Node::start_sharded(config, SHARDS).unwrap()
}

async fn client(app: &str, url: &str) -> (Bus, Client) {
    let bus = Bus::connect(BusConfig::new(app).url(url)).await.unwrap();
    let client = Client::new(&bus, App::new(app).unwrap());
    (bus, client)
}

/// Sends `count` requests at once that exit at different stages, and demands a right answer to each.
async fn ask_all(client: &Client, count: usize) {
    let asked = (0..count).map(|index| {
        let (client, margin) = (client.clone(), [0.3, 1.0, 3.0][index % 3]);
        tokio::spawn(async move { client.infer(ask((index % 4) as f32, margin), BUDGET).await })
    });
    for (index, one) in asked.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(label(&one.await.unwrap().unwrap().outputs), index % 4);
    }
}

/// Returns the statistics of every ingress of the app, by id.
async fn statistics(bus: &Bus, app: &str) -> BTreeMap<String, Snapshot> {
    let nats = bus.client();
    let inbox = nats.new_inbox();
    let mut answers = nats.subscribe(inbox.clone()).await.unwrap();
    let subject = format!("$SRV.STATS.{app}");
    nats.publish_with_reply(subject, inbox, "".into()).await.unwrap();
    let mut found = BTreeMap::new();
    while found.len() < SHARDS.get() {
        let answer = timeout(PATIENCE, answers.next()).await.unwrap().unwrap();
        let mut stats: Value = serde_json::from_slice(&answer.payload).unwrap();
        let data = stats["endpoints"][0]["data"].take();
        let id = stats["id"].as_str().unwrap().to_owned();
        found.insert(id, serde_json::from_value(data).unwrap());
    }
    found
}

#[test]
fn every_shard_takes_its_part_and_the_metrics_add_up() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let app = "shards-count";
    let node = node(app, &server.url(), "a", &["a"]);
    let ids: BTreeSet<String> = node.ingresses().iter().cloned().collect();
    assert_eq!(ids.len(), SHARDS.get());
    block_on(async {
        let (bus, client) = client(app, &server.url()).await;
        let mut states = bus
            .subscribe(App::new(app).unwrap().ingresses(), None)
            .await
            .unwrap();
        ask_all(&client, 300).await;

        let total = node.metrics().read();
        assert_eq!((total.arrived, total.answered), (300, 300));
        assert_eq!(total.variants["small"].requests, 300);
        let parts = statistics(&bus, app).await;
        assert_eq!(parts.keys().cloned().collect::<BTreeSet<_>>(), ids);
        let sum = |count: fn(&Snapshot) -> u64| parts.values().map(count).sum::<u64>();
        assert_eq!(sum(|part| part.arrived), 300);
        assert_eq!(sum(|part| part.answered), 300);
        assert!(parts.values().all(|part| part.answered > 0), "{parts:?}");
        let page = node.health().page();
        let line = format!("kaskade_answered_requests_total{{app=\"{app}\"}} 300\n");
        assert!(page.contains(&line), "{page}");
        let line = format!("kaskade_in_flight_requests{{app=\"{app}\"}} 0\n");
        assert!(page.contains(&line), "{page}");

        assert_eq!(node.health().live().await, Ok(()));
        assert_eq!(node.health().ready(), Ok(()));
        let mut heard = BTreeSet::new();
        while heard != ids {
            let state = timeout(PATIENCE, states.next()).await.unwrap().unwrap();
            heard.insert(IngressState::decode(&state.payload).unwrap().ingress);
        }
    });
    node.stop();
}

#[test]
fn a_node_of_shards_leaves_without_losing_a_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, workers) = ("shards-leave", ["a", "b"]);
    let leaves = node(app, &server.url(), "a", &workers);
    let stays = node(app, &server.url(), "b", &workers);
    block_on(async {
        let (_bus, client) = client(app, &server.url()).await;
        ask_all(&client, 50).await;
        let leaving = tokio::task::spawn_blocking(|| leaves.stop());
        while !leaving.is_finished() {
            ask_all(&client, 50).await;
        }
        leaving.await.unwrap();
        ask_all(&client, 50).await;
    });
    assert_eq!(stays.metrics().read().retried, 0, "nothing was sent twice");
    stays.stop();
}

#[test]
fn a_node_of_shards_that_vanishes_loses_no_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (app, workers) = ("shards-vanish", ["a", "b"]);
    let proxy = DelayProxy::start(server.port(), Duration::ZERO);
    let vanishes = node(app, &proxy.url(), "a", &workers);
    let stays = node(app, &server.url(), "b", &workers);
    block_on(async {
        let (_bus, client) = client(app, &server.url()).await;
        ask_all(&client, 50).await;
        let asking = ask_all(&client, 600);
        let before = vanishes.metrics().read().arrived;
        let cutting = async {
            // It has accepted requests that it can no longer answer.
            eventually("requests arrive", PATIENCE, async || {
                vanishes.metrics().read().arrived > before + 50
            })
            .await;
            drop(proxy);
        };
        tokio::join!(asking, cutting);
        ask_all(&client, 50).await;
    });
    drop(vanishes);
    stays.stop();
}
