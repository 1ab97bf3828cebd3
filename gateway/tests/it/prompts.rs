//! Tokens of prompts over HTTP, before models in Rust.

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_policy::plan::Plan;
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};

use crate::support::Stand;

/// Describes every prompt as the three tokens 5, 6 and 7, if it may; the last one is not among the most probable.
struct Describes(bool);

impl Model for Describes {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = |inputs: &Inputs| {
            let count = inputs.iter().find(|input| input.name == "prompt_logprobs");
            let count = count.map(Tensor::to_i64).transpose()?.map(|count| count[0]);
            let mut outputs = vec![
                Tensor::from_texts("text", &["!"])?,
                Tensor::from_i64("usage", &[2], &[3, 1])?,
                Tensor::from_f32("confidence", &[1], &[1.0])?,
            ];
            if let Some(count) = count.filter(|_| self.0) {
                outputs.push(Tensor::from_i64("prompt_tokens", &[3], &[5, 6, 7])?);
                outputs.push(Tensor::from_texts("prompt_token_texts", &["a", "b", "c"])?);
                outputs.push(Tensor::from_f32("prompt_logprobs", &[2], &[-0.5, -3.0])?);
                // The two most probable ones of each place.
                let count = usize::try_from(count).unwrap_or(0).min(2);
                if count > 0 {
                    let first = |both: [[i64; 2]; 2]| both.map(|ids| ids[..count].to_vec()).concat();
                    let ids = first([[6, 8], [9, 8]]);
                    let name = |id: &i64| match id {
                        6 => "b",
                        8 => "y",
                        _ => "z",
                    };
                    let texts: Vec<&str> = ids.iter().map(name).collect();
                    let mut texts = Tensor::from_texts("prompt_top_token_texts", &texts)?;
                    texts.shape = vec![2, count];
                    let logprobs = [[-0.5, -1.5], [-0.25, -2.0]]
                        .map(|both| both[..count].to_vec())
                        .concat();
                    outputs.push(Tensor::from_i64("prompt_top_tokens", &[2, count], &ids)?);
                    outputs.push(texts);
                    outputs.push(Tensor::from_f32("prompt_top_logprobs", &[2, count], &logprobs)?);
                }
            }
            Ok(outputs)
        };
        batch.iter().map(answer).collect()
    }
}

fn stand(describes: bool) -> Stand {
    let plan = Plan::cascade("app").stage("only", "model");
    let service = Service::new("app")
        .plan(plan.build().unwrap())
        .model("model", move || Ok::<_, String>(Describes(describes)));
    let options = AppOptions::new("app").default_budget(TIMEOUT).max_budget(TIMEOUT);
    Stand::of(service, options, Limits::default())
}

#[test]
fn tokens_of_prompts_have_their_probabilities_in_the_form_of_vllm() {
    let stand = stand(true);
    let messages = json!([{"role": "user", "content": "abc"}]);
    let alone = json!([
        null,
        {"6": {"logprob": -0.5, "rank": null, "decoded_token": "b"}},
        {"7": {"logprob": -3.0, "rank": null, "decoded_token": "c"}},
    ]);
    let with_top = json!([
        null,
        {"6": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
        {"7": {"logprob": -3.0, "rank": null, "decoded_token": "c"}, "9": {"logprob": -0.25, "rank": 1, "decoded_token": "z"}},
    ]);
    for (count, expected) in [(0, alone), (1, with_top)] {
        let asked = json!({"prompt": ["abc", "abc"], "prompt_logprobs": count, "n": 2});
        let found = stand.post("/v1/completions", &[], asked.to_string()).json();
        for choice in found["choices"].as_array().unwrap() {
            assert_eq!(choice["prompt_logprobs"], expected, "{found}");
            assert_eq!(
                (&choice["text"], &choice["logprobs"]),
                (&json!("!"), &Value::Null)
            );
        }
        assert_eq!(found["choices"].as_array().unwrap().len(), 4);
        let asked = json!({"messages": messages, "prompt_logprobs": count, "n": 2});
        let found = stand.post("/v1/chat/completions", &[], asked.to_string()).json();
        assert_eq!(found["prompt_logprobs"], expected, "{found}");
        assert_eq!(found["choices"][0].get("prompt_logprobs"), None);
    }
    // The prompt is echoed as its client wrote it, and its tokens are those of the echo if these are asked for too.
    let asked = json!({"prompt": "a b c", "prompt_logprobs": 0, "echo": true});
    let found = stand.post("/v1/completions", &[], asked.to_string()).json();
    assert_eq!(found["choices"][0]["text"], "a b c!");
    let asked = json!({"prompt": "a b c", "prompt_logprobs": 1, "echo": true, "logprobs": 0});
    let found = stand.post("/v1/completions", &[], asked.to_string()).json();
    assert_eq!(found["choices"][0]["text"], "a b c!");
    assert_eq!(found["choices"][0]["logprobs"]["tokens"], json!(["a", "b", "c"]));
    let found = stand
        .post("/v1/completions", &[], json!({"prompt": "abc"}).to_string())
        .json();
    assert_eq!(found["choices"][0].get("prompt_logprobs"), None);
}

#[test]
fn an_echo_and_prompt_logprobs_have_their_own_numbers_of_tokens() {
    let stand = stand(true);
    for (logprobs, prompt_logprobs) in [(1, 2), (2, 1), (0, 2), (2, 0)] {
        let asked =
            json!({"prompt": "abc", "echo": true, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs});
        let found = stand.post("/v1/completions", &[], asked.to_string()).json();
        let choice = &found["choices"][0];
        // The last token is not among the most probable ones, and counts beside them.
        let last = choice["logprobs"]["top_logprobs"][2].as_object().unwrap();
        assert_eq!(last.len(), logprobs + 1, "{found}");
        let last = choice["prompt_logprobs"][2].as_object().unwrap();
        assert_eq!(last.len(), prompt_logprobs + 1, "{found}");
    }
}

#[test]
fn tokens_of_prompts_that_cannot_be_described_are_refused() {
    let stand = stand(false);
    for fields in [
        json!({"prompt_logprobs": 0}),
        json!({"prompt_logprobs": 21}),
        json!({"prompt_logprobs": -1}),
        json!({"prompt_logprobs": 1, "stream": true}),
    ] {
        for (path, prompt) in [
            ("/v1/completions", json!({"prompt": "x"})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "x"}]}),
            ),
        ] {
            let mut asked = prompt;
            asked
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            let answer = stand.post(path, &[], asked.to_string());
            assert_eq!(
                (answer.status, &answer.json()["error"]["param"]),
                (400, &json!("prompt_logprobs")),
                "{path} {fields}"
            );
        }
    }
}
