//! The memory of an ingress under many large requests follows its configured limit, not the requests. One test, because it measures its
//! process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use futures::StreamExt;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_actors::wire::{InferRequest, Message as _, headers};
use kaskade_actors::{App, Code, Service};
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT, wait_until};

const MIB: usize = 1 << 20;
const REQUESTS: usize = 4_096;
const LIMIT: usize = 256 * MIB;
/// Requests that are sent before the ingress has taken earlier ones: more would exceed what the server keeps for it.
const WINDOW: usize = 16;
/// What the process may use besides: messages under way, in the ingress and in the client of the test.
const BESIDES: usize = 192 * MIB;

/// A figure of this process in bytes, from the kernel.
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let kibibytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

/// A stage that takes requests and never answers. It keeps no message, unlike a client of the library.
fn discard(port: u16, subject: &str) {
    let mut stage = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    write!(
        stage,
        "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nSUB {subject} q 1\r\nPING\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stage.try_clone().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "PONG"));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while stage.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
}

#[test]
fn requests_of_a_mebibyte_stay_under_the_limit_and_the_rest_is_refused() {
    let name = "ingress-memory";
    let server = NatsServer::start(NatsOptions {
        max_payload: Some(2 * MIB),
        ..NatsOptions::jetstream()
    });
    let plan = Plan::cascade(name).stage("only", "foreign").worker("elsewhere");
    let node = Service::new(name)
        .plan(plan.build().unwrap())
        .bus(BusConfig::new(name).url(server.url()))
        .ingress(IngressConfig {
            max_in_flight_bytes: LIMIT,
            max_in_flight: REQUESTS,
            ..IngressConfig::default()
        })
        .start()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let app = App::new(name).unwrap();
        let nats = async_nats::connect(server.url()).await.unwrap();
        discard(server.port(), &app.stage("only").unwrap());
        let mut replies = nats.subscribe("replies.memory").await.unwrap();
        nats.flush().await.unwrap();
        let request = InferRequest {
            inputs: vec![Tensor {
                name: "x".into(),
                shape: vec![MIB],
                datatype: Datatype::U8,
                data: vec![7; MIB].into(),
            }],
            ..InferRequest::default()
        };
        let body = request.encode().unwrap();
        let mut context = async_nats::HeaderMap::new();
        headers::put_budget(&mut context, Duration::from_secs(119));
        let before = memory("VmRSS");
        for number in 1..=REQUESTS {
            let (subject, context, body) = (app.infer(), context.clone(), body.clone());
            nats.publish_with_reply_and_headers(subject, "replies.memory", context, body)
                .await
                .unwrap();
            if number.is_multiple_of(WINDOW) {
                nats.flush().await.unwrap();
                tokio::task::block_in_place(|| {
                    wait_until("the requests have arrived", TIMEOUT, || {
                        node.metrics().read().arrived == number as u64
                    });
                });
            }
        }
        let peak = memory("VmHWM");
        let accepted = node.metrics().read().accepted as usize;
        let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
        for _ in 0..REQUESTS - accepted {
            let reply = tokio::time::timeout(TIMEOUT, replies.next())
                .await
                .unwrap()
                .unwrap();
            let fault = headers::fault(reply.headers.as_ref()).unwrap();
            *refused.entry(fault.code.id()).or_default() += 1;
        }
        assert!(
            accepted * MIB <= LIMIT && accepted >= LIMIT / MIB - 1,
            "{accepted}"
        );
        assert_eq!(
            refused,
            BTreeMap::from([(Code::Overloaded.id(), REQUESTS - accepted)])
        );
        assert!(
            peak.saturating_sub(before) <= LIMIT + BESIDES,
            "{} MiB before, {} MiB at most",
            before / MIB,
            peak / MIB
        );
    });
    drop(node);
}
