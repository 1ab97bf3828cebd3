//! Calls: answers, limits, timeouts, pauses and refusals.

use super::*;

#[test]
fn answers_have_scores_usage_and_cost_over_one_connection() {
    let server = Server::start(|_, _| ok(&good()));
    let mut large = model(&endpoint(&server, classify()));
    assert_eq!(large.info.labels, ["bad", "good"]);
    for _ in 0..3 {
        let answers = large.model.run(&[text("fine"), Vec::new()]);
        let outputs = answers[0].as_ref().unwrap();
        let logits = named(outputs, "logits").to_f32().unwrap();
        assert!(
            (logits[1] + 0.1).abs() < 1e-6 && (logits[0] + 3.0).abs() < 1e-6,
            "{logits:?}"
        );
        assert_eq!(named(outputs, "label").to_texts().unwrap(), ["good"]);
        assert_eq!(named(outputs, "usage").to_i64().unwrap(), [3, 1]);
        assert!((cost(outputs) - 5.0).abs() < 1e-9);
        assert!(matches!(answers[1], Err(ModelError::MissingInput { .. })));
    }
    assert_eq!(
        server.connections.load(Ordering::SeqCst),
        1,
        "connections are reused"
    );
    let request = server.requests.lock().unwrap()[0].clone();
    assert_eq!(request.path, "/v1/chat/completions");
    assert!(
        request.head.contains(&format!("Bearer {KEY}")),
        "{}",
        request.head
    );
}

#[test]
fn no_more_requests_are_under_way_than_allowed() {
    let server = Server::start(|_, _| Does::Slowly(Duration::from_millis(30), good()));
    let mut large = model(&endpoint(&server, classify()));
    let requests: Vec<Inputs> = (0..16).map(|number| text(&number.to_string())).collect();
    let begun = Instant::now();
    assert!(large.model.run(&requests).iter().all(Result::is_ok));
    assert_eq!(server.most.load(Ordering::SeqCst), 4);
    assert!(begun.elapsed() >= Duration::from_millis(4 * 30));
}

#[test]
fn an_endpoint_that_hangs_ends_with_the_budget_or_the_timeout() {
    let server = Server::start(|_, _| Does::Hang);
    let hanging = endpoint(&server, classify());
    let budget = Duration::from_millis(400);
    let (_, end, took) = within(&hanging, budget);
    assert!(matches!(end, Err(ModelError::Late { .. })), "{end:?}");
    assert!(took < hanging.timeout, "{took:?}");
    let mut impatient = hanging;
    impatient.timeout = Duration::from_millis(50);
    impatient.retry.retries = 1;
    let (_, end, took) = within(&impatient, Duration::from_secs(10));
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
    assert!(
        took < Duration::from_secs(10),
        "the budget was not used up: {took:?}"
    );
    // The client may have given up before the server has read the request.
    wait_until("the second request was repeated", Duration::from_secs(20), || {
        server.calls() >= 3
    });
    assert_eq!(server.calls(), 3, "the second request was repeated once");
}

#[test]
fn pauses_that_the_endpoint_asks_for_are_kept_if_the_budget_allows() {
    let busy = |after: &'static str| {
        Server::start(move |_, number| match number {
            0 => Does::Answer(
                429,
                format!("retry-after: {after}\r\n"),
                b"{\"error\": {\"message\": \"slow down\"}}".to_vec(),
            ),
            _ => ok(&good()),
        })
    };
    let server = busy("0.2");
    let (_, end, took) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    assert!(
        end.is_ok() && took >= Duration::from_millis(200),
        "{end:?} {took:?}"
    );
    let server = busy("60");
    let (_, end, took) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
    assert!(took < Duration::from_secs(5) && server.calls() == 1, "{took:?}");
}

/// Every further request was a call, however soon after the refusal.
#[test]
fn a_pause_beyond_the_budget_of_a_request_holds_for_others() {
    let server = Server::start(|_, number| match number {
        0 => Does::Answer(429, "retry-after: 2\r\n".to_owned(), Vec::new()),
        _ => ok(&good()),
    });
    let mut busy = endpoint(&server, classify());
    busy.retry.retries = 0;
    busy.concurrency = 1.try_into().unwrap();
    let running = Running::start(&busy);
    let begun = Instant::now();
    let (_, end, _) = running.within(Duration::from_millis(500));
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("429")),
        "{end:?}"
    );
    let (_, end, _) = running.within(Duration::from_millis(500));
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("asked for a pause, which lasts")),
        "{end:?}"
    );
    assert_eq!(server.calls(), 1);
    let (_, end, _) = running.within(Duration::from_secs(20));
    assert!(end.is_ok(), "{end:?}");
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(2),
        "a request with more time waits: {took:?}"
    );
    assert_eq!(server.calls(), 2);
}

#[test]
fn failures_of_the_server_are_repeated_and_typed() {
    let server = Server::start(|_, number| match number % 3 {
        0 => Does::Answer(500, String::new(), b"oops".to_vec()),
        1 => Does::Answer(503, String::new(), Vec::new()),
        _ => ok(&good()),
    });
    let mut three = endpoint(&server, classify());
    assert!(within(&three, Duration::from_secs(10)).1.is_ok());
    three.retry.retries = 1;
    let end = within(&three, Duration::from_secs(10)).1;
    assert!(
        matches!(&end, Err(ModelError::Unavailable { reason }) if reason.contains("503")),
        "{end:?}"
    );
    let nowhere = Endpoint {
        base_url: "http://127.0.0.1:9".to_owned(),
        ..three
    };
    let end = within(&nowhere, Duration::from_secs(10)).1;
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
}

