//! Durable requests over a real nats-server: an accepted request is answered once, also after crashes.

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
use kaskade_actors::{App, Client, Code, Node, NodeConfig, Service};
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
async fn a_result_is_pushed_on_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    let reply = asking
        .client
        .submit_and_wait(&request(3.0), HeaderMap::new(), TIMEOUT)
        .await
        .unwrap();
    assert_eq!(label(&reply.outputs), 3);
    node.stop();
}

#[tokio::test]
async fn a_stored_result_is_polled_although_its_push_is_lost() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("once", 3.0).await, Ok(false));
    assert_eq!(asking.answer("once").await, Ok(3));
    eventually("it is settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    node.stop();

    let wait = |id: &'static str, client: Client| async move {
        let asked = std::time::Instant::now();
        let waited = client.submit_and_wait(&request(3.0), named(id), TIMEOUT).await;
        let reply = waited.map(|reply| label(&reply.outputs));
        (reply.map_err(|fault| fault.code), asked.elapsed())
    };
    let (reply, took) = wait("once", asking.client.clone()).await;
    assert_eq!(reply, Ok(3), "a duplicate's result is stored");
    assert!(took < TIMEOUT / 4, "{took:?}");

    // The result is stored by hand, so that no push follows.
    let pending = tokio::spawn(wait("lost", asking.client.clone()));
    eventually("it is accepted", TIMEOUT, async || waiting(&asking).await == 1).await;
    let (app, nats) = (App::new(APP).unwrap(), asking.bus.client());
    let query = subjects::result_query(&app, "once");
    let stored = nats.request(query, bytes::Bytes::new()).await.unwrap();
    nats.publish(app.result("lost"), stored.payload).await.unwrap();
    let (reply, took) = pending.await.unwrap();
    assert_eq!(reply, Ok(3), "a stored result is found without its push");
    assert!(took < TIMEOUT / 4, "{took:?}");
}

