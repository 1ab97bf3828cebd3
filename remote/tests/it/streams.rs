//! Streamed answers.

use super::*;

fn event(content: &str, logprob: &str, finish: &str) -> String {
    format!(
        "{{\"choices\": [{{\"delta\": {{\"content\": \"{content}\"}}, \"finish_reason\": {finish}, \"logprobs\": {{\"content\": \
         [{{\"token\": \"{content}\", \"logprob\": {logprob}, \"top_logprobs\": []}}]}}}}]}}"
    )
}

#[test]
fn texts_are_streamed() {
    let usage = "{\"choices\": [], \"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 2}}".to_owned();
    let events = vec![
        event("to", "-0.1", "null"),
        event(" be", "-0.2", "\"stop\""),
        usage,
        "[DONE]".to_owned(),
    ];
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let (parts, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
    let outputs = end.unwrap();
    assert_eq!(parts, ["to", " be"]);
    assert_eq!(named(&outputs, "text").to_texts().unwrap(), ["to be"]);
    let confidence = named(&outputs, "confidence").to_f32().unwrap()[0];
    assert!((confidence - (-0.4_f32).exp()).abs() < 1e-3, "{confidence}");
    assert!((cost(&outputs) - 6.0).abs() < 1e-9);
}

#[test]
fn a_stream_that_breaks_off_is_an_error() {
    for (events, whole) in [
        (vec![event("to", "-0.1", "null")], false),
        (vec![event("to", "-0.1", "null")], true),
        (
            vec![
                event("to", "-0.1", "null"),
                "{\"error\": {\"message\": \"out of memory\"}}".to_owned(),
            ],
            true,
        ),
    ] {
        let server = Server::start(move |_, _| Does::Stream(events.clone(), whole));
        let (parts, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
        assert_eq!(parts, ["to"]);
        assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
        assert_eq!(server.calls(), 1, "an answer that has begun is not begun again");
    }
    let events = vec![event("to", "NaN", "null")];
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let end = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10)).1;
    assert!(matches!(end, Err(ModelError::BadOutput { .. })), "{end:?}");
}

/// Its timeout ended every stream that took longer, although tokens arrived.
#[test]
fn a_stream_takes_as_long_as_its_parts_arrive() {
    // One every 20 ms.
    let mut events: Vec<String> = (0..60).map(|_| event("a", "-0.1", "null")).collect();
    events.extend([event("b", "-0.1", "\"stop\""), "[DONE]".to_owned()]);
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let mut slow = endpoint(&server, ChatTask::Generate);
    slow.timeout = Duration::from_millis(600);
    slow.breaker.failures = 1;
    let running = Running::start(&slow);
    for _ in 0..2 {
        let (parts, end, took) = running.within(Duration::from_secs(20));
        assert!(end.is_ok(), "{end:?}");
        assert_eq!(parts.len(), 61);
        assert!(took > slow.timeout, "{took:?}");
    }
    assert_eq!(server.calls(), 2);
}

#[test]
fn a_stream_that_stops_ends_with_the_timeout() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
    let begun = format!("data: {}\n\n", event("to", "-0.1", "null")).into_bytes();
    for (pieces, parts, calls) in [
        (vec![head.clone(), begun], 1, 1),
        (vec![head], 0, 2),
        (vec![], 0, 2),
    ] {
        let said = pieces.clone();
        let server = Server::start(move |_, _| Does::Raw(said.clone(), Ends::Silent));
        let mut silent = endpoint(&server, ChatTask::Generate);
        silent.timeout = Duration::from_millis(200);
        silent.retry.retries = 1;
        let (got, end, _) = within(&silent, Duration::from_secs(20));
        assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
        assert_eq!(got.len(), parts);
        // The client may have given up before the server has read the request.
        wait_until("the calls arrive", Duration::from_secs(20), || {
            server.calls() >= calls
        });
        assert_eq!(server.calls(), calls);
    }
}

/// Prompts that are too long made the variant unavailable for everybody.
#[test]
fn invalid_requests_that_a_stream_reports_do_not_open_the_breaker() {
    let said = r#"{"error": "Input validation error: too many tokens", "error_type": "validation"}"#;
    let server = Server::start(move |_, _| Does::Stream(vec![said.to_owned()], true));
    let mut streaming = endpoint(&server, ChatTask::Generate);
    streaming.breaker = BreakerConfig::default();
    let running = Running::start(&streaming);
    for calls in 1..=6 {
        let (_, end, _) = running.within(Duration::from_secs(10));
        assert!(matches!(end, Err(ModelError::InvalidRequest { .. })), "{end:?}");
        assert_eq!(server.calls(), calls);
    }
    assert!(running.executor.availability().unwrap().is_available());
}

#[test]
fn a_stream_that_breaks_off_inside_a_line_is_retried() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: {\"choi";
    let server = Server::start(move |_, number| match number {
        0 => Does::Raw(vec![head.as_bytes().to_vec()], Ends::Closed),
        _ => Does::Stream(vec![event("to", "-0.1", "\"stop\""), "[DONE]".to_owned()], true),
    });
    let (_, end, _) = within(&endpoint(&server, ChatTask::Generate), Duration::from_secs(10));
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(server.calls(), 2);
}
