//! Token ids of a request: tokenized from text, or given as ids.

pub(super) mod last_token;
pub(crate) mod second_text;

use std::sync::Arc;

use tokenizers::{
    Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams, TruncationStrategy,
};

use self::last_token::TextEnd;
use self::second_text::SecondText;
use crate::checkpoint::sentence::Preparation;
use crate::checkpoint::{LoadError, TokenizerFile};
use crate::runtime::model::{Extent, InputSpec, Inputs, ModelError, NO_TOKENIZER, Signature};
use crate::runtime::tensor::{Datatype, Tensor};
use crate::tasks::embedding::PROMPT_NAME;
use crate::tasks::entities::{AGGREGATION_STRATEGY, AggregationStrategy};
use crate::tasks::labelling::{Pieces, TokenText};

/// Maximum text of a request, bytes: far more than any context holds, and small enough that a request cannot occupy a
/// replica for long.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 18;

/// Converts requests to tokens.
pub(super) struct TextReader {
    tokenizer: Option<Tokenizer>,
    /// Token properties, for token classification only.
    pieces: Option<Arc<Pieces>>,
    limits: TokenLimits,
    /// Maximum length of a tokenized text, tokens.
    longest: usize,
    texts: Texts,
    /// Whether the context precedes the question.
    context_first: bool,
    /// Whether the tokenizer's token types are used.
    typed: bool,
    /// Preparation of a text before tokenization.
    pub preparation: Preparation,
    /// End of a sequence.
    pub end: TextEnd,
    /// Padding token id, if the tokenizer states one.
    padding: Option<i64>,
    /// Whether the model is not partitioned, so that it can combine the windows of a context.
    pub whole: bool,
}

/// Maximum length of a window with question and context, tokens: the default of transformers' question answering.
const MAX_WINDOW_TOKENS: usize = 384;

/// Number of tokens that adjacent windows of a context share: the default of transformers' question answering.
const WINDOW_STRIDE: usize = 128;

/// Maximum number of windows of one request.
const MAX_WINDOWS: usize = 256;

/// Kind of texts in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Texts {
    /// One text or a pair; truncation shortens the longer text of a pair.
    OneOrTwo,
    /// A question and its context; each window of the context is paired with the question.
    QuestionAndContext,
    /// One text whose tokens are labelled.
    Labelled,
}

/// Limits of token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenLimits {
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Number of token types; 0 if the model has none, and those of the tokenizer are ignored.
    pub types: usize,
    /// Maximum sequence length, tokens.
    pub context: usize,
}

/// Tokens of a request; all columns have the same length, at least 1.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Token ids, below the vocabulary size.
    pub ids: Vec<i64>,
    /// Token types, below the number of types.
    pub types: Vec<i64>,
    /// Attention mask; true for at least one token.
    pub mask: Vec<bool>,
    /// Segments, if attention depends on them.
    pub segments: Vec<i64>,
    /// The second text, for a pair of texts.
    pub second: Option<SecondText>,
    /// The text, for token classification.
    pub labelled: Option<TokenText>,
}

impl TextReader {
    /// Creates a reader with the checkpoint's tokenizer, if it has one. Texts are truncated to the context or the
    /// maximum length in the tokenizer's configuration, at the end unless the configuration says otherwise.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`] if the file is not a tokenizer, or leaves no room for text in the context.
    pub(super) fn new(
        file: Option<&TokenizerFile>,
        limits: TokenLimits,
        texts: Texts,
    ) -> Result<Self, LoadError> {
        let stated = file.and_then(|file| file.sequences.max_tokens);
        let longest = stated.map_or(limits.context, |stated| stated.min(limits.context));
        let tokenizer = file.map(|file| load(file, longest, texts)).transpose()?;
        let pads_beginning = file.is_some_and(|file| file.sequences.pads_beginning);
        let pieces = match (file, &tokenizer) {
            (Some(file), Some(tokenizer)) if texts == Texts::Labelled => {
                Some(Arc::new(Pieces::read(file, tokenizer)?))
            }
            _ => None,
        };
        let padding = file.and_then(|file| tokenizer.as_ref()?.token_to_id(file.padding.as_deref()?));
        Ok(Self {
            tokenizer,
            pieces,
            limits,
            longest,
            texts,
            context_first: pads_beginning && texts == Texts::QuestionAndContext,
            typed: limits.types > 0 && file.is_none_or(|file| file.types),
            preparation: file.map(|file| file.preparation.clone()).unwrap_or_default(),
            whole: true,
            end: TextEnd::AsGiven,
            padding: padding.map(i64::from),
        })
    }

