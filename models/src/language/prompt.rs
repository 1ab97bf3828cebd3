//! Prompts of requests: a text, messages rendered by the checkpoint's chat template, or token ids.

use tokenizers::Tokenizer;

use super::answer::ReasoningSyntax;
use super::inputs::{bad_input, only_text};
use super::request;
use super::response_format::response_format;
use super::tools::{Syntax, TOOLS, ToolChoice, Tools};
use crate::checkpoint::{ChatTemplate, Checkpoint, LoadError, TemplateError, TokenizerFile};
use crate::generation::sampling::grammar::Grammars;
use crate::generation::{ModelConfig, detokenizer};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, NO_TOKENIZER};
use crate::runtime::tensor::{Datatype, Tensor};

/// Stands for `messages` in requests that [`Prompts::read`] has read: the tokens of the rendered chat.
const CHAT_IDS: &str = "chat_input_ids";

/// Tokens at the end of a prompt that may say how its answer begins.
const END_TOKENS: usize = 16;

/// The inputs of requests that [`Prompts::read`] has read, beside those of clients.
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

/// Name of the input that a client's prompt is in.
pub(super) fn name_of(inputs: &Inputs) -> &str {
    let is_prompt = |input: &&Tensor| request::PROMPTS.contains(&input.name.as_str());
    match inputs.iter().find(is_prompt) {
        Some(input) => &input.name,
        None if is_chat(inputs) => "messages",
        None => "text",
    }
}

/// Returns the refusal of a request whose prompt has more than `longest` tokens. It names no input: the tokens may stand for a text or for
/// messages. Clients know an error of that kind by its first words, as of the engine.
pub(super) fn too_long(inputs: &Inputs, longest: usize) -> ModelError {
    let is_ids = |input: &&Tensor| matches!(input.name.as_str(), "input_ids" | CHAT_IDS);
    let ids = inputs.iter().find(is_ids);
    let tokens = ids.and_then(|ids| ids.shape.first()).copied().unwrap_or_default();
    ModelError::TooLong {
        reason: format!(
            "this model's maximum context length is {longest} tokens; the prompt has {tokens}: shorten it"
        ),
    }
}

/// Turns requests into tokens.
#[derive(Debug)]
pub(super) struct Prompts {
    pub(super) tokenizer: Option<Tokenizer>,
    chat: ChatTemplate,
    /// How answers of chats are reasoned, if the template shows it.
    pub(super) reasoning: Option<ReasoningSyntax>,
    /// The token that begins a text.
    bos: Option<u32>,
    /// The token that ends a text.
    eos: Option<u32>,
}

impl Prompts {
    /// Takes the tokenizer and the chat template of a checkpoint.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`].
    pub(super) fn take(checkpoint: &mut Checkpoint) -> Result<Self, LoadError> {
        let tokenizer = checkpoint.tokenizer.take();
        Self::new(tokenizer.as_ref(), std::mem::take(&mut checkpoint.chat))
    }

    /// Builds the tokenizer of a file for prompts that a chat template renders.
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

    /// Adds the tokenizer's end-of-sequence token to those of the model, as vLLM does: a checkpoint that was trained for chats may state it
    /// there alone. Returns whether the model has such a token.
    pub(super) fn add_end(&self, model_config: &mut ModelConfig) -> bool {
        let ends = &mut model_config.eos_token_ids;
        let known = self.eos.filter(|eos| (*eos as usize) < model_config.vocabulary);
        ends.extend(known.filter(|eos| !ends.contains(eos)));
        !ends.is_empty()
    }

    /// The inputs for a prompt of at most `context` tokens: `text`, `messages` and how they become tokens if there is a tokenizer, and
    /// `input_ids`.
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

    /// Returns the tokens of a request's `text`, `messages` or `input_ids`, exactly one of which must be given.
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

    /// Returns the tokens of a text or of messages, here `input`, among the inputs of a request. `answer` says whether messages end with
    /// the beginning of an answer.
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

    /// Returns the special tokens that mark calls and reasoning in an answer, for what separates its parts.
    pub(super) fn marks(&self, tools: Option<&Tools>, is_chat: bool) -> Vec<u32> {
        let reasoning = self.reasoning.filter(|_| is_chat).map(ReasoningSyntax::marks);
        let may_call = tools.is_some_and(|tools| tools.choice != ToolChoice::None);
        let calls = may_call.then(|| self.syntax().marks());
        let marks = reasoning.into_iter().chain(calls).flatten();
        let id = |mark| self.tokenizer.as_ref()?.token_to_id(mark);
        marks.filter_map(id).collect()
    }

    /// Returns the text of a prompt's end, with special tokens by their names.
    pub(super) fn end_of(&self, prompt: &[u32]) -> String {
        let last = prompt
            .get(prompt.len().saturating_sub(END_TOKENS)..)
            .unwrap_or_default();
        let tokenizer = self.tokenizer.as_ref();
        tokenizer
            .and_then(|tokenizer| tokenizer.decode(last, false).ok())
            .unwrap_or_default()
    }

    /// Returns the inputs of a request with tokens in place of its text or messages; `None` if it has none, or if they
    /// cannot be read: the model says what is wrong, also with more tokens than it takes.
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

    /// Compiles the grammar of a request's answer, so that the thread of the model finds it compiled. The model says what is wrong
    /// with one that cannot be.
    pub(super) fn compile(&self, grammars: &Grammars, inputs: &Inputs) {
        let tools = Tools::read(inputs).ok().flatten();
        let required = tools.and_then(|tools| tools.grammar());
        let format = || response_format(inputs).ok().flatten();
        if let (Some(tokenizer), Some(grammar)) = (&self.tokenizer, required.or_else(format)) {
            let compiled = grammars.compile(tokenizer, &grammar);
            compiled.unwrap_or_else(|reason| tracing::debug!(reason, "a grammar was not compiled"));
        }
    }

    /// Returns the syntax in which the model writes calls of tools.
    pub(super) fn syntax(&self) -> Syntax {
        Syntax::of_template(self.chat.source_with_tools().unwrap_or_default())
    }

    /// Renders messages, a JSON array, and the tools of their request by the chat template.
    fn rendered(&self, input: &Tensor, inputs: &Inputs, answer: bool) -> Result<String, ModelError> {
        let mut messages = request::messages(input)?;
        for message in &mut messages {
            // The template of gpt-oss has its own name for it.
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
        // A text that a client rendered by a chat template begins with the token that the tokenizer adds.
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