/// Sends a request whose result is pushed to an inbox, and returns what comes there.
async fn pushed(asking: &Asking, id: &str, body: Vec<u8>) -> async_nats::Message {
    let nats = asking.bus.client();
    let inbox = nats.new_inbox();
    let mut pushed = nats.subscribe(inbox.clone()).await.unwrap();
    let mut headers = named(id);
    headers.insert("Kaskade-Push", inbox);
    let subject = App::new(APP).unwrap().submit();
    let accepted = nats.request_with_headers(subject, headers, body.into());
    assert_eq!(accepted.await.unwrap().status, None);
    tokio::time::timeout(TIMEOUT, pushed.next())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn every_push_is_the_stored_result_of_the_id() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    asking.submit("first", 3.0).await.unwrap();
    assert_eq!(asking.answer("first").await, Ok(3));
    let (app, nats) = (App::new(APP).unwrap(), asking.bus.client());
    let query = subjects::result_query(&app, "first");
    let stored = nats.request(query, bytes::Bytes::new()).await.unwrap();
    // The ids were answered before, by hand; their requests come after the window of duplicates.
    for (id, body) in [
        ("again", request(1.0).encode().unwrap().to_vec()),
        ("garbage", b"no message".to_vec()),
    ] {
        nats.request(app.result(id), stored.payload.clone())
            .await
            .unwrap();
        let pushed = pushed(&asking, id, body).await;
        assert_eq!(pushed.payload, stored.payload, "{id}");
        let headers = pushed.headers.unwrap();
        assert_eq!(headers::request_id(&headers).unwrap(), Some(id));
    }
    eventually("all are settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    assert_eq!(node.metrics().read().dead_letters, 0);
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
async fn a_poison_request_becomes_a_dead_letter_and_its_batch_is_answered() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let asking = Asking::at(&server).await;
    let mut dead = asking
        .bus
        .subscribe(App::new(APP).unwrap().dead_letters(), None)
        .await
        .unwrap();
    // All requests wait before the node starts, so that they share batches.
    let node = served(&server, Some(quick())).start().unwrap();
    node.stop();
    for number in 0..16_u8 {
        let of = if number == 5 { PANIC } else { 1.0 };
        asking.submit(&format!("r{number}"), of).await.unwrap();
    }
    let body = bytes::Bytes::from_static(b"no message");
    let subject = App::new(APP).unwrap().submit();
    asking
        .bus
        .client()
        .publish_with_headers(subject, named("garbage"), body.clone())
        .await
        .unwrap();
    let node = served(&server, Some(quick())).start().unwrap();
    for number in 0..16_u8 {
        let expected = if number == 5 {
            Err(Code::ModelFailed)
        } else {
            Ok(1)
        };
        assert_eq!(asking.answer(&format!("r{number}")).await, expected, "{number}");
    }
    assert_eq!(asking.answer("garbage").await, Err(Code::Malformed));

    let mut letters = Vec::new();
    for _ in 0..2 {
        let letter = tokio::time::timeout(TIMEOUT, dead.next()).await.unwrap().unwrap();
        let headers = letter.headers.clone().unwrap();
        let deliveries = headers.get("Kaskade-Deliveries").unwrap().as_str().to_owned();
        let id = headers::request_id(&headers).unwrap().unwrap().to_owned();
        letters.push((id, headers::fault(Some(&headers)).unwrap().code, deliveries));
        if letter.payload == body {
            assert!(letter.subject.ends_with(".dead.garbage"));
        } else {
            assert_eq!(
                InferRequest::decode(&letter.payload).unwrap().inputs,
                ask(PANIC, 9.0)
            );
        }
    }
    letters.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("garbage".to_owned(), Code::Malformed, "1".to_owned()),
        ("r5".to_owned(), Code::ModelFailed, "3".to_owned()),
    ];
    assert_eq!(letters, expected);
    assert_eq!(node.metrics().read().dead_letters, 2);
    eventually("all are settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    node.stop();
}

/// Every ingress counted alone, and so every one of them tried the request as often as all are to.
#[tokio::test]
async fn failures_of_a_request_count_at_all_ingresses_together() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let asking = Asking::at(&server).await;
    let subject = App::new(APP).unwrap().dead_letters();
    let mut dead = asking.bus.subscribe(subject, None).await.unwrap();
    // So long that a node has stopped before the request comes back.
    let durable = DurableConfig {
        redelivery: RedeliveryConfig {
            backoff_us: 2_000_000,
            max_backoff_us: 2_000_000,
            ..quick().redelivery
        },
        ..quick()
    };
    let mut nodes = 0;
    let letter = loop {
        let node = served(&server, Some(durable.clone())).start().unwrap();
        nodes += 1;
        if nodes == 1 {
            asking.submit("poison", PANIC).await.unwrap();
        }
        let is_returned = async || node.metrics().read().redelivered > 0;
        let letter = tokio::select! {
            biased;
            letter = dead.next() => letter,
            () = eventually("the request is returned to the stream", TIMEOUT, is_returned) => None,
        };
        node.stop();
        if let Some(letter) = letter {
            break letter;
        }
    };
    assert!(nodes > 1, "one node made all attempts");
    assert_eq!(asking.answer("poison").await, Err(Code::ModelFailed));
    let headers = letter.headers.unwrap();
    assert_eq!(headers.get("Kaskade-Deliveries").unwrap().as_str(), "3");
}

#[tokio::test]
async fn requests_survive_a_restart_of_the_server_and_all_nodes() {
    let mut server = NatsServer::start(NatsOptions {
        jetstream_config: "sync_interval: always".to_owned(),
        ..NatsOptions::jetstream()
    });
    let first = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    for number in 0..200_u8 {
        asking.submit(&format!("r{number}"), 1.0).await.unwrap();
    }
    // Dropped without a grace period: its requests are handed back or redelivered.
    drop(first);
    server.kill();
    server.restart();
    let second = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    for number in 0..200_u8 {
        assert_eq!(asking.answer(&format!("r{number}")).await, Ok(1), "{number}");
    }
    eventually("all are settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    second.stop();
}

#[tokio::test]
async fn an_outage_of_all_workers_loses_no_request() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let ingress_alone = ingress_alone(&server, Duration::from_millis(200));
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("patient", 2.0).await, Ok(false));
    let tried =
        async || ingress_alone.metrics().read().redelivered > u64::from(quick().redelivery.max_deliver);
    eventually("it was tried more often than `max_deliver`", TIMEOUT, tried).await;
    let worker = served(&server, None).ingress(None).start().unwrap();
    assert_eq!(asking.answer("patient").await, Ok(2));
    worker.stop();
    ingress_alone.stop();
}

