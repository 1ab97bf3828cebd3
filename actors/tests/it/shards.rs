//! A node of several shards, over a real nats-server: every ingress is visible and takes its part, the metrics add up, durable
//! requests are answered once, a plan that moves models loses no request, and neither does a node that leaves or vanishes.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::ingress::durable::DurableConfig;
use kaskade_actors::metrics::Snapshot;
use kaskade_actors::plan::store;
use kaskade_actors::stage::worker::{Loader, WorkerConfig};
use kaskade_actors::wire::{InferRequest, IngressState, Message as _, headers};
use kaskade_actors::{App, Client, Node, NodeConfig};
use kaskade_models::Model;
use kaskade_policy::plan::{Plan, Replica};
use kaskade_testkit::{DelayProxy, NatsOptions, NatsServer, eventually};
use serde_json::Value;
use tokio::time::timeout;

use crate::common::gears::{TIMEOUT, block_on};
use crate::common::{Scripted, ask, cascade, label};

const BUDGET: Duration = Duration::from_secs(30);
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
    node_with(app, url, worker, plan(app, workers), IngressConfig::default())
}

fn node_with(app: &str, url: &str, worker: &str, plan: Plan, ingress: IngressConfig) -> Node {
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
        ..WorkerConfig::default()
    };
    let config = NodeConfig {
        app: app.to_owned(),
        bus: BusConfig::new(app).url(url),
        ingress: Some(ingress),
        worker: Some((config, loader)),
        plan: Some(plan),
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
        let answer = timeout(TIMEOUT, answers.next()).await.unwrap().unwrap();
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
            let state = timeout(TIMEOUT, states.next()).await.unwrap().unwrap();
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

/// The cascade with every variant on the worker that is given for it; the ids do not tell where a replica is.
fn spread(app: &str, workers: [&str; 3]) -> Plan {
    let mut plan = cascade(app);
    for (replica, worker) in plan.placement.iter_mut().zip(workers) {
        worker.clone_into(&mut replica.worker);
    }
    plan
}

#[test]
fn a_plan_that_swaps_the_workers_of_shards_loses_no_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let app = "shards-plan";
    let before = spread(app, ["a", "b", "a"]);
    let nodes = ["a", "b"].map(|worker| {
        node_with(
            app,
            &server.url(),
            worker,
            before.clone(),
            IngressConfig::default(),
        )
    });
    block_on(async {
        let (bus, client) = client(app, &server.url()).await;
        ask_all(&client, 50).await;
        // Until an ingress has found a plan in place, it refuses requests while models load.
        eventually("the first plan is in place", TIMEOUT, async || {
            nodes.iter().all(|node| node.plans().is_admitted())
        })
        .await;
        let client = client.retry(false);
        let store = store::open(&bus, &App::new(app).unwrap()).await.unwrap();
        let stored = store.get().await.unwrap().unwrap();
        let epoch = store.put(&spread(app, ["b", "a", "b"]), Some(stored.epoch)).await;
        let epoch = epoch.unwrap();
        let mut states = bus
            .subscribe(App::new(app).unwrap().ingresses(), None)
            .await
            .unwrap();
        // Every ingress of every shard comes to admit under the new plan.
        let mut behind: BTreeSet<String> = nodes
            .iter()
            .flat_map(|node| node.ingresses().iter().cloned())
            .collect();
        assert_eq!(behind.len(), 2 * SHARDS.get());
        let listening = async {
            while !behind.is_empty() {
                let message = timeout(TIMEOUT, states.next()).await.unwrap().unwrap();
                let state = IngressState::decode(&message.payload).unwrap();
                if state.admits == epoch {
                    behind.remove(&state.ingress);
                }
            }
        };
        tokio::pin!(listening);
        loop {
            tokio::select! {
                () = &mut listening => break,
                () = ask_all(&client, 20) => {}
            }
        }
        ask_all(&client, 50).await;
    });
    for node in nodes {
        let faults = node.metrics().read().faults;
        assert!(faults.is_empty(), "{faults:?}");
        node.stop();
    }
}

#[test]
fn durable_requests_to_a_node_of_shards_are_answered_once() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let app = "shards-durable";
    let ingress = IngressConfig {
        durable: Some(DurableConfig::default()),
        ..IngressConfig::default()
    };
    let node = node_with(app, &server.url(), "a", plan(app, &["a"]), ingress);
    block_on(async {
        let (_bus, client) = client(app, &server.url()).await;
        let ids: Vec<String> = (0..40).map(|number| format!("request-{number}")).collect();
        for (number, id) in (0_u8..).zip(&ids) {
            let mut named = async_nats::HeaderMap::new();
            headers::put_request_id(&mut named, id).unwrap();
            let request = InferRequest {
                inputs: ask(f32::from(number % 4), 9.0),
                ..InferRequest::default()
            };
            let accepted = client.submit(&request, named.clone()).await.unwrap();
            assert!(!accepted.duplicate);
            // It is known again, whichever shard took it.
            assert!(client.submit(&request, named).await.unwrap().duplicate);
        }
        for (number, id) in ids.iter().enumerate() {
            let reply = client.wait_for(id, TIMEOUT).await.unwrap();
            assert_eq!(label(&reply.outputs), number % 4);
        }
    });
    let counted = node.metrics().read();
    assert_eq!((counted.durable_results, counted.answered), (40, 40));
    node.stop();
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
        let asking = ask_all(&client, 1_000);
        let before = vanishes.metrics().read().arrived;
        let cutting = async {
            // It has accepted more requests than a client sends again at once, and can no longer answer them.
            eventually("requests arrive", TIMEOUT, async || {
                vanishes.metrics().read().arrived > before + 300
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
