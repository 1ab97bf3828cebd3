//! Bounds of streams and of bytes in flight.

use super::*;

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

/// The message was JetStream's alone, and retryable.
#[tokio::test]
async fn streams_that_reserve_more_than_jetstream_has_are_refused_with_the_setting() {
    let server = NatsServer::start(NatsOptions {
        jetstream_config: "max_file_store: 64MB".to_owned(),
        ..NatsOptions::jetstream()
    });
    let Err(NodeError::Durable(error)) = served(&server, Some(quick())).start() else {
        panic!("the streams are not refused");
    };
    let text = error.to_string();
    for part in [
        "10047",
        "`[durable] max_size`",
        "268435456 bytes",
        "`max_file_store`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(Fault::from(&error).code, Code::NeedsJetStream);
    let small = DurableConfig {
        max_bytes: 1 << 20,
        ..quick()
    };
    served(&server, Some(small)).start().unwrap().stop();
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
