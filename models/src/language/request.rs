//! Inputs of language model requests: the prompt, chat messages, and sampling options. Models behind endpoints take
//! the same inputs.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::inputs::bad_input;
pub use super::inputs::only_text;
use super::response_format::{RESPONSE_FORMAT, response_format};
use super::tools::{PARALLEL_TOOL_CALLS, TOOL_CHOICE, TOOLS};
pub use crate::checkpoint::chat_template::{Content, Message};
use crate::generation::{EarlyStopping, SamplingOptions};
pub use crate::runtime::model::{DEFAULT_SEED, DEFAULT_TEMPERATURE};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError};
use crate::runtime::tensor::{Datatype, Tensor};

/// Maximum number of stop texts per request.
const MAX_STOP_TEXTS: usize = 16;

/// Maximum number of biased tokens per request, as in the `OpenAI` API.
const MAX_BIASES: usize = 1024;

/// Input with variables for the chat template, a JSON object such as `{"enable_thinking": false}`.
pub const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

/// Input that states whether the tokenizer adds special tokens to the prompt. Default: true for a text, false for a
/// chat.
pub const ADD_SPECIAL_TOKENS: &str = "add_special_tokens";

/// Variable of chat templates that sets the reasoning effort.
pub const REASONING_EFFORT: &str = "reasoning_effort";

/// Input that requests log probabilities of the prompt's tokens. The value is the number of most probable tokens to
/// report at each position.
pub const PROMPT_LOGPROBS: &str = "prompt_logprobs";

/// Names of the inputs that can hold the prompt.
pub(super) const PROMPTS: [&str; 3] = ["text", "messages", "input_ids"];

/// A message in the format of the `OpenAI` API. Templates use further keys, such as `tool_calls`, `tool_call_id` and
/// `name`.
#[derive(Deserialize)]
struct RawMessage {
    role: String,
    #[serde(default)]
    content: Option<RawContent>,
    #[serde(flatten)]
    further: Map<String, Value>,
}

/// Content of a message: a text, or parts.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawContent {
    Text(String),
    Parts(Vec<Part>),
}

/// Part of a message.
#[derive(Deserialize)]
struct Part {
    text: Option<String>,
    #[serde(rename = "type")]
    kind: String,
}

/// Returns the inputs for a prompt: a text, messages, or at most `context` token ids. A request must have exactly one
/// of them.
pub fn prompt_inputs(context: usize) -> Vec<InputSpec> {
    let text = |name| InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)]);
    let ids = InputSpec::optional("input_ids", Datatype::I64, vec![Extent::Tokens(context)]);
    vec![text("text"), text("messages"), ids]
}

/// Returns the inputs for sampling options. `tokenizer` states whether there is a tokenizer, which stop texts,
/// response formats and tools need.
pub fn sampling_inputs(tokenizer: bool) -> Vec<InputSpec> {
    let one = |name, datatype| InputSpec::optional(name, datatype, vec![Extent::Exactly(1)]);
    let mut inputs = vec![
        one("min_p", Datatype::F32),
        one("repetition_penalty", Datatype::F32),
        one("presence_penalty", Datatype::F32),
        one("frequency_penalty", Datatype::F32),
        one("top_logprobs", Datatype::I64),
        one("max_tokens", Datatype::I64),
        one("min_tokens", Datatype::I64),
        one("temperature", Datatype::F32),
        one("top_k", Datatype::I64),
        one("top_p", Datatype::F32),
        one("seed", Datatype::I64),
        one(DEFAULT_SEED, Datatype::I64),
        one(DEFAULT_TEMPERATURE, Datatype::F32),
        one("ignore_eos", Datatype::Bool),
    ];
    let biases = || vec![Extent::UpTo(MAX_BIASES)];
    inputs.push(InputSpec::optional("logit_bias", Datatype::F32, biases()));
    inputs.push(InputSpec::optional("logit_bias_tokens", Datatype::I64, biases()));
    if tokenizer {
        let texts = vec![Extent::AtMost(MAX_STOP_TEXTS)];
        inputs.push(InputSpec::optional("stop", Datatype::Bytes, texts));
        for name in [RESPONSE_FORMAT, TOOLS, TOOL_CHOICE, TEMPLATE_VARIABLES] {
            inputs.push(one(name, Datatype::Bytes));
        }
        inputs.push(one(PARALLEL_TOOL_CALLS, Datatype::Bool));
    }
    inputs
}

