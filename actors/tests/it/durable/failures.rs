//! Durable requests that fail, and processes that do.

use super::*;

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

/// Only an intake that could not pull created the streams again: such requests were handed back every second, for ever.
#[tokio::test]
async fn lost_streams_of_results_and_dead_letters_are_created_again() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    let jetstream = async_nats::jetstream::new(asking.bus.client().clone());
    for stream in ["results", "dead"] {
        let stream = format!("kaskade-{APP}-{stream}");
        jetstream.delete_stream(stream).await.unwrap();
    }
    let nats = asking.bus.client();
    let subject = App::new(APP).unwrap().submit();
    let answer = async |id: &str, body: Vec<u8>| {
        let body = body.into();
        nats.publish_with_headers(subject.clone(), named(id), body)
            .await
            .unwrap();
        let is_answered = async || {
            asking
                .client
                .result(id)
                .await
                .is_ok_and(|result| result.is_some())
        };
        eventually("it is answered", TIMEOUT, is_answered).await;
        asking.answer(id).await
    };
    let good = request(2.0).encode().unwrap().to_vec();
    assert_eq!(answer("good", good).await, Ok(2));
    assert_eq!(
        answer("garbage", b"no message".to_vec()).await,
        Err(Code::Malformed)
    );
    assert_eq!(node.metrics().read().dead_letters, 1);
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