#[test]
fn a_revoked_key_is_shown_nowhere() {
    let said = format!("{{\"error\": {{\"message\": \"Incorrect API key provided: {KEY}.\"}}}}");
    let server = Server::start(move |_, _| Does::Answer(401, String::new(), said.clone().into_bytes()));
    let revoked = endpoint(&server, classify());
    let end = within(&revoked, Duration::from_secs(10)).1.unwrap_err();
    assert!(
        matches!(&end, ModelError::Refused { reason } if reason.contains("[redacted]")),
        "{end}"
    );
    assert_eq!(server.calls(), 1, "a refused key is not tried again");
    assert!(!format!("{end:?} {revoked:?}").contains(KEY));
    tracing::error!(?revoked, %end, "for the log");
    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    assert!(
        log.contains("for the log") && !log.contains(KEY),
        "the key is in the log"
    );
}

#[test]
fn garbage_is_never_a_confident_answer() {
    let bodies = [
        "<html>out of order</html>".to_owned(),
        good().replace("-0.1", "NaN"),
        good().replace("-0.1", "null"),
        good().replace("-0.1", "1e999"),
        good().replace("-0.1", "7.5"),
        good().replace("good", "who knows"),
        "{\"choices\": []}".to_owned(),
    ];
    for body in bodies {
        let said = body.clone();
        let server = Server::start(move |_, _| ok(&said));
        let end = within(&endpoint(&server, classify()), Duration::from_secs(10)).1;
        assert!(
            matches!(end, Err(ModelError::BadOutput { .. })),
            "{body}: {end:?}"
        );
    }
}

#[test]
fn invalid_requests_are_the_senders_fault_and_not_repeated() {
    for status in [400, 413, 422] {
        let said = b"{\"error\": {\"message\": \"Invalid schema for response_format\"}}".to_vec();
        let server = Server::start(move |_, _| Does::Answer(status, String::new(), said.clone()));
        let (_, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
        assert!(
            matches!(&end, Err(ModelError::InvalidRequest { reason }) if reason.contains("Invalid schema")),
            "{status}: {end:?}"
        );
        assert_eq!(server.calls(), 1);
    }
}

#[test]
fn the_open_inference_protocol_is_spoken_with_binary_tensors() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/v2" => ok(r#"{"name": "triton", "extensions": ["binary_tensor_data"]}"#),
        "/v2/models/m" => {
            ok(r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": []}"#)
        }
        _ => {
            let json = br#"{"outputs": [{"name": "logits", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}"#;
            let echoed = &request.body[request.body.len() - 8..];
            let head = format!("inference-header-content-length: {}\r\n", json.len());
            Does::Answer(200, head, [&json[..], echoed].concat())
        }
    });
    let mut oip = endpoint(&server, classify());
    oip.base_url = server.url();
    oip.price = Some(Price {
        request: 0.25,
        input_tokens: 0.0,
        output_tokens: 0.0,
    });
    oip.api = Api::Oip {
        model: "m".to_owned(),
        version: None,
    };
    let mut loaded = model(&oip);
    let answers = loaded.model.run(&[
        vec![Tensor::from_f32("x", &[2], &[0.5, 2.0]).unwrap()],
        text("no"),
    ]);
    let outputs = answers[0].as_ref().unwrap();
    assert_eq!(named(outputs, "logits").to_f32().unwrap(), [0.5, 2.0]);
    assert!((cost(outputs) - 0.25).abs() < 1e-9);
    assert!(answers[1].is_err());
    assert_eq!(
        server.requests.lock().unwrap().last().unwrap().path,
        "/v2/models/m/infer"
    );
    let missing =
        Server::start(|_, _| Does::Answer(404, String::new(), b"{\"error\": \"no model m\"}".to_vec()));
    oip.base_url = missing.url();
    let error = connect(&oip).err().unwrap().to_string();
    assert!(error.contains("no model m"), "{error}");
}

#[test]
fn a_key_that_leaves_this_machine_in_clear_text_is_logged() {
    let server = Server::start(|_, _| ok(&good()));
    let mut plain = endpoint(&server, classify());
    drop(model(&plain));
    plain.base_url = "http://api.example.com/v1".to_owned();
    drop(model(&plain));
    plain.base_url = "https://secure.example.com/v1".to_owned();
    drop(model(&plain));
    plain.base_url = "http://keyless.example.com/v1".to_owned();
    plain.key = None;
    drop(model(&plain));
    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    let warned = |address: &str| {
        log.lines()
            .any(|line| line.contains("clear text") && line.contains(address))
    };
    assert!(warned("http://api.example.com"));
    for address in [server.url().as_str(), "secure.example.com", "keyless.example.com"] {
        assert!(!warned(address), "{address}");
    }
}

/// The end of its runtime panicked there.
#[test]
fn a_variant_that_cannot_be_connected_is_an_error_inside_a_runtime_as_well() {
    let server = Server::start(|_, _| ok(&good()));
    let mut wrong = endpoint(&server, classify());
    wrong.base_url = "ftp://x".to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(async { connect(&wrong).is_err() }));
}
