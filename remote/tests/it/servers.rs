//! Answers as servers of other people write them: llama.cpp, Ollama, vLLM, `FastAPI`, proxies.

use kaskade_remote::Judge;
use kaskade_remote::endpoint::VERDICTS;
use kaskade_testkit::endpoint::Ends;
use serde_json::json;

use super::*;

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";

/// Asks for a text that is streamed to the client.
fn asked(server: &Server) -> (Vec<String>, Result<Outputs, ModelError>) {
    let mut endpoint = endpoint(server, ChatTask::Generate);
    let Api::Chat(chat) = &mut endpoint.api else {
        panic!("it chats")
    };
    chat.top_logprobs = 0;
    endpoint.timeout = Duration::from_secs(5);
    endpoint.retry.retries = 1;
    let (parts, end, _) = within(&endpoint, Duration::from_secs(20));
    (parts, end)
}

/// A server that sends these bytes as the body of a stream, in pieces of this size.
fn streams(body: &str, size: usize, ends: Ends) -> Server {
    let pieces: Vec<Vec<u8>> = body.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
    let pieces = [vec![HEAD.as_bytes().to_vec()], pieces].concat();
    Server::start(move |_, _| Does::Raw(pieces.clone(), ends))
}

fn delta(delta: &str, finish: &str) -> String {
    format!(
        "{{\"id\": \"c\", \"object\": \"chat.completion.chunk\", \"choices\": [{{\"index\": 0, \"delta\": {delta}, \"logprobs\": null, \"finish_reason\": {finish}}}], \"usage\": null}}"
    )
}

#[test]
fn streams_are_read_however_they_are_written_and_cut() {
    let say = |text: &str| delta(&format!("{{\"content\": \"{text}\"}}"), "null");
    let first = delta("{\"role\": \"assistant\", \"content\": null}", "null");
    let last = delta("{}", "\"stop\"");
    let usage =
        "{\"choices\": [], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 2, \"total_tokens\": 5}}";
    let common = format!(
        "data: {first}\n\ndata: {}\n\ndata: {}\n\ndata: {last}\n\ndata: {usage}\n\ndata: [DONE]\n\n",
        say("ça "),
        say("va ☕")
    );
    let windows = format!(
        "\u{feff}: OPENROUTER PROCESSING\r\n\r\nevent: message\r\nid: 1\r\nretry: 10\r\ndata:{first}\r\n\r\ndata:{}\r\n\r\n: ping\r\n\r\ndata:{}\r\n\r\n\
         data:{last}\r\n\r\ndata:{usage}\r\n\r\ndata:[DONE]\r\n\r\n",
        say("ça "),
        say("va ☕")
    );
    let null = format!(
        "data: {{\"choices\": null}}\n\ndata: {}\n\ndata: {}\n\ndata: {}\n\ndata: {usage}",
        say("ça "),
        say("va ☕"),
        delta("null", "\"stop\"")
    );
    for (name, body) in [("common", &common), ("windows", &windows), ("null", &null)] {
        for size in [1, 7, body.len()] {
            let (parts, end) = asked(&streams(body, size, Ends::Closed));
            let outputs = end.unwrap_or_else(|error| panic!("{name}, {size}: {error}"));
            assert_eq!(parts.concat(), "ça va ☕", "{name}, {size}");
            assert_eq!(named(&outputs, "text").to_texts().unwrap(), ["ça va ☕"]);
            assert_eq!(
                named(&outputs, "usage").to_i64().unwrap(),
                [3, 2],
                "{name}, {size}"
            );
        }
    }
}

#[test]
fn an_answer_ends_with_its_mark_and_not_with_its_connection() {
    let body = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        delta("{\"content\": \"yes\"}", "\"stop\"")
    );
    let (parts, end) = asked(&streams(&body, body.len(), Ends::Silent));
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(parts, ["yes"]);
}

