//! The plan store and durable requests in a cluster of three real nats-servers.

use std::time::Duration;

use crate::common::{ask, label, service, with_models};
use async_nats::HeaderMap;
use async_nats::jetstream;
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::ingress::durable::DurableConfig;
use kaskade_actors::wire::{InferRequest, headers};
use kaskade_actors::{App, Client, Node, Service};
use kaskade_testkit::{NatsOptions, NatsServer, eventually, free_port};

const APP: &str = "clustered";
const SERVERS: usize = 3;
const REQUESTS: usize = 50;

/// Elections of a cluster take seconds on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Three nats-servers that know each other.
fn cluster() -> Vec<NatsServer> {
    let ports: Vec<u16> = (0..SERVERS).map(|_| free_port()).collect();
    let routes: Vec<String> = ports
        .iter()
        .map(|port| format!("\"nats-route://127.0.0.1:{port}\""))
        .collect();
    let start = |port: &u16| {
        let config = format!(
            "cluster {{ name: kaskade, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
            routes.join(", ")
        );
        NatsServer::start(NatsOptions {
            config,
            ..NatsOptions::jetstream()
        })
    };
    ports.iter().map(start).collect()
}

/// The URLs of all servers, for one client.
fn urls(servers: &[NatsServer]) -> String {
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    urls.join(",")
}

fn served(service: Service, urls: &str) -> Service {
    let ingress = IngressConfig {
        durable: Some(DurableConfig {
            ack_wait: Duration::from_secs(2),
            ..DurableConfig::default()
        }),
        ..IngressConfig::default()
    };
    service.bus(BusConfig::new(APP).url(urls)).ingress(ingress)
}

/// Starts a node once the cluster has elected who keeps the streams.
async fn start(service: impl Fn() -> Service + Clone + Send + 'static) -> Node {
    let start = std::time::Instant::now();
    loop {
        let service = service.clone();
        let started = tokio::task::spawn_blocking(move || service().start())
            .await
            .unwrap();
        match started {
            Ok(node) => return node,
            Err(error) => assert!(start.elapsed() < TIMEOUT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn asking(urls: &str) -> (Bus, Client) {
    let bus = Bus::connect(BusConfig::new(APP).url(urls)).await.unwrap();
    let client = Client::new(&bus, App::new(APP).unwrap());
    (bus, client)
}

/// How many replicas each stream of the app has, and how many of them are current.
async fn copies(bus: &Bus) -> Vec<(String, usize, usize)> {
    let jetstream = jetstream::new(bus.client().clone());
    let names = [
        "KV_kaskade-X",
        "kaskade-X-submit",
        "kaskade-X-results",
        "kaskade-X-dead",
    ];
    let names = names.map(|name| name.replace('X', APP));
    let mut found = Vec::new();
    for name in names {
        let Ok(mut stream) = jetstream.get_stream(&name).await else {
            continue;
        };
        let Ok(info) = stream.info().await else { continue };
        let others = info.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
        let current = others
            .iter()
            .filter(|other| other.current && !other.offline)
            .count();
        let leads = info
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.leader.is_some());
        found.push((name, info.config.num_replicas, current + usize::from(leads)));
    }
    found
}

fn id(number: usize) -> String {
    format!("r{number}")
}

async fn submit(client: &Client, number: usize) {
    let request = InferRequest {
        inputs: ask(1.0, 9.0),
        ..InferRequest::default()
    };
    // While a server is away and another one is elected, a submission may be refused or get no answer; it may then be
    // repeated, because the stream knows its id.
    eventually("a request is submitted", TIMEOUT, async || {
        let mut headers = HeaderMap::new();
        headers::put_request_id(&mut headers, &id(number)).unwrap();
        client.submit(&request, headers).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plan_and_submitted_requests_survive_the_loss_of_a_server() {
    let mut servers = cluster();
    let all = urls(&servers);
    let urls = all.clone();
    let first = start(move || served(service(APP), &urls)).await;
    let epoch = first.plans().newest().unwrap().epoch;
    let (bus, client) = asking(&all).await;
    let mut seen = Vec::new();
    eventually("every stream has three current replicas", TIMEOUT, async || {
        seen = copies(&bus).await;
        seen.len() == 4
            && seen
                .iter()
                .all(|(_, copies, current)| (*copies, *current) == (3, 3))
    })
    .await;
    // Without a process of the app, the requests wait in the stream.
    tokio::task::spawn_blocking(move || drop(first)).await.unwrap();
    for number in 0..REQUESTS {
        submit(&client, number).await;
    }
    servers[0].kill();
    for number in REQUESTS..2 * REQUESTS {
        submit(&client, number).await;
    }
    // This process has no plan but the stored one.
    let urls = all.clone();
    let second = start(move || served(with_models(APP), &urls)).await;
    assert_eq!(second.plans().newest().unwrap().epoch, epoch);
    for number in 0..2 * REQUESTS {
        let reply = client.wait_for(&id(number), TIMEOUT).await.unwrap();
        assert_eq!(label(&reply.outputs), 1, "{number}");
    }
    // The server comes back, and catches up.
    servers[0].restart();
    eventually(
        "every stream has three current replicas again",
        TIMEOUT,
        async || {
            let seen = copies(&bus).await;
            seen.len() == 4
                && seen
                    .iter()
                    .all(|(_, copies, current)| (*copies, *current) == (3, 3))
        },
    )
    .await;
    tokio::task::spawn_blocking(move || second.stop()).await.unwrap();
}
