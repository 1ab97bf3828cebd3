//! Incremental detokenisation and stop texts.

use std::path::Path;

use tokenizers::Tokenizer;

use crate::checkpoint::{Checkpoint, LoadError, TokenizerFile};

/// Takes the tokenizer of a checkpoint.
///
/// # Errors
/// [`LoadError::MissingFile`] if there is none, and as `tokenizer`.
pub fn tokenizer_of(checkpoint: &mut Checkpoint) -> Result<Tokenizer, LoadError> {
    match checkpoint.tokenizer.take() {
        Some(file) => tokenizer(&file),
        None => Err(LoadError::MissingFile {
            path: Path::new(checkpoint.config.file()).with_file_name("tokenizer.json"),
            hint: ", and for texts tokenizer.json, which transformers writes: \
                   AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)",
        }),
    }
}

/// Builds a checkpoint's tokenizer for generation, without truncation and padding.
///
/// # Errors
/// [`LoadError::BadTokenizer`].
pub(crate) fn tokenizer(file: &TokenizerFile) -> Result<Tokenizer, LoadError> {
    let bad = |error: tokenizers::Error| LoadError::BadTokenizer {
        file: file.file.clone(),
        reason: error.to_string(),
    };
    let mut tokenizer = Tokenizer::from_bytes(&file.json).map_err(bad)?;
    tokenizer.with_truncation(None).map_err(bad)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Turns the tokens of an answer into text. It holds back text that may be the beginning of a stop text, and incomplete
/// characters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Detokenizer {
    tokens: Vec<u32>,
    /// First token that is decoded together with the next one: a token's text depends on its neighbours. It begins a character.
    window_start: usize,
    /// First token whose text is not yet part of `text`.
    pending: usize,
    /// Bytes of the text before it that the window has.
    decoded_bytes: usize,
    text: String,
    /// Bytes of `text` that were returned.
    emitted: usize,
    /// Whether special tokens are part of the text.
    special_tokens: bool,
}

impl Detokenizer {
    /// Creates one that also writes special tokens, by their names.
    pub(crate) fn with_special_tokens() -> Self {
        Self {
            special_tokens: true,
            ..Self::default()
        }
    }

    /// Adds a token. Returns the new text, and whether a stop text ended the answer.
    pub(crate) fn push(&mut self, token: u32, tokenizer: &Tokenizer, stop: &[String]) -> (String, bool) {
        self.tokens.push(token);
        let decode = |tokens: &[u32]| tokenizer.decode(tokens, !self.special_tokens).unwrap_or_default();
        let decoded = decode(self.tokens.get(self.window_start..).unwrap_or_default());
        // An incomplete character is decoded as a replacement character; the next token completes it.
        if decoded.ends_with('\u{fffd}') {
            return (String::new(), false);
        }
        if let Some(new) = decoded.get(self.decoded_bytes..) {
            self.text.push_str(new);
        }
        // Tokens may be single bytes of a character, so all tokens of the newest text stay in the window.
        self.window_start = std::mem::replace(&mut self.pending, self.tokens.len());
        self.decoded_bytes = decode(self.tokens.get(self.window_start..).unwrap_or_default()).len();
        if let Some(end) = stop.iter().filter_map(|stop| self.text.find(stop.as_str())).min() {
            self.text.truncate(end);
            return (self.emit(end), true);
        }
        let held = stop
            .iter()
            .map(|stop| stop_prefix_len(&self.text, stop))
            .max()
            .unwrap_or_default();
        (self.emit(self.text.len() - held), false)
    }

    /// Returns the text held back, when the answer has ended.
    pub(crate) fn finish(&mut self) -> String {
        self.emit(self.text.len())
    }

    fn emit(&mut self, until: usize) -> String {
        let emitted = self.text.get(self.emitted..until).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(until.min(self.text.len()));
        emitted
    }
}

/// Returns the text that a token adds after another one; special tokens by their names. A part of a character is a replacement
/// character.
pub(crate) fn token_text(tokenizer: &Tokenizer, previous: Option<u32>, token: u32) -> String {
    let decode = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap_or_default();
    // Decoders of some tokenizers strip the space before the first token, so it is decoded behind another one.
    let behind = previous.and_then(|previous| {
        let both = decode(&[previous, token]);
        both.strip_prefix(&decode(&[previous])).map(ToOwned::to_owned)
    });
    behind.unwrap_or_else(|| decode(&[token]))
}

