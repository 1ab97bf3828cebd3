//! OpenAI's API and the endpoints of text-embeddings-inference, before models in Rust.

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};

use crate::support::{Stand, events};

/// Answers the last message, or a text, in capitals; sure of short ones only.
struct Shout(f32);

impl Model for Shout {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let shout = |inputs: &Inputs| {
            let found = |name: &str| inputs.iter().find(|input| input.name == name);
            let text = match (found("messages"), found("text")) {
                (Some(messages), _) => {
                    let messages: Value = serde_json::from_str(messages.to_texts()?[0]).unwrap();
                    match &messages.as_array().unwrap().last().unwrap()["content"] {
                        Value::Array(parts) => {
                            parts.iter().map(|part| part["text"].as_str().unwrap()).collect()
                        }
                        text => text.as_str().unwrap().to_owned(),
                    }
                }
                (None, Some(text)) => text.to_texts()?.concat(),
                (None, None) => "tokens".to_owned(),
            };
            let most = found("max_tokens")
                .map(Tensor::to_i64)
                .transpose()?
                .map_or(100, |most| most[0]);
            let sure = if text.len() < 10 { 0.9 } else { self.0 };
            let words: Vec<&str> = text.split(' ').take(usize::try_from(most).unwrap()).collect();
            let end = if i64::try_from(words.len()) == Ok(most) {
                "length"
            } else {
                "token"
            };
            let tokens: Vec<i64> = (0..).take(words.len()).collect();
            let probabilities = vec![0.5_f32; words.len()];
            if found("tools").is_some() && text.starts_with("call") {
                let calls = [
                    r#"{"name":"weather","arguments":{"city":"Paris"}}"#,
                    r#"{"name":"clock","arguments":{}}"#,
                ];
                return Ok(vec![
                    Tensor::from_texts("text", &[""])?,
                    Tensor::from_texts("tool_calls", &calls)?,
                    Tensor::from_f32("confidence", &[1], &[0.9])?,
                ]);
            }
            if let Some(format) = found("response_format") {
                return Ok(vec![
                    Tensor::from_texts("text", &format.to_texts()?)?,
                    Tensor::from_f32("confidence", &[1], &[0.9])?,
                ]);
            }
            if text.starts_with("counted") {
                return Ok(vec![
                    Tensor::from_texts("text", &["X"])?,
                    Tensor::from_i64("usage", &[2], &[40, 2])?,
                    Tensor::from_f32("confidence", &[1], &[sure])?,
                ]);
            }
            let mut outputs = vec![
                Tensor::from_texts("text", &[&words.join(" ").to_uppercase()])?,
                Tensor::from_i64("tokens", &[tokens.len()], &tokens)?,
                Tensor::from_f32("probabilities", &[tokens.len()], &probabilities)?,
                Tensor::from_f32("logits", &[2], &[0.0, text.len() as f32])?,
                Tensor::from_f32("embedding", &[2], &[3.0, 4.0])?,
                Tensor::from_f32("confidence", &[1], &[sure])?,
                Tensor::from_texts("end", &[end])?,
            ];
            if found("messages").is_some() {
                outputs.push(Tensor::from_i64(
                    "usage",
                    &[2],
                    &[1, i64::try_from(words.len()).unwrap()],
                )?);
            }
            if text.starts_with("think") {
                outputs.push(Tensor::from_texts("reasoning", &["let me see"])?);
                outputs.push(Tensor::from_i64("reasoning_tokens", &[1], &[3])?);
            }
            Ok(outputs)
        };
        batch.iter().map(shout).collect()
    }
}

pub(crate) fn stand() -> Stand {
    let plan = Plan::cascade("app")
        .stage("first", "small")
        .below(0.75)
        .then("second", "large");
    let service = Service::new("app")
        .plan(plan.build().unwrap())
        .model("small", || Ok::<_, String>(Shout(0.2)))
        .model("large", || Ok::<_, String>(Shout(0.8)));
    let options = AppOptions::new("app").default_budget(TIMEOUT).max_budget(TIMEOUT);
    Stand::of(service, options, Limits::default())
}

fn chat(text: &str) -> Value {
    json!({"model": "app", "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": text}]})
}

