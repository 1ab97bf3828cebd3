//! Prompts of requests: a text, messages rendered by the checkpoint's chat template, or token ids.

use std::sync::Arc;

use tokenizers::Tokenizer;

use super::answer::ReasoningSyntax;
use super::inputs::{bad_input, only_text};
use super::request;
use super::response_format::{RESPONSE_FORMAT, response_format};
use super::tools::{FORMAT_BESIDE_TOOLS, Syntax, TOOLS, ToolChoice, Tools};
use crate::checkpoint::{ChatTemplate, Checkpoint, LoadError, TemplateError, TokenizerFile};
use crate::generation::sampling::grammar::Grammars;
use crate::generation::{Grammar, ModelConfig, detokenizer};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, NO_TOKENIZER};
use crate::runtime::tensor::{Datatype, Tensor};

/// Input that replaces `messages` after [`Prompts::read`]: the token ids of the rendered chat.
const CHAT_IDS: &str = "chat_input_ids";

/// Number of tokens at the end of a prompt that may determine how its answer begins.
const END_TOKENS: usize = 16;

/// Returns the inputs that [`Prompts::read`] adds to those of clients.
pub(super) fn prepared_inputs(context: usize) -> Vec<InputSpec> {
    vec![InputSpec::optional(
        CHAT_IDS,
        Datatype::I64,
        vec![Extent::Tokens(context)],
    )]
}

/// Returns whether a request is a chat.
pub(super) fn is_chat(inputs: &Inputs) -> bool {
    inputs
        .iter()
        .any(|input| matches!(input.name.as_str(), "messages" | CHAT_IDS))
}

/// Returns the name of the input that holds the client's prompt.
pub(super) fn name_of(inputs: &Inputs) -> &str {
    let is_prompt = |input: &&Tensor| request::PROMPTS.contains(&input.name.as_str());
    match inputs.iter().find(is_prompt) {
        Some(input) => &input.name,
        None if is_chat(inputs) => "messages",
        None => "text",
    }
}

/// Returns the number of token ids of a request that has no text.
pub(super) fn count_of_ids(inputs: &Inputs) -> usize {
    let is_ids = |input: &&Tensor| matches!(input.name.as_str(), "input_ids" | CHAT_IDS);
    let ids = inputs.iter().find(is_ids);
    ids.and_then(|ids| ids.shape.first()).copied().unwrap_or_default()
}

/// Returns the rejection of a request whose prompt of `tokens` tokens exceeds `longest` tokens. It names no input, because the tokens may
/// stem from a text or from messages. Clients recognise the error by its first words, which are the same as those of
/// the engine.
pub(super) fn too_long(tokens: usize, longest: usize) -> ModelError {
    ModelError::TooLong {
        reason: format!(
            "this model's maximum context length is {longest} tokens; the prompt has {tokens}: shorten it"
        ),
    }
}

/// Converts requests to token ids.
#[derive(Debug)]
pub(super) struct Prompts {
    pub(super) tokenizer: Option<Tokenizer>,
    chat: ChatTemplate,
    /// Syntax of the reasoning in chat answers, if the template shows one.
    pub(super) reasoning: Option<ReasoningSyntax>,
    /// BOS token of the tokenizer.
    bos: Option<u32>,
    /// EOS token of the tokenizer.
    eos: Option<u32>,
}

impl Prompts {
    /// Takes the tokenizer and the chat template out of a checkpoint.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`].
    pub(super) fn take(checkpoint: &mut Checkpoint) -> Result<Self, LoadError> {
        let tokenizer = checkpoint.tokenizer.take();
        Self::new(tokenizer.as_ref(), std::mem::take(&mut checkpoint.chat))
    }

    /// Builds the tokenizer of a file, for prompts rendered by a chat template.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`].
    pub(super) fn new(file: Option<&TokenizerFile>, chat: ChatTemplate) -> Result<Self, LoadError> {
        let tokenizer = file.map(detokenizer::tokenizer).transpose()?;
        let id = |token: &Option<String>| {
            let named = tokenizer.as_ref().zip(token.as_deref());
            named.and_then(|(tokenizer, token)| tokenizer.token_to_id(token))
        };
        let (bos, eos) = (id(&chat.special.bos_token), id(&chat.special.eos_token));
        let reasoning = chat.source_with_tools().and_then(ReasoningSyntax::of_template);
        Ok(Self {
            tokenizer,
            chat,
            reasoning,
            bos,
            eos,
        })
    }