#[test]
fn a_server_that_does_not_stream_is_read_all_the_same() {
    let whole =
        json!({"choices": [{"message": {"role": "assistant", "content": "to be"}, "finish_reason": "stop"}]})
            .to_string();
    let head = "content-type: application/json\r\n".to_owned();
    let server = Server::start(move |_, _| Does::Answer(200, head.clone(), whole.clone().into_bytes()));
    let (parts, end) = asked(&server);
    assert_eq!(named(&end.unwrap(), "text").to_texts().unwrap(), ["to be"]);
    assert!(parts.is_empty());
}

#[test]
fn errors_in_answers_of_success_are_errors() {
    let (busy, wrong) = (
        r#"{"error": {"message": "slow down", "code": 429}}"#,
        r#"{"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}"#,
    );
    for (said, repeated) in [
        (busy, true),
        (r#"{"error": "out of memory"}"#, true),
        (wrong, false),
    ] {
        let stream = format!("data: {said}\n\ndata: [DONE]\n\n");
        for server in [
            streams(&stream, stream.len(), Ends::Closed),
            Server::start(move |_, _| {
                Does::Answer(
                    200,
                    "content-type: application/json\r\n".to_owned(),
                    said.as_bytes().to_vec(),
                )
            }),
        ] {
            let (_, end) = asked(&server);
            let message = end.unwrap_err().to_string();
            let cause = ["slow down", "out of memory", "too long"];
            assert!(
                cause.iter().any(|cause| message.contains(cause)),
                "{said}: {message}"
            );
            assert_eq!(server.calls(), if repeated { 2 } else { 1 }, "{said}");
        }
    }
    let broken = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        delta("{\"content\": \"a\"}", "\"error\"")
    );
    let (_, end) = asked(&streams(&broken, broken.len(), Ends::Closed));
    assert!(matches!(end, Err(ModelError::Unavailable { .. })), "{end:?}");
}

