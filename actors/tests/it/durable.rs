//! Durable requests over a real nats-server: an accepted request is answered once, also after crashes.

mod failures;
mod limits;
mod results;

use std::time::Duration;

use crate::common::{PANIC, Scripted, ask, label, service};
use crate::foreign::outputs;
use async_nats::HeaderMap;
use futures::{FutureExt, StreamExt};
use kaskade_actors::bus::{Bus, BusConfig};
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::ingress::durable::DurableConfig;
use kaskade_actors::subjects;
use kaskade_actors::wire::headers;
use kaskade_actors::wire::{InferRequest, Message as _};
use kaskade_actors::{App, Client, Code, Fault, Node, NodeConfig, NodeError, Service};
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_policy::redelivery::RedeliveryConfig;
use kaskade_testkit::{NatsOptions, NatsServer, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
const APP: &str = "lasting";

/// Short backoffs, so that the tests are quick.
fn quick() -> DurableConfig {
    DurableConfig {
        redelivery: RedeliveryConfig {
            max_deliver: 3,
            backoff_us: 10_000,
            max_backoff_us: 50_000,
            ..RedeliveryConfig::default()
        },
        ack_wait: Duration::from_secs(1),
        ..DurableConfig::default()
    }
}

fn ingress(durable: Option<DurableConfig>) -> IngressConfig {
    IngressConfig {
        durable,
        ..IngressConfig::default()
    }
}

fn served(server: &NatsServer, durable: Option<DurableConfig>) -> Service {
    let bus = BusConfig::new(APP).url(server.url());
    service(APP).bus(bus).ingress(ingress(durable))
}

/// An ingress whose plan places every replica on a missing worker.
fn ingress_alone(server: &NatsServer, default_budget: Duration) -> Node {
    ingress_of(
        server,
        IngressConfig {
            default_budget,
            ..ingress(Some(quick()))
        },
    )
}

fn ingress_of(server: &NatsServer, ingress: IngressConfig) -> Node {
    Node::start(NodeConfig {
        app: APP.to_owned(),
        bus: BusConfig::new(APP).url(server.url()),
        ingress: Some(ingress),
        worker: None,
        plan: Some(crate::common::cascade(APP)),
        planner: None,
        power: None,
        grace: Duration::ZERO,
    })
    .unwrap()
}

struct Asking {
    bus: Bus,
    client: Client,
}

impl Asking {
    async fn at(server: &NatsServer) -> Self {
        let bus = Bus::connect(BusConfig::new(APP).url(server.url())).await.unwrap();
        Self {
            client: Client::new(&bus, App::new(APP).unwrap()),
            bus,
        }
    }

    async fn submit(&self, id: &str, of: f32) -> Result<bool, Code> {
        let accepted = self.client.submit(&request(of), named(id)).await;
        accepted
            .map(|accepted| accepted.duplicate)
            .map_err(|fault| fault.code)
    }

    /// Returns the label in the answer to the request of that id.
    async fn answer(&self, id: &str) -> Result<usize, Code> {
        let reply = self.client.wait_for(id, TIMEOUT).await;
        reply
            .map(|reply| label(&reply.outputs))
            .map_err(|fault| fault.code)
    }
}

fn request(of: f32) -> InferRequest {
    InferRequest {
        inputs: ask(of, 9.0),
        ..InferRequest::default()
    }
}

fn named(id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers::put_request_id(&mut headers, id).unwrap();
    headers
}

fn kept(node: &Node) -> u64 {
    node.metrics().read().durable_results
}

/// It chose by the toss of a coin whether to pull once more, for a second each time.
#[tokio::test(flavor = "multi_thread")]
async fn an_ingress_that_stops_pulls_no_more() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let asking = Asking::at(&server).await;
    let nats = asking.bus.client();
    let mut pulls = nats.subscribe("$JS.API.CONSUMER.MSG.NEXT.>").await.unwrap();
    let mut late = 0;
    for _ in 0..6 {
        let node = served(&server, Some(quick())).start().unwrap();
        pulls.next().await.unwrap();
        tokio::task::block_in_place(|| node.stop());
        nats.flush().await.unwrap();
        while pulls.next().now_or_never().is_some() {
            late += 1;
        }
    }
    // One may have been sent while the ingress was told to stop.
    assert!(late <= 1, "{late} pulls");
}

