//! Tools and formats of answers over OpenAI's API, before models in Rust that call tools.

use serde_json::{Value, json};

use crate::openai::stand;
use crate::support::events;

const CHAT: &str = "/v1/chat/completions";

fn tools() -> Value {
    let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    json!([function("weather"), function("clock")])
}

fn asked(text: &str) -> Value {
    json!({"model": "app", "messages": [{"role": "user", "content": text}], "tools": tools()})
}

#[test]
fn calls_are_answered_and_their_results_reach_the_model() {
    let stand = stand();
    let found = stand.post(CHAT, &[], asked("call").to_string()).json();
    let choice = &found["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null),
        "{found}"
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        calls[0]["function"],
        json!({"name": "weather", "arguments": r#"{"city":"Paris"}"#})
    );
    assert_eq!(calls[0]["id"].as_str().unwrap().len(), 9);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let mut one = asked("call");
    one["parallel_tool_calls"] = json!(false);
    let found = stand.post(CHAT, &[], one.to_string()).json();
    assert_eq!(
        found["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let mut answered = asked("call");
    let messages = answered["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "sun"}));
    let found = stand.post(CHAT, &[], answered.to_string()).json();
    assert_eq!(found["choices"][0]["message"]["content"], "SUN", "{found}");
    assert_eq!(found["choices"][0]["message"].get("tool_calls"), None);
}

#[test]
fn calls_are_streamed() {
    let stand = stand();
    let mut asked = asked("call");
    asked["stream"] = json!(true);
    let chunks = events(&stand.post(CHAT, &[], asked.to_string()).body);
    let deltas: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0].get("delta"))
        .collect();
    assert_eq!(deltas[0]["role"], "assistant");
    let calls: Vec<&Value> = deltas
        .iter()
        .filter_map(|delta| delta.get("tool_calls"))
        .map(|calls| &calls[0])
        .collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        (&calls[1]["index"], &calls[1]["function"]["name"]),
        (&json!(1), &json!("clock"))
    );
    assert!(
        chunks
            .iter()
            .any(|chunk| chunk["choices"][0]["finish_reason"] == "tool_calls"),
        "{chunks:?}"
    );
}

#[test]
fn responses_have_calls_as_items() {
    let stand = stand();
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    let mut asked = json!({"model": "app", "input": "call", "tools": [tool]});
    let found = stand.post("/v1/responses", &[], asked.to_string()).json();
    assert_eq!(found["status"], "completed", "{found}");
    let output = found["output"].as_array().unwrap();
    assert_eq!(output.len(), 2);
    assert_eq!(
        (&output[0]["type"], &output[0]["name"], &output[0]["arguments"]),
        (
            &json!("function_call"),
            &json!("weather"),
            &json!(r#"{"city":"Paris"}"#)
        )
    );
    assert_eq!(found["tools"][0]["name"], "weather");

    let result = json!({"type": "function_call_output", "call_id": output[0]["call_id"], "output": "sun"});
    let conversation = json!([{"role": "user", "content": "call"}, output[0], output[1], result]);
    let next = json!({"model": "app", "input": conversation, "tools": [tool]});
    let answered = stand.post("/v1/responses", &[], next.to_string()).json();
    assert_eq!(answered["output"][0]["content"][0]["text"], "SUN", "{answered}");

    asked["stream"] = json!(true);
    let kinds: Vec<String> = events(&stand.post("/v1/responses", &[], asked.to_string()).body)
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect();
    let call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ];
    let expected: Vec<&str> = ["response.created", "response.in_progress"]
        .into_iter()
        .chain(call)
        .chain(call)
        .chain(["response.completed"])
        .collect();
    assert_eq!(kinds, expected);
}

#[test]
fn a_format_reaches_the_model() {
    let stand = stand();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}});
    let asked =
        json!({"model": "app", "messages": [{"role": "user", "content": "x"}], "response_format": format});
    let found = stand.post(CHAT, &[], asked.to_string()).json();
    assert_eq!(
        found["choices"][0]["message"]["content"],
        format.to_string(),
        "keys stay in their order"
    );
    let of_response = json!({"type": "json_schema", "name": "x", "schema": {"type": "object"}});
    let asked = json!({"model": "app", "input": "x", "text": {"format": of_response}});
    let found = stand.post("/v1/responses", &[], asked.to_string()).json();
    assert_eq!(found["output"][0]["content"][0]["text"], of_response.to_string());
    assert_eq!(found["text"]["format"], of_response);
    for (field, value) in [
        ("response_format", json!({"type": "xml"})),
        ("tools", json!([{"type": "web_search"}])),
        ("tool_choice", json!("required")),
    ] {
        let mut asked = json!({"model": "app", "messages": [{"role": "user", "content": "x"}]});
        asked[field] = value;
        let answer = stand.post(CHAT, &[], asked.to_string());
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(field))
        );
    }
}
