//! What clients in use send beside what the specifications show.

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};

use crate::openai;
use crate::support::Stand;

const INFER: &str = "/v2/models/app/infer";

#[test]
fn null_is_read_like_a_missing_field() {
    // Clients that write their structures whole, such as those of MLServer's types.
    let stand = Stand::cascade(Limits::default());
    let asked = json!({
        "id": null, "parameters": null, "outputs": null,
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [3], "parameters": null}],
    });
    let answer = stand.post(INFER, &[], asked.to_string());
    assert_eq!(answer.status, 200, "{}", answer.json());
    let mut asked = asked;
    asked["outputs"] = json!([{"name": "x", "parameters": null}, {"name": "x", "parameters": {"classification": null, "binary_data": null}}]);
    asked["parameters"] = json!({"content_type": null, "binary_data_output": null, "headers": {}});
    let answer = stand.post(INFER, &[], asked.to_string());
    assert_eq!(answer.status, 200, "{}", answer.json());

    let stand = openai::stand();
    let mut everything = json!({"model": "app", "messages": [{"role": "user", "content": "hi", "name": null, "tool_calls": null}]});
    for field in [
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "n",
        "stream",
        "tools",
        "functions",
        "function_call",
        "tool_choice",
        "response_format",
        "logit_bias",
        "modalities",
        "logprobs",
        "top_logprobs",
        "user",
        "metadata",
        "store",
        "parallel_tool_calls",
        "service_tier",
        "reasoning_effort",
    ] {
        everything[field] = Value::Null;
    }
    for options in [json!(null), json!({}), json!({"include_usage": null})] {
        everything["stream_options"] = options;
        let answer = stand.post("/v1/chat/completions", &[], everything.to_string());
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
    for (path, asked) in [
        (
            "/predict",
            json!({"inputs": "hi", "raw_scores": null, "parameters": null, "truncate": null}),
        ),
        (
            "/rerank",
            json!({"query": "q", "texts": ["a"], "raw_scores": null, "return_text": null}),
        ),
        ("/embed", json!({"inputs": "hi", "normalize": null})),
    ] {
        let answer = stand.post(path, &[], asked.to_string());
        assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    }
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    let stand = openai::stand();
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (path, asked, field) in [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "temperature": "hot"}),
            "temperature",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 2.5}),
            "max_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream": "yes"}),
            "stream",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"content": "hi"}]}),
            "messages",
        ),
        ("/v1/chat/completions", json!({"temperature": 1}), "messages"),
        ("/v1/completions", json!({"prompt": "hi", "seed": "x"}), "seed"),
        (
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": "many"}),
            "max_output_tokens",
        ),
        (
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": 0}),
            "max_output_tokens",
        ),
        (
            "/v1/embeddings",
            json!({"input": "hi", "encoding_format": 5}),
            "encoding_format",
        ),
    ] {
        let answer = stand.post(path, &[], asked.to_string());
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(field)),
            "{path} {asked}: {error}"
        );
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
    for (path, asked, field) in [
        ("/rerank", json!({"query": 5, "texts": ["a"]}), "`query`"),
        (
            "/embed",
            json!({"inputs": "hi", "normalize": "yes"}),
            "`normalize`",
        ),
        (INFER, json!({"inputs": [], "id": 7}), "`id`"),
        (INFER, json!({"outputs": []}), "`inputs`"),
    ] {
        let answer = stand.post(path, &[], asked.to_string());
        let error = answer.json()["error"].clone();
        assert!(
            answer.status == 400 && error.as_str().unwrap().contains(field),
            "{path} {asked}: {error}"
        );
    }
}

/// It was ignored.
#[test]
fn embeddings_of_truncated_prompts_are_refused() {
    let stand = openai::stand();
    let ask = |tokens: Value| {
        let asked = json!({"model": "app", "input": "a", "truncate_prompt_tokens": tokens});
        stand.post("/v1/embeddings", &[], asked.to_string())
    };
    for all in [json!(null), json!(-1)] {
        assert_eq!(ask(all).status, 200);
    }
    let refused = ask(json!(4));
    let param = refused.json()["error"]["param"].clone();
    assert_eq!((refused.status, param), (400, json!("truncate_prompt_tokens")));
}