#[test]
fn fields_that_say_nothing_are_read_as_missing() {
    let body = json!({"choices": [{"index": 0, "stop_reason": null, "message": {"role": "assistant", "tool_calls": [], "reasoning_content": null,
        "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "od"}, {"type": "image"}]},
        "logprobs": {"refusal": null, "content": [{"token": "good", "bytes": null, "logprob": -0.1, "top_logprobs": null}]}}],
        "usage": {"prompt_tokens": 3.5, "completion_tokens": "many"}, "system_fingerprint": null, "timings": {"x": 1}});
    let server = Server::start(move |_, _| ok(&body.to_string()));
    let answer = model(&endpoint(&server, classify()))
        .model
        .run(&[text("fine")])
        .remove(0);
    let outputs = answer.unwrap();
    let logits = named(&outputs, "logits").to_f32().unwrap();
    assert!(logits[1] > logits[0], "{logits:?}");
    assert!(
        outputs
            .iter()
            .all(|output| output.name != "usage" && output.name != "cost"),
        "tokens that are not counted are unknown: {outputs:?}"
    );
    let silent = Server::start(|_, _| {
        ok(r#"{"choices": [{"message": {"content": "good"}, "logprobs": null}], "usage": null}"#)
    });
    let answer = model(&endpoint(&silent, classify()))
        .model
        .run(&[text("fine")])
        .remove(0);
    assert!(
        matches!(&answer, Err(ModelError::BadOutput { reason }) if reason.contains("top_logprobs = 0")),
        "{answer:?}"
    );
}

#[test]
fn an_empty_text_is_never_a_confident_answer() {
    let empty = r#"{"choices": [{"message": {"content": null}}, {"message": {"content": ""}}, {"message": {"content": " "}}]}"#;
    let server = Server::start(move |_, _| ok(empty));
    let mut silent = endpoint(&server, ChatTask::Generate);
    let judge = Judge {
        chat: Chat {
            model: "judge".to_owned(),
            task: ChatTask::Classify {
                labels: VERDICTS.map(str::to_owned).to_vec(),
            },
            system: None,
            prompt: "{text} {answer}".to_owned(),
            sampling: at_most(8),
            top_logprobs: 5,
            style: Style::Chat,
            confidence: Confidence::Logprobs,
            fields: Fields::default(),
        },
        at: None,
        price: None,
    };
    for confidence in [
        Confidence::Logprobs,
        Confidence::Agreement {
            samples: 3,
            temperature: 0.7,
        },
        Confidence::Judge(Box::new(judge)),
    ] {
        let Api::Chat(chat) = &mut silent.api else {
            panic!("it chats")
        };
        chat.top_logprobs = u32::from(confidence == Confidence::Logprobs);
        chat.confidence = confidence;
        // Whole answers, as when they are recorded.
        let folder = tempfile::tempdir().unwrap();
        silent.cache = Some(folder.path().to_owned());
        let before = server.calls();
        let answer = model(&silent).model.run(&[text("fine")]).remove(0);
        let sure = named(&answer.unwrap(), "confidence").to_f32().unwrap()[0];
        assert!(sure < 1e-6, "{sure} by {:?}", silent.api);
        assert_eq!(server.calls(), before + 1, "a judge has nothing to read");
    }
}

/// Refuses what OpenAI's models that think first refuse, and answers otherwise.
fn thinks_first() -> Server {
    Server::start(|request, _| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let refused = |parameter: &str, code: &str, message: &str| {
            let error = json!({"error": {"message": message, "type": "invalid_request_error", "param": parameter, "code": code}});
            Does::Answer(400, String::new(), error.to_string().into_bytes())
        };
        if body.get("max_tokens").is_some() {
            let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
            return refused("max_tokens", "unsupported_parameter", message);
        }
        if body.get("logprobs").is_some() {
            let message = "Unsupported parameter: 'logprobs' is not supported with this model.";
            return refused("logprobs", "unsupported_parameter", message);
        }
        if body
            .get("temperature")
            .is_some_and(|temperature| *temperature != 1.0)
        {
            let message = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.";
            return refused("temperature", "unsupported_value", message);
        }
        assert_eq!(body["max_completion_tokens"], 8);
        if body.get("stream").is_some() {
            return Does::Stream(
                vec![delta("{\"content\": \"good\"}", "\"stop\""), "[DONE]".to_owned()],
                true,
            );
        }
        ok(
            &json!({"choices": [{"message": {"content": "good"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
            .to_string(),
        )
    })
}

#[test]
fn a_model_that_wants_the_newer_limit_gets_it() {
    let server = thinks_first();
    let mut large = endpoint(&server, classify());
    // A refusal is no failed call that may be repeated.
    large.retry.retries = 0;
    let bare = |endpoint: &mut Endpoint| {
        if let Api::Chat(chat) = &mut endpoint.api {
            chat.top_logprobs = 0;
        }
    };
    bare(&mut large);
    let mut loaded = model(&large);
    let mut ask = || loaded.model.run(&[text("fine")]).remove(0);
    let outputs = ask().unwrap();
    assert_eq!(named(&outputs, "label").to_texts().unwrap(), ["good"]);
    assert!((cost(&outputs) - 13.0).abs() < 1e-9, "refused calls cost nothing");
    assert_eq!(server.calls(), 3, "two refusals");
    assert!(ask().is_ok() && ask().is_ok());
    assert_eq!(server.calls(), 5, "both are remembered");
    let mut generates = endpoint(&server, ChatTask::Generate);
    bare(&mut generates);
    let (parts, end, _) = within(&generates, Duration::from_secs(10));
    assert_eq!((parts.concat().as_str(), end.is_ok()), ("good", true));
    // Recorded answers are found again by the request as it was written first.
    let folder = tempfile::tempdir().unwrap();
    large.cache = Some(folder.path().to_owned());
    assert!(model(&large).model.run(&[text("fine")])[0].is_ok());
    let calls = server.calls();
    assert!(model(&large).model.run(&[text("fine")])[0].is_ok());
    assert_eq!(server.calls(), calls);
}

#[test]
fn options_that_an_endpoint_refuses_are_named_with_what_leaves_them_out() {
    let server = thinks_first();
    let (_, end, _) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    let said = end.unwrap_err().to_string();
    assert!(
        said.contains("another `confidence`") && said.contains("top_logprobs = 0"),
        "{said}"
    );
    let mut stated = endpoint(&server, ChatTask::Generate);
    if let Api::Chat(chat) = &mut stated.api {
        chat.top_logprobs = 0;
        chat.sampling.temperature = Some(0.5);
    }
    let (_, end, _) = within(&stated, Duration::from_secs(10));
    let said = end.unwrap_err().to_string();
    assert!(said.contains("`omit = [\"temperature\"]`"), "{said}");
    if let Api::Chat(chat) = &mut stated.api {
        chat.fields.omit = vec!["temperature".to_owned()];
    }
    let (_, end, _) = within(&stated, Duration::from_secs(10));
    assert!(end.is_ok(), "{end:?}");
}

#[test]
fn an_answer_that_is_cut_before_it_begins_names_the_limit() {
    let server =
        Server::start(|_, _| ok(r#"{"choices": [{"message": {"content": ""}, "finish_reason": "length"}]}"#));
    let mut large = endpoint(&server, classify());
    if let Api::Chat(chat) = &mut large.api {
        chat.top_logprobs = 0;
    }
    let answer = model(&large).model.run(&[text("fine")]).remove(0);
    assert!(
        matches!(&answer, Err(ModelError::BadOutput { reason }) if reason.contains("`max_tokens`")),
        "{answer:?}"
    );
}

#[test]
fn a_wrong_address_is_named() {
    let server =
        Server::start(|_, _| Does::Answer(404, String::new(), b"{\"detail\":\"Not Found\"}".to_vec()));
    let mut wrong = endpoint(&server, classify());
    wrong.base_url = server.url() + "/";
    let (_, end, _) = within(&wrong, Duration::from_secs(10));
    let said = end.unwrap_err().to_string();
    let asked = format!("Not Found (asked {}/chat/completions)", server.url());
    assert!(said.contains(&asked), "{said}");
    let moved =
        Server::start(|_, _| Does::Answer(308, "location: https://elsewhere/v1\r\n".to_owned(), Vec::new()));
    let (_, end, _) = within(&endpoint(&moved, classify()), Duration::from_secs(10));
    let said = end.unwrap_err().to_string();
    assert!(said.contains("https://elsewhere/v1"), "{said}");
}

#[test]
fn recorded_answers_are_those_of_one_address() {
    let (here, there) = (
        Server::start(|_, _| ok(&good())),
        Server::start(|_, _| ok(&good())),
    );
    let folder = tempfile::tempdir().unwrap();
    for (server, calls) in [(&here, 1), (&there, 1), (&here, 1)] {
        let mut recording = endpoint(server, classify());
        recording.cache = Some(folder.path().to_owned());
        assert!(model(&recording).model.run(&[text("fine")])[0].is_ok());
        assert_eq!(server.calls(), calls);
    }
}

#[test]
fn a_part_of_the_key_is_shown_nowhere_either() {
    // The message is cut in the middle of the key.
    let said = format!("{}{KEY}", "x".repeat(395));
    let server = Server::start(move |_, _| Does::Answer(400, String::new(), said.clone().into_bytes()));
    let (_, end, _) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    let shown = end.unwrap_err().to_string();
    assert!(!shown.contains("sk-"), "{shown}");
    // A type that does not fit is quoted by the reader of JSON.
    let server = Server::start(|_, _| ok(&format!("{{\"choices\": \"{KEY}\"}}")));
    let (_, end, _) = within(&endpoint(&server, classify()), Duration::from_secs(10));
    let shown = end.unwrap_err().to_string();
    assert!(shown.contains("[redacted]") && !shown.contains(KEY), "{shown}");
}
