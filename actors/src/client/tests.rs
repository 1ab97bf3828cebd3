//! Tests the client against a nats-server and a fake service.

use std::collections::BTreeSet;

use async_nats::Subject;
use futures::{FutureExt, StreamExt};
use kaskade_testkit::{NatsOptions, NatsServer};

use super::*;
use crate::bus::{BusConfig, Link};
use crate::wire::ContentType;

const BUDGET: Duration = Duration::from_secs(20);

async fn bus(server: &NatsServer) -> Bus {
    let config = BusConfig {
        url: Some(server.url()),
        ..BusConfig::new("test")
    };
    Bus::connect(config).await.unwrap()
}

fn replied() -> Bytes {
    InferReply::default().encode().unwrap()
}

#[tokio::test]
async fn a_request_is_sent_again_when_its_connection_broke() {
    let server = NatsServer::start(NatsOptions::default());
    let (ours, theirs) = (bus(&server).await, bus(&server).await);
    let app = App::new("moving").unwrap();
    let mut asked = theirs.subscribe(app.infer(), None).await.unwrap();
    theirs.barrier().await.unwrap();
    let client = Client::new(&ours, app);
    let requests = async {
        let first = asked.next().await.unwrap();
        let budget = headers::budget(&first.headers.unwrap()).unwrap();
        ours.client().force_reconnect().await.unwrap();
        let second = asked.next().await.unwrap();
        let left = headers::budget(&second.headers.unwrap()).unwrap();
        theirs
            .client()
            .publish(second.reply.unwrap(), replied())
            .await
            .unwrap();
        (budget, left)
    };
    let (answer, (budget, left)) = tokio::join!(client.infer(Vec::new(), BUDGET), requests);
    assert!(answer.is_ok(), "{answer:?}");
    assert!(left < budget, "what has passed is not given twice");
}

#[tokio::test]
async fn moved_ingresses_are_found_again_and_unknown_apps_are_refused_immediately() {
    let server = NatsServer::start(NatsOptions::default());
    let (ours, theirs) = (bus(&server).await, bus(&server).await);
    let app = App::new("moved").unwrap();
    let client = Client::new(&ours, app.clone());
    let refused = client.infer(Vec::new(), BUDGET).await.unwrap_err();
    assert_eq!(refused.code, Code::UnknownApp);
    let requests = || async {
        let asked = theirs.subscribe(app.infer(), None).await.unwrap();
        theirs.barrier().await.unwrap();
        asked
    };
    let answer = |message: async_nats::Message| theirs.client().publish(message.reply.unwrap(), replied());
    let mut asked = requests().await;
    let (first, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        answer(asked.next().await.unwrap()).await.unwrap();
    });
    assert!(first.is_ok());
    asked.unsubscribe().await.unwrap();
    theirs.barrier().await.unwrap();
    let (second, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        let mut asked = requests().await;
        answer(asked.next().await.unwrap()).await.unwrap();
    });
    assert!(second.is_ok(), "{second:?}");
}

/// A fake service, and a client of it.
struct Stand {
    server: NatsServer,
    theirs: Bus,
    asked: async_nats::Subscriber,
    client: Client,
}

impl Stand {
    async fn new() -> Self {
        let server = NatsServer::start(NatsOptions::default());
        let (ours, theirs) = (bus(&server).await, bus(&server).await);
        let app = App::new("stand").unwrap();
        let asked = theirs.subscribe(app.infer(), None).await.unwrap();
        theirs.barrier().await.unwrap();
        Self {
            server,
            client: Client::new(&ours, app),
            theirs,
            asked,
        }
    }

    /// Returns the id and the reply subject of the next request.
    async fn next(&mut self) -> (String, Subject) {
        let message = self.asked.next().await.unwrap();
        let headers = message.headers.unwrap();
        let id = headers::request_id(&headers).unwrap().unwrap_or_default();
        (id.to_owned(), message.reply.unwrap())
    }