#[test]
fn chat_and_completions_say_which_variant_answered() {
    let stand = stand();
    for (text, variant) in [("hello you", "small"), ("a longer question", "large")] {
        let answer = stand.post("/v1/chat/completions", &[], chat(text).to_string());
        let found = answer.json();
        assert_eq!(answer.status, 200, "{found}");
        assert!(found["id"].as_str().unwrap().starts_with("chatcmpl-"));
        let choice = &found["choices"][0];
        assert_eq!(choice["message"]["content"], text.to_uppercase());
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(found["usage"]["kaskade"]["variant"], variant);
        assert_eq!(found["usage"]["completion_tokens"], text.split(' ').count());
        assert_eq!(answer.header("x-kaskade-variant"), Some(variant));
    }
    let mut asked = chat("one two three");
    for (name, value) in [
        ("n", json!(2)),
        ("max_completion_tokens", json!(2)),
        ("logprobs", json!(true)),
        ("frobnicate", json!({})),
    ] {
        asked[name] = value;
    }
    let found = stand.post("/v1/chat/completions", &[], asked.to_string()).json();
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_eq!(choices[1]["finish_reason"], "length");
    let logprobs = choices[1]["logprobs"]["content"].as_array().unwrap();
    assert!((logprobs[0]["logprob"].as_f64().unwrap() - 0.5_f64.ln()).abs() < 1e-6);
    assert_eq!(found["usage"]["completion_tokens"], 4);

    let asked = json!({"model": "app", "prompt": ["one two", "three"], "echo": true}).to_string();
    let found = stand.post("/v1/completions", &[], asked).json();
    assert_eq!(found["choices"][0]["text"], "one twoONE TWO");
    assert_eq!(found["choices"][1]["text"], "threeTHREE");
    // Clients read whole numbers.
    assert_eq!(found.get("usage"), None, "the model does not count its prompt");
    assert_eq!(found["kaskade"][1]["variant"], "small");
    let asked = json!({"prompt": [1, 2, 3]}).to_string();
    let found = stand.post("/v1/completions", &[], asked).json();
    assert_eq!(found["usage"]["prompt_tokens"], 3, "the only app needs no name");
}

#[test]
fn an_answer_of_any_stage_is_streamed_with_its_usage() {
    let stand = stand();
    for (text, variant) in [("hello you", "small"), ("a longer question", "large")] {
        let mut asked = chat(text);
        asked["stream"] = json!(true);
        asked["stream_options"] = json!({"include_usage": true});
        let answer = stand.post("/v1/chat/completions", &[], asked.to_string());
        assert!(
            answer
                .header("content-type")
                .unwrap()
                .starts_with("text/event-stream")
        );
        let chunks = events(&answer.body);
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        let said: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(said, text.to_uppercase());
        let usage = chunks.last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["kaskade"]["variant"], variant);
        let last = &chunks[chunks.len() - 2];
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        assert_eq!(last["kaskade"]["variant"], variant);
    }
    let asked = json!({"model": "app", "prompt": ["a", "b"], "n": 2, "stream": true}).to_string();
    let chunks = events(&stand.post("/v1/completions", &[], asked).body);
    for index in 0..4 {
        let of = chunks
            .iter()
            .filter(|chunk| chunk["choices"][0]["index"] == index);
        let text: String = of
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(text, if index < 2 { "A" } else { "B" });
    }
}

