//! Parts of answers of foreign stages.

use super::*;

/// The ingress sent the request again, and the client got the beginning of one answer and the rest of another.
#[test]
fn an_answer_that_an_endpoint_breaks_off_after_a_part_is_not_begun_again() {
    let app = "foreign-broken";
    let served = Foreign::start(app, one_stage(app));
    runtime().block_on(async {
        let (bus, stage) = (served.node.bus(), served.app.stage("only").unwrap());
        let mut requests = bus.client().queue_subscribe(stage, "q".into()).await.unwrap();
        bus.barrier().await.unwrap();
        let texts = |text: &str| vec![Tensor::from_texts("text", &[text]).unwrap()];
        let arrived = tokio::sync::Notify::new();
        for has_part in [false, true] {
            let serving = async {
                let reply = requests.next().await.unwrap().reply.unwrap().to_string();
                let part = has_part.then(|| StageOutcome::Part {
                    outputs: texts("one"),
                    from: 0,
                    until: 1,
                    once: false,
                });
                if let Some(part) = part {
                    publish(&served, reply.clone(), done(part).encode().unwrap().to_vec()).await;
                    // Faults have a queue of their own and may overtake parts.
                    arrived.notified().await;
                }
                let fault = StageOutcome::Fault(Fault::new(Code::EndpointUnavailable, "it broke off"));
                publish(&served, reply, done(fault).encode().unwrap().to_vec()).await;
                if !has_part {
                    let reply = requests.next().await.unwrap().reply.unwrap().to_string();
                    publish(&served, reply, outputs(texts("other"), Some(1.0), true)).await;
                }
            };
            let request = InferRequest {
                inputs: vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()],
                ..InferRequest::default()
            };
            let mut parts = 0;
            let asked = served
                .client
                .stream(request, async_nats::HeaderMap::new(), BUDGET, |_| {
                    parts += 1;
                    arrived.notify_one();
                });
            let (answer, ()) = tokio::join!(asked, serving);
            let ended = answer.map(|_| ()).map_err(|fault| fault.code);
            let expected = if has_part {
                Err(Code::EndpointUnavailable)
            } else {
                Ok(())
            };
            assert_eq!((ended, parts), (expected, usize::from(has_part)));
        }
        bus.barrier().await.unwrap();
        assert!(requests.next().now_or_never().is_none(), "it was sent again");
    });
    drop(served);
}

/// The ingress sent the request again, and the client got the beginning of one answer and the rest of another.
#[test]
fn the_loss_of_a_replica_ends_an_answer_that_no_other_attempt_repeats() {
    let app = "foreign-once";
    let served = Foreign::start(app, one_stage(app));
    runtime().block_on(async {
        let (bus, stage) = (served.node.bus(), served.app.stage("only").unwrap());
        let mut requests = bus.client().queue_subscribe(stage, "q".into()).await.unwrap();
        bus.barrier().await.unwrap();
        let texts = |text: &str| vec![Tensor::from_texts("text", &[text]).unwrap()];
        let beat = async |instance| {
            let beat = Heartbeat {
                actor: "r1".to_owned(),
                kind: "custom".to_owned(),
                replicas: vec![ReplicaBeat {
                    id: "r1".to_owned(),
                    ..ReplicaBeat::default()
                }],
                sequence: 1,
                instance,
                ..Heartbeat::default()
            };
            let subject = served.app.beat("r1").unwrap();
            publish(&served, subject.to_string(), beat.encode().unwrap().to_vec()).await;
        };
        let arrived = tokio::sync::Notify::new();
        let serving = async {
            let reply = requests.next().await.unwrap().reply.unwrap().to_string();
            let part = StageOutcome::Part {
                outputs: texts("one"),
                from: 0,
                until: 1,
                once: true,
            };
            publish(&served, reply, done(part).encode().unwrap().to_vec()).await;
            arrived.notified().await;
            // Its replica starts again.
            beat(1).await;
            tokio::task::block_in_place(|| {
                wait_until("the replica is alive", kaskade_testkit::TIMEOUT, || {
                    served.node.dispatcher().liveness(|liveness| liveness.alive("r1"))
                });
            });
            beat(2).await;
        };
        let request = InferRequest {
            inputs: vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()],
            ..InferRequest::default()
        };
        let asked = served
            .client
            .stream(request, async_nats::HeaderMap::new(), BUDGET, |_| {
                arrived.notify_one();
            });
        let (answer, ()) = tokio::join!(asked, serving);
        let ended = answer.map(|_| ()).map_err(|fault| fault.code);
        assert_eq!(
            (ended, served.node.metrics().read().retried),
            (Err(Code::ReplicasLost), 0)
        );
        bus.barrier().await.unwrap();
        assert!(requests.next().now_or_never().is_none(), "it was sent again");
    });
    drop(served);
}

/// Every invented name began the answer anew, and the ingress remembered all of them.
#[test]
fn parts_of_a_stage_that_the_plan_does_not_have_are_those_of_the_stage_that_was_asked() {
    let app = "foreign-invented";
    let served = Foreign::start(app, one_stage(app));
    runtime().block_on(async {
        let (bus, stage) = (served.node.bus(), served.app.stage("only").unwrap());
        let mut requests = bus.client().queue_subscribe(stage, "q".into()).await.unwrap();
        bus.barrier().await.unwrap();
        let texts = |text: &str| vec![Tensor::from_texts("text", &[text]).unwrap()];
        let serving = async {
            let reply = requests.next().await.unwrap().reply.unwrap().to_string();
            for from in [0, 0, 0, 1] {
                let part = StageReply {
                    stage: format!("invented-{from}"),
                    ..done(StageOutcome::Part {
                        outputs: texts("one"),
                        from,
                        until: from + 1,
                        once: false,
                    })
                };
                publish(&served, reply.clone(), part.encode().unwrap().to_vec()).await;
            }
            publish(&served, reply, outputs(texts("one one"), Some(1.0), true)).await;
        };
        let mut request = InferRequest {
            inputs: vec![Tensor::from_f32("x", &[1], &[1.0]).unwrap()],
            ..InferRequest::default()
        };
        request
            .parameters
            .insert("stream".to_owned(), "optimistic".to_owned());
        let mut parts = Vec::new();
        let headers = async_nats::HeaderMap::new();
        let asked = served.client.stream(request, headers, BUDGET, |part| {
            parts.push((part.stage, part.part));
        });
        let (answer, ()) = tokio::join!(asked, serving);
        assert_eq!(answer.unwrap().stage, "only");
        let only = |from| ("only".to_owned(), Some(from));
        assert_eq!(parts, [only(0), only(1)]);
    });
    drop(served);
}
