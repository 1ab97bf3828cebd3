//! Incremental detokenization, and detection of stop texts.

use std::path::Path;

use tokenizers::Tokenizer;

use crate::checkpoint::{Checkpoint, LoadError, TokenizerFile};

/// Builds the tokenizer of a checkpoint.
///
/// # Errors
/// [`LoadError::MissingFile`] without a tokenizer, and the errors of `tokenizer`.
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
    let mut tokenizer = file.tokenizer()?;
    tokenizer.with_truncation(None).map_err(bad)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Maximum number of tokens of a character that may still be completed: a character has at most four bytes.
const MAX_INCOMPLETE_TOKENS: usize = 3;

/// Number of tokens at the end of a prompt that are decoded together with an answer that continues it.
const PROMPT_TOKENS: usize = 6;

/// Converts the tokens of an answer to text. Holds back incomplete characters, and text that may be the beginning of a
/// stop text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Detokenizer {
    tokens: Vec<u32>,
    /// First token that is decoded together with the next one, because the text of a token depends on its neighbours.
    /// Begins a character.
    window_start: usize,
    /// First token whose text is not completely part of `text`.
    pending: usize,
    /// Length of the window's text that is already part of `text`, or of the prompt, bytes.
    decoded_bytes: usize,
    text: String,
    /// Length of the part of `text` that has been returned, bytes.
    emitted: usize,
    /// Special tokens to include in the text.
    shown: Vec<u32>,
}

impl Detokenizer {
    /// Creates a detokenizer that includes the names of these special tokens in the text, and omits others.
    pub(crate) fn new(shown: Vec<u32>) -> Self {
        Self {
            shown,
            ..Self::default()
        }
    }

    /// Decodes the answer as a continuation of its prompt. Decoders of some tokenizers strip the space before the
    /// first token of a text, which must not happen to the answer.
    #[must_use]
    pub(crate) fn behind(mut self, prompt: &[u32], tokenizer: &Tokenizer) -> Self {
        let end = prompt.len().saturating_sub(PROMPT_TOKENS);
        self.tokens = prompt.get(end..).unwrap_or_default().to_vec();
        self.pending = self.tokens.len();
        let text = self.decoded(tokenizer, 0);
        // The answer may complete a character of the prompt.
        self.decoded_bytes = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        self
    }

    /// Adds a token. Returns the new text, and whether a stop text ended the answer. Searches stop texts only in text
    /// that was not returned before.
    pub(crate) fn push(&mut self, token: u32, tokenizer: &Tokenizer, stop: &[String]) -> (String, bool) {
        self.tokens.push(token);
        let decoded = self.decoded(tokenizer, self.window_start);
        let complete = decoded.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let is_complete = complete.len() == decoded.len();
        if is_complete || self.tokens.len() - self.pending > MAX_INCOMPLETE_TOKENS {
            self.take(&decoded, tokenizer);
        } else if let Some(new) = complete.get(self.decoded_bytes..) {
            // An incomplete character decodes to replacement characters, and the next token may complete it.
            self.text.push_str(new);
            self.decoded_bytes = complete.len();
        }
        let new = self.text.get(self.emitted..).unwrap_or_default();
        if let Some(end) = stop.iter().filter_map(|stop| new.find(stop.as_str())).min() {
            let end = self.emitted + end;
            self.text.truncate(end);
            self.pending = self.tokens.len();
            return (self.emit(end), true);
        }
        let held = stop.iter().map(|stop| stop_prefix_len(new, stop)).max();
        (self.emit(self.text.len() - held.unwrap_or_default()), false)
    }

    /// Returns the held-back text at the end of the answer. An incomplete character becomes a replacement character.
    pub(crate) fn finish(&mut self, tokenizer: &Tokenizer) -> String {
        if self.pending < self.tokens.len() {
            let decoded = self.decoded(tokenizer, self.window_start);
            self.take(&decoded, tokenizer);
        }
        self.emit(self.text.len())
    }

