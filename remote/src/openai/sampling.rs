//! Sampling options as fields of a request to an endpoint.

use kaskade_models::generation::SamplingOptions;
use kaskade_models::language::{MAX_CHAT_TOKENS, request};
use kaskade_models::{Inputs, ModelError};
use serde_json::{Map, Value};

use super::bad;
use crate::endpoint::{Chat, ChatTask, Confidence, Style};

/// Most probable tokens that the older interface gives, if a request does not ask for more.
const MAX_COMPLETION_LOGPROBS: usize = 5;

/// Sampling of one request.
pub(super) struct Sampling {
    options: SamplingOptions,
    /// Temperature of a request for which nothing states one.
    default_temperature: f32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Most probable tokens that the request wants to see beside the log-probabilities of its tokens; `None` without these.
    pub top_logprobs: Option<usize>,
}

impl Sampling {
    /// Returns the sampling of a request: its own, else the variant's.
    ///
    /// # Errors
    /// [`ModelError`], naming the input, for options that a local model would refuse too.
    pub(super) fn of(chat: &Chat, inputs: &Inputs) -> Result<Self, ModelError> {
        let (own, default_temperature) = match chat.task {
            ChatTask::Generate => (
                request::sampling_options(inputs)?,
                request::default_temperature(inputs)?,
            ),
            ChatTask::Classify { .. } => (SamplingOptions::default(), None),
        };
        // As of a local model, which would ignore what to sample from.
        let sampled = own.truncates().then_some(1.0);
        let options = own.or(&chat.sampling);
        let mut resolved = options.clone().sampling(0);
        if options.max_tokens.is_none() && inputs.iter().any(|input| input.name == "messages") {
            // As of a local model.
            resolved.max_tokens = MAX_CHAT_TOKENS;
        }
        resolved
            .check()
            .map_err(|error| bad(error.input(), error.to_string()))?;
        Ok(Self {
            max_tokens: u32::try_from(resolved.max_tokens).unwrap_or(u32::MAX),
            top_logprobs: options.top_logprobs,
            default_temperature: default_temperature.or(sampled).unwrap_or_default(),
            options,
        })
    }

    /// Returns whether the endpoint may choose the temperature: nothing states one, or its samples have only to differ.
    pub(super) fn has_free_temperature(&self, chat: &Chat) -> bool {
        self.options.temperature.is_none() || matches!(chat.confidence, Confidence::Agreement { .. })
    }

    /// Writes the fields. `top_k`, `min_p`, `min_tokens`, `repetition_penalty` and `ignore_eos` are no part of the OpenAI API; vLLM and others know them.
    pub(super) fn write(&self, chat: &Chat, body: &mut Map<String, Value>) {
        let options = &self.options;
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        let temperature = match chat.confidence {
            Confidence::Agreement { temperature, .. } => temperature,
            Confidence::Logprobs | Confidence::Judge(_) => {
                decimal(options.temperature.unwrap_or(self.default_temperature))
            }
        };
        set("temperature", Some(temperature.into()));
        set("max_tokens", Some(self.max_tokens.into()));
        for (name, value) in [
            ("top_p", options.top_p),
            ("presence_penalty", options.presence_penalty),
            ("frequency_penalty", options.frequency_penalty),
            ("min_p", options.min_p),
            ("repetition_penalty", options.repetition_penalty),
        ] {
            set(name, value.map(|value| decimal(value).into()));
        }
        // All tokens are 0 to a local model, and -1 to an endpoint: SGLang and older releases of vLLM refuse 0.
        let top_k = options
            .top_k
            .map(|top| if top == 0 { Value::from(-1) } else { top.into() });
        set("top_k", top_k);
        set(
            "min_tokens",
            options.min_tokens.filter(|least| *least > 0).map(Into::into),
        );
        // It is signed on the wire.
        set("seed", options.seed.map(|seed| seed.cast_signed().into()));
        // `false` is what an endpoint does by itself, and one of OpenAI's refuses the name.
        set(
            "ignore_eos",
            options.ignore_eos.filter(|ignore| *ignore).map(Into::into),
        );
        let biases = options.logit_bias.as_ref().filter(|biases| !biases.is_empty());
        let biases = biases.map(|biases| {
            let biases = biases
                .iter()
                .map(|(token, bias)| (token.to_string(), Value::from(decimal(*bias))));
            Value::Object(biases.collect())
        });
        set("logit_bias", biases);
        let stops = options.stop.as_ref().filter(|stops| !stops.is_empty());
        set("stop", stops.map(|stops| stops.clone().into()));
        body.extend(self.logprob_fields(chat));
    }

