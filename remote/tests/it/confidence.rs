//! Confidence by a judge and by agreement, and what both cost.

use kaskade_remote::Judge;
use serde_json::{Value, json};

use super::*;

/// A chat model of that name without log probabilities.
fn bare(endpoint: &Endpoint, confidence: Confidence) -> Endpoint {
    let mut bare = endpoint.clone();
    if let Api::Chat(chat) = &mut bare.api {
        chat.top_logprobs = 0;
        chat.confidence = confidence;
    }
    bare
}

fn judge(at: Option<(String, Option<Secret>)>, price: Option<Price>) -> Confidence {
    Confidence::Judge(Box::new(Judge {
        chat: Chat {
            model: "judge".to_owned(),
            task: ChatTask::Classify {
                labels: vec!["no".to_owned(), "yes".to_owned()],
            },
            system: None,
            prompt: "{text}: {answer}?".to_owned(),
            sampling: at_most(1),
            top_logprobs: 5,
            style: Style::Chat,
            confidence: Confidence::Logprobs,
            fields: Fields::default(),
        },
        at,
        price,
    }))
}

/// The model answers `good` for 3 and 1 tokens, the judge `yes` with probability e^-0.05 for 10 and 1.
fn script(request: &fixture::Request) -> Does {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let answer = if body["model"] == "judge" {
        assert_eq!(body["messages"][0]["content"], "fine: good?");
        json!({"choices": [{"message": {"content": "yes"}, "logprobs": {"content": [{"token": "yes", "logprob": -0.05,
            "top_logprobs": [{"token": "yes", "logprob": -0.05}, {"token": "no", "logprob": -3.02}]}]}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 1}})
    } else {
        json!({"choices": [{"message": {"content": "good"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    };
    ok(&answer.to_string())
}

#[test]
fn a_judge_gives_the_confidence_and_is_paid_for() {
    let server = Server::start(|request, _| script(request));
    let price = Price {
        request: 0.5,
        input_tokens: 0.0,
        output_tokens: 0.0,
    };
    let asked = endpoint(&server, classify());
    let mut judged = model(&bare(&asked, judge(None, Some(price))));
    let outputs = judged.model.run(&[text("fine")]).remove(0).unwrap();
    let logits = named(&outputs, "logits").to_f32().unwrap();
    assert!((logits[1].exp() - 0.951).abs() < 0.01, "{logits:?}");
    assert!((cost(&outputs) - 5.5).abs() < 1e-9);
    assert_eq!(server.calls(), 2);
    // Of a judge without a price the cost is unknown, and so is the sum.
    let mut unpriced = model(&bare(&asked, judge(None, None)));
    let outputs = unpriced.model.run(&[text("fine")]).remove(0).unwrap();
    assert!(outputs.iter().all(|output| output.name != "cost"), "{outputs:?}");
}

#[test]
fn a_judge_elsewhere_has_its_own_key_and_its_failure_is_typed() {
    let (server, other) = (
        Server::start(|request, _| script(request)),
        Server::start(|_, _| Does::Answer(401, String::new(), b"no".to_vec())),
    );
    let key = Secret::new("sk-of-the-judge", "a test").unwrap();
    let at = Some((other.url() + "/v1", Some(key)));
    let mut judged = model(&bare(&endpoint(&server, classify()), judge(at, None)));
    let end = judged.model.run(&[text("fine")]).remove(0);
    assert!(
        matches!(&end, Err(ModelError::Refused { reason }) if reason.contains("401")),
        "{end:?}"
    );
    let request = other.requests.lock().unwrap()[0].clone();
    assert!(
        request.head.contains("Bearer sk-of-the-judge"),
        "{}",
        request.head
    );
}

#[test]
fn samples_are_one_call_that_costs_what_all_cost() {
    let server = Server::start(|_, _| {
        let texts = ["good", "good", "bad", "good"].map(|text| json!({"message": {"content": text}}));
        ok(&json!({"choices": texts, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).to_string())
    });
    let asked = bare(
        &endpoint(&server, classify()),
        Confidence::Agreement {
            samples: 4,
            temperature: 0.7,
        },
    );
    let outputs = model(&asked).model.run(&[text("fine")]).remove(0).unwrap();
    let logits = named(&outputs, "logits").to_f32().unwrap();
    assert!((logits[1].exp() - 3.5 / 5.0).abs() < 1e-3, "{logits:?}");
    assert!((cost(&outputs) - 11.0).abs() < 1e-9);
    assert_eq!(server.calls(), 1);
    let body: Value = serde_json::from_slice(&server.requests.lock().unwrap()[0].body).unwrap();
    assert_eq!(body["n"], 4);
}

/// Ollama and llama.cpp give one choice whatever `n` is.
#[test]
fn an_endpoint_that_ignores_n_is_called_once_for_every_sample() {
    let server = Server::start(|_, number| {
        let text = ["good", "good", "bad", "good"][number % 4];
        ok(&json!({"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).to_string())
    });
    let mut asked = bare(
        &endpoint(&server, classify()),
        Confidence::Agreement {
            samples: 4,
            temperature: 0.7,
        },
    );
    asked.price = Some(Price {
        request: 0.5,
        input_tokens: 1e6,
        output_tokens: 1e6,
    });
    if let Api::Chat(chat) = &mut asked.api {
        chat.sampling.seed = Some(7);
    }
    let outputs = model(&asked).model.run(&[text("fine")]).remove(0).unwrap();
    let logits = named(&outputs, "logits").to_f32().unwrap();
    assert!((logits[1].exp() - 3.5 / 5.0).abs() < 1e-3, "{logits:?}");
    // Four prompts of 3 tokens, four answers of 1, and four requests.
    assert!(
        (cost(&outputs) - (16.0 + 4.0 * 0.5)).abs() < 1e-9,
        "{}",
        cost(&outputs)
    );
    let bodies: Vec<Value> = server
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .collect();
    let seeds: Vec<&Value> = bodies.iter().map(|body| &body["seed"]).collect();
    assert_eq!(
        seeds,
        [&json!(7), &json!(8), &json!(9), &json!(10)],
        "equal seeds would always agree"
    );
    let counts: Vec<Option<&Value>> = bodies.iter().map(|body| body.get("n")).collect();
    assert_eq!(counts, [Some(&json!(4)), None, None, None]);
}

/// Every call is 1 by itself and its prompt; of two samples, the first is paid though the second fails.
#[test]
fn samples_one_at_a_time_keep_the_limit_of_spending() {
    let server = Server::start(|_, number| match number {
        0 => ok(&json!({"choices": [{"message": {"content": "good"}}]}).to_string()),
        _ => Does::Answer(400, String::new(), b"no".to_vec()),
    });
    let mut asked = bare(
        &endpoint(&server, classify()),
        Confidence::Agreement {
            samples: 2,
            temperature: 0.7,
        },
    );
    asked.price = Some(Price {
        request: 1.0,
        input_tokens: 0.0,
        output_tokens: 0.0,
    });
    asked.spend_limit = Some(SpendLimit::new(2.5));
    let mut model = model(&asked);
    let first = model.model.run(&[text("fine")]).remove(0).unwrap_err();
    assert!(first.to_string().contains("400"), "{first}");
    // 1 is spent, and another request may take 2.
    let second = model.model.run(&[text("well")]).remove(0).unwrap_err();
    assert!(second.to_string().contains("limit of spending"), "{second}");
    assert_eq!(server.calls(), 2);
}

#[test]
fn a_further_sample_that_echoes_the_key_does_not_show_it() {
    let server = Server::start(|request, number| {
        if number == 0 {
            return ok(&json!({"choices": [{"message": {"content": "good"}}]}).to_string());
        }
        let key = request
            .head
            .split("Bearer ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        ok(&json!(key.unwrap_or("no key")).to_string())
    });
    let asked = bare(
        &endpoint(&server, classify()),
        Confidence::Agreement {
            samples: 2,
            temperature: 0.7,
        },
    );
    let end = model(&asked).model.run(&[text("fine")]).remove(0);
    let Err(error) = end else { panic!("{end:?}") };
    assert!(error.to_string().contains("redacted"), "{error}");
}

#[test]
fn completions_are_asked_and_streamed_by_a_prompt() {
    let event = |text: &str, logprob: f64, end: Value| {
        json!({"choices": [{"text": text, "finish_reason": end,
            "logprobs": {"tokens": [text], "token_logprobs": [logprob], "top_logprobs": null}}]})
        .to_string()
    };
    let events = vec![
        event("to", -0.01, Value::Null),
        event(" be", -0.7, json!("stop")),
        json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).to_string(),
        "[DONE]".to_owned(),
    ];
    let server = Server::start(move |_, _| Does::Stream(events.clone(), true));
    let mut older = endpoint(&server, ChatTask::Generate);
    if let Api::Chat(chat) = &mut older.api {
        chat.style = Style::Completions;
    }
    let (parts, end, _) = within(&older, Duration::from_secs(10));
    let outputs = end.unwrap();
    assert_eq!(parts, ["to", " be"]);
    assert_eq!(named(&outputs, "text").to_texts().unwrap(), ["to be"]);
    let confidence = named(&outputs, "confidence").to_f32().unwrap()[0];
    assert!((confidence - (-1.4_f32).exp()).abs() < 1e-3, "{confidence}");
    assert!((cost(&outputs) - 7.0).abs() < 1e-9);
    let request = server.requests.lock().unwrap()[0].clone();
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(
        (request.path.as_str(), &body["prompt"]),
        ("/v1/completions", &json!("fine"))
    );
}

/// Every request called the main model, and the answer was thrown away.
#[test]
fn a_judge_that_is_down_opens_its_own_breaker_before_the_model_is_paid() {
    let server = Server::start(|request, _| script(request));
    let at = Some(("http://127.0.0.1:9/v1".to_owned(), None));
    let mut asked = bare(&endpoint(&server, classify()), judge(at, None));
    asked.breaker = BreakerConfig::default();
    let mut judged = model(&asked);
    for _ in 0..10 {
        let end = judged.model.run(&[text("fine")]).remove(0);
        assert!(
            matches!(&end, Err(ModelError::Unavailable { reason }) if reason.starts_with("the judge: ")),
            "{end:?}"
        );
    }
    assert!(server.calls() <= 5, "{}", server.calls());
    becomes(&judged.model.availability().unwrap(), false);
}

#[test]
fn a_judge_that_answers_again_makes_its_model_available_again() {
    let server = Server::start(|request, _| script(request));
    let other = Server::start(|request, number| match number {
        0..2 => Does::Answer(500, String::new(), Vec::new()),
        _ => script(request),
    });
    other.down.store(true, Ordering::SeqCst);
    let at = Some((other.url() + "/v1", None));
    let mut asked = bare(&endpoint(&server, classify()), judge(at, None));
    asked.retry.retries = 0;
    asked.breaker = BreakerConfig {
        failures: 2,
        pause_us: 30_000,
        max_pause_us: 30_000,
    };
    let mut judged = model(&asked);
    let availability = judged.model.availability().unwrap();
    for _ in 0..2 {
        assert!(judged.model.run(&[text("fine")]).remove(0).is_err());
    }
    becomes(&availability, false);
    other.down.store(false, Ordering::SeqCst);
    becomes(&availability, true);
    assert!(judged.model.run(&[text("fine")]).remove(0).is_ok());
    assert_eq!(server.calls(), 3);
}

/// A model of five samples whose endpoint gives one at a time.
fn five_samples(server: &Server) -> Endpoint {
    let agreement = Confidence::Agreement {
        samples: 5,
        temperature: 0.7,
    };
    bare(&endpoint(server, classify()), agreement)
}

const SAMPLE: &str = r#"{"choices": [{"message": {"content": "good"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}"#;

/// All samples were asked for again.
#[test]
fn only_the_sample_that_failed_is_repeated() {
    let server = Server::start(|_, number| match number {
        3 => Does::Answer(429, String::new(), Vec::new()),
        _ => ok(SAMPLE),
    });
    let outputs = model(&five_samples(&server))
        .model
        .run(&[text("fine")])
        .remove(0)
        .unwrap();
    assert_eq!(server.calls(), 6);
    assert!((cost(&outputs) - 5.0 * 5.0).abs() < 1e-9, "{}", cost(&outputs));
}

#[test]
fn every_sample_may_take_the_timeout() {
    let server = Server::start(|_, _| Does::Slowly(Duration::from_millis(400), SAMPLE.to_owned()));
    let mut asked = five_samples(&server);
    asked.timeout = Duration::from_millis(1_500);
    asked.retry.retries = 0;
    let end = model(&asked).model.run(&[text("fine")]).remove(0);
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(server.calls(), 5);
}
