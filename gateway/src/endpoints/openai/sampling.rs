//! Request fields shared by chat and completions, converted to inputs of a language model.

use kaskade_models::language::request::{
    ADD_SPECIAL_TOKENS, DEFAULT_SEED, DEFAULT_TEMPERATURE, REASONING_EFFORT, TEMPLATE_VARIABLES,
    sampling_options,
};
use kaskade_models::{Datatype, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::formats_and_tools::{FormatAndTools, malformed};
use super::refused_fields::{RefusedFields, Requests};
use crate::http::failure::Failure;

/// Largest number of choices of one request.
const MAX_CHOICES: u32 = 128;

/// Largest number of most probable tokens reported at every position.
pub(super) const MAX_TOP: u32 = 20;

/// Largest number of stop sequences.
const MAX_STOPS: usize = 16;

/// Error message for a maximum number of tokens below 1.
pub(super) const NO_TOKEN: &str = "at least one token must be allowed";

/// Request fields shared by chat and completions. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<i64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stop>,
    ignore_eos: Option<bool>,
    num_beams: Option<i64>,
    length_penalty: Option<f32>,
    early_stopping: Option<bool>,
    n: Option<u32>,
    pub(super) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logit_bias: Option<Map<String, Value>>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort, a variable of the chat template.
    reasoning_effort: Option<String>,
    add_special_tokens: Option<bool>,
    /// Number of most probable tokens to report at every position of the prompt.
    prompt_logprobs: Option<i64>,
    #[serde(flatten)]
    pub(super) structured: FormatAndTools,
    #[serde(flatten)]
    refused: RefusedFields,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`stop` must be a text or a list of texts")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Common {
    /// Checks the fields whose values could lead to a wrong answer.
    ///
    /// # Errors
    /// `KSK0001`, naming the field.
    pub(super) fn check(&self, of: Requests) -> Result<(), Failure> {
        self.refused.check(of)?;
        if !(1..=MAX_CHOICES).contains(&self.choices()) {
            return Err(Failure::param(
                "n",
                format!("`n` must be from 1 to {MAX_CHOICES}"),
            ));
        }
        for (param, most) in [
            ("max_tokens", self.max_tokens),
            ("max_completion_tokens", self.max_completion_tokens),
        ] {
            if most.is_some_and(|most| most < 1) {
                return Err(Failure::param(param, NO_TOKEN));
            }
        }
        if self.top_k.is_some_and(|top| top < -1) {
            return Err(Failure::param(
                "top_k",
                "`top_k` must be at least 1, or 0 or -1 for all tokens",
            ));
        }
        if self.num_beams.is_some_and(|beams| beams > 1) && self.choices() > 1 {
            return Err(Failure::param(
                "num_beams",
                "a beam search returns its best answer alone; leave out `n` or `num_beams`",
            ));
        }
        if self.min_tokens.is_some_and(|least| least < 0) {
            return Err(Failure::param("min_tokens", "`min_tokens` must be at least 0"));
        }
        Ok(())
    }

    /// Returns the number of most probable tokens to report at every position of the prompt, if requested.
    ///
    /// # Errors
    /// `KSK0001` for an unsupported number, and for a streamed request.
    pub(super) fn prompt_logprobs(&self) -> Result<Option<u32>, Failure> {
        let Some(count) = self.prompt_logprobs else {
            return Ok(None);
        };
        let count = u32::try_from(count).ok().filter(|count| *count <= MAX_TOP);
        let reason = match count {
            None => format!("`prompt_logprobs` must be from 0 to {MAX_TOP}"),
            Some(_) if self.stream == Some(true) => {
                "the tokens of a prompt are not streamed; leave `stream` or `prompt_logprobs` out".to_owned()
            }
            count => return Ok(count),
        };
        Err(Failure::param("prompt_logprobs", reason))
    }

    /// Returns the number of choices.
    pub(super) fn choices(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// Returns whether the maximum number of tokens is 0.
    pub(super) fn takes_no_token(&self) -> bool {
        self.max_completion_tokens.or(self.max_tokens) == Some(0)
    }

    /// Sets the maximum number of tokens.
    pub(super) fn set_max_tokens(&mut self, max_tokens: Option<i64>) {
        self.max_completion_tokens = max_tokens;
        self.max_tokens = None;
    }

    /// Sets the reasoning effort, if given.
    pub(super) fn set_reasoning_effort(&mut self, effort: Option<String>) {
        self.reasoning_effort = effort.or(self.reasoning_effort.take());
    }

    /// Returns the reasoning effort, if the request states it.
    pub(super) fn reasoning_effort(&self) -> Option<&str> {
        self.reasoning_effort.as_deref()
    }

    pub(super) const fn temperature(&self) -> Option<f32> {
        self.temperature
    }

    pub(super) const fn top_p(&self) -> Option<f32> {
        self.top_p
    }

    /// Returns the presence and the frequency penalty.
    pub(super) fn penalties(&self) -> [f32; 2] {
        [self.presence_penalty, self.frequency_penalty].map(Option::unwrap_or_default)
    }

    pub(super) fn include_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .is_some_and(|options| options.include_usage == Some(true))
    }

    /// Returns the biased token ids with their biases.
    fn biases(&self) -> Result<(Vec<i64>, Vec<f32>), Failure> {
        let biases = self.logit_bias.iter().flatten().map(|(token, bias)| {
            let both = token.parse().ok().zip(bias.as_f64());
            let both = both.filter(|(_, bias)| (-100.0..=100.0).contains(bias));
            both.map(|(token, bias): (i64, f64)| (token, bias as f32))
                .ok_or_else(|| {
                    Failure::param(
                        "logit_bias",
                        format!("`{token}`: {bias} is not a bias from -100 to 100 of a token's id"),
                    )
                })
        });
        biases.collect()
    }

    /// Returns the inputs of one choice: the common inputs, whose data all choices share, and a seed. Without a stated
    /// seed, the seed is random unless decoding is greedy.
    ///
    /// # Errors
    /// The error of a tensor that cannot be created.
    pub(super) fn of_choice(&self, inputs: &[Tensor], choice: u32) -> Result<Vec<Tensor>, Failure> {
        let (name, seed) = if let Some(seed) = self.seed {
            ("seed", Some(seed.wrapping_add(choice.into())))
        } else {
            // The app or the checkpoint may state a temperature.
            let is_greedy = self.temperature.is_some_and(|temperature| temperature <= 0.0);
            let random = i64::try_from(kaskade_actors::ids::unique() >> 1).ok();
            (DEFAULT_SEED, random.filter(|_| !is_greedy))
        };
        let seed = seed
            .map(|seed| Tensor::from_i64(name, &[1], &[seed]))
            .transpose()?;
        Ok(inputs.iter().cloned().chain(seed).collect())
    }

    /// Returns the sampling inputs without the seed. `top` is the number of most probable tokens to report, `None`
    /// without log probabilities.
    ///
    /// # Errors
    /// `KSK0001` for too many stop sequences, and for a malformed bias, format or tool.
    pub(super) fn inputs(&self, top: Option<u32>) -> Result<Vec<Tensor>, Failure> {
        let mut inputs = Vec::new();
        let mut integer = |name: &str, value: Option<i64>| -> Result<(), Failure> {
            if let Some(value) = value {
                inputs.push(Tensor::from_i64(name, &[1], &[value])?);
            }
            Ok(())
        };
        integer("max_tokens", self.max_completion_tokens.or(self.max_tokens))?;
        integer("min_tokens", self.min_tokens.filter(|least| *least > 0))?;
        integer("top_logprobs", top.map(i64::from))?;
        integer("num_beams", self.num_beams)?;
        // In vLLM, -1 means all tokens.
        integer("top_k", self.top_k.map(|top| top.max(0)))?;
        for (name, value) in [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("length_penalty", self.length_penalty),
        ] {
            if let Some(value) = value {
                inputs.push(Tensor::from_f32(name, &[1], &[value])?);
            }
        }
        if self.temperature.is_none() && self.choices() > 1 {
            // With greedy search all choices would be equal.
            inputs.push(Tensor::from_f32(DEFAULT_TEMPERATURE, &[1], &[1.0])?);
        }
        for (name, value) in [
            ("ignore_eos", self.ignore_eos.filter(|ignores| *ignores)),
            ("early_stopping", self.early_stopping),
            (ADD_SPECIAL_TOKENS, self.add_special_tokens),
        ] {
            inputs.extend(value.map(|value| flag(name, value)));
        }
        // An empty list overrides the app's stop sequences.
        let stops = self.stop.as_ref().map(|stop| match stop {
            Stop::One(stop) => vec![stop.as_str()],
            Stop::Many(stops) => stops.iter().map(String::as_str).collect(),
        });
        if let Some(stops) = stops {
            if stops.len() > MAX_STOPS {
                return Err(Failure::param(
                    "stop",
                    format!("at most {MAX_STOPS} stop texts are supported"),
                ));
            }
            inputs.push(Tensor::from_texts("stop", &stops)?);
        }
        let (tokens, biases) = self.biases()?;
        if !tokens.is_empty() {
            inputs.push(Tensor::from_i64("logit_bias_tokens", &[tokens.len()], &tokens)?);
            inputs.push(Tensor::from_f32("logit_bias", &[biases.len()], &biases)?);
        }
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(effort) = &self.reasoning_effort {
            let variable = variables.entry(REASONING_EFFORT);
            variable.or_insert_with(|| effort.as_str().into());
        }
        if !variables.is_empty() {
            let variables = Value::from(variables).to_string();
            inputs.push(Tensor::from_texts(TEMPLATE_VARIABLES, &[&variables])?);
        }
        let options = sampling_options(&inputs).map_err(malformed)?;
        if let Err(error) = options.sampling(0).check() {
            let param = match error.input() {
                "max_tokens" if self.max_completion_tokens.is_some() => "max_completion_tokens",
                input => input,
            };
            return Err(Failure::param(param, error.to_string()));
        }
        inputs.extend(self.structured.inputs()?);
        Ok(inputs)
    }
}

