//! `/tokenize`, `/detokenize` and `/decode`, before a model that is never asked.

use std::path::Path;

use kaskade_actors::Service;
use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AppOptions, Limits, TokenizerPath};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, Echo, Stand, exchange, request};

/// The tokenizer of the smallest language model with a chat template, without weights.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/shakespeare/weights/shakespeare-pico");
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(model.join(file), folder.path().join(file)).unwrap();
    }
    let template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

fn options(path: &Path) -> AppOptions {
    let known = |variant: &str, path: &Path| TokenizerPath {
        variant: variant.to_owned(),
        path: path.to_owned(),
    };
    AppOptions::new("app")
        .default_budget(TIMEOUT)
        .max_model_len(Some(100))
        .tokenizers(vec![
            known("elsewhere", &path.join("missing")),
            known("small", path),
        ])
}

fn stand(options: AppOptions, limits: Limits) -> Stand {
    let service = Service::new("app").model("small", || Ok::<_, String>(Echo(1.0)));
    Stand::of(service, options, limits)
}

fn post(stand: &Stand, path: &str, asked: &Value) -> Answer {
    stand.post(path, &[], asked.to_string())
}

#[test]
fn prompts_and_chats_are_tokenized_and_detokenized_as_vllm_does() {
    let folder = folder();
    let stand = stand(options(folder.path()), Limits::default());
    let answer = post(
        &stand,
        "/tokenize",
        &json!({"model": "app", "prompt": "to be", "return_token_strings": true}),
    );
    assert_eq!(
        (answer.status, answer.header("x-kaskade-variant")),
        (200, Some("small")),
        "{}",
        answer.json()
    );
    let found = answer.json();
    let tokens = found["tokens"].as_array().unwrap();
    assert_eq!(found["count"], tokens.len());
    assert_eq!(found["token_strings"].as_array().unwrap().len(), tokens.len());
    assert_eq!(found["max_model_len"], 100);
    let text = post(&stand, "/detokenize", &json!({"model": "app", "tokens": tokens})).json();
    assert_eq!(text, json!({"prompt": "to be"}));

    let chat = |fields: Value| {
        let mut asked = json!({"messages": [{"role": "user", "content": "to be"}]});
        asked
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let found = post(&stand, "/tokenize", &asked).json();
        assert_eq!(found["token_strings"], Value::Null);
        post(&stand, "/detokenize", &json!({"tokens": found["tokens"]})).json()["prompt"].clone()
    };
    assert_eq!(chat(json!({})), "<user>to be<assistant>");
    assert_eq!(chat(json!({"add_generation_prompt": false})), "<user>to be");
    assert_eq!(stand.node.metrics().read().accepted, 0, "the app is not asked");
}

#[test]
fn texts_are_tokenized_and_decoded_as_text_embeddings_inference_does() {
    let folder = folder();
    let stand = stand(options(folder.path()), Limits::default());
    let found = post(
        &stand,
        "/tokenize",
        &json!({"inputs": ["to be", "or"], "add_special_tokens": false}),
    )
    .json();
    let texts = found.as_array().unwrap();
    assert_eq!(texts.len(), 2);
    let first = texts[0].as_array().unwrap();
    let joined: String = first
        .iter()
        .map(|token| token["text"].as_str().unwrap())
        .collect();
    assert_eq!(joined, "to be");
    assert_eq!(
        (&first[0]["start"], &first[0]["special"]),
        (&json!(0), &json!(false))
    );
    assert_eq!(first.last().unwrap()["stop"], 5);
    let one = post(&stand, "/tokenize", &json!({"inputs": "to be"})).json();
    assert_eq!(one.as_array().unwrap().len(), 1);

    let ids: Vec<Vec<Value>> = texts
        .iter()
        .map(|tokens| {
            tokens
                .as_array()
                .unwrap()
                .iter()
                .map(|token| token["id"].clone())
                .collect()
        })
        .collect();
    let decoded = post(&stand, "/decode", &json!({"ids": ids})).json();
    assert_eq!(decoded, json!(["to be", "or"]));
    let decoded = post(
        &stand,
        "/decode",
        &json!({"ids": ids[0], "skip_special_tokens": false}),
    )
    .json();
    assert_eq!(decoded, json!(["to be"]));
}