    /// Appends the new part of the window's text, and moves the window.
    fn take(&mut self, decoded: &str, tokenizer: &Tokenizer) {
        if let Some(new) = decoded.get(self.decoded_bytes..) {
            self.text.push_str(new);
        } else {
            // Some decoders replace all bytes next to an invalid byte by replacement characters.
            let new = self.decoded(tokenizer, self.pending);
            self.text.push_str(&new);
        }
        // Tokens may be single bytes of a character, so all tokens of the newest text stay in the window.
        self.window_start = std::mem::replace(&mut self.pending, self.tokens.len());
        self.decoded_bytes = self.decoded(tokenizer, self.window_start).len();
    }

    /// Decodes the tokens from index `from` on.
    fn decoded(&self, tokenizer: &Tokenizer, from: usize) -> String {
        let tokens = self.tokens.get(from..).unwrap_or_default();
        if self.shown.is_empty() {
            return tokenizer.decode(tokens, true).unwrap_or_default();
        }
        let added = tokenizer.get_added_vocabulary();
        let is_special = |id: u32| {
            let text = added.simple_id_to_token(id);
            text.is_some_and(|text| added.is_special_token(&text))
        };
        let tokens = tokens.iter().copied();
        let visible: Vec<u32> = tokens
            .filter(|id| self.shown.contains(id) || !is_special(*id))
            .collect();
        tokenizer.decode(&visible, false).unwrap_or_default()
    }

    fn emit(&mut self, until: usize) -> String {
        let emitted = self.text.get(self.emitted..until).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(until.min(self.text.len()));
        emitted
    }
}

/// Returns the text that a token adds after another one, including special tokens. A partial character becomes a
/// replacement character.
pub(crate) fn token_text(tokenizer: &Tokenizer, previous: Option<u32>, token: u32) -> String {
    text_behind(tokenizer, previous, token, true)
}

/// Decodes tokens, including special tokens.
pub(crate) fn whole_text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    tokenizer.decode(tokens, false).unwrap_or_default()
}

/// Returns the text that a token adds to any text, without special tokens.
pub(crate) fn appended_text(tokenizer: &Tokenizer, token: u32) -> String {
    text_behind(tokenizer, Some(token), token, false)
}

fn text_behind(tokenizer: &Tokenizer, previous: Option<u32>, token: u32, special_tokens: bool) -> String {
    let decode = |tokens: &[u32]| tokenizer.decode(tokens, !special_tokens).unwrap_or_default();
    // Decoders of some tokenizers strip the space before the first token, so the token is decoded after another one.
    let behind = previous.and_then(|previous| {
        let both = decode(&[previous, token]);
        both.strip_prefix(&decode(&[previous])).map(ToOwned::to_owned)
    });
    behind.unwrap_or_else(|| decode(&[token]))
}