    /// Adds the tokenizer's EOS token to those of the model, as vLLM does: a chat checkpoint may state its EOS token
    /// only in the tokenizer. Returns whether the model has an EOS token.
    pub(super) fn add_eos(&self, model_config: &mut ModelConfig) -> bool {
        let ends = &mut model_config.eos_token_ids;
        let known = self.eos.filter(|eos| (*eos as usize) < model_config.vocabulary);
        ends.extend(known.filter(|eos| !ends.contains(eos)));
        !ends.is_empty()
    }

    /// Returns the inputs for a prompt of at most `context` tokens: `input_ids`, and with a tokenizer also `text`,
    /// `messages` and the options for their tokenization.
    pub(super) fn inputs(&self, context: usize) -> Vec<InputSpec> {
        if self.tokenizer.is_some() {
            let mut inputs = request::prompt_inputs(context);
            let one = vec![Extent::Exactly(1)];
            inputs.push(InputSpec::optional(
                request::ADD_SPECIAL_TOKENS,
                Datatype::Bool,
                one,
            ));
            return inputs;
        }
        let ids = vec![Extent::Tokens(context)];
        vec![InputSpec::required("input_ids", Datatype::I64, ids)]
    }

    /// Returns the token ids of a request's `text`, `messages` or `input_ids`; exactly one of them must be present.
    ///
    /// # Errors
    /// [`ModelError::BadInput`].
    pub(super) fn tokens(&self, inputs: &Inputs) -> Result<Vec<u32>, ModelError> {
        let read = inputs.iter().find(|input| input.name == CHAT_IDS);
        let input = read.map_or_else(|| request::prompt(inputs), Ok)?;
        if matches!(input.name.as_str(), "input_ids" | CHAT_IDS) {
            let token = |id: i64| {
                u32::try_from(id).map_err(|_| bad_input("input_ids", format!("{id} is not a token")))
            };
            return input.to_i64()?.into_iter().map(token).collect();
        }
        let tokens = self.text_tokens(input, inputs, true)?;
        if tokens.is_empty() {
            return Err(bad_input(&input.name, "it has no tokens; send at least one word"));
        }
        Ok(tokens)
    }

    /// Returns the token ids of `input`, a text or messages, among the inputs of a request. `answer` states whether
    /// the template appends the generation prompt to messages.
    ///
    /// # Errors
    /// [`ModelError::BadInput`].
    pub(super) fn text_tokens(
        &self,
        input: &Tensor,
        inputs: &Inputs,
        answer: bool,
    ) -> Result<Vec<u32>, ModelError> {
        let adds = request::add_special_tokens(inputs)?;
        if input.name == "messages" {
            let rendered = self.rendered(input, inputs, answer)?;
            // The template writes the special tokens itself.
            return self.encode(input, &rendered, adds.unwrap_or(false));
        }
        self.encode(input, only_text(input)?, adds.unwrap_or(true))
    }

    /// Returns the special tokens that delimit tool calls and reasoning, which the detokenizer must keep for the
    /// answer scanner.
    pub(super) fn marks(&self, tools: Option<&Tools>, is_chat: bool) -> Vec<u32> {
        let reasoning = self.reasoning.filter(|_| is_chat).map(ReasoningSyntax::marks);
        let may_call = tools.is_some_and(|tools| tools.choice != ToolChoice::None);
        let calls = may_call.then(|| self.syntax().marks());
        let marks = reasoning.into_iter().chain(calls).flatten();
        let id = |mark| self.tokenizer.as_ref()?.token_to_id(mark);
        marks.filter_map(id).collect()
    }

    /// Returns the text of the last tokens of a prompt, including special tokens.
    pub(super) fn end_of(&self, prompt: &[u32]) -> String {
        let last = prompt
            .get(prompt.len().saturating_sub(END_TOKENS)..)
            .unwrap_or_default();
        let tokenizer = self.tokenizer.as_ref();
        tokenizer
            .and_then(|tokenizer| tokenizer.decode(last, false).ok())
            .unwrap_or_default()
    }

    /// Returns the inputs of a request with its text or messages replaced by token ids; `None` if it has neither or
    /// they are invalid. The model then rejects the request with a reason, as it does if there are too many tokens.
    pub(super) fn read(&self, inputs: &Inputs) -> Option<Inputs> {
        let is_text = |input: &Tensor| matches!(input.name.as_str(), "text" | "messages");
        let place = inputs.iter().position(is_text)?;
        let name = if is_chat(inputs) { CHAT_IDS } else { "input_ids" };
        let tokens = self.tokens(inputs).ok()?;
        let ids: Vec<i64> = tokens.into_iter().map(i64::from).collect();
        let mut read = inputs.clone();
        *read.get_mut(place)? = Tensor::from_i64(name, &[ids.len()], &ids).ok()?;
        Some(read)
    }