#[tokio::test]
async fn a_full_stream_refuses_requests_as_overloaded() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let small = DurableConfig {
        max_bytes: 6_000,
        ..quick()
    };
    // Creates the stream; then no node serves it.
    served(&server, Some(small)).start().unwrap().stop();
    let asking = Asking::at(&server).await;
    let mut accepted = 0;
    let refusal = loop {
        let filled = InferRequest {
            parameters: [("filler".to_owned(), "x".repeat(1_000))].into(),
            ..request(1.0)
        };
        match asking
            .client
            .submit(&filled, named(&format!("r{accepted}")))
            .await
        {
            Ok(_) => accepted += 1,
            Err(fault) => break fault.code,
        }
        assert!(accepted < 10);
    };
    assert_eq!((refusal, accepted > 1), (Code::Overloaded, true));
    let node = served(&server, Some(quick())).start().unwrap();
    for number in 0..accepted {
        assert_eq!(
            asking.answer(&format!("r{number}")).await,
            Ok(1),
            "accepted requests are answered"
        );
    }
    node.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_durable_requests_in_flight_are_bounded_and_the_rest_waits_in_the_stream() {
    const MIB: usize = 1 << 20;
    const BODY: usize = MIB / 2;
    const REQUESTS: usize = 24;
    let server = NatsServer::start(NatsOptions::jetstream());
    let plan = Plan::cascade(APP).stage("only", "foreign").worker("elsewhere");
    let node = Service::new(APP)
        .plan(plan.build().unwrap())
        .bus(BusConfig::new(APP).url(server.url()))
        .ingress(IngressConfig {
            max_in_flight_bytes: 4 * MIB,
            default_budget: Duration::from_mins(1),
            ..ingress(Some(quick()))
        })
        .start()
        .unwrap();
    let asking = Asking::at(&server).await;
    let nats = asking.bus.client().clone();
    let subject = App::new(APP).unwrap().stage("only").unwrap();
    let mut requests = nats.queue_subscribe(subject, "q".into()).await.unwrap();
    asking.bus.barrier().await.unwrap();
    // Answers only once no more requests come, so that as many as possible are in flight.
    let serving = tokio::spawn(async move {
        let (mut held, mut most, mut answered) = (Vec::new(), 0, 0);
        while answered < REQUESTS {
            let next = tokio::time::timeout(Duration::from_millis(500), requests.next()).await;
            if let Ok(message) = next {
                held.push(message.unwrap().reply.unwrap());
                most = most.max(held.len());
                continue;
            }
            for reply in held.drain(..) {
                let logits = Tensor::from_f32("logits", &[2], &[0.0, 9.0]).unwrap();
                let body = outputs(vec![logits], None, true);
                nats.publish(reply, body.into()).await.unwrap();
                answered += 1;
            }
        }
        most
    });
    for number in 0..REQUESTS {
        let request = InferRequest {
            inputs: vec![Tensor {
                name: "x".to_owned(),
                shape: vec![BODY],
                datatype: Datatype::U8,
                data: vec![7; BODY].into(),
            }],
            ..InferRequest::default()
        };
        let submitted = asking.client.submit(&request, named(&format!("r{number}"))).await;
        submitted.unwrap();
    }
    for number in 0..REQUESTS {
        assert_eq!(asking.answer(&format!("r{number}")).await, Ok(1), "{number}");
    }
    let most = serving.await.unwrap();
    assert!((2..=8).contains(&most), "{most} requests of half a MiB in flight");
    assert_eq!(node.metrics().read().dead_letters, 0);
    tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
}

/// An intake that waits for durable requests reserved all bytes, so that every request of `infer` was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_intake_of_durable_requests_leaves_bytes_to_other_requests() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, None)
        .ingress(IngressConfig {
            max_in_flight_bytes: 4 << 20,
            ..ingress(Some(quick()))
        })
        .start()
        .unwrap();
    let asking = Asking::at(&server).await;
    assert_eq!(asking.submit("first", 1.0).await, Ok(false));
    assert_eq!(asking.answer("first").await, Ok(1), "the intake runs");
    let once = asking.client.clone().retry(false);
    for number in 0..200 {
        let answer = once.infer(ask(1.0, 9.0), TIMEOUT).await;
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
    tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
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
