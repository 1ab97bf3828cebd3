//! Kaskade's use of its NATS client, on both engines.

use std::time::Duration;

use async_nats::service::ServiceExt as _;
use async_nats::{Client, HeaderMap, PublishErrorKind, RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::timeout;

use crate::Engines;

const SOON: Duration = Duration::from_mins(1);

async fn connect(url: &str) -> Client {
    async_nats::connect(url).await.unwrap()
}

async fn next(subscriber: &mut Subscriber) -> async_nats::Message {
    timeout(SOON, subscriber.next())
        .await
        .expect("a message in time")
        .expect("an open subscription")
}

/// After a round trip, the server has processed all earlier operations of the client.
async fn settle(client: &Client) {
    let inbox = client.new_inbox();
    let mut subscriber = client.subscribe(inbox.clone()).await.unwrap();
    client.publish(inbox, Bytes::new()).await.unwrap();
    next(&mut subscriber).await;
}

#[tokio::test]
async fn messages_arrive_whole_and_in_order() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let (publisher, receiver) = (connect(&url).await, connect(&url).await);
        let mut subscriber = receiver.subscribe("order.*").await.unwrap();
        settle(&receiver).await;
        // Sizes around the limits of copying, sharing and reading.
        let sizes = [0, 1, 100, 16_000, 20_000, 70_000, 1_000_000];
        for round in 0..60_u32 {
            let size = sizes[round as usize % sizes.len()];
            let mut body = vec![round as u8; size];
            body.extend_from_slice(&round.to_le_bytes());
            publisher.publish("order.x", body.into()).await.unwrap();
        }
        for round in 0..60_u32 {
            let message = next(&mut subscriber).await;
            let (body, number) = message.payload.split_at(message.payload.len() - 4);
            assert_eq!(number, round.to_le_bytes(), "{name}");
            assert_eq!(body.len(), sizes[round as usize % sizes.len()], "{name}");
            assert!(body.iter().all(|byte| *byte == round as u8), "{name}");
        }
    }
}

#[tokio::test]
async fn every_subscriber_gets_every_message_with_its_headers() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let client = connect(&url).await;
        let mut subscribers = Vec::new();
        for pattern in ["news.de.today", "news.*.today", "news.>", ">"] {
            let other = connect(&url).await;
            let subscriber = other.subscribe(pattern).await.unwrap();
            settle(&other).await;
            subscribers.push((other, subscriber));
        }
        let other = connect(&url).await;
        let mut apart = other.subscribe("news.*").await.unwrap();
        settle(&other).await;
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", "00-abc-def-01");
        headers.append("many", "one");
        headers.append("many", "two");
        let body = Bytes::from(vec![7; 100_000]);
        client
            .publish_with_headers("news.de.today", headers.clone(), body.clone())
            .await
            .unwrap();
        client.publish("news.end", Bytes::new()).await.unwrap();
        for (_, subscriber) in &mut subscribers {
            let message = loop {
                let message = next(subscriber).await;
                // The last pattern also matches the inboxes of `settle`.
                if !message.subject.starts_with("_INBOX") {
                    break message;
                }
            };
            assert_eq!(message.headers.as_ref(), Some(&headers), "{name}");
            assert_eq!(message.payload, body, "{name}");
        }
        assert_eq!(next(&mut apart).await.subject.as_str(), "news.end", "{name}");
    }
}

#[tokio::test]
async fn requests_are_answered_or_refused_at_once() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let (requester, responder) = (connect(&url).await, connect(&url).await);
        let refused = requester.request("echo", "anyone?".into()).await.unwrap_err();
        assert_eq!(refused.kind(), RequestErrorKind::NoResponders, "{name}");
        let mut subscriber = responder.subscribe("echo").await.unwrap();
        settle(&responder).await;
        let echo = tokio::spawn(async move {
            while let Some(message) = subscriber.next().await {
                let headers = message.headers.unwrap_or_default();
                responder
                    .publish_with_headers(message.reply.unwrap(), headers, message.payload)
                    .await
                    .unwrap();
            }
        });
        let calls = (0..500_u32).map(|call| {
            let requester = requester.clone();
            async move {
                let mut headers = HeaderMap::new();
                headers.insert("call", call.to_string());
                let body = Bytes::from(vec![b'x'; call as usize * 100]);
                let reply = requester
                    .request_with_headers("echo", headers.clone(), body.clone())
                    .await
                    .unwrap();
                assert_eq!((reply.headers, reply.payload), (Some(headers), body));
            }
        });
        timeout(SOON, futures::future::join_all(calls)).await.expect(name);
        echo.abort();
    }
}