#[tokio::test]
async fn a_request_submitted_repeatedly_is_answered_once() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    assert_eq!(asking.client.result("a.b/1").await.unwrap(), None);
    assert_eq!(asking.submit("a.b/1", 2.0).await, Ok(false));
    assert_eq!(asking.submit("a.b/1", 2.0).await, Ok(true), "the stream knows it");
    assert_eq!(asking.answer("a.b/1").await, Ok(2));
    assert_eq!(asking.answer("a.b/1").await, Ok(2), "the result is kept");

    // A client that sends no `Nats-Msg-Id` makes the request run again; its first result stays.
    let subject = App::new(APP).unwrap().submit();
    let body = request(3.0).encode().unwrap();
    let nats = asking.bus.client();
    nats.publish_with_headers(subject, named("a.b/1"), body)
        .await
        .unwrap();
    assert_eq!(asking.submit("later", 1.0).await, Ok(false));
    assert_eq!(asking.answer("later").await, Ok(1));
    eventually("both are settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    assert_eq!(asking.answer("a.b/1").await, Ok(2));
    assert_eq!(kept(&node), 2);
    node.stop();
}

/// Requests that their stream still holds.
async fn waiting(asking: &Asking) -> u64 {
    let jetstream = async_nats::jetstream::new(asking.bus.client().clone());
    let stream = jetstream
        .get_stream(format!("kaskade-{APP}-submit"))
        .await
        .unwrap();
    stream.get_info().await.unwrap().state.messages
}

/// Two processes were started from files with different `ack_wait`: the consumer of the first one stays.
#[tokio::test]
async fn a_long_request_is_not_redelivered_by_a_consumer_with_a_shorter_ack_wait() {
    let server = NatsServer::start(NatsOptions::jetstream());
    served(&server, Some(quick())).start().unwrap().stop();
    let durable = DurableConfig {
        ack_wait: Duration::from_mins(1),
        ..quick()
    };
    let run = Duration::from_millis(3_500);
    let slow = IngressConfig {
        default_budget: TIMEOUT,
        ..ingress(Some(durable))
    };
    let node = ["small", "medium", "large"]
        .into_iter()
        .fold(served(&server, None).ingress(slow), |service, name| {
            service.model(name, move || Ok::<_, String>(Scripted { strength: 4.0, run }))
        })
        .start()
        .unwrap();
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("long", 2.0).await, Ok(false));
    assert_eq!(asking.answer("long").await, Ok(2));
    assert_eq!(node.metrics().read().arrived, 1, "it was delivered once");
    node.stop();
}

#[tokio::test]
async fn an_ingress_without_durable_requests_leaves_them_to_the_stream_that_another_one_creates() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let old = ingress_of(&server, ingress(None));
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("early", 1.0).await, Err(Code::NotDurable));
    let new = ingress_of(&server, ingress(Some(quick())));
    // The refusal came first nearly always.
    for number in 0..20_u8 {
        assert_eq!(
            asking.submit(&format!("r{number}"), 1.0).await,
            Ok(false),
            "{number}"
        );
    }
    old.stop();
    new.stop();
}

#[tokio::test]
async fn an_app_without_durable_requests_refuses_them_by_code() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, None).start().unwrap();
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("r", 1.0).await, Err(Code::NotDurable));
    assert_eq!(asking.answer("r").await, Err(Code::NotDurable));
    node.stop();

    let core = NatsServer::start(NatsOptions::default());
    let bus = BusConfig {
        plans: kaskade_actors::bus::PlanStorage::Memory,
        ..BusConfig::new(APP).url(core.url())
    };
    let refused = service(APP).bus(bus).ingress(ingress(Some(quick()))).start();
    let error = refused.err().unwrap().to_string();
    assert!(
        error.contains("need JetStream") && error.contains("nats-server -js"),
        "{error}"
    );

    let alone = service("lasting-alone")
        .ingress(ingress(Some(quick())))
        .start()
        .unwrap();
    let client = Client::new(alone.bus(), App::new("lasting-alone").unwrap());
    let fault = client.submit(&request(1.0), HeaderMap::new()).await.unwrap_err();
    assert_eq!(fault.code, Code::NeedsJetStream);
    alone.stop();
}

#[tokio::test]
async fn a_cancelled_request_ends_without_a_dead_letter() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let ingress_alone = ingress_alone(&server, IngressConfig::default().default_budget);
    let asking = Asking::at(&server).await;
    asking.submit("unwanted", 2.0).await.unwrap();
    let cancelled = async || {
        asking.client.cancel("unwanted").await.unwrap();
        asking.client.result("unwanted").await.unwrap().is_some()
    };
    eventually("it is cancelled", TIMEOUT, cancelled).await;
    assert_eq!(asking.answer("unwanted").await, Err(Code::Cancelled));
    assert_eq!(ingress_alone.metrics().read().dead_letters, 0);
    ingress_alone.stop();
}