#[test]
fn what_cannot_be_tokenized_is_refused_in_the_form_of_its_api() {
    let folder = folder();
    let limits = Limits {
        max_body: 3 << 20,
        ..Limits::default()
    };
    let stand = stand(options(folder.path()), limits);
    let unknown = 4_000_000_000_u32;
    let long = "a".repeat((1 << 20) + 1);
    let chat = json!([{"role": "user", "content": "x"}]);
    for (path, asked, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 7}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": chat}), "messages"),
        ("/tokenize", json!({"messages": []}), "messages"),
        (
            "/tokenize",
            json!({"messages": chat, "continue_final_message": true}),
            "continue_final_message",
        ),
        ("/tokenize", json!({"prompt": long}), "prompt"),
        ("/detokenize", json!({"tokens": [unknown]}), "tokens"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens"),
        ("/detokenize", json!({}), "tokens"),
    ] {
        let answer = post(&stand, path, &asked);
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(param)),
            "{path}: {error}"
        );
    }
    let missing = post(&stand, "/tokenize", &json!({"model": "other", "prompt": "x"}));
    assert_eq!(missing.status, 404);
    for (path, asked) in [
        ("/tokenize", json!({"inputs": []})),
        ("/tokenize", json!({"inputs": 7})),
        ("/tokenize", json!({"inputs": ["a", long]})),
        ("/tokenize", json!({"inputs": "a", "prompt_name": "query"})),
        ("/decode", json!({"ids": [unknown]})),
        ("/decode", json!({"ids": "x"})),
        ("/decode", json!({})),
    ] {
        let answer = post(&stand, path, &asked);
        let error = answer.json();
        assert!(
            answer.status == 400 && error["error"].is_string() && error["error_type"].is_string(),
            "{path}: {error}"
        );
    }
    let large = json!({"prompt": "a".repeat(4 << 20)});
    assert_eq!(post(&stand, "/tokenize", &large).status, 413);
    assert_eq!(stand.get("/tokenize").status, 405);
}

#[test]
fn an_app_without_a_tokenizer_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let broken = folder();
    std::fs::write(broken.path().join("tokenizer.json"), "{").unwrap();
    for (path, reason) in [(empty.path(), "no variant"), (broken.path(), "`small`")] {
        let stand = stand(options(path), Limits::default());
        for (path, asked) in [
            ("/tokenize", json!({"prompt": "a"})),
            ("/tokenize", json!({"inputs": "a"})),
            ("/detokenize", json!({"tokens": [1]})),
            ("/decode", json!({"ids": [1]})),
        ] {
            let answer = post(&stand, path, &asked);
            assert_eq!(
                (
                    answer.status,
                    answer.header("x-kaskade-fault"),
                    answer.header("x-should-retry")
                ),
                (404, Some("no_tokenizer"), Some("false"))
            );
            let text = String::from_utf8(answer.body).unwrap();
            assert!(text.contains(reason), "{text}");
        }
    }
}

#[test]
fn tokens_need_a_key_where_requests_do() {
    let folder = folder();
    let open = stand(options(folder.path()), Limits::default());
    let key = TenantKey {
        tenant: "blue".to_owned(),
        key: "secret".to_owned(),
        max_in_flight: None,
        rate: None,
        operator: false,
    };
    let limits = Limits {
        keys: vec![key],
        ..Limits::default()
    };
    let gateway = kaskade_gateway::Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let bus = kaskade_actors::bus::BusConfig::new("app").url(open.node.bus().url());
    gateway.serve(options(folder.path()), bus).unwrap();
    for (path, asked) in [
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/decode", json!({"ids": [1]})),
    ] {
        let body = asked.to_string();
        let with = |headers: &[(&str, &str)]| {
            exchange(
                gateway.address(),
                &request("POST", path, headers, body.as_bytes()),
            )
            .status
        };
        assert_eq!(with(&[]), 401);
        assert_eq!(with(&[("authorization", "Bearer secret")]), 200);
    }
}