/// Bytes at the end of a text that may be the beginning of `stop`.
pub(crate) fn stop_prefix_len(text: &str, stop: &str) -> usize {
    let eos_token_ids = stop
        .char_indices()
        .map(|(end, _)| end)
        .filter(|end| *end > 0)
        .rev();
    let mut eos_token_ids =
        eos_token_ids.filter(|end| stop.get(..*end).is_some_and(|start| text.ends_with(start)));
    eos_token_ids.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::fixtures;

    fn gpt2() -> Tokenizer {
        tokenizer(&fixtures::checkpoint("gpt2").tokenizer.unwrap()).unwrap()
    }

    #[test]
    fn a_missing_tokenizer_is_rejected_with_a_hint() {
        let mut checkpoint = fixtures::checkpoint("t5");
        assert!(tokenizer_of(&mut checkpoint).is_ok());
        checkpoint.tokenizer = None;
        let error = tokenizer_of(&mut checkpoint).unwrap_err().to_string();
        assert!(error.contains("t5/tokenizer.json` does not exist"), "{error}");
        assert!(error.contains(".save_pretrained("), "{error}");
    }

    fn streamed(text: &str, stop: &[&str]) -> (Vec<String>, bool) {
        let tokenizer = gpt2();
        let tokens = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        let stop: Vec<String> = stop.iter().map(ToString::to_string).collect();
        let (mut answer, mut emitted) = (Detokenizer::default(), Vec::new());
        for token in tokens {
            let (text, ended) = answer.push(token, &tokenizer, &stop);
            emitted.push(text);
            if ended {
                assert_eq!(emitted.concat(), answer.text[..answer.emitted]);
                return (emitted, true);
            }
        }
        emitted.push(answer.finish());
        assert_eq!(emitted.concat(), answer.text[..answer.emitted]);
        (emitted, false)
    }

    #[test]
    fn texts_are_streamed() {
        let (emitted, ended) = streamed("the inner thing, a tour", &[]);
        assert!(emitted.len() > 5 && !ended);
        assert_eq!(emitted.concat(), "the inner thing, a tour");
    }

    #[test]
    fn texts_of_tokens_make_up_the_text() {
        for folder in ["gpt2", "gemma3", "t5"] {
            let tokenizer = tokenizer(&fixtures::checkpoint(folder).tokenizer.unwrap()).unwrap();
            let tokens = tokenizer.encode("the inner thing, a tour", false).unwrap();
            let tokens = tokens.get_ids();
            let whole = tokenizer.decode(tokens, false).unwrap();
            let mut previous = None;
            let texts = tokens
                .iter()
                .map(|token| token_text(&tokenizer, previous.replace(*token), *token));
            assert_eq!(texts.collect::<String>(), whole, "{folder}");
        }
    }

    #[test]
    fn a_part_of_a_character_is_a_replacement_character() {
        let checkpoint = fixtures::checkpoint("roberta-token-classification");
        let tokenizer = tokenizer(&checkpoint.tokenizer.unwrap()).unwrap();
        let tokens = tokenizer.encode("\u{96ea}", false).unwrap().get_ids().to_vec();
        assert!(tokens.len() > 1, "three bytes");
        assert_eq!(token_text(&tokenizer, None, tokens[0]), "\u{fffd}");
    }

    #[test]
    fn characters_of_single_bytes_follow_each_other() {
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let vocabulary: serde_json::Map<String, serde_json::Value> = bytes
            .zip(0..)
            .map(|(token, id)| (token, serde_json::Value::from(id)))
            .collect();
        let json = serde_json::json!({
            "version": "1.0",
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true},
        });
        let tokenizer = Tokenizer::from_bytes(json.to_string()).unwrap();
        let (mut answer, text) = (Detokenizer::default(), "Zürich 雪🙂 ok");
        let streamed: Vec<String> = text
            .bytes()
            .map(|byte| answer.push(u32::from(byte), &tokenizer, &[]).0)
            .collect();
        assert_eq!(streamed.concat(), text);
        assert_eq!(streamed[1..3], ["", "ü"]);
    }

    #[test]
    fn stop_texts_end_answers_and_are_removed() {
        let (emitted, ended) = streamed("one two END three", &[" END"]);
        assert!(ended);
        assert_eq!(emitted.concat(), "one two");
        let (emitted, ended) = streamed("one ENx two EN", &["END", "tax"]);
        assert!(!ended);
        assert_eq!(emitted.concat(), "one ENx two EN");
        assert_eq!(stop_prefix_len("ab EN", "END"), 2);
        assert_eq!(stop_prefix_len("ab", "END"), 0);
    }
}
