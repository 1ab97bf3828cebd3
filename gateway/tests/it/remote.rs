//! Chats through a cascade of a local language model and one behind an endpoint.

use std::path::Path;
use std::time::Duration;

use kaskade_actors::{App, Client, Code, Service};
use kaskade_gateway::{AppOptions, Limits};
use kaskade_models::generation::SamplingOptions;
use kaskade_models::{
    Availability, Continuous, Device, Inputs, LoadOptions, Model, ModelError, Outputs, Signature, Tensor,
    load,
};
use kaskade_policy::plan::Plan;
use kaskade_remote::{Api, Chat, ChatTask, Confidence, Endpoint, Fields, Style, connect};
use kaskade_testkit::TIMEOUT;
use kaskade_testkit::endpoint::{Does, Request, Server};
use serde_json::{Value, json};

use crate::openai;
use crate::support::{Stand, events};

const CHAT: &str = "/v1/chat/completions";

/// A threshold that no answer reaches, and one that every answer does; 0 is none.
const ALWAYS: f64 = 1.0;
const NEVER: f64 = 1e-9;

/// A loaded model.
struct Any(Box<dyn Model>);

impl Model for Any {
    fn signature(&self) -> Signature {
        self.0.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.0.run(batch)
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        self.0.continuous()
    }

    fn availability(&self) -> Option<Availability> {
        self.0.availability()
    }
}

/// The smallest of the examples' language models, with a chat template.
fn small(folder: &Path) -> Result<Any, String> {
    let weights =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/shakespeare/weights/shakespeare-pico");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(weights.join(file), folder.join(file)).unwrap();
    }
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let loaded = load(folder, &Device::Cpu, &LoadOptions::default()).map_err(|error| error.to_string())?;
    Ok(Any(loaded.model))
}

fn endpoint(base_url: String, style: Style) -> Endpoint {
    Endpoint {
        name: "large".to_owned(),
        base_url,
        key: None,
        ca: None,
        api: Api::Chat(Chat {
            model: "app".to_owned(),
            task: ChatTask::Generate,
            system: None,
            prompt: "{text}".to_owned(),
            sampling: SamplingOptions::default(),
            top_logprobs: 1,
            style,
            confidence: Confidence::Logprobs,
            fields: Fields::default(),
        }),
        price: None,
        concurrency: 8.try_into().unwrap(),
        timeout: Duration::from_secs(20),
        retry: kaskade_policy::remote::retry::RetryConfig::default(),
        breaker: kaskade_policy::remote::breaker::BreakerConfig::default(),
        cache: None,
        spend_limit: None,
    }
}

/// A cascade that passes on what the local model is less sure about than `threshold`.
fn cascade(threshold: f64, large: Endpoint) -> Stand {
    let plan = Plan::cascade("verses")
        .stage("first", "small")
        .below(threshold)
        .then("second", "large");
    let service = Service::new("verses")
        .plan(plan.build().unwrap())
        .model("small", || small(tempfile::tempdir().unwrap().path()))
        .model("large", move || connect(&large).map(|loaded| Any(loaded.model)));
    let options = AppOptions::new("verses")
        .default_budget(TIMEOUT)
        .max_budget(TIMEOUT);
    Stand::of(service, options, Limits::default())
}

/// The ingress sent the request again at once, up to sixteen times.
#[test]
fn requests_that_are_sent_again_keep_the_pause_that_the_endpoint_asks_for() {
    let server = Server::start(|_, _| Does::Answer(429, "retry-after: 30\r\n".to_owned(), Vec::new()));
    let large = endpoint(server.url() + "/v1", Style::Chat);
    let plan = Plan::cascade("busy").stage("only", "large").build().unwrap();
    let node = Service::new("busy")
        .plan(plan)
        .model("large", move || connect(&large).map(|loaded| Any(loaded.model)))
        .start()
        .unwrap();
    let client = Client::new(node.bus(), App::new("busy").unwrap()).retry(false);
    let text = vec![Tensor::from_texts("text", &["to be"]).unwrap()];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fault = runtime
        .block_on(client.infer(text, Duration::from_secs(2)))
        .unwrap_err();
    assert_eq!(fault.code, Code::EndpointUnavailable, "{fault}");
    assert_eq!(server.calls(), 1);
    node.stop();
}

/// Says `to be` in two events, with the two most probable tokens of each.
fn says(_: &Request, _: usize) -> Does {
    let event = |token: &str, finish: Value| {
        let top = json!([{"token": "or", "logprob": -3.0}, {"token": token, "logprob": -0.1}]);
        json!({"choices": [{"delta": {"content": token}, "finish_reason": finish,
            "logprobs": {"content": [{"token": token, "logprob": -0.1, "top_logprobs": top}]}}]})
        .to_string()
    };
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}).to_string();
    let events = vec![
        event("to", Value::Null),
        event(" be", json!("stop")),
        usage,
        "[DONE]".to_owned(),
    ];
    Does::Stream(events, true)
}

fn asked() -> Value {
    json!({"model": "verses", "max_tokens": 4, "messages": [
        {"role": "system", "content": "Speak in verses."},
        {"role": "user", "content": [{"type": "text", "text": "O Romeo, "}, {"type": "text", "text": "Romeo!"}]},
    ]})
}

fn last_body(server: &Server) -> Value {
    serde_json::from_slice(&server.requests.lock().unwrap().last().unwrap().body).unwrap()
}