/// Answers everything with one score and an embedding.
struct Judge;

impl Model for Judge {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let judge = |_: &Inputs| {
            Ok(vec![
                Tensor::from_f32("logits", &[1], &[0.5])?,
                Tensor::from_f32("embedding", &[2], &[1.0, 0.0])?,
            ])
        };
        batch.iter().map(judge).collect()
    }
}

fn judging(options: AppOptions) -> Stand {
    let service = Service::new("app").model("small", || Ok::<_, String>(Judge));
    Stand::of(service, options, Limits::default())
}

/// A text of that many tokens of the tokenizer, which reads 256 and adds none.
fn of_tokens(count: usize) -> String {
    "Q".repeat(count)
}

/// Halves of a pair were counted each by itself, so that the second was cut off silently.
#[test]
fn texts_that_may_not_be_cut_off_are_refused_if_they_are_too_long() {
    let folder = folder();
    let stand = judging(options(folder.path()));
    let status = |path: &str, mut asked: Value| {
        asked["truncate"] = false.into();
        let answer = post(&stand, path, &asked);
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let (half, most, more) = (of_tokens(200), of_tokens(256), of_tokens(257));
    for (path, asked) in [
        ("/embed", json!({"inputs": [half, most]})),
        ("/predict", json!({"inputs": [half, of_tokens(56)]})),
        ("/predict", json!({"inputs": [[half], [most]]})),
        ("/rerank", json!({"query": half, "texts": [of_tokens(56), "x"]})),
        (
            "/rerank",
            json!({"query": half, "texts": ["x"], "truncation_direction": "right"}),
        ),
    ] {
        let (status, body) = status(path, asked);
        assert_eq!(status, 200, "{path}: {body}");
    }
    for (path, asked) in [
        ("/embed", json!({"inputs": [half, more]})),
        ("/predict", json!({"inputs": [half, half]})),
        ("/predict", json!({"inputs": [[half], [half, half]]})),
        ("/rerank", json!({"query": half, "texts": ["x", half]})),
        ("/embed", json!({"inputs": of_tokens((1 << 20) + 1)})),
    ] {
        let (status, body) = status(path, asked);
        assert_eq!(status, 413, "{path}: {body}");
        assert!(body.contains("truncate: true"), "{body}");
    }
    for (path, asked) in [
        ("/embed", json!({"inputs": vec![&more; 2_049]})),
        ("/embed", json!({"inputs": "x", "prompt_name": "query"})),
        ("/embed", json!({"inputs": "x", "truncation_direction": "left"})),
    ] {
        let (status, body) = status(path, asked);
        assert_eq!(status, 400, "{path}: {body}");
    }
    let cut = post(&stand, "/predict", &json!({"inputs": [half, half]}));
    assert_eq!(cut.status, 200);
}

/// Every document with more bytes than that was refused, also if the model reads no more tokens.
#[test]
fn documents_with_more_tokens_than_the_client_wants_are_refused() {
    let folder = folder();
    let stand = judging(options(folder.path()));
    let status = |stand: &Stand, most: usize, document: String| {
        let asked = json!({"query": "x", "documents": [document], "max_tokens_per_doc": most});
        post(stand, "/v1/rerank", &asked).status
    };
    assert_eq!(
        status(&stand, 256, of_tokens(5_000)),
        200,
        "the model cuts it off there"
    );
    assert_eq!(status(&stand, 100, of_tokens(101)), 400);
    let empty = tempfile::tempdir().unwrap();
    let without = judging(options(empty.path()));
    assert_eq!(status(&without, 100, of_tokens(101)), 400);
    assert_eq!(status(&without, 100, of_tokens(100)), 200);
    // Words are tokens.
    let words = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1}, "unk_token": "[UNK]"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), words.to_string()).unwrap();
    let of_words = judging(options(folder.path()));
    assert_eq!(status(&of_words, 30, "the ".repeat(30)), 200);
    assert_eq!(status(&of_words, 29, "the ".repeat(30)), 400);
}
