//! Requests that a client writes wrongly: each gets an error that says what to change, and none is a failure of the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kaskade_actors::Service;
use kaskade_gateway::{AnswerKind, AppOptions, Limits};
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};

use crate::openai;
use crate::support::{Echo, Stand, exchange, request};

#[test]
fn paths_and_methods_that_do_not_exist_are_explained() {
    let stand = Stand::cascade(Limits::default());
    let answer = stand.get("/v1/nothing");
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (404, &json!("unknown_path")));
    assert!(
        error["message"].as_str().unwrap().contains("`/v1/nothing`"),
        "{error}"
    );
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let answer = stand.get("/v2/nothing");
    assert!(answer.json()["error"].as_str().unwrap().contains("/openapi.json"));
    let answer = stand.get("/v1/chat/completions");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains("GET"), "{error}");
    let answer = exchange(
        stand.address(),
        &request("OPTIONS", "/v2/models/app/infer", &[], b""),
    );
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    let long = stand.get(&format!("/v1/models/{}", "a".repeat(5_000)));
    assert!(long.status == 404 && long.body.len() < 500, "{}", long.json());
}

/// Clients with the address of another server, or without `/v1`, saw a list of paths only.
#[test]
fn paths_of_other_servers_say_what_to_send() {
    let stand = openai::stand();
    // It looks like the path of a model, which answers GET.
    let answer = stand.post("/v1/models/app:predict", &[], "{}");
    let error = answer.json()["error"].clone();
    assert_eq!(answer.status, 404, "{error}");
    assert!(
        error.as_str().unwrap().contains("/v2/models/{app}/infer"),
        "{error}"
    );
    let chat = json!({"messages": [{"role": "user", "content": "x"}]}).to_string();
    let answer = stand.post("/chat/completions", &[], chat.clone());
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (404, &json!("unknown_path")));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("`/v1/chat/completions`"),
        "{error}"
    );
    let answer = stand.post("/v1/messages", &[], chat.clone());
    let error = answer.json();
    assert_eq!(
        (answer.status, &error["type"], &error["error"]["type"]),
        (404, &json!("error"), &json!("not_found_error"))
    );
    let answer = stand.post("/api/chat", &[], chat.clone());
    assert!(
        answer.json()["error"].as_str().unwrap().contains("Ollama"),
        "{}",
        answer.json()
    );
    for path in [
        "//v1/chat/completions",
        "/v1//chat/completions/",
        "/v1/chat/completions/",
    ] {
        let answer = stand.post(path, &[], chat.clone());
        assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    }
}

#[test]
fn what_would_be_answered_otherwise_is_refused() {
    let stand = openai::stand();
    let user = json!([{"role": "user", "content": "x"}]);
    for (path, body, param) in [
        (
            "/v1/chat/completions",
            json!({"messages": user, "top_logprobs": 2}),
            "top_logprobs",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "regex": "a+"}),
            "regex",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user"}]}),
            "messages",
        ),
        (
            "/v1/rerank",
            json!({"query": "q", "documents": ["long"], "max_tokens_per_doc": 2}),
            "max_tokens_per_doc",
        ),
    ] {
        let answer = stand.post(path, &[], body.to_string());
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{body}"
        );
    }
    let body = json!({"inputs": "x", "truncation_direction": "Left"}).to_string();
    assert_eq!(stand.post("/embed", &[], body).status, 400);
    let shared = json!({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64",
        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]});
    let answer = stand.post("/v2/models/app/infer", &[], shared.to_string());
    let error = answer.json()["error"].clone();
    assert_eq!(answer.status, 400);
    assert!(
        error.as_str().unwrap().contains("shared memory is not served"),
        "{error}"
    );
}

#[test]
fn ranks_are_answered_in_the_form_of_the_request() {
    let stand = openai::stand();
    let asked = json!({"model": "app", "query": "q", "documents": ["a", "bb"], "max_tokens_per_doc": 4096});
    let found = stand.post("/rerank", &[], asked.to_string());
    assert_eq!(found.status, 200, "{}", found.json());
    assert_eq!(found.json()["results"].as_array().unwrap().len(), 2);
}