/// Returns a boolean input.
pub(super) fn flag(name: &str, value: bool) -> Tensor {
    Tensor {
        name: name.to_owned(),
        shape: vec![1],
        datatype: Datatype::Bool,
        data: vec![u8::from(value)].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(json: &str) -> Common {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn fields_become_inputs_and_unknown_ones_are_ignored() {
        let asked = common(
            r#"{"model":"a","max_completion_tokens":7,"temperature":0,"seed":3,"stop":"\n","n":2,"ignore_eos":true,
                "repetition_penalty":1.1,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
        );
        asked.check(Requests::Chat).unwrap();
        assert!(asked.include_usage());
        let inputs = asked.of_choice(&asked.inputs(None).unwrap(), 1).unwrap();
        let find = |name: &str| inputs.iter().find(|input| input.name == name).unwrap();
        assert_eq!(find("max_tokens").to_i64().unwrap(), [7]);
        assert_eq!(
            find("seed").to_i64().unwrap(),
            [4],
            "every choice has a seed of its own"
        );
        assert_eq!(find("stop").to_texts().unwrap(), ["\n"]);
        assert_eq!(find("repetition_penalty").to_f32().unwrap(), [1.1]);
        assert_eq!(find("ignore_eos").datatype, Datatype::Bool);
        assert_eq!(inputs.len(), 6);
    }

    #[test]
    fn neutral_values_replace_those_of_the_app() {
        let inputs = common(r#"{"top_k":-1,"stop":[],"add_special_tokens":false}"#)
            .inputs(None)
            .unwrap();
        let find = |name: &str| inputs.iter().find(|input| input.name == name).unwrap();
        assert_eq!(find("top_k").to_i64().unwrap(), [0]);
        assert!(find("stop").to_texts().unwrap().is_empty());
        assert_eq!(find(ADD_SPECIAL_TOKENS).data.as_ref(), [0]);
    }

    #[test]
    fn the_effort_of_reasoning_is_a_variable_of_the_chat_template() {
        let variables = |json: &str| {
            let inputs = common(json).inputs(None).unwrap();
            let found = inputs.iter().find(|input| input.name == TEMPLATE_VARIABLES);
            found.map(|found| found.to_texts().unwrap().concat())
        };
        let own = r#"{"reasoning_effort":"high","chat_template_kwargs":{"reasoning_effort":"low"}}"#;
        assert_eq!(variables(own).unwrap(), r#"{"reasoning_effort":"low"}"#);
        let stated = variables(r#"{"reasoning_effort":"high"}"#);
        assert_eq!(stated.unwrap(), r#"{"reasoning_effort":"high"}"#);
        assert_eq!(variables(r#"{"reasoning_effort":null}"#), None);
    }

    #[test]
    fn several_choices_are_sampled_unless_something_states_a_temperature() {
        let has_default = |json: &str| {
            let inputs = common(json).inputs(None).unwrap();
            inputs.iter().any(|input| input.name == DEFAULT_TEMPERATURE)
        };
        assert!(has_default(r#"{"n":2}"#));
        assert!(!has_default(r#"{"n":1}"#));
        assert!(!has_default(r#"{"n":2,"temperature":0}"#));
    }

    #[test]
    fn what_would_be_answered_wrongly_is_refused() {
        for (json, param) in [
            (r#"{"modalities":["text","audio"]}"#, "modalities"),
            (r#"{"stop_token_ids":[2]}"#, "stop_token_ids"),
            (r#"{"continue_final_message":true}"#, "continue_final_message"),
            (r#"{"chat_template":"x"}"#, "chat_template"),
            (r#"{"n":0}"#, "n"),
            (r#"{"top_k":-2}"#, "top_k"),
            (r#"{"min_tokens":-1}"#, "min_tokens"),
            (r#"{"documents":[{"text":"x"}]}"#, "documents"),
            (r#"{"skip_special_tokens":false}"#, "skip_special_tokens"),
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"num_beams":2,"n":2}"#, "num_beams"),
            (
                r#"{"max_tokens":5,"max_completion_tokens":0}"#,
                "max_completion_tokens",
            ),
        ] {
            let checked = common(json).check(Requests::Chat);
            assert_eq!(checked.unwrap_err().param.as_deref(), Some(param));
        }
        assert!(
            common(
                r#"{"tools":[],"functions":null,"tool_choice":"auto","logit_bias":{},"modalities":["text"],
                "response_format":{"type":"text"},"n":null,"stop_token_ids":[],"use_beam_search":false,"add_generation_prompt":true,
                "documents":[],"skip_special_tokens":true,"prompt_logprobs":null,"top_k":-1}"#
            )
            .check(Requests::Chat)
            .is_ok()
        );
    }

    #[test]
    fn values_that_no_model_samples_by_are_refused_by_the_name_of_their_field() {
        for (json, param) in [
            (r#"{"temperature":-1}"#, "temperature"),
            (r#"{"top_p":2}"#, "top_p"),
            (r#"{"min_p":-0.5}"#, "min_p"),
            (r#"{"repetition_penalty":0}"#, "repetition_penalty"),
            (r#"{"presence_penalty":3}"#, "presence_penalty"),
            (r#"{"stop":""}"#, "stop"),
            (r#"{"min_tokens":9,"max_tokens":8}"#, "min_tokens"),
            (r#"{"num_beams":0}"#, "num_beams"),
            (r#"{"num_beams":2,"temperature":1}"#, "num_beams"),
        ] {
            let refused = common(json).inputs(None).unwrap_err();
            assert_eq!(
                (refused.status.as_u16(), refused.param.as_deref()),
                (400, Some(param))
            );
        }
    }

    #[test]
    fn answers_that_are_sampled_differ_and_those_of_a_seed_do_not() {
        let seed = |json: &str| {
            let asked = common(json);
            let inputs = asked.of_choice(&asked.inputs(None).unwrap(), 0).unwrap();
            let seed = inputs.into_iter().find(|input| input.name.ends_with("seed"));
            seed.map(|seed| (seed.name.clone(), seed.to_i64().unwrap()))
        };
        let sampled = r#"{"temperature":1}"#;
        assert_ne!(seed(sampled), seed(sampled));
        assert_eq!(
            seed(sampled).unwrap().0,
            DEFAULT_SEED,
            "an endpoint chooses its own"
        );
        assert_eq!(
            seed(r#"{"temperature":1,"seed":5}"#),
            Some(("seed".to_owned(), vec![5]))
        );
        assert_eq!(seed(r#"{"temperature":0}"#), None);
        assert_eq!(seed("{}").unwrap().0, DEFAULT_SEED, "the checkpoint may sample");
        assert_ne!(seed("{}"), seed("{}"));
    }

    /// Otherwise a request for 128 choices would hold its body 128 times.
    #[test]
    fn choices_share_their_texts() {
        let asked = common(r#"{"n":2,"guided_json":{"type":"object"}}"#);
        let inputs = asked.inputs(None).unwrap();
        let choices = [0, 1].map(|choice| asked.of_choice(&inputs, choice).unwrap());
        let at = choices.each_ref().map(|inputs| inputs[1].data.as_ptr());
        assert_eq!((choices[0].len(), at[0]), (3, at[1]));
        assert_ne!(choices[0][2], choices[1][2], "their seeds differ");
    }

    #[test]
    fn biases_are_two_inputs() {
        let inputs = common(r#"{"logit_bias":{"5":-100,"7":0.5}}"#)
            .inputs(None)
            .unwrap();
        let find = |name: &str| inputs.iter().find(|input| input.name == name).unwrap();
        assert_eq!(find("logit_bias_tokens").to_i64().unwrap(), [5, 7]);
        assert_eq!(find("logit_bias").to_f32().unwrap(), [-100.0, 0.5]);
        for bias in [r#"{"a":1}"#, r#"{"5":101}"#, r#"{"5":"x"}"#, r#"{"5":null}"#] {
            let refused = common(&format!("{{\"logit_bias\":{bias}}}"))
                .inputs(None)
                .unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("logit_bias"), "{bias}");
        }
    }
}
