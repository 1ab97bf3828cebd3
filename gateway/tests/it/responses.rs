//! `/v1/responses`, whole and streamed, before models in Rust.

use std::time::Duration;

use kaskade_gateway::Streaming;
use serde_json::{Value, json};

use crate::openai::stand;
use crate::streaming;

const PATH: &str = "/v1/responses";

/// The events of a stream with their names, without the final `[DONE]`, which must be there.
fn events(body: &[u8]) -> Vec<(String, Value)> {
    let text = std::str::from_utf8(body).unwrap();
    let mut blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.is_empty()).collect();
    assert_eq!(blocks.pop(), Some("data: [DONE]"), "{text}");
    let events = blocks.into_iter().map(|block| {
        let (name, data) = block.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        (data["type"].as_str().unwrap().to_owned(), data)
    });
    events.collect()
}

#[test]
fn a_response_has_one_message_and_says_which_variant_answered() {
    let stand = stand();
    for (input, variant) in [("hello you", "small"), ("a longer question", "large")] {
        let asked = json!({
            "model": "app", "instructions": "shout", "metadata": {"a": "b"}, "reasoning": {"effort": "low"},
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": input}]}],
        });
        let answer = stand.post(PATH, &[], asked.to_string());
        let found = answer.json();
        assert_eq!(answer.status, 200, "{found}");
        assert!(found["id"].as_str().unwrap().starts_with("resp_"));
        assert_eq!(
            (&found["object"], &found["status"]),
            (&json!("response"), &json!("completed"))
        );
        let message = &found["output"][0];
        assert_eq!(
            (&message["type"], &message["role"]),
            (&json!("message"), &json!("assistant"))
        );
        assert_eq!(message["content"][0]["text"], input.to_uppercase());
        assert_eq!(found["usage"]["kaskade"]["variant"], variant);
        assert_eq!(found["usage"]["output_tokens"], input.split(' ').count());
        assert_eq!(
            (&found["instructions"], &found["metadata"]),
            (&json!("shout"), &json!({"a": "b"}))
        );
        assert_eq!(answer.header("x-kaskade-variant"), Some(variant));
    }
    let asked = json!({"model": "app", "input": "one two three", "max_output_tokens": 2});
    let found = stand.post(PATH, &[], asked.to_string()).json();
    assert_eq!(
        [&found["temperature"], &found["top_p"]],
        [&json!(1.0), &json!(1.0)],
        "clients require numbers"
    );
    let asked_for = json!({"input": "x", "temperature": 0.5, "top_p": 0.25});
    let stated = stand.post(PATH, &[], asked_for.to_string()).json();
    assert_eq!(
        [&stated["temperature"], &stated["top_p"]],
        [&json!(0.5), &json!(0.25)]
    );
    assert_eq!(found["status"], "incomplete");
    assert_eq!(found["incomplete_details"]["reason"], "max_output_tokens");
    for (body, param) in [
        (
            json!({"input": "x", "previous_response_id": "resp_1"}),
            json!("previous_response_id"),
        ),
        (
            json!({"input": "x", "tools": [{"type": "web_search"}]}),
            json!("tools"),
        ),
        (json!({"input": 7}), json!("input")),
    ] {
        let answer = stand.post(PATH, &[], body.to_string());
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &param));
    }
}

#[test]
fn a_streamed_response_has_the_events_that_clients_expect() {
    let expected_before = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ];
    let expected_after = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    for (policy, pieces) in [
        (Streaming::AfterCertain, 4),
        (Streaming::Optimistic, 4),
        (Streaming::Buffered, 1),
    ] {
        let (stand, _) = streaming::stand(4, Duration::from_millis(20), policy);
        let answer = stand.post(PATH, &[], json!({"input": "x", "stream": true}).to_string());
        assert!(
            answer
                .header("content-type")
                .unwrap()
                .starts_with("text/event-stream")
        );
        let events = events(&answer.body);
        for (number, (_, event)) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number);
        }
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..4], expected_before, "{names:?}");
        assert_eq!(names[4 + pieces..], expected_after, "{names:?}");
        let deltas = &events[4..4 + pieces];
        assert!(
            deltas
                .iter()
                .all(|(name, _)| name == "response.output_text.delta")
        );
        let said: String = deltas
            .iter()
            .map(|(_, event)| event["delta"].as_str().unwrap())
            .collect();
        assert_eq!(said, "abcd", "{policy:?}");
        let end = &events.last().unwrap().1["response"];
        assert_eq!(end["output"][0]["content"][0]["text"], "abcd");
        assert_eq!(end["usage"]["output_tokens"], 4);
    }
}