/// Returns the inputs for beam search, which models behind endpoints and partitions do not support.
pub fn beam_inputs() -> Vec<InputSpec> {
    let one = |name, datatype| InputSpec::optional(name, datatype, vec![Extent::Exactly(1)]);
    vec![
        one("num_beams", Datatype::I64),
        one("length_penalty", Datatype::F32),
        one("early_stopping", Datatype::Bool),
    ]
}

/// Returns the specification of [`PROMPT_LOGPROBS`], which models behind endpoints and partitions do not support.
pub fn prompt_logprobs_input() -> InputSpec {
    InputSpec::optional(PROMPT_LOGPROBS, Datatype::I64, vec![Extent::Exactly(1)])
}

/// Returns the sampling options that a request states.
///
/// # Errors
/// [`ModelError`], naming the input.
pub fn sampling_options(inputs: &Inputs) -> Result<SamplingOptions, ModelError> {
    let mut options = SamplingOptions::default();
    for input in inputs {
        let float = || scalar(input, &input.to_f32()?);
        match input.name.as_str() {
            "max_tokens" => options.max_tokens = Some(non_negative(input)?),
            "min_tokens" => options.min_tokens = Some(non_negative(input)?),
            "top_k" => options.top_k = Some(non_negative(input)?),
            "top_logprobs" => options.top_logprobs = Some(non_negative(input)?),
            PROMPT_LOGPROBS => options.prompt_logprobs = Some(non_negative(input)?),
            "seed" => options.seed = Some(scalar(input, &input.to_i64()?)? as u64),
            "temperature" => options.temperature = Some(float()?),
            "top_p" => options.top_p = Some(float()?),
            "min_p" => options.min_p = Some(float()?),
            "repetition_penalty" => options.repetition_penalty = Some(float()?),
            "presence_penalty" => options.presence_penalty = Some(float()?),
            "frequency_penalty" => options.frequency_penalty = Some(float()?),
            "num_beams" => options.num_beams = Some(non_negative(input)?),
            "length_penalty" => options.length_penalty = Some(float()?),
            "early_stopping" => {
                let stops = flag(input)?;
                options.early_stopping = Some(if stops {
                    EarlyStopping::Yes
                } else {
                    EarlyStopping::No
                });
            }
            "ignore_eos" => options.ignore_eos = Some(flag(input)?),
            "stop" => {
                options.stop = Some(input.to_texts()?.into_iter().map(ToOwned::to_owned).collect());
            }
            "logit_bias" => options.logit_bias = Some(logit_bias(input, inputs)?),
            _ => {}
        }
    }
    if let (Some(least), Some(most)) = (options.min_tokens, options.max_tokens)
        && least > most
    {
        let reason = format!("{least} is above max_tokens {most}; lower it");
        return Err(bad_input("min_tokens", reason));
    }
    options.grammar = response_format(inputs)?.map(Arc::new);
    Ok(options)
}

/// Returns the value of [`DEFAULT_TEMPERATURE`] in a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub fn default_temperature(inputs: &Inputs) -> Result<Option<f32>, ModelError> {
    let temperature = inputs.iter().find(|input| input.name == DEFAULT_TEMPERATURE);
    let value = |temperature: &Tensor| scalar(temperature, &temperature.to_f32()?);
    temperature.map(value).transpose()
}

/// Returns the value of [`ADD_SPECIAL_TOKENS`] in a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub fn add_special_tokens(inputs: &Inputs) -> Result<Option<bool>, ModelError> {
    let input = inputs.iter().find(|input| input.name == ADD_SPECIAL_TOKENS);
    input.map(flag).transpose()
}

/// Returns the value of [`DEFAULT_SEED`] in a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub fn default_seed(inputs: &Inputs) -> Result<Option<u64>, ModelError> {
    let seed = inputs.iter().find(|input| input.name == DEFAULT_SEED);
    seed.map(|seed| Ok(scalar(seed, &seed.to_i64()?)? as u64))
        .transpose()
}