#[test]
fn reasoning_comes_before_the_text_in_a_field_of_its_own() {
    let stand = stand();
    let mut asked = chat("think");
    let found = stand.post("/v1/chat/completions", &[], asked.to_string()).json();
    let message = &found["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("let me see"), &json!("THINK"))
    );
    assert_eq!(found["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
    asked["stream"] = json!(true);
    let chunks = events(&stand.post("/v1/chat/completions", &[], asked.to_string()).body);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    assert_eq!(deltas[1], &json!({"reasoning_content": "let me see"}));
    assert_eq!(deltas[2], &json!({"content": "THINK"}));
}

#[test]
fn a_request_of_many_parts_is_measured_once() {
    let stand = stand();
    let asked = json!({"model": "app", "input": vec!["a"; 10]});
    assert_eq!(stand.post("/v1/embeddings", &[], asked.to_string()).status, 200);
    let metrics = stand.get("/metrics");
    let page = String::from_utf8_lossy(&metrics.body);
    assert!(
        page.contains("kaskade_gateway_request_seconds_count{app=\"app\"} 1\n"),
        "{page}"
    );
}

#[test]
fn the_timeout_that_a_client_announces_bounds_one_read_of_a_stream() {
    let stand = stand();
    let timeout = ("x-stainless-read-timeout", "0.000001");
    let mut asked = chat("a longer question");
    let refused = stand.post("/v1/chat/completions", &[timeout], asked.to_string());
    assert_eq!(refused.status, 504);
    asked["stream"] = json!(true);
    let chunks = events(
        &stand
            .post("/v1/chat/completions", &[timeout], asked.to_string())
            .body,
    );
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop", "{chunks:?}");
}

#[test]
fn embeddings_scores_and_ranks() {
    let stand = stand();
    let asked = json!({"model": "app", "input": ["a", "b"]});
    let found = stand.post("/v1/embeddings", &[], asked.to_string()).json();
    assert_eq!(found["data"][1]["embedding"], json!([3.0, 4.0]));
    let asked = json!({"model": "app", "input": "a", "encoding_format": "base64"});
    let found = stand.post("/v1/embeddings", &[], asked.to_string()).json();
    assert_eq!(found["data"][0]["embedding"], "AABAQAAAgEA=");
    let answer = stand.post("/embed", &[], r#"{"inputs":"a"}"#);
    assert_eq!(answer.json(), json!([[0.6_f32, 0.8_f32]]));
    assert_eq!(answer.header("x-kaskade-variant"), Some("small"));
    let found = stand
        .post(
            "/predict",
            &[],
            r#"{"inputs":[["some words"],["a"]],"raw_scores":true}"#,
        )
        .json();
    assert_eq!(found[0][0], json!({"label": "LABEL_1", "score": 10.0}));
    let found = stand.post("/predict", &[], r#"{"inputs":"a"}"#).json();
    assert_eq!(found[0]["label"], "LABEL_1");
    // The text of a pair is the query, so both score alike; the order of the texts is kept.
    let found = stand
        .post(
            "/rerank",
            &[],
            r#"{"query":"q","texts":["a","b"],"return_text":true}"#,
        )
        .json();
    assert_eq!(found[0]["text"], "a");
}

/// Ranks passages by their length.
struct ByLength;

impl Model for ByLength {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let rank = |inputs: &Inputs| {
            assert_eq!(inputs[0].to_texts()?, ["q"]);
            let lengths: Vec<f32> = inputs[1]
                .to_texts()?
                .iter()
                .map(|text| text.len() as f32)
                .collect();
            let scores: Vec<f32> = lengths.iter().map(|length| length / 10.0).collect();
            Ok(vec![
                Tensor::from_f32("logits", &[lengths.len()], &lengths)?,
                Tensor::from_f32("scores", &[scores.len()], &scores)?,
            ])
        };
        batch.iter().map(rank).collect()
    }
}

#[test]
fn an_app_that_ranks_gets_all_texts_in_one_request() {
    let plan = Plan::cascade("app").stage("only", "ranker");
    let service = Service::new("app")
        .plan(plan.build().unwrap())
        .model("ranker", || Ok::<_, String>(ByLength));
    let input = |name: &str| InputSpec::required(name, Datatype::Bytes, vec![Extent::UpTo(10)]);
    let signature = Signature {
        inputs: vec![input("query"), input("passages")],
    };
    let options = AppOptions::new("app")
        .default_budget(TIMEOUT)
        .max_budget(TIMEOUT)
        .signature(Some(signature));
    let stand = Stand::of(service, options, Limits::default());
    let ask = |more: &str| {
        let asked = format!(r#"{{"query":"q","texts":["a","ccc","bb"]{more}}}"#);
        stand.post("/rerank", &[], asked).json()
    };
    let found = ask("");
    assert_eq!(found[0], json!({"index": 1, "score": 0.3_f32}));
    assert_eq!(found[2]["index"], 0);
    let raw = ask(r#","raw_scores":true,"return_text":true"#);
    assert_eq!(raw[0], json!({"index": 1, "score": 3.0, "text": "ccc"}));
    let one = |raw: bool| {
        let asked = json!({"query": "q", "texts": ["ccc"], "raw_scores": raw});
        stand.post("/rerank", &[], asked.to_string()).json()
    };
    // It was 1 for every text.
    assert_eq!(one(false), json!([{"index": 0, "score": 0.3_f32}]));
    assert_eq!(one(true), json!([{"index": 0, "score": 3.0}]));
    // As Cohere, Jina and vLLM have it.
    let asked = json!({"model": "app", "query": "q", "documents": ["a", {"text": "ccc"}, "bb"], "top_n": 2});
    for path in ["/v1/rerank", "/v2/rerank"] {
        let found = stand.post(path, &[], asked.to_string()).json();
        let results = found["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "{found}");
        assert_eq!(
            results[0],
            json!({"index": 1, "relevance_score": 0.3_f32, "document": {"text": "ccc"}})
        );
        assert_eq!(
            (&results[1]["index"], &found["model"]),
            (&json!(2), &json!("app"))
        );
    }
    let mut all = asked.clone();
    all["top_n"] = json!(0);
    let found = stand.post("/v1/rerank", &[], all.to_string()).json();
    assert_eq!(found["results"].as_array().map(Vec::len), Some(3), "{found}");
    assert_eq!(found["meta"]["billed_units"], json!({"search_units": 1}));
    let refused = stand.post(
        "/v1/rerank",
        &[],
        json!({"query": "q", "documents": []}).to_string(),
    );
    assert_eq!(refused.status, 400);
}

/// Finds the first word of a text, unless it is `nothing`.
struct FindsFirstWord;

impl Model for FindsFirstWord {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let find = |inputs: &Inputs| {
            let text = inputs[0].to_texts()?[0];
            let strategy = inputs.get(1).map(Tensor::to_texts).transpose()?;
            let label = if strategy.is_some_and(|names| names == ["none"]) {
                "B-PER"
            } else {
                "PER"
            };
            let (word, _) = text.split_once(' ').unwrap_or((text, ""));
            let end = i64::try_from(word.chars().count()).unwrap();
            let mut outputs = vec![
                Tensor::from_f32("logits", &[1, 2], &[0.0, 1.0])?,
                Tensor::from_f32("confidence", &[1], &[0.5])?,
                Tensor::from_i64("token_spans", &[1, 2], &[0, end])?,
            ];
            if word != "nothing" {
                outputs.push(Tensor::from_texts("entities", &[label])?);
                outputs.push(Tensor::from_f32("entity_scores", &[1], &[0.75])?);
                outputs.push(Tensor::from_texts("entity_words", &[word])?);
                outputs.push(Tensor::from_i64("entity_spans", &[1, 2], &[0, end])?);
            }
            Ok(outputs)
        };
        batch.iter().map(find).collect()
    }
}

#[test]
fn entities_have_the_form_of_transformers() {
    let plan = Plan::cascade("app").stage("only", "finder");
    let service = Service::new("app")
        .plan(plan.build().unwrap())
        .model("finder", || Ok::<_, String>(FindsFirstWord));
    let options = AppOptions::new("app").default_budget(TIMEOUT).max_budget(TIMEOUT);
    let stand = Stand::of(service, options, Limits::default());
    let ask = |body: &str| stand.post("/predict", &[], body).json();
    let entity = json!({"entity_group": "PER", "score": 0.75, "word": "Éva", "start": 0, "end": 3});
    assert_eq!(ask(r#"{"inputs":"Éva was here"}"#), json!([entity]));
    assert_eq!(
        ask(r#"{"inputs":[["nothing else"],["Éva"]]}"#),
        json!([[], [entity]])
    );
    let raw = ask(r#"{"inputs":"Éva","parameters":{"aggregation_strategy":"none"}}"#);
    assert_eq!(raw[0]["entity"], "B-PER");
    // It was ignored.
    let without = ask(r#"{"inputs":"Éva","parameters":{"ignore_labels":["PER"]}}"#);
    assert_eq!(without, json!([]));
    let others = ask(r#"{"inputs":"Éva","parameters":{"ignore_labels":["O", "LOC"]}}"#);
    assert_eq!(others, json!([entity]));
}

#[test]
fn models_and_errors_have_openais_form() {
    let stand = stand();
    let models = stand.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "app");
    assert_eq!(models["data"][0]["variants"], json!(["small", "large"]));
    assert_eq!(stand.get("/v1/models/app").json()["object"], "model");
    let unknown = stand.get("/v1/models/gpt-7");
    assert_eq!(unknown.status, 404);
    let message = unknown.json()["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains("`app`"), "{message}");
    let mut other = chat("x");
    other["model"] = json!("gpt-7");
    let cases = [
        (other.to_string(), 404, "model"),
        (
            json!({"model": "app", "messages": []}).to_string(),
            400,
            "messages",
        ),
        (
            json!({"model": "app", "messages": "x"}).to_string(),
            400,
            "messages",
        ),
    ];
    for (body, status, param) in cases {
        let answer = stand.post("/v1/chat/completions", &[], body);
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, status, "{error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param);
        for field in ["message", "type", "code"] {
            assert!(error[field].is_string(), "{error}");
        }
    }
    for (fields, param) in [
        (json!({"prompt": [1, 2], "echo": true}), "echo"),
        (json!({"prompt": "x", "echo": true, "logprobs": 1}), "echo"),
        (json!({"prompt": "x", "best_of": 2}), "best_of"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "x", "n": 129}), "n"),
        (json!({"prompt": "x", "stop": vec!["s"; 17]}), "stop"),
    ] {
        let answer = stand.post("/v1/completions", &[], fields.to_string());
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}"
        );
    }
}

#[test]
fn tokens_are_counted_as_the_variant_that_answered_counts_them() {
    let stand = stand();
    // The large model counts its prompt, as a remote one does; its tokens are not listed.
    let found = stand
        .post(
            "/v1/chat/completions",
            &[],
            chat("counted by an endpoint").to_string(),
        )
        .json();
    assert_eq!(found["usage"]["prompt_tokens"], 40);
    assert_eq!(found["usage"]["completion_tokens"], 2);
    assert_eq!(found["usage"]["total_tokens"], 42);
}