#[test]
fn fields_of_another_type_are_named() {
    let stand = openai::stand();
    for (path, body, said) in [
        ("/v1/chat/completions", json!([]), "object"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": 5}]}),
            "`content`",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "stop": 5}),
            "`stop`",
        ),
        ("/v1/completions", json!({"prompt": ["a", 5]}), "list of texts"),
        ("/v1/embeddings", json!({"input": null}), "list of texts"),
        ("/v1/responses", json!({"input": 7}), "`input`"),
        ("/predict", json!({"inputs": 7}), "`inputs`"),
        ("/embed", json!({"inputs": 7}), "`inputs`"),
    ] {
        let answer = stand.post(path, &[], body.to_string());
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 400, "{path} {body}: {text}");
        assert!(
            text.contains(said) && !text.contains("untagged"),
            "{path} {body}: {text}"
        );
    }
    let tensor = json!({"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]});
    for (timeout, status) in [(json!("soon"), 400), (json!(-5), 400), (json!(0), 200)] {
        let asked = json!({"inputs": [tensor], "parameters": {"timeout": timeout}});
        let answer = stand.post("/v2/models/app/infer", &[], asked.to_string());
        assert_eq!(answer.status, status, "{timeout}: {}", answer.json());
    }
}

#[test]
fn an_app_of_another_kind_is_the_clients_mistake() {
    // It gives back its inputs, which are neither a text nor an embedding nor logits.
    let stand = Stand::cascade(Limits::default());
    for (path, body) in [
        ("/v1/embeddings", json!({"input": [1, 2]})),
        ("/v1/completions", json!({"prompt": [1, 2]})),
        ("/predict", json!({"inputs": "x"})),
    ] {
        let answer = stand.post(path, &[], body.to_string());
        assert_eq!(answer.status, 422, "{path}: {}", answer.json());
        assert_eq!(answer.header("x-kaskade-fault"), Some("KSK0003"));
    }
}

#[test]
fn a_client_that_stops_sending_its_body_frees_its_place() {
    let limits = Limits {
        max_in_flight: 1,
        body_pause: Duration::from_millis(200),
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let mut client = TcpStream::connect(stand.address()).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = "POST /v2/models/app/infer HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\n{\"inputs\"";
    client.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    drop(client);
    let body = json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [3]}]});
    assert_eq!(
        stand.post("/v2/models/app/infer", &[], body.to_string()).status,
        200
    );
}

/// A request for answers of another kind costs the app nothing, and its refusal names the path to use.
#[test]
fn requests_for_answers_of_another_kind_are_refused_with_the_path_to_use() {
    for (kind, path, asked, said) in [
        (
            AnswerKind::Text,
            "/embed",
            json!({"inputs": "x"}),
            "/v1/chat/completions",
        ),
        (
            AnswerKind::Embedding,
            "/v1/completions",
            json!({"prompt": "x"}),
            "/v1/embeddings",
        ),
        (
            AnswerKind::Classes,
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}]}),
            "/v2/models/app/infer",
        ),
        (
            AnswerKind::Relevance,
            "/v1/embeddings",
            json!({"input": "x"}),
            "/v1/rerank",
        ),
        (
            AnswerKind::Span,
            "/rerank",
            json!({"query": "x", "texts": ["y"]}),
            "`question`",
        ),
        (
            AnswerKind::Embedding,
            "/predict",
            json!({"inputs": "x"}),
            "/embed",
        ),
        (AnswerKind::Span, "/predict", json!({"inputs": "x"}), "`question`"),
    ] {
        let service = Service::new("app").model("small", || Ok::<_, String>(Echo(1.0)));
        let options = AppOptions::new("app").answers(Some(kind));
        let stand = Stand::of(service, options, Limits::default());
        let answer = stand.post(path, &[], asked.to_string());
        let text = String::from_utf8(answer.body.clone()).unwrap();
        assert_eq!(
            (answer.status, answer.header("x-kaskade-fault")),
            (422, Some("KSK0003")),
            "{path}: {text}"
        );
        assert!(text.contains(said), "{path}: {text}");
        assert_eq!(stand.node.metrics().read().accepted, 0, "the app is not asked");
    }
}

/// A maximum of tokens among the parameters was ignored.
#[test]
fn parameters_that_are_inputs_of_a_language_model_are_refused() {
    let options = AppOptions::new("app")
        .default_budget(TIMEOUT)
        .answers(Some(AnswerKind::Text));
    let service = Service::new("app").model("only", || Ok::<_, String>(Echo(1.0)));
    let stand = Stand::of(service, options, Limits::default());
    let ask = |parameters: Value| {
        let asked = json!({"parameters": parameters, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]});
        stand.post("/v2/models/app/infer", &[], asked.to_string())
    };
    assert_eq!(
        ask(json!({"request_tag": "a", "timeout": 60_000_000})).status,
        200
    );
    for name in ["max_tokens", "num_beams", "sampling_parameters"] {
        let answer = ask(json!({name: "5"}));
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 400, "{error}");
        assert!(error.as_str().unwrap().contains(name), "{error}");
    }
}