    /// Returns the inputs: `input_ids`, `attention_mask` and `token_type_ids`, each INT64 `[sequence]`; with a
    /// tokenizer, alternatively `text` and `text_pair` (BYTES `[1]`), and `prompt_name` if the model has prompts.
    /// Token classification has `aggregation_strategy` instead of `text_pair`.
    pub(super) fn signature(&self) -> Signature {
        let ids = |name| InputSpec::optional(name, Datatype::I64, vec![Extent::UpTo(self.limits.context)]);
        let mut inputs = vec![ids("input_ids"), ids("attention_mask")];
        if self.limits.types > 0 {
            inputs.push(ids("token_type_ids"));
        }
        if self.tokenizer.is_some() && self.texts == Texts::Labelled {
            inputs.extend(labelled_inputs());
        } else if self.tokenizer.is_some() {
            inputs.extend(["text", "text_pair"].map(text_input));
            inputs.extend((!self.preparation.prompts.is_empty()).then(|| text_input(PROMPT_NAME)));
        } else if let Some(ids) = inputs.first_mut() {
            ids.optional = false;
        }
        Signature { inputs }
    }

    /// Returns the tokens of a request; several sequences if its context is split into windows.
    ///
    /// # Errors
    /// [`ModelError`], naming the invalid input.
    pub(super) fn read(&self, inputs: &Inputs) -> Result<Vec<Tokens>, ModelError> {
        let mut sequences = self.sequences(inputs)?;
        for tokens in &mut sequences {
            self.end.shorten(tokens);
        }
        Ok(sequences)
    }

    fn sequences(&self, inputs: &Inputs) -> Result<Vec<Tokens>, ModelError> {
        self.signature().check(inputs)?;
        let input = |name: &str| inputs.iter().find(|input| input.name == name);
        match (input("input_ids"), input("text")) {
            (Some(_), None) if input(AGGREGATION_STRATEGY).is_some() => Err(bad(
                AGGREGATION_STRATEGY,
                "it is allowed with `text` only; token ids have no text to find entities in",
            )),
            (Some(_), None) if input(PROMPT_NAME).is_some() => Err(bad(
                PROMPT_NAME,
                "it is allowed with `text` only; put the tokens of the prompt in front of `input_ids`",
            )),
            (Some(ids), None) if input("text_pair").is_none() => Ok(vec![self.ids(
                ids,
                input("attention_mask"),
                input("token_type_ids"),
            )?]),
            (None, Some(text)) => {
                for name in ["attention_mask", "token_type_ids"] {
                    if input(name).is_some() {
                        return Err(bad(
                            name,
                            "it is allowed with `input_ids` only; for `text` the tokenizer computes it",
                        ));
                    }
                }
                match &self.pieces {
                    Some(_) => Ok(vec![self.labelled(text, input(AGGREGATION_STRATEGY))?]),
                    None => self.tokenize(text, input("text_pair"), self.prompt(input(PROMPT_NAME))?),
                }
            }
            (Some(_), _) => Err(bad(
                "input_ids",
                "it is given together with a text; send only one",
            )),
            (None, None) => Err(bad(
                "text",
                "`text` and `input_ids` are missing; send one of them",
            )),
        }
    }

    /// Returns the text of a request with hidden states from another partition, if it is included.
    ///
    /// # Errors
    /// Same as [`TextReader::read`].
    pub(super) fn text_of(&self, inputs: &Inputs) -> Result<Option<TokenText>, ModelError> {
        let input = |name: &str| inputs.iter().find(|input| input.name == name);
        let tokens = input("text").map(|text| self.labelled(text, input(AGGREGATION_STRATEGY)));
        Ok(tokens.transpose()?.and_then(|tokens| tokens.labelled))
    }

    /// Tokenizes a text for token classification.
    fn labelled(&self, text: &Tensor, strategy: Option<&Tensor>) -> Result<Tokens, ModelError> {
        let (Some(tokenizer), Some(pieces)) = (&self.tokenizer, &self.pieces) else {
            return Err(bad("text", NO_TOKENIZER));
        };
        let strategy = strategy.map(|strategy| AggregationStrategy::named(only_text(strategy)?));
        let strategy = strategy.transpose()?;
        let words = only_text(text)?;
        let encoding = tokenizer.encode_char_offsets(words, true);
        let encoding = encoding.map_err(|error| bad(&text.name, format!("the tokenizer failed: {error}")))?;
        let labelled = TokenText::new(words, &encoding, pieces, strategy);
        Ok(Tokens {
            labelled: Some(labelled),
            ..self.tokens(&text.name, None, encoding)?
        })
    }