    async fn answer(&self, reply: Subject) {
        self.theirs.client().publish(reply, replied()).await.unwrap();
    }

    /// Sends a part or the end of an answer from a stage.
    async fn say(&self, reply: &Subject, stage: &str, part: Option<u32>) {
        let said = InferReply {
            stage: stage.to_owned(),
            part,
            ..InferReply::default()
        };
        let client = self.theirs.client();
        client
            .publish(reply.clone(), said.encode().unwrap())
            .await
            .unwrap();
    }

    async fn refuse(&self, reply: Subject, code: Code) {
        let headers = headers::for_fault(ContentType::MessagePack, &Fault::new(code, "scripted"));
        self.theirs
            .client()
            .publish_with_headers(reply, headers, Bytes::new())
            .await
            .unwrap();
    }

    /// Returns whether another request has arrived, after everything sent has.
    async fn has_another(&mut self) -> bool {
        self.client.bus.barrier().await.unwrap();
        self.theirs.barrier().await.unwrap();
        self.asked.next().now_or_never().is_some()
    }
}

#[tokio::test]
async fn a_retryable_refusal_is_sent_again_under_the_same_id() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    for code in [
        Code::Draining,
        Code::Unavailable,
        Code::ReplicasLost,
        Code::Overloaded,
    ] {
        let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
            let (first, reply) = stand.next().await;
            stand.refuse(reply, code).await;
            let (second, reply) = stand.next().await;
            assert!(!first.is_empty());
            assert_eq!(first, second);
            stand.answer(reply).await;
        });
        assert!(answer.is_ok(), "{code}: {answer:?}");
    }
}

#[tokio::test]
async fn a_final_fault_and_a_client_without_retries_send_once() {
    let mut stand = Stand::new().await;
    let (client, once) = (stand.client.clone(), stand.client.clone().retry(false));
    for (client, code) in [
        (&client, Code::Malformed),
        (&client, Code::Expired),
        (&once, Code::Draining),
    ] {
        let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
            let (_, reply) = stand.next().await;
            stand.refuse(reply, code).await;
        });
        assert_eq!(answer.unwrap_err().code, code);
        assert!(!stand.has_another().await, "{code} was sent again");
    }
}

#[tokio::test]
async fn a_request_that_was_lost_silently_is_sent_again_and_any_answer_counts() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        let (_, reply) = stand.next().await;
        stand.answer(reply).await;
    });
    assert!(answer.is_ok());
    let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        let (first, reply) = stand.next().await;
        let (second, _) = stand.next().await;
        assert_eq!(first, second);
        stand.answer(reply).await;
    });
    assert!(answer.is_ok(), "the answer to the first attempt: {answer:?}");
}

#[tokio::test]
async fn a_budget_that_ends_returns_the_last_fault() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let begun = std::time::Instant::now();
    let budget = Duration::from_millis(300);
    let asked = client.infer(Vec::new(), budget);
    let refusing = async {
        loop {
            let (_, reply) = stand.next().await;
            stand.refuse(reply, Code::Draining).await;
        }
    };
    let answer = tokio::select! {
        answer = asked => answer,
        () = refusing => unreachable!("it goes on"),
    };
    assert_eq!(answer.unwrap_err().code, Code::Draining);
    assert!(begun.elapsed() < budget + REPLY_MARGIN);
}

#[tokio::test]
async fn a_budget_that_ends_during_a_later_attempt_returns_the_fault_before_it() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    for (last, expected) in [
        (Code::Expired, Code::ReplicasLost),
        (Code::Malformed, Code::Malformed),
    ] {
        let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
            let (_, reply) = stand.next().await;
            stand.refuse(reply, Code::ReplicasLost).await;
            let (_, reply) = stand.next().await;
            stand.refuse(reply, last).await;
        });
        assert_eq!(answer.unwrap_err().code, expected);
    }
}

