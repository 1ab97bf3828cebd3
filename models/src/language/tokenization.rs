//! Tokenization of texts and chats without a model: the tokenizer and the chat template of a checkpoint.

use std::borrow::Cow;
use std::path::Path;

use tokenizers::Tokenizer;

use super::inputs::{bad_input, check_length};
use super::prompt::Prompts;
use super::request;
use crate::PROMPT_NAME;
use crate::checkpoint::LoadError;
use crate::checkpoint::sentence::Preparation;
use crate::checkpoint::text_files::TextFiles;
use crate::runtime::model::{Inputs, ModelError, NO_TOKENIZER};
use crate::runtime::tensor::Tensor;

/// The tokenizer and the chat template of a checkpoint, loaded without its weights.
#[derive(Debug)]
pub struct CheckpointTokenizer {
    prompts: Prompts,
    preparation: Preparation,
    context: Option<usize>,
}

/// A token of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextToken {
    /// Token id.
    pub id: u32,
    /// The part of the text that the token represents; the token's name if the tokenizer added it.
    pub text: String,
    /// Byte range of that part, end exclusive; `None` for a token that the tokenizer added.
    pub span: Option<[usize; 2]>,
}

impl CheckpointTokenizer {
    /// Loads the tokenizer of a directory, or of a GGUF file. `None` if it has none.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable, too large or malformed.
    pub fn open(path: &Path) -> Result<Option<Self>, LoadError> {
        let files = TextFiles::open(path)?;
        let Some(file) = &files.tokenizer else {
            return Ok(None);
        };
        let stated = [file.sequences.max_tokens, files.context];
        Ok(Some(Self {
            context: stated.into_iter().flatten().min(),
            preparation: file.preparation.clone(),
            prompts: Prompts::new(Some(file), files.chat)?,
        }))
    }

    /// Maximum sequence length that the checkpoint states, tokens.
    pub const fn context(&self) -> Option<usize> {
        self.context
    }

    /// Returns the token ids of the input `text` or `messages`, tokenized as for a language model:
    /// `add_special_tokens`, `tools` and `chat_template_kwargs` apply. A text is prepared as for a
    /// sentence-transformers encoder. `answer` states whether the template appends the generation prompt to messages.
    ///
    /// # Errors
    /// [`ModelError::BadInput`], naming the input.
    pub fn prompt(&self, inputs: &Inputs, answer: bool) -> Result<Vec<u32>, ModelError> {
        let input = request::prompt(inputs)?;
        if input.name != "text" {
            return self.prompts.text_tokens(input, inputs, answer);
        }
        let prepared = self.prepared(request::only_text(input)?, None)?;
        let prepared = Tensor::from_texts("text", &[prepared.as_ref()])?;
        self.prompts.text_tokens(&prepared, inputs, answer)
    }

    /// Returns the tokens of a text with the parts of the text that they represent. `special` states whether the
    /// tokenizer adds special tokens. The text is prefixed with the model's prompt `prompt_name`, or its default
    /// prompt; parts refer to the prefixed text.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a text that is too long, and for an unknown prompt name.
    pub fn tokens(
        &self,
        text: &str,
        special: bool,
        prompt_name: Option<&str>,
    ) -> Result<Vec<TextToken>, ModelError> {
        check_length("inputs", text.len())?;
        let text = self.prepared(text, prompt_name)?;
        let encoding = self.tokenizer()?.encode(text.as_ref(), special);
        let encoding =
            encoding.map_err(|error| bad_input("inputs", format!("the tokenizer failed: {error}")))?;
        let ids = encoding.get_ids().iter().zip(encoding.get_tokens());
        let places = encoding
            .get_offsets()
            .iter()
            .zip(encoding.get_special_tokens_mask());
        let tokens = ids.zip(places).map(|((id, name), ((start, end), special))| {
            let span = (*special == 0).then_some([*start, *end]);
            TextToken {
                id: *id,
                text: span.map_or_else(|| name.clone(), |_| part(&text, *start, *end)),
                span,
            }
        });
        Ok(tokens.collect())
    }

    /// Returns the names of token ids in the vocabulary.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a token that is not in the vocabulary.
    pub fn names(&self, ids: &[u32]) -> Result<Vec<String>, ModelError> {
        let tokenizer = self.tokenizer()?;
        let name = |id: &u32| {
            tokenizer
                .id_to_token(*id)
                .ok_or_else(|| bad_input("tokens", format!("{id} is not a token of the vocabulary")))
        };
        ids.iter().map(name).collect()
    }

    /// Decodes token ids to text, with or without special tokens.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a token that is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, ModelError> {
        let tokenizer = self.tokenizer()?;
        if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
            return Err(bad_input(
                "tokens",
                format!("{id} is not a token of the vocabulary"),
            ));
        }
        let text = tokenizer.decode(ids, skip_special_tokens);
        text.map_err(|error| bad_input("tokens", format!("the tokenizer failed: {error}")))
    }

    fn tokenizer(&self) -> Result<&Tokenizer, ModelError> {
        let tokenizer = self.prompts.tokenizer.as_ref();
        tokenizer.ok_or_else(|| bad_input("text", NO_TOKENIZER))
    }

    /// Returns the text to tokenize: `text` after the prompt of that name or the default prompt.
    fn prepared<'a>(&self, text: &'a str, prompt_name: Option<&str>) -> Result<Cow<'a, str>, ModelError> {
        let Preparation { prompt, prompts, .. } = &self.preparation;
        let prompt = match prompt_name {
            None => prompt,
            Some(name) => prompts.get(name).ok_or_else(|| {
                let known: Vec<_> = prompts.keys().collect();
                bad_input(
                    PROMPT_NAME,
                    format!("the model has no prompt `{name}`; it has {known:?}"),
                )
            })?,
        };
        Ok(Preparation::prompted(text, prompt))
    }
}

/// Returns a part of a text; a token may represent part of a character.
fn part(text: &str, start: usize, end: usize) -> String {
    let bytes = text.as_bytes().get(start..end).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests;