/// Returns the pairs of token and logit bias; `logit_bias_tokens` holds the tokens.
fn logit_bias(biases: &Tensor, inputs: &Inputs) -> Result<Vec<(u32, f32)>, ModelError> {
    let tokens = inputs.iter().find(|input| input.name == "logit_bias_tokens");
    let tokens = tokens.map(Tensor::to_i64).transpose()?.unwrap_or_default();
    let biases = biases.to_f32()?;
    if tokens.len() != biases.len() {
        let reason = format!(
            "{} biases have {} tokens in `logit_bias_tokens`",
            biases.len(),
            tokens.len()
        );
        return Err(bad_input("logit_bias", reason));
    }
    let biases = tokens.into_iter().zip(biases);
    let biases = biases.map(|(token, bias)| {
        let token = u32::try_from(token);
        token
            .map(|token| (token, bias))
            .map_err(|_| bad_input("logit_bias_tokens", "a token is negative or too large"))
    });
    biases.collect()
}

/// Returns the input that holds the prompt.
///
/// # Errors
/// [`ModelError::BadInput`] if there is none, or more than one.
pub fn prompt(inputs: &Inputs) -> Result<&Tensor, ModelError> {
    let mut given = inputs
        .iter()
        .filter(|input| PROMPTS.contains(&input.name.as_str()));
    let Some(input) = given.next() else {
        let reason = "`text`, `messages` and `input_ids` are missing; send one of them";
        return Err(bad_input("text", reason));
    };
    if let Some(other) = given.next() {
        let reason = format!("it is given together with `{}`; send only one", input.name);
        return Err(bad_input(&other.name, reason));
    }
    Ok(input)
}

/// Returns the variables that a request passes to the chat template.
///
/// # Errors
/// [`ModelError::BadInput`] if they are not a JSON object.
pub fn template_variables(inputs: &Inputs) -> Result<Map<String, Value>, ModelError> {
    let Some(input) = inputs.iter().find(|input| input.name == TEMPLATE_VARIABLES) else {
        return Ok(Map::new());
    };
    let variables = serde_json::from_str(only_text(input)?);
    variables.map_err(|error| bad_input(TEMPLATE_VARIABLES, format!("it is not a JSON object: {error}")))
}

/// Returns the messages of a chat: a JSON array of `{role, content}` and further keys for the template.
///
/// # Errors
/// [`ModelError::BadInput`] if there are none, or for a content part that is not text.
pub fn messages(input: &Tensor) -> Result<Vec<Message>, ModelError> {
    let rejected = |reason: String| bad_input(&input.name, reason);
    let raw: Vec<RawMessage> = serde_json::from_str(only_text(input)?)
        .map_err(|error| rejected(format!("it is not a JSON array of {{role, content}}: {error}")))?;
    if raw.is_empty() {
        return Err(rejected("it is empty; send at least one message".into()));
    }
    let messages = raw.into_iter().map(|message| {
        let content = match message.content {
            None => Content::None,
            Some(RawContent::Text(text)) => Content::Text(text),
            Some(RawContent::Parts(parts)) => {
                let texts = parts.into_iter().map(|part| match part.text {
                    Some(text) if part.kind == "text" => Ok(text),
                    _ => Err(rejected(format!(
                        "a part has the type `{}`; this model reads text only",
                        part.kind
                    ))),
                });
                Content::Parts(texts.collect::<Result<_, _>>()?)
            }
        };
        Ok(Message {
            role: message.role,
            content,
            further: message.further,
        })
    });
    messages.collect()
}

fn scalar<T: Copy>(input: &Tensor, values: &[T]) -> Result<T, ModelError> {
    values
        .first()
        .copied()
        .ok_or_else(|| bad_input(&input.name, "it is empty"))
}

fn flag(input: &Tensor) -> Result<bool, ModelError> {
    if input.datatype != Datatype::Bool {
        return Err(bad_input(&input.name, "it must be BOOL"));
    }
    scalar(input, &input.data).map(|value| value != 0)
}

fn non_negative(input: &Tensor) -> Result<usize, ModelError> {
    let value = scalar(input, &input.to_i64()?)?;
    usize::try_from(value).map_err(|_| bad_input(&input.name, format!("{value} is negative")))
}