#[test]
fn embeddings_have_the_stated_size_up_to_that_of_the_model() {
    let stand = openai::stand();
    let ask = |dimensions: Value| {
        let asked = json!({"model": "app", "input": "a", "dimensions": dimensions});
        stand.post("/v1/embeddings", &[], asked.to_string())
    };
    // Clients that store vectors state the size of their table.
    assert_eq!(ask(json!(2)).status, 200);
    assert_eq!(ask(json!(null)).status, 200);
    let shortened = ask(json!(1)).json()["data"][0]["embedding"].clone();
    assert_eq!(shortened.as_array().unwrap().len(), 1);
    let length = shortened[0].as_f64().unwrap().abs();
    assert!((length - 1.0).abs() < 1e-6, "{length}");
    let refused = ask(json!(3));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["param"]), (400, &json!("dimensions")));
    assert!(error["message"].as_str().unwrap().contains('2'), "{error}");
}

#[test]
fn a_name_in_a_path_that_is_no_text_is_refused_in_the_form_of_its_api() {
    let stand = Stand::cascade(Limits::default());
    let answer = stand.get("/v1/models/%ff");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "KSK0001");
    let answer = stand.get("/v2/models/app/versions/%ff/ready");
    assert!(answer.status == 400 && answer.json()["error"].is_string());
    assert_eq!(stand.get("/v2/models/%61pp/ready").status, 200);
    assert_eq!(stand.get("/v1/models/a%2Fb").status, 404);
}

#[test]
fn the_index_lists_on_request_only_what_is_ready() {
    let stand = Stand::cascade(Limits::default());
    let rows = |body: &str| {
        let answer = stand.post("/v2/repository/index", &[], body);
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json().as_array().unwrap().clone()
    };
    let is_ready = |rows: &[Value]| rows.iter().filter(|row| row["state"] == "READY").count();
    assert_eq!(rows("").len(), 2);
    assert_eq!(rows("{}").len(), 2);
    let ready = rows(r#"{"ready": true}"#);
    assert_eq!(ready.len(), is_ready(&ready));
    assert_eq!(
        stand
            .post("/v2/repository/index", &[], r#"{"ready": "yes"}"#)
            .status,
        400
    );
}

#[test]
fn statistics_say_when_the_last_inference_was() {
    let stand = Stand::cascade(Limits::default());
    let last = || stand.get("/v2/models/app/stats").json()["model_stats"][0]["last_inference"].clone();
    assert_eq!(last(), 0);
    let asked = json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [3]}]});
    assert_eq!(stand.post(INFER, &[], asked.to_string()).status, 200);
    let first = last();
    assert!(first.as_u64().unwrap() > 0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(last(), first, "a look at the statistics is no inference");
}

/// Embeds a text as its length and 0; counts the tokens of one that begins with a 1.
struct Embeds;

impl Model for Embeds {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let embed = |inputs: &Inputs| {
            let text = inputs[0].to_texts()?[0];
            let mut outputs = vec![Tensor::from_f32("embedding", &[2], &[text.len() as f32, 0.0])?];
            if text.starts_with('1') {
                outputs.push(Tensor::from_i64("usage", &[2], &[7, 0])?);
            }
            Ok(outputs)
        };
        batch.iter().map(embed).collect()
    }
}