#[test]
fn a_chat_that_escalates_reaches_the_endpoint_with_its_messages_and_options() {
    let server = Server::start(says);
    let stand = cascade(ALWAYS, endpoint(server.url() + "/v1", Style::Chat));
    let mut chat = asked();
    let options = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.25, "frequency_penalty": -0.25, "seed": 3, "stop": ["\n", "END"]});
    for (name, value) in options.as_object().unwrap() {
        chat[name] = value.clone();
    }
    chat["logprobs"] = json!(true);
    chat["top_logprobs"] = json!(2);
    let answer = stand.post(CHAT, &[], chat.to_string());
    let found = answer.json();
    assert_eq!(answer.status, 200, "{found}");
    assert_eq!(found["choices"][0]["message"]["content"], "to be");
    assert_eq!(found["usage"]["kaskade"]["variant"], "large");
    // The pieces of its answer counted as requests of a batch.
    assert_eq!(found["usage"]["kaskade"]["hops"][1]["batch"], 1, "{found}");
    assert_eq!(
        (
            &found["usage"]["prompt_tokens"],
            &found["usage"]["completion_tokens"]
        ),
        (&json!(9), &json!(2))
    );
    let place = &found["choices"][0]["logprobs"]["content"][0];
    assert_eq!(
        (&place["token"], &place["top_logprobs"][0]["token"]),
        (&json!("to"), &json!("to"))
    );
    assert_eq!(place["top_logprobs"][1]["token"], "or");
    let body = last_body(&server);
    for (name, value) in options.as_object().unwrap() {
        assert_eq!(&body[name], value, "{name}: {body}");
    }
    assert_eq!(
        (&body["max_tokens"], &body["top_logprobs"]),
        (&json!(4), &json!(2))
    );
    assert_eq!(
        body["messages"],
        json!([{"role": "system", "content": "Speak in verses."}, {"role": "user", "content": [
            {"type": "text", "text": "O Romeo, "}, {"type": "text", "text": "Romeo!"}]}])
    );

    let mut streamed = asked();
    streamed["stream"] = json!(true);
    let chunks = events(&stand.post(CHAT, &[], streamed.to_string()).body);
    let said: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .filter(|text| !text.is_empty())
        .collect();
    assert_eq!(said, ["to", " be"], "parts are passed on as they come");
    assert_eq!(chunks.last().unwrap()["kaskade"]["variant"], "large");

    let mut two = asked();
    two["n"] = json!(2);
    let found = stand.post(CHAT, &[], two.to_string()).json();
    assert_eq!(found["choices"].as_array().map(Vec::len), Some(2), "{found}");

    let response = json!({"input": "Who is it?", "instructions": "Be brief.", "max_output_tokens": 4});
    let found = stand.post("/v1/responses", &[], response.to_string()).json();
    assert_eq!(found["output"][0]["content"][0]["text"], "to be", "{found}");
    assert_eq!(
        last_body(&server)["messages"],
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is it?"}])
    );
}

#[test]
fn a_chat_that_stays_local_makes_no_call() {
    let server = Server::start(says);
    let stand = cascade(NEVER, endpoint(server.url() + "/v1", Style::Chat));
    for stream in [false, true] {
        let mut chat = asked();
        chat["stream"] = json!(stream);
        let answer = stand.post(CHAT, &[], chat.to_string());
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let variant = if stream {
            events(&answer.body).last().unwrap()["kaskade"]["variant"].clone()
        } else {
            answer.json()["usage"]["kaskade"]["variant"].clone()
        };
        assert_eq!(variant, "small");
    }
    assert_eq!(server.calls(), 0);
}

#[test]
fn another_kaskade_answers_what_the_local_model_passes_on() {
    let other = openai::stand();
    let stand = cascade(
        ALWAYS,
        endpoint(format!("http://{}/v1", other.address()), Style::Chat),
    );
    for stream in [false, true] {
        let mut chat = asked();
        (chat["stream"], chat["max_tokens"]) = (json!(stream), json!(20));
        let answer = stand.post(CHAT, &[], chat.to_string());
        let said = if stream {
            let chunks = events(&answer.body);
            let said = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
            said.collect()
        } else {
            answer.json()["choices"][0]["message"]["content"]
                .as_str()
                .map_or_else(|| panic!("{}", answer.json()), str::to_owned)
        };
        assert_eq!(said, "O ROMEO, ROMEO!");
    }
}

#[test]
fn what_an_endpoint_has_no_form_for_is_a_typed_error() {
    let server = Server::start(says);
    let stand = cascade(ALWAYS, endpoint(server.url() + "/v1", Style::Completions));
    let answer = stand.post(CHAT, &[], asked().to_string());
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(
        last_body(&server)["prompt"],
        "Speak in verses.\n\nO Romeo, \nRomeo!"
    );
    let calls = server.calls();
    let conversation = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}]});
    let answer = stand.post(CHAT, &[], conversation.to_string());
    let error = answer.json()["error"].clone();
    assert_eq!(
        (answer.status, &error["code"]),
        (422, &json!("KSK0003")),
        "{error}"
    );
    assert!(
        error["message"].as_str().unwrap().contains("conversation"),
        "{error}"
    );
    let image = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}]});
    let answer = stand.post(CHAT, &[], image.to_string());
    assert_eq!(
        (answer.status, &answer.json()["error"]["param"]),
        (400, &json!("messages"))
    );
    assert_eq!(server.calls(), calls, "nothing was sent");
}
