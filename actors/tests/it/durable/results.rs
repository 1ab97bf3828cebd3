//! How clients get the results of durable requests.

use super::*;

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
async fn pushed(asking: &Asking, mut headers: HeaderMap, body: Vec<u8>) -> async_nats::Message {
    let nats = asking.bus.client();
    let inbox = nats.new_inbox();
    let mut pushed = nats.subscribe(inbox.clone()).await.unwrap();
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
        let pushed = pushed(&asking, named(id), body).await;
        assert_eq!(pushed.payload, stored.payload, "{id}");
        let headers = pushed.headers.unwrap();
        assert_eq!(headers::request_id(&headers).unwrap(), Some(id));
    }
    eventually("all are settled", TIMEOUT, async || waiting(&asking).await == 0).await;
    assert_eq!(node.metrics().read().dead_letters, 0);
    node.stop();
}

/// It got the result of the request that had its number in the stream before.
#[tokio::test]
async fn a_request_without_an_id_gets_its_own_result_after_the_stream_was_created_again() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let node = served(&server, Some(quick())).start().unwrap();
    let asking = Asking::at(&server).await;
    let body = |label| request(label).encode().unwrap().to_vec();
    let first = pushed(&asking, HeaderMap::new(), body(3.0)).await;
    // What the first request of the former stream left behind.
    let (app, nats) = (App::new(APP).unwrap(), asking.bus.client());
    nats.request(app.result("submitted-2"), first.payload.clone())
        .await
        .unwrap();
    let second = pushed(&asking, HeaderMap::new(), body(1.0)).await;
    assert_ne!(second.payload, first.payload);
    let id = |message: &async_nats::Message| {
        let headers = message.headers.as_ref().unwrap();
        headers::request_id(headers).unwrap().unwrap().to_owned()
    };
    assert!(id(&second).starts_with("submitted-2-"), "{}", id(&second));
    node.stop();
}