#[test]
fn a_post_to_the_address_itself_predicts_or_embeds_as_the_app_does() {
    // Hugging Face's client knows the address of a server, and no paths.
    let stand = openai::stand();
    let predicted = stand.post("/predict", &[], r#"{"inputs":"a"}"#).json();
    assert_eq!(stand.post("/", &[], r#"{"inputs":"a"}"#).json(), predicted);
    let several = stand
        .post("/", &[], r#"{"inputs":["a","b"],"parameters":{}}"#)
        .json();
    assert_eq!(several.as_array().unwrap().len(), 2, "no pair: {several}");
    let wrong = stand.post("/", &[], r#"{"inputs":7}"#);
    assert!(wrong.status == 400 && wrong.json()["error"].as_str().unwrap().contains("`inputs`"));
    assert!(
        stand
            .get("/")
            .header("content-type")
            .unwrap()
            .starts_with("text/html")
    );

    let service = Service::new("app").model("embeds", || Ok::<_, String>(Embeds));
    let stand = Stand::of(
        service,
        AppOptions::new("app").default_budget(TIMEOUT),
        Limits::default(),
    );
    let asked = json!({"inputs": ["abc", "a"], "normalize": false, "truncate": null});
    assert_eq!(
        stand.post("/", &[], asked.to_string()).json(),
        json!([[3.0, 0.0], [1.0, 0.0]])
    );
    assert_eq!(
        stand.post("/", &[], r#"{"inputs":"abc"}"#).json(),
        json!([[1.0, 0.0]])
    );
}

#[test]
fn tokens_of_embeddings_are_those_that_the_variant_counts_and_never_null() {
    let service = Service::new("app").model("embeds", || Ok::<_, String>(Embeds));
    let options = AppOptions::new("app").max_budget(TIMEOUT);
    let stand = Stand::of(service, options, Limits::default());
    let count = |input: Value| {
        let asked = json!({"model": "app", "input": input});
        let usage = stand.post("/v1/embeddings", &[], asked.to_string()).json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], usage["total_tokens"], "{usage}");
        usage["prompt_tokens"].clone()
    };
    assert_eq!(count(json!(["1", "1 and 2"])), 14);
    // Haystack adds up the counts of its batches.
    assert_eq!(count(json!(["1", "2"])), 0);
}

/// Scores texts and pairs, and counts 3 tokens of each text.
struct Scores;

impl Model for Scores {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let score = |inputs: &Inputs| {
            let tokens = 3 * i64::try_from(inputs.len()).unwrap();
            Ok(vec![
                Tensor::from_f32("logits", &[1], &[0.5])?,
                Tensor::from_i64("usage", &[2], &[tokens, 0])?,
            ])
        };
        batch.iter().map(score).collect()
    }
}

#[test]
fn headers_say_how_much_was_computed_for_texts() {
    let options = || AppOptions::new("app").max_budget(TIMEOUT);
    let service = Service::new("app").model("scores", || Ok::<_, String>(Scores));
    let scores = Stand::of(service, options(), Limits::default());
    let service = Service::new("app").model("embeds", || Ok::<_, String>(Embeds));
    let embeds = Stand::of(service, options(), Limits::default());
    for (stand, path, asked, characters, tokens) in [
        (&scores, "/predict", json!({"inputs": "hé"}), "2", Some("3")),
        (
            &scores,
            "/predict",
            json!({"inputs": [["a", "bc"], ["d"]]}),
            "4",
            Some("9"),
        ),
        (&scores, "/", json!({"inputs": ["a", "bc"]}), "3", Some("6")),
        (
            &scores,
            "/rerank",
            json!({"query": "ab", "texts": ["c", "d"]}),
            "4",
            Some("12"),
        ),
        (&embeds, "/embed", json!({"inputs": ["1", "1é"]}), "3", Some("14")),
        (&embeds, "/", json!({"inputs": "1"}), "1", Some("7")),
        // The second text's tokens are unknown, so their sum is.
        (&embeds, "/embed", json!({"inputs": ["1", "2"]}), "2", None),
    ] {
        let answer = stand.post(path, &[], asked.to_string());
        assert_eq!(answer.status, 200, "{path} {asked}");
        let found = ["x-compute-characters", "x-compute-tokens"].map(|name| answer.header(name));
        assert_eq!(found, [Some(characters), tokens], "{path} {asked}");
    }
}