    fn ids(&self, ids: &Tensor, mask: Option<&Tensor>, types: Option<&Tensor>) -> Result<Tokens, ModelError> {
        let length = ids.shape.first().copied().unwrap_or_default();
        let column = |tensor: Option<&Tensor>, absent: i64, limit: usize| match tensor {
            None => Ok(vec![absent; length]),
            Some(tensor) if tensor.shape == ids.shape => check_range(tensor, limit),
            Some(tensor) => Err(ModelError::WrongShape {
                name: tensor.name.clone(),
                expected: format!("{length}, as `input_ids`"),
                actual: tensor.shape.clone(),
            }),
        };
        let mask = column(mask, 1, 2)?
            .into_iter()
            .map(|mask| mask == 1)
            .collect::<Vec<_>>();
        if !mask.contains(&true) {
            return Err(bad("attention_mask", "it masks every token"));
        }
        Ok(Tokens {
            ids: check_range(ids, self.limits.vocabulary)?,
            types: column(types, 0, self.limits.types)?,
            mask,
            segments: Vec::new(),
            second: None,
            labelled: None,
        })
    }

    /// Returns the prompt with this name, or the default prompt.
    pub(super) fn prompt(&self, name: Option<&Tensor>) -> Result<&str, ModelError> {
        let Some(tensor) = name else {
            return Ok(&self.preparation.prompt);
        };
        let name = only_text(tensor)?;
        let found = self.preparation.prompts.get(name).map(String::as_str);
        found.ok_or_else(|| {
            let known: Vec<_> = self.preparation.prompts.keys().collect();
            bad(
                PROMPT_NAME,
                format!("the model has no prompt `{name}`; it has {known:?}"),
            )
        })
    }

    fn tokenize(
        &self,
        text: &Tensor,
        pair: Option<&Tensor>,
        prompt: &str,
    ) -> Result<Vec<Tokens>, ModelError> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(bad("text", NO_TOKENIZER));
        };
        let first = Preparation::prompted(only_text(text)?, prompt);
        let first = first.as_ref();
        let second = pair.map(only_text).transpose()?;
        let encodings = match second {
            None if self.texts == Texts::QuestionAndContext => {
                return Err(bad(
                    &text.name,
                    "it is a question; send its context as `text_pair`",
                ));
            }
            None => tokenizer.encode(first, true).map(|encoding| vec![encoding]),
            Some(second) if self.texts == Texts::QuestionAndContext => self.windows(tokenizer, first, second),
            Some(second) => tokenizer
                .encode((first, second), true)
                .map(|encoding| vec![encoding]),
        };
        let encodings =
            encodings.map_err(|error| bad(&text.name, format!("the tokenizer failed: {error}")))?;
        let tokens = encodings
            .into_iter()
            .map(|encoding| self.tokens(&text.name, second, encoding));
        tokens.collect()
    }

    /// Tokenizes a question with each window of its context, as transformers' question answering does: windows of at
    /// most [`MAX_WINDOW_TOKENS`] tokens, of which adjacent ones share [`WINDOW_STRIDE`].
    fn windows(
        &self,
        tokenizer: &Tokenizer,
        question: &str,
        context: &str,
    ) -> tokenizers::Result<Vec<Encoding>> {
        let question = tokenizer.encode(question, false)?;
        let mut context = tokenizer.encode(context, false)?;
        let added = tokenizer
            .get_post_processor()
            .map_or(0, |processor| processor.added_tokens(true));
        let longest = self.longest.min(MAX_WINDOW_TOKENS);
        // At least one token, although the sequence is then too long, which `tokens` reports.
        let room = longest.saturating_sub(added + question.len()).max(1);
        let stride = (longest / 2).min(WINDOW_STRIDE).min(room - 1);
        context.truncate(room, stride, TruncationDirection::Right);
        let others = context.take_overflowing();
        if others.len() >= MAX_WINDOWS {
            return Err(format!("the context has more than {MAX_WINDOWS} windows").into());
        }
        let count = if self.whole { others.len() } else { 0 };
        let windows = std::iter::once(context).chain(others.into_iter().take(count));
        windows
            .map(|window| {
                let question = question.clone();
                let (first, second) = if self.context_first {
                    (window, question)
                } else {
                    (question, window)
                };
                tokenizer.post_process(first, Some(second), true)
            })
            .collect()
    }

    fn tokens(&self, name: &str, second: Option<&str>, encoding: Encoding) -> Result<Tokens, ModelError> {
        let column = |values: &[u32], limit: usize| {
            if let Some(value) = values.iter().find(|value| **value as usize >= limit) {
                let reason = format!(
                    "the tokenizer returned {value}; this model takes 0..={}",
                    limit - 1
                );
                return Err(bad(name, reason));
            }
            Ok(values.iter().map(|value| i64::from(*value)).collect::<Vec<_>>())
        };
        let is_typed = |kind: &u32| (*kind as usize) < self.limits.types;
        if second.is_some() && self.typed && !encoding.get_type_ids().iter().all(is_typed) {
            return Err(bad(
                "text_pair",
                "this model reads one text, not two, so it neither ranks texts nor answers questions about them; leave `text_pair` out",
            ));
        }
        let ids = column(encoding.get_ids(), self.limits.vocabulary)?;
        if ids.is_empty() {
            return Err(bad(
                name,
                "the tokenizer returned no tokens; send at least one word",
            ));
        }
        if ids.len() > self.limits.context {
            let (tokens, most) = (ids.len(), self.limits.context);
            return Err(bad(
                name,
                format!("it has {tokens} tokens, and this model takes at most {most}; shorten it"),
            ));
        }
        let mut tokens = Tokens {
            types: if self.typed {
                column(encoding.get_type_ids(), self.limits.types)?
            } else {
                vec![0; ids.len()]
            },
            mask: vec![true; ids.len()],
            ids,
            segments: Vec::new(),
            second: second
                .map(|second| SecondText::new(second.to_owned(), encoding, usize::from(!self.context_first))),
            labelled: None,
        };
        self.end.fill(&mut tokens, self.limits.context, self.padding);
        Ok(tokens)
    }
}