#[tokio::test]
async fn requests_that_were_lost_together_are_all_sent_again() {
    // More requests than may be retried at once.
    const LOST: usize = 300;
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        let (_, reply) = stand.next().await;
        stand.answer(reply).await;
    });
    assert!(answer.is_ok());
    let asked: Vec<_> = (0..LOST)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.infer(Vec::new(), BUDGET).await })
        })
        .collect();
    let serving = async {
        // A failing ingress loses the first attempts.
        let mut lost = BTreeSet::new();
        loop {
            let (id, reply) = stand.next().await;
            if !lost.insert(id) {
                stand.answer(reply).await;
            }
        }
    };
    let answers = tokio::select! {
        answers = futures::future::join_all(asked) => answers,
        () = serving => unreachable!("it goes on"),
    };
    let failed = answers
        .into_iter()
        .filter(|answer| answer.as_ref().unwrap().is_err());
    assert_eq!(failed.count(), 0, "requests that failed");
}

/// Regression: the losing attempts continued to compute.
#[tokio::test]
async fn an_answer_after_resends_cancels_the_other_attempts_of_an_id_of_the_clients_own() {
    let mut stand = Stand::new().await;
    let app = stand.client.app.clone();
    let mut cancelled = stand.theirs.subscribe(app.cancel(), None).await.unwrap();
    stand.theirs.barrier().await.unwrap();
    let client = stand.client.clone();
    let own = InferRequest::default();
    let named = InferRequest {
        id: Some("shared".to_owned()),
        ..InferRequest::default()
    };
    for request in [&named, &own] {
        let (answer, id) = tokio::join!(client.ask(request, HeaderMap::new(), BUDGET), async {
            stand.next().await;
            client.nats.force_reconnect().await.unwrap();
            let (id, reply) = stand.next().await;
            stand.answer(reply).await;
            id
        });
        assert!(answer.is_ok(), "{answer:?}");
        if request.id.is_none() {
            let cancel = tokio::time::timeout(BUDGET, cancelled.next())
                .await
                .unwrap()
                .unwrap();
            let headers = cancel.headers.unwrap();
            assert_eq!(headers::request_id(&headers).unwrap(), Some(id.as_str()));
        }
    }
    let (answer, ()) = tokio::join!(client.infer(Vec::new(), BUDGET), async {
        let (_, reply) = stand.next().await;
        stand.refuse(reply, Code::Draining).await;
        let (_, reply) = stand.next().await;
        stand.answer(reply).await;
    });
    assert!(answer.is_ok(), "{answer:?}");
    assert!(!stand.has_another().await);
    let another = cancelled.next().now_or_never();
    assert!(
        another.is_none(),
        "an id of the caller, and an attempt that has ended"
    );
}

/// Streams an answer. Returns the stages of its parts, and the stage of its end.
async fn streamed(client: Client, id: &str) -> Result<(Vec<String>, String), Fault> {
    let mut headers = HeaderMap::new();
    headers::put_request_id(&mut headers, id)?;
    let mut parts = Vec::new();
    let part = |part: InferReply| parts.push(part.stage);
    let end = client
        .stream(InferRequest::default(), headers, BUDGET, part)
        .await?;
    Ok((parts, end.stage))
}

/// Regression: a part that was lost with the connection left a hole in the text, and the stream ended with an error.
#[tokio::test]
async fn no_part_follows_a_lost_connection() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let (shown, mut first) = tokio::sync::watch::channel(Vec::new());
    let streaming = async {
        let part = |part: InferReply| shown.send_modify(|shown| shown.push(part.part.unwrap()));
        let headers = HeaderMap::new();
        client
            .stream(InferRequest::default(), headers, BUDGET, part)
            .await
    };
    let serving = async {
        let (_, reply) = stand.next().await;
        stand.say(&reply, "model", Some(0)).await;
        first.wait_for(|shown| shown.len() == 1).await.unwrap();
        let buses = [stand.theirs.clone(), stand.client.bus.clone()];
        stand.server.kill();
        for bus in &buses {
            let mut link = bus.connection().link();
            link.wait_for(|link| *link == Link::Down).await.unwrap();
        }
        stand.server.restart();
        for bus in &buses {
            let mut link = bus.connection().link();
            link.wait_for(|link| *link == Link::Up).await.unwrap();
            bus.barrier().await.unwrap();
        }
        stand.say(&reply, "model", Some(2)).await;
        stand.say(&reply, "model", None).await;
    };
    let (answer, ()) = tokio::join!(streaming, serving);
    assert_eq!(answer.unwrap().stage, "model");
    assert_eq!(*shown.borrow(), [0]);
}

