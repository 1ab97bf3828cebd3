//! `/tokenize` and `/detokenize` in the form of vLLM.

use axum::http::HeaderMap;
use kaskade_models::language::request::{ADD_SPECIAL_TOKENS, TEMPLATE_VARIABLES};
use kaskade_models::language::tools::TOOLS;
use kaskade_models::{Inputs, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::{Message, messages};
use super::refused_fields::{RefusedFields, Requests};
use super::sampling::flag;
use crate::http::failure::Failure;
use crate::http::json_body::or_default;
use crate::state::GatewayState;
use crate::tokenizer::refused;

/// A text or a chat to tokenize.
#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a request for tokens")]
pub(crate) struct Tokenize {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    /// Default: true for a prompt, false for messages.
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default, deserialize_with = "or_default")]
    return_token_strings: bool,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    refused: RefusedFields,
}

/// Tokens to turn into text.
#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a request for a text")]
pub(crate) struct Detokenize {
    #[serde(default)]
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    /// Null if neither the app nor the checkpoint states it.
    max_model_len: Option<usize>,
    tokens: Vec<u32>,
    token_strings: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

impl Tokenize {
    /// Returns the inputs of the prompt, and whether messages end with the beginning of an answer.
    fn inputs(self) -> Result<(Inputs, bool), Failure> {
        self.refused.check(Requests::Tokens)?;
        let mut inputs = match (self.prompt, self.messages) {
            (Some(prompt), None) => vec![Tensor::from_texts("text", &[&prompt])?],
            (None, Some(chat)) => vec![Tensor::from_texts("messages", &[&messages(chat)?])?],
            (Some(_), Some(_)) => {
                return Err(Failure::param(
                    "messages",
                    "send `prompt` or `messages`, not both",
                ));
            }
            (None, None) => {
                let message = "send a text as `prompt`, a chat as `messages`, or in the form of text-embeddings-inference texts as `inputs`";
                return Err(Failure::param("prompt", message));
            }
        };
        inputs.extend(self.add_special_tokens.map(|adds| flag(ADD_SPECIAL_TOKENS, adds)));
        let tools = self.tools.filter(|tools| !tools.is_empty()).map(Value::from);
        let variables = self.chat_template_kwargs.map(Value::from);
        for (name, value) in [(TOOLS, tools), (TEMPLATE_VARIABLES, variables)] {
            if let Some(value) = value {
                inputs.push(Tensor::from_texts(name, &[&value.to_string()])?);
            }
        }
        Ok((inputs, self.add_generation_prompt.unwrap_or(true)))
    }
}

/// Answers `/tokenize`.
///
/// # Errors
/// `KSK0001` with the field, `no_tokenizer`.
pub(crate) async fn tokenize(shared: &GatewayState, asked: Tokenize) -> Result<(String, HeaderMap), Failure> {
    let app = shared.app_or_only(asked.model.as_deref())?;
    let stated = app.options.max_model_len;
    let with_strings = asked.return_token_strings;
    let field = asked.prompt.is_some().then_some("prompt");
    let (inputs, answer) = asked.inputs()?;
    app.tokenizer
        .run(&shared.tokenizing, move |tokenizer| {
            let tokens = tokenizer.prompt(&inputs, answer);
            let tokens = tokens.map_err(|error| refused(error, field))?;
            let names = with_strings.then(|| tokenizer.names(&tokens)).transpose();
            Ok(Tokenized {
                count: tokens.len(),
                max_model_len: [stated, tokenizer.context()].into_iter().flatten().min(),
                token_strings: names.map_err(|error| refused(error, field))?,
                tokens,
            })
        })
        .await
}

/// Answers `/detokenize`.
///
/// # Errors
/// As [`tokenize`].
pub(crate) async fn detokenize(
    shared: &GatewayState,
    asked: Detokenize,
) -> Result<(String, HeaderMap), Failure> {
    let app = shared.app_or_only(asked.model.as_deref())?;
    app.tokenizer
        .run(&shared.tokenizing, move |tokenizer| {
            let text = tokenizer.decode(&asked.tokens, false);
            Ok(Text {
                prompt: text.map_err(|error| refused(error, None))?,
            })
        })
        .await
}