/// Returns the length of a suffix of `text` that may be the beginning of `stop`, bytes.
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
        emitted.push(answer.finish(&tokenizer));
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

    /// Builds a tokenizer like those of `SentencePiece`: token `byte` is that byte, 256 is `▁a`, 257 is `▁b`.
    fn sentence_piece() -> Tokenizer {
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let words = ["\u{2581}a", "\u{2581}b"].map(ToOwned::to_owned);
        let vocabulary: serde_json::Map<String, serde_json::Value> = bytes
            .chain(words)
            .zip(0..)
            .map(|(token, id)| (token, serde_json::Value::from(id)))
            .collect();
        let decoders = serde_json::json!([
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]);
        let json = serde_json::json!({
            "version": "1.0",
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true},
        });
        Tokenizer::from_bytes(json.to_string()).unwrap()
    }

    #[test]
    fn special_tokens_are_shown_only_if_they_are_asked_for() {
        let mut tokenizer = gpt2();
        let marks = ["[CALL]", "[OTHER]"].map(|mark| tokenizers::AddedToken::from(mark, true));
        assert_eq!(tokenizer.add_special_tokens(&marks), marks.len());
        let id = |text: &str| tokenizer.token_to_id(text).unwrap();
        let mut tokens = vec![id("[CALL]")];
        tokens.extend(tokenizer.encode("the tour", false).unwrap().get_ids());
        tokens.push(id("[OTHER]"));
        let text = |shown: Vec<u32>| {
            let mut answer = Detokenizer::new(shown);
            let pushed = tokens.iter().map(|token| answer.push(*token, &tokenizer, &[]).0);
            let text: String = pushed.collect();
            text + &answer.finish(&tokenizer)
        };
        assert_eq!(text(Vec::new()), "the tour");
        assert_eq!(text(vec![id("[CALL]")]), "[CALL]the tour");
        assert_eq!(text(vec![id("[CALL]"), id("[OTHER]")]), "[CALL]the tour[OTHER]");
    }

    /// Returns the text of an answer, without stop texts.
    fn written(mut answer: Detokenizer, tokens: impl IntoIterator<Item = u32>) -> String {
        let tokenizer = sentence_piece();
        let pushed = tokens
            .into_iter()
            .map(|token| answer.push(token, &tokenizer, &[]).0);
        let text: String = pushed.collect();
        text + &answer.finish(&tokenizer)
    }

    #[test]
    fn an_answer_behind_its_prompt_keeps_the_space_before_its_first_word() {
        let tokenizer = sentence_piece();
        let behind = |prompt: &[u32]| Detokenizer::default().behind(prompt, &tokenizer);
        assert_eq!(written(behind(&[256]), [257, 256]), " b a");
        let texts = token_text(&tokenizer, Some(256), 257) + &token_text(&tokenizer, Some(257), 256);
        assert_eq!(texts, " b a");
        assert_eq!(appended_text(&tokenizer, 257), " b");
        assert_eq!(appended_text(&tokenizer, 0x80), "\u{fffd}");
        assert_eq!(written(behind(&[257; 20]), [257]), " b");
        assert_eq!(
            written(Detokenizer::default(), [257, 256]),
            "b a",
            "a text of its own"
        );
        let snow = "\u{96ea}".bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(written(behind(&snow[..2]), [snow[2], 256]), "\u{96ea} a");
    }

    #[test]
    fn bytes_that_are_no_character_are_neither_held_nor_lost() {
        let tokenizer = sentence_piece();
        let mut answer = Detokenizer::default();
        let mut text = String::new();
        for _ in 0..1_000 {
            text += &answer.push(0x80, &tokenizer, &[]).0;
            assert!(answer.tokens.len() - answer.window_start <= 2 * (MAX_INCOMPLETE_TOKENS + 1));
        }
        text += &answer.finish(&tokenizer);
        assert_eq!(text, "\u{fffd}".repeat(1_000));
        assert_eq!(
            written(Detokenizer::default(), [0xc3]),
            "\u{fffd}",
            "the first of two"
        );
        assert_eq!(written(Detokenizer::default(), [0xc3, 0xbc, 0x80]), "ü\u{fffd}");
        // A stop text before the completed character is found together with it.
        let (mut answer, stop) = (Detokenizer::default(), ["x".to_owned()]);
        assert_eq!(
            answer.push(u32::from(b'x'), &tokenizer, &stop),
            (String::new(), true)
        );
    }

    #[test]
    fn text_that_was_returned_ends_no_answer() {
        let (tokenizer, stop) = (sentence_piece(), [" a".to_owned()]);
        let mut answer = Detokenizer::default();
        assert_eq!(answer.push(257, &tokenizer, &[]), ("b".to_owned(), false));
        assert_eq!(answer.push(256, &tokenizer, &[]), (" a".to_owned(), false));
        assert_eq!(answer.push(257, &tokenizer, &stop), (" b".to_owned(), false));
        assert_eq!(answer.push(256, &tokenizer, &stop), (String::new(), true));
    }

    #[test]
    fn characters_of_single_bytes_follow_each_other() {
        let tokenizer = sentence_piece();
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