#[tokio::test]
async fn streams_at_once_share_an_inbox_and_each_gets_its_own_answer() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let serving = async {
        let (one, to_one) = stand.next().await;
        let (other, to_other) = stand.next().await;
        let inbox = |subject: &Subject| subject.rsplit_once('.').unwrap().0.to_owned();
        assert_eq!(inbox(&to_one), inbox(&to_other));
        for part in 0..2 {
            stand.say(&to_one, &one, Some(part)).await;
            stand.say(&to_other, &other, Some(part)).await;
        }
        stand.say(&to_other, &other, None).await;
        // Late messages reach no other request.
        stand.say(&to_other, &other, Some(2)).await;
        stand.say(&to_one, &one, None).await;
    };
    let (a, b, ()) = tokio::join!(
        streamed(client.clone(), "a"),
        streamed(client.clone(), "b"),
        serving
    );
    for (answer, id) in [(a, "a"), (b, "b")] {
        let own = id.to_owned();
        assert_eq!(answer.unwrap(), (vec![own.clone(), own.clone()], own));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_the_runtime_that_opened_the_inbox() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let elsewhere = client.clone();
    let first = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(streamed(elsewhere, "first"))
    });
    let (_, reply) = stand.next().await;
    stand.say(&reply, "first", None).await;
    assert_eq!(first.await.unwrap().unwrap().1, "first");
    let (second, ()) = tokio::join!(streamed(client, "second"), async {
        let (_, reply) = stand.next().await;
        stand.say(&reply, "second", None).await;
    });
    assert_eq!(second.unwrap().1, "second");
}

#[tokio::test]
async fn a_stream_that_no_process_serves_is_refused_at_once() {
    let server = NatsServer::start(NatsOptions::default());
    let client = Client::new(&bus(&server).await, App::new("absent").unwrap());
    assert_eq!(streamed(client, "a").await.unwrap_err().code, Code::UnknownApp);
}

#[tokio::test]
async fn a_streamed_request_is_sent_again_before_its_first_part() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    for code in [Code::Draining, Code::Unavailable, Code::Overloaded] {
        let (answer, ()) = tokio::join!(streamed(client.clone(), "a"), async {
            let (first, reply) = stand.next().await;
            stand.refuse(reply, code).await;
            let (second, reply) = stand.next().await;
            assert_eq!((first.as_str(), second.as_str()), ("a", "a"));
            stand.say(&reply, "part", Some(0)).await;
            stand.say(&reply, "end", None).await;
        });
        assert_eq!(
            answer.unwrap(),
            (vec!["part".to_owned()], "end".to_owned()),
            "{code}"
        );
    }
}

#[tokio::test]
async fn a_streamed_request_is_not_sent_again_after_its_first_part_or_without_retries() {
    let mut stand = Stand::new().await;
    let (client, once) = (stand.client.clone(), stand.client.clone().retry(false));
    let (answer, ()) = tokio::join!(streamed(client, "a"), async {
        let (_, reply) = stand.next().await;
        stand.say(&reply, "part", Some(0)).await;
        stand.refuse(reply, Code::Draining).await;
    });
    assert_eq!(answer.unwrap_err().code, Code::Draining);
    let (answer, ()) = tokio::join!(streamed(once, "a"), async {
        let (_, reply) = stand.next().await;
        stand.refuse(reply, Code::Draining).await;
    });
    assert_eq!(answer.unwrap_err().code, Code::Draining);
    assert!(!stand.has_another().await);
}