    /// Returns the grammar of an answer of this format to a request with these tools; `None` for any text.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a format beside tools that the model may call, if no marker begins its calls.
    pub(super) fn grammar(
        &self,
        tools: Option<&Tools>,
        format: Option<Arc<Grammar>>,
    ) -> Result<Option<Arc<Grammar>>, ModelError> {
        let Some(tools) = tools else {
            return Ok(format);
        };
        if let Some(calls) = tools.grammar() {
            return Ok(Some(Arc::new(calls)));
        }
        let Some(format) = format else {
            return Ok(None);
        };
        let calls = self
            .calls()
            .ok_or_else(|| bad_input(RESPONSE_FORMAT, FORMAT_BESIDE_TOOLS))?;
        let format = Box::new(Arc::unwrap_or_clone(format));
        Ok(Some(Arc::new(Grammar::FormatOrCalls { format, calls })))
    }

    /// Returns Lark rules for calls as the model writes them: any text that begins with their marker. `None` if no marker begins them, or if
    /// channels say what is a call.
    fn calls(&self) -> Option<String> {
        let syntax = self.syntax();
        let begin = syntax.begin()?;
        if matches!(self.reasoning, Some(ReasoningSyntax::Harmony)) {
            return None;
        }
        let tokenizer = self.tokenizer.as_ref()?;
        let added = tokenizer.get_added_tokens_decoder();
        let special = |mark: &str| {
            let id = tokenizer.token_to_id(mark)?;
            let is_special = added.get(&id).is_some_and(|token| token.special);
            is_special.then(|| format!("<[{id}]>"))
        };
        let begin = special(begin).unwrap_or_else(|| serde_json::Value::from(begin).to_string());
        let marks = syntax.marks().into_iter().filter_map(special);
        let parts: Vec<String> = std::iter::once("TEXT".to_owned()).chain(marks).collect();
        Some(format!(
            "calls: {begin} part*\npart: {}\nTEXT: /(.|\\n)+/\n",
            parts.join(" | ")
        ))
    }

    /// Compiles the grammar of a request in advance, so that the model's thread finds it compiled. Ignores errors: the
    /// model rejects an invalid grammar with a reason.
    pub(super) fn compile(&self, grammars: &Grammars, inputs: &Inputs) {
        let tools = Tools::read(inputs).ok().flatten();
        let format = response_format(inputs).ok().flatten().map(Arc::new);
        let grammar = self.grammar(tools.as_ref(), format).ok().flatten();
        if let (Some(tokenizer), Some(grammar)) = (&self.tokenizer, grammar) {
            let compiled = grammars.compile(tokenizer, &grammar);
            compiled.unwrap_or_else(|reason| tracing::debug!(reason, "a grammar was not compiled"));
        }
    }

    /// Returns the syntax of the model's tool calls.
    pub(super) fn syntax(&self) -> Syntax {
        Syntax::of_template(self.chat.source_with_tools().unwrap_or_default())
    }

    /// Renders messages, a JSON array, and the request's tools with the chat template.
    fn rendered(&self, input: &Tensor, inputs: &Inputs, answer: bool) -> Result<String, ModelError> {
        let mut messages = request::messages(input)?;
        for message in &mut messages {
            // The template of gpt-oss calls this key `thinking`.
            if let Some(reasoning) = message.further.get("reasoning_content").cloned() {
                message.further.entry("thinking").or_insert(reasoning);
            }
        }
        let tools = Tools::read(inputs)?.map(|tools| tools.tools).unwrap_or_default();
        let variables = request::template_variables(inputs)?;
        self.chat
            .render_until(&messages, &tools, &variables, answer)
            .map_err(|error| match error {
                TemplateError::NoTools => bad_input(TOOLS, error.to_string()),
                _ => bad_input(&input.name, error.to_string()),
            })
    }

    fn encode(&self, input: &Tensor, text: &str, special: bool) -> Result<Vec<u32>, ModelError> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(bad_input(&input.name, NO_TOKENIZER));
        };
        let encoding = tokenizer
            .encode(text, special)
            .map_err(|error| bad_input(&input.name, format!("the tokenizer failed: {error}")))?;
        let mut tokens = encoding.get_ids().to_vec();
        // A text that a client rendered with a chat template begins with BOS, which the tokenizer adds again.
        if special
            && let (Some(bos), [first, second, ..]) = (self.bos, tokens.as_slice())
            && *first == bos
            && *second == bos
        {
            tokens.remove(0);
        }
        Ok(tokens)
    }
}
