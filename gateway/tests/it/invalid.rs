//! Requests that a client writes wrongly: each gets an error that says what to change, and none is a failure of the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kaskade_gateway::Limits;
use kaskade_testkit::TIMEOUT;
use serde_json::json;

use crate::openai;
use crate::support::{Stand, exchange, request};

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
