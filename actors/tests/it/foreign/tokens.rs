//! Results and notices without the token of the request, and late ones.

use super::*;

/// Publishes a message with the status of the broker's "no responders" notice, as any client can.
async fn publish_notice(served: &Foreign, subject: &str) {
    let address = served.node.bus().url().replace("nats://", "");
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = "NATS/1.0 503\r\n\r\n";
    let length = head.len();
    let commands = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true,\"lang\":\"t\",\"version\":\"1\"}}\r\n\
         HPUB {subject} {length} {length}\r\n{head}\r\nPING\r\n"
    );
    stream.write_all(commands.as_bytes()).await.unwrap();
    let mut answered = String::new();
    while !answered.contains("PONG") {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).await.unwrap();
        assert_ne!(count, 0, "the broker closed the connection: {answered}");
        answered.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// `reply` with one of the tokens after `done` replaced.
fn with(reply: &str, place: usize, token: &str) -> String {
    let mut tokens: Vec<&str> = reply.split('.').collect();
    tokens[3 + place] = token;
    tokens.join(".")
}

#[test]
fn a_result_without_the_token_of_the_request_is_dropped_and_counted() {
    let served = Arc::new(Foreign::start("foreign-forged", one_stage("foreign-forged")));
    runtime().block_on(async {
        let held = hold(&served, "only").await;
        let token = held.reply.rsplit('.').next().unwrap();
        let forged: Vec<String> = vec![
            with(&held.reply, 3, "1-0000000000000000-0000000000000000"),
            with(&held.reply, 3, "guess"),
            // Its own token, for another request, attempt or dispatch.
            with(&held.reply, 1, &(held.request.id + 1).to_string()),
            with(&held.reply, 2, &(held.request.attempt + 1).to_string()),
            with(&held.reply, 3, &token.replacen("1-", "2-", 1)),
        ];
        for subject in &forged {
            publish(
                &served,
                subject.clone(),
                outputs(vec![logits(&[9.0])], Some(1.0), true),
            )
            .await;
            publish(
                &served,
                subject.clone(),
                done(StageOutcome::Fault(Fault::new(Code::InvalidInput, "no")))
                    .encode()
                    .unwrap()
                    .to_vec(),
            )
            .await;
            publish_notice(&served, subject).await;
        }
        let expected = 3 * forged.len() as u64;
        let seen = Arc::clone(&served);
        tokio::task::block_in_place(|| {
            wait_until("every forged result is counted", TIMEOUT, || {
                seen.node.metrics().read().invalid_token_results == expected
            });
        });
        assert!(!held.asked.is_finished(), "a forged result ended the request");
        publish(
            &served,
            held.reply.clone(),
            outputs(vec![logits(&[2.0])], Some(1.0), true),
        )
        .await;
        let reply = held.asked.await.unwrap().unwrap();
        assert_eq!(reply.outputs[0].to_f32().unwrap(), [2.0]);
        assert_eq!(served.node.metrics().read().retried, 0);
    });
    Arc::into_inner(served).unwrap().node.stop();
}

#[test]
fn a_child_task_cannot_answer_for_its_parent_or_a_sibling() {
    let served = Arc::new(Foreign::start("foreign-branch", pipeline("foreign-branch")));
    runtime().block_on(async {
        let rows = Tensor::from_f32("classify/x", &[2, 2], &[1.0; 4]).unwrap();
        let body = outputs(vec![logits(&[1.0]), rows], None, false);
        let finding = served.serve("find-finder", move |_| body.clone()).await;
        let held = hold(&served, "classify-accurate").await;
        assert!(!held.request.branch.is_root());
        let own: u32 = held
            .request
            .branch
            .to_string()
            .rsplit('.')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        for branch in [
            Branch::ROOT,
            Branch::ROOT.child("classify", 1 - own),
            Branch::ROOT.child("classify", 77),
        ] {
            let result = StageOutcome::Outputs {
                outputs: vec![logits(&[9.0])],
                confidence: Some(1.0),
                routed: true,
                children: BTreeMap::new(),
            };
            let forged = StageReply {
                branch,
                ..done(result)
            };
            publish(&served, held.reply.clone(), forged.encode().unwrap().to_vec()).await;
        }
        let seen = Arc::clone(&served);
        tokio::task::block_in_place(|| {
            wait_until("every forged result is counted", TIMEOUT, || {
                seen.node.metrics().read().invalid_token_results == 3
            });
        });
        assert!(!held.asked.is_finished());
        held.asked.abort();
        finding.abort();
    });
    // Without a grace time: the request is still in flight.
    drop(served);
}