    /// Returns the fields that ask for log probabilities.
    fn logprob_fields(&self, chat: &Chat) -> Vec<(String, Value)> {
        let (own, stated) = (chat.top_logprobs as usize, self.top_logprobs.unwrap_or(0));
        let is_stated = self.top_logprobs.is_some();
        let field = |name: &str, value: Value| (name.to_owned(), value);
        match chat.style {
            Style::Chat => {
                let most = own.max(stated);
                let wanted = (most > 0 || is_stated).then(|| field("logprobs", true.into()));
                let most = (most > 0).then(|| field("top_logprobs", most.into()));
                wanted.into_iter().chain(most).collect()
            }
            Style::Completions => {
                let most = own.min(MAX_COMPLETION_LOGPROBS).max(stated);
                let wanted = (most > 0 || is_stated).then(|| field("logprobs", most.into()));
                wanted.into_iter().collect()
            }
        }
    }
}

/// The number as it was written: the shortest decimal of the smaller type, not its exact value.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use kaskade_models::{Datatype, Tensor};
    use serde_json::json;

    use super::*;
    use crate::openai::chat::tests::chat;

    fn written(chat: &Chat, inputs: &Inputs) -> Result<Value, ModelError> {
        let mut body = Map::new();
        Sampling::of(chat, inputs)?.write(chat, &mut body);
        Ok(body.into())
    }

    fn float(name: &str, value: f32) -> Tensor {
        Tensor::from_f32(name, &[1], &[value]).unwrap()
    }

    fn integer(name: &str, value: i64) -> Tensor {
        Tensor::from_i64(name, &[1], &[value]).unwrap()
    }

    #[test]
    fn every_option_of_a_local_model_is_a_field() {
        let inputs = vec![
            integer("max_tokens", 7),
            integer("min_tokens", 3),
            float("temperature", 0.7),
            float("top_p", 0.9),
            float("presence_penalty", -0.5),
            float("frequency_penalty", 1.1),
            float("min_p", 0.05),
            float("repetition_penalty", 1.2),
            integer("top_k", 40),
            integer("seed", -3),
            Tensor {
                name: "ignore_eos".to_owned(),
                shape: vec![1],
                datatype: Datatype::Bool,
                data: vec![1].into(),
            },
            integer("top_logprobs", 7),
            Tensor::from_texts("stop", &["\n", "END"]).unwrap(),
            Tensor::from_i64("logit_bias_tokens", &[2], &[5, 7]).unwrap(),
            Tensor::from_f32("logit_bias", &[2], &[-100.0, 0.5]).unwrap(),
        ];
        // Formats and tools are written elsewhere, and an endpoint chooses its own seed.
        let elsewhere = [
            "response_format",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "chat_template_kwargs",
            "default_seed",
            "default_temperature",
        ];
        let known: Vec<String> = request::sampling_inputs(true)
            .into_iter()
            .map(|spec| spec.name)
            .filter(|name| !elsewhere.contains(&name.as_str()))
            .collect();
        assert_eq!(known.len(), inputs.len(), "{known:?}");
        let chat = chat(ChatTask::Generate);
        let mut expected = json!({"max_tokens": 7, "min_tokens": 3, "temperature": 0.7, "top_p": 0.9, "presence_penalty": -0.5, "frequency_penalty": 1.1,
            "min_p": 0.05, "repetition_penalty": 1.2, "top_k": 40, "seed": -3, "ignore_eos": true, "stop": ["\n", "END"],
            "logit_bias": {"5": -100.0, "7": 0.5}, "logprobs": true, "top_logprobs": 7});
        assert_eq!(written(&chat, &inputs).unwrap(), expected);
        let older = Chat {
            style: Style::Completions,
            ..chat.clone()
        };
        expected["logprobs"] = json!(7);
        expected.as_object_mut().unwrap().remove("top_logprobs");
        assert_eq!(written(&older, &inputs).unwrap(), expected);
        let bare = Chat {
            top_logprobs: 0,
            ..chat.clone()
        };
        let asked = written(&bare, &vec![integer("top_logprobs", 0)]).unwrap();
        assert_eq!(
            (&asked["logprobs"], asked.get("top_logprobs")),
            (&json!(true), None)
        );
        assert_eq!(written(&bare, &Vec::new()).unwrap().get("logprobs"), None);
        let least = json!({"max_tokens": 8, "temperature": 0.0, "logprobs": true, "top_logprobs": 5});
        assert_eq!(written(&chat, &Vec::new()).unwrap(), least);
        // As of local models, what is sampled from, or several choices.
        for input in [float("top_p", 0.9), float("default_temperature", 1.0)] {
            assert_eq!(written(&chat, &vec![input]).unwrap()["temperature"], json!(1.0));
        }
    }

    #[test]
    fn a_chat_without_a_stated_maximum_has_that_of_local_models() {
        let mut chat = chat(ChatTask::Generate);
        let chats = vec![Tensor::from_texts("messages", &["[]"]).unwrap()];
        let texts = vec![Tensor::from_texts("text", &["so good"]).unwrap()];
        let most = |chat: &Chat, inputs: &Inputs| written(chat, inputs).unwrap()["max_tokens"].clone();
        assert_eq!(most(&chat, &chats), json!(8), "the variant states one");
        chat.sampling.max_tokens = None;
        assert_eq!(most(&chat, &chats), json!(MAX_CHAT_TOKENS));
        assert_eq!(most(&chat, &texts), json!(64));
        let stated = [chats, vec![integer("max_tokens", 7)]].concat();
        assert_eq!(most(&chat, &stated), json!(7));
    }

    #[test]
    fn all_tokens_are_minus_one_to_an_endpoint() {
        let body = written(&chat(ChatTask::Generate), &vec![integer("top_k", 0)]).unwrap();
        assert_eq!(body["top_k"], json!(-1));
    }

    #[test]
    fn the_variants_options_are_defaults_but_samples_that_must_differ_do() {
        let mut asked = chat(ChatTask::Generate);
        asked.sampling.stop = Some(vec![" ".to_owned()]);
        asked.sampling.top_p = Some(0.5);
        asked.confidence = Confidence::Agreement {
            samples: 4,
            temperature: 0.7,
        };
        let body = written(&asked, &vec![float("temperature", 0.0), float("top_p", 0.25)]).unwrap();
        assert_eq!(
            (&body["temperature"], &body["top_p"], &body["stop"]),
            (&json!(0.7), &json!(0.25), &json!([" "]))
        );
    }

    #[test]
    fn what_a_local_model_refuses_is_refused() {
        for input in [
            float("temperature", -1.0),
            float("top_p", 0.0),
            float("presence_penalty", 3.0),
            integer("max_tokens", 0),
            integer("max_tokens", -1),
            integer("top_logprobs", 21),
            Tensor::from_texts("stop", &[""]).unwrap(),
        ] {
            let name = input.name.clone();
            let refused = written(&chat(ChatTask::Generate), &vec![input]).unwrap_err();
            assert!(
                matches!(&refused, ModelError::BadInput { name: found, .. } if *found == name),
                "{name}: {refused}"
            );
        }
    }
}