/// Regression: the request was sent again and computed twice, although only the attempt that had begun could answer.
#[tokio::test]
async fn a_stream_that_has_begun_is_not_sent_again_when_its_connection_broke() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let part = |_| begun.send(()).unwrap();
    // Another attempt would be sent before this budget ends.
    let budget = Duration::from_secs(1);
    let streaming = client.stream(InferRequest::default(), HeaderMap::new(), budget, part);
    let (answer, ()) = tokio::join!(streaming, async {
        let (_, reply) = stand.next().await;
        stand.say(&reply, "part", Some(0)).await;
        has_begun.recv().await.unwrap();
        client.nats.force_reconnect().await.unwrap();
    });
    assert_eq!(answer.unwrap_err().code, Code::NoReply);
    assert!(!stand.has_another().await, "it was sent again");
}

#[tokio::test]
async fn a_streamed_request_is_sent_again_when_its_connection_broke_and_has_one_answer() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let (answer, ()) = tokio::join!(streamed(client.clone(), "a"), async {
        let (_, first) = stand.next().await;
        client.nats.force_reconnect().await.unwrap();
        let (_, second) = stand.next().await;
        // No part of the other attempt is added.
        for (reply, stage) in [(&second, "second"), (&first, "first")] {
            stand.say(reply, stage, Some(0)).await;
        }
        for (reply, stage) in [(&first, "first"), (&second, "second")] {
            stand.say(reply, stage, None).await;
        }
    });
    let second = "second".to_owned();
    assert_eq!(answer.unwrap(), (vec![second.clone()], second));
}

/// Regression: the first part was taken for the answer.
#[tokio::test]
async fn a_request_that_is_not_streamed_asks_for_no_parts() {
    let mut stand = Stand::new().await;
    let client = stand.client.clone();
    let request = InferRequest {
        parameters: [("stream", "true"), ("tenant", "blue")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..InferRequest::default()
    };
    let options = RequestOptions {
        id: "b".to_owned(),
        has_unique_id: false,
        budget: BUDGET,
        trace: headers::Trace::start(),
    };
    let (asked, requested, seen) = tokio::join!(
        client.ask(&request, HeaderMap::new(), BUDGET),
        client.request(request.clone(), &options),
        async {
            let mut seen = Vec::new();
            for _ in 0..2 {
                let message = stand.asked.next().await.unwrap();
                let request = InferRequest::decode(&message.payload).unwrap();
                seen.push(request.parameters);
                stand.answer(message.reply.unwrap()).await;
            }
            seen
        }
    );
    assert!(asked.is_ok() && requested.is_ok());
    for parameters in seen {
        let names: Vec<&str> = parameters.keys().map(String::as_str).collect();
        assert_eq!(names, ["tenant"]);
    }
}

#[tokio::test]
async fn a_client_without_a_permission_is_told_at_once_what_theserver_refuses() {
    let server = NatsServer::start(NatsOptions {
        config: r#"authorization { users: [
            { user: a, password: a, permissions: { publish: { deny: "kaskade.closed.>" } } },
            { user: b, password: b, permissions: { subscribe: { deny: "_INBOX.>" } } },
        ] }"#
            .to_owned(),
        ..NatsOptions::default()
    });
    for (user, named) in [("a", "kaskade.closed.infer"), ("b", "_INBOX.")] {
        let url = server.url().replace("nats://", &format!("nats://{user}:{user}@"));
        let config = BusConfig {
            url: Some(url),
            ..BusConfig::new("test")
        };
        let bus = Bus::connect(config).await.unwrap();
        let client = Client::new(&bus, App::new("closed").unwrap());
        let asked = tokio::time::timeout(BUDGET / 2, client.infer(Vec::new(), BUDGET));
        let fault = asked.await.unwrap().unwrap_err();
        assert_eq!(fault.code, Code::NotPermitted, "{fault}");
        assert!(fault.message.contains(named), "{fault}");
    }
}