#[tokio::test]
async fn a_queue_group_shares_the_work() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let publisher = connect(&url).await;
        let done = publisher.subscribe("done").await.unwrap();
        settle(&publisher).await;
        for member in 0..3 {
            let client = connect(&url).await;
            // A group is one group, whatever patterns its members subscribed with.
            let pattern = if member == 0 { "work.*" } else { "work.item" };
            let mut subscriber = client.queue_subscribe(pattern, "workers".into()).await.unwrap();
            settle(&client).await;
            tokio::spawn(async move {
                while let Some(message) = subscriber.next().await {
                    let who = format!("{member} {}", String::from_utf8_lossy(&message.payload));
                    client.publish("done", who.into()).await.unwrap();
                }
            });
        }
        for item in 0..300 {
            publisher
                .publish("work.item", format!("{item:03}").into())
                .await
                .unwrap();
        }
        let done: Vec<_> = timeout(SOON, done.take(300).collect()).await.expect(name);
        let (mut items, mut shares) = (Vec::new(), [0; 3]);
        for message in done {
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            let (member, item) = text.split_once(' ').unwrap();
            shares[member.parse::<usize>().unwrap()] += 1;
            items.push(item.to_owned());
        }
        items.sort_unstable();
        items.dedup();
        assert_eq!(items.len(), 300, "{name}: an item was done twice");
        assert!(shares.iter().all(|share| *share > 30), "{name}: {shares:?}");
    }
}

#[tokio::test]
async fn a_group_goes_on_without_a_member_that_left() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let (stays, leaves, publisher) = (connect(&url).await, connect(&url).await, connect(&url).await);
        let mut subscriber = stays.queue_subscribe("work", "g".into()).await.unwrap();
        let left = leaves.queue_subscribe("work", "g".into()).await.unwrap();
        settle(&stays).await;
        settle(&leaves).await;
        drop(left);
        settle(&leaves).await;
        for _ in 0..100 {
            publisher.publish("work", Bytes::new()).await.unwrap();
        }
        for _ in 0..100 {
            next(&mut subscriber).await;
        }
        assert_eq!(
            publisher
                .statistics()
                .out_messages
                .load(std::sync::atomic::Ordering::Relaxed),
            100,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_subscription_ends_after_its_number_of_messages() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let client = connect(&url).await;
        let mut subscriber = client.subscribe("few").await.unwrap();
        subscriber.unsubscribe_after(3).await.unwrap();
        for _ in 0..10 {
            client.publish("few", "x".into()).await.unwrap();
        }
        let got = timeout(SOON, subscriber.by_ref().count()).await.expect(name);
        assert_eq!(got, 3, "{name}");
        let refused = client.request("few", "x".into()).await.unwrap_err();
        assert_eq!(refused.kind(), RequestErrorKind::NoResponders, "{name}");
    }
}

#[tokio::test]
async fn services_can_be_discovered() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let (server, client) = (connect(&url).await, connect(&url).await);
        let builder = server.service_builder().description("doubles");
        let service = builder.start("doubler", "1.2.3").await.unwrap();
        let mut endpoint = service.endpoint("double").await.unwrap();
        settle(&server).await;
        tokio::spawn(async move {
            while let Some(request) = endpoint.next().await {
                let twice = request.message.payload.repeat(2);
                request.respond(Ok(twice.into())).await.unwrap();
            }
        });
        let reply = client.request("double", "ab".into()).await.unwrap();
        assert_eq!(reply.payload, "abab", "{name}");
        for (verb, expected) in [
            ("PING", "io.nats.micro.v1.ping_response"),
            ("INFO", "io.nats.micro.v1.info_response"),
            ("STATS", "io.nats.micro.v1.stats_response"),
        ] {
            let reply = client
                .request(format!("$SRV.{verb}.doubler"), Bytes::new())
                .await
                .unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&reply.payload).unwrap();
            assert_eq!(
                (&answer["type"], &answer["name"]),
                (&expected.into(), &"doubler".into()),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn an_oversize_message_affects_only_its_sender() {
    let engines = Engines::start();
    for (name, url) in engines.each() {
        let (sender, other) = (connect(&url).await, connect(&url).await);
        let mut subscriber = other.subscribe("big").await.unwrap();
        settle(&other).await;
        let limit = sender.server_info().max_payload;
        let error = sender
            .publish("big", vec![0; limit + 1].into())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::MaxPayloadExceeded, "{name}");
        sender.publish("big", vec![0; limit].into()).await.unwrap();
        assert_eq!(next(&mut subscriber).await.payload.len(), limit, "{name}");
        settle(&other).await;
    }
}

#[tokio::test]
async fn features_missing_in_the_embedded_broker_are_detected() {
    let engines = Engines::start();
    let client = connect(&engines.embedded.url()).await;
    let info = client.server_info();
    assert_eq!(info.server_name, kaskade_broker::SERVER_NAME);
    assert!(client.is_server_compatible(2, 10, 0));
    assert!(!info.jetstream);
    let jetstream = async_nats::jetstream::new(client);
    let error = jetstream.get_key_value("plans").await.unwrap_err();
    assert!(!error.to_string().is_empty());
}