fn load(file: &TokenizerFile, context: usize, texts: Texts) -> Result<Tokenizer, LoadError> {
    let bad = |reason: String| LoadError::BadTokenizer {
        file: file.file.clone(),
        reason,
    };
    let mut tokenizer = file.tokenizer()?;
    let added = tokenizer
        .get_post_processor()
        .map_or(0, |processor| processor.added_tokens(true));
    if context <= added {
        return Err(bad(format!(
            "its {added} special tokens fill the context of {context}"
        )));
    }
    let truncation = TruncationParams {
        direction: if file.sequences.cuts_beginning {
            TruncationDirection::Left
        } else {
            TruncationDirection::Right
        },
        max_length: context,
        strategy: TruncationStrategy::LongestFirst,
        stride: 0,
    };
    // Contexts are split into windows instead.
    let truncation = (texts != Texts::QuestionAndContext).then_some(truncation);
    tokenizer
        .with_truncation(truncation)
        .map_err(|error| bad(error.to_string()))?;
    // Sequences are padded later, to the longest of their batch; a fixed length in the file would only waste time.
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Returns the inputs of a token classifier besides token ids, which its partitions pass on with the hidden states.
pub(super) fn labelled_inputs() -> [InputSpec; 2] {
    ["text", AGGREGATION_STRATEGY].map(text_input)
}

/// Returns the specification of an input with one text.
pub(super) fn text_input(name: &str) -> InputSpec {
    InputSpec::optional(name, Datatype::Bytes, vec![Extent::Exactly(1)])
}

/// Returns the text of an input.
///
/// # Errors
/// [`ModelError`] for a text that is too long or not UTF-8.
pub(super) fn only_text(tensor: &Tensor) -> Result<&str, ModelError> {
    if tensor.data.len() > MAX_TEXT_BYTES {
        return Err(bad(
            &tensor.name,
            format!("it is longer than {MAX_TEXT_BYTES} bytes"),
        ));
    }
    Ok(tensor.to_texts()?.into_iter().next().unwrap_or_default())
}

fn check_range(tensor: &Tensor, limit: usize) -> Result<Vec<i64>, ModelError> {
    let values = tensor.to_i64()?;
    let fits = |value: i64| usize::try_from(value).is_ok_and(|value| value < limit);
    match values.iter().enumerate().find(|(_, value)| !fits(**value)) {
        None => Ok(values),
        Some((index, value)) => Err(bad(
            &tensor.name,
            format!(
                "element {index} is {value}; this model takes 0..={}",
                limit.saturating_sub(1)
            ),
        )),
    }
}

/// Builds the error for an invalid input.
pub(super) fn bad(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason: reason.into(),
    }
}