/// Two replicas by name, so that the ingress knows where a request is.
fn two_replicas(app: &str) -> Plan {
    let mut plan = Plan::cascade(app)
        .stage("only", "foreign")
        .worker("away-1")
        .build()
        .unwrap();
    let first = plan.placement[0].clone();
    plan.placement.push(Replica {
        id: "foreign-1".into(),
        worker: "away-2".into(),
        ..first
    });
    let shares = plan.placement.iter().map(|replica| (replica.id.clone(), 0.5));
    plan.gears[0].wiring.entry.shares = shares.collect();
    plan
}

#[test]
fn a_notice_about_an_old_attempt_blames_no_replica() {
    let plan = two_replicas("foreign-stale");
    let served = Arc::new(Foreign::start("foreign-stale", plan.clone()));
    runtime().block_on(async {
        let nats = served.node.bus().client().clone();
        let epoch = served.node.plans().newest().expect("the node has a plan").epoch;
        // The workers' heartbeats, so that the ingress takes both replicas for alive.
        let beating = {
            let (nats, app, plan) = (nats.clone(), served.app.clone(), plan.clone());
            tokio::spawn(async move {
                for sequence in 1.. {
                    for replica in &plan.placement {
                        let beat = Heartbeat {
                            actor: replica.worker.clone(),
                            kind: "worker".into(),
                            replicas: vec![ReplicaBeat {
                                id: replica.id.clone(),
                                ..ReplicaBeat::default()
                            }],
                            sequence,
                            in_place: epoch,
                            ..Heartbeat::default()
                        };
                        let subject = app.beat(&replica.worker).unwrap();
                        nats.publish(subject, beat.encode().unwrap()).await.unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
        };
        let mut requests = nats
            .subscribe(format!("kaskade.{}.replica.*", served.app))
            .await
            .unwrap();
        served.node.bus().barrier().await.unwrap();
        tokio::task::block_in_place(|| {
            wait_until("both replicas are alive", TIMEOUT, || {
                served
                    .node
                    .dispatcher()
                    .liveness(|liveness| plan.placement.iter().all(|replica| liveness.alive(&replica.id)))
            });
        });
        let asking = Arc::clone(&served);
        let asked = tokio::spawn(async move { asking.ask(TIMEOUT).await });
        let next = timeout(TIMEOUT, requests.next()).await;
        let first = next.expect("a first attempt").unwrap();
        let old = first.reply.unwrap().to_string();
        // The first attempt fails, and the request moves on.
        let failed = done(StageOutcome::Fault(Fault::new(Code::Unavailable, "scripted")));
        publish(&served, old.clone(), failed.encode().unwrap().to_vec()).await;
        let next = timeout(TIMEOUT, requests.next()).await;
        let second = next.expect("a second attempt").unwrap();
        for _ in 0..20 {
            publish_notice(&served, &old).await;
        }
        let mut cancelled = nats
            .subscribe(format!("kaskade.{}.stage_cancel", served.app))
            .await
            .unwrap();
        publish(
            &served,
            second.reply.unwrap().to_string(),
            outputs(vec![logits(&[2.0])], Some(1.0), true),
        )
        .await;
        assert!(asked.await.unwrap().is_ok());
        // A replica that still works at the first attempt is told to stop.
        timeout(TIMEOUT, cancelled.next()).await.unwrap().unwrap();
        assert_eq!(
            served.node.metrics().read().retried,
            1,
            "the old notices caused no resend"
        );
        assert!(!served.node.dispatcher().reachability().borrow().avoids_any());
        beating.abort();
    });
    Arc::into_inner(served).unwrap().node.stop();
}
