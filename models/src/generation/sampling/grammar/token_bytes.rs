//! The bytes that tokens of a vocabulary represent.

use llguidance::toktrie::TokTrie;
use serde_json::Value;
use tokenizers::Tokenizer;

/// Maximum bytes of a token under a grammar, which limits the depth of the vocabulary's trie.
const MAX_TOKEN_BYTES: usize = 1_000;

/// Byte representation of a vocabulary.
#[derive(Debug, PartialEq)]
enum Writing {
    /// Each byte is a character, as in GPT-2.
    ByteLevel,
    /// Spaces are replaced by this character, and bytes without another token are written as `<0x0A>`, as in
    /// `SentencePiece`.
    Spaces(char),
}

/// Returns the bytes of each of the `vocabulary` tokens. Special tokens, which add no text, have the marker of
/// [`TokTrie`]; tokens that the tokenizer does not have are empty.
///
/// # Errors
/// The reason, if the tokenizer's decoder uses neither byte-level nor space-replacement encoding.
pub(super) fn token_bytes(tokenizer: &Tokenizer, vocabulary: usize) -> Result<Vec<Vec<u8>>, String> {
    let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
    let writing = writing(&decoder).ok_or_else(|| {
        let kind = decoder.get("type").and_then(Value::as_str).unwrap_or("none");
        format!(
            "answers under a grammar need a tokenizer whose decoder is ByteLevel, Metaspace or ByteFallback; this one has {kind}"
        )
    })?;
    let added = tokenizer.get_added_tokens_decoder();
    let shifted = shifted_bytes();
    let bytes = |token: usize| {
        let token = u32::try_from(token).ok()?;
        if let Some(added) = added.get(&token) {
            let mut bytes = added.content.clone().into_bytes();
            if added.special {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            return Some(bytes);
        }
        let name = tokenizer.id_to_token(token)?;
        Some(match writing {
            Writing::ByteLevel => name
                .chars()
                .map(|letter| byte_of(letter, &shifted))
                .collect::<Option<Vec<u8>>>()?,
            Writing::Spaces(space) => match byte_token(&name) {
                Some(byte) => vec![byte],
                None => name.replace(space, " ").into_bytes(),
            },
        })
    };
    let tokens = (0..vocabulary).map(|token| {
        let bytes = bytes(token).unwrap_or_default();
        if bytes.len() > MAX_TOKEN_BYTES {
            Vec::new()
        } else {
            bytes
        }
    });
    Ok(tokens.collect())
}

/// Returns the byte representation that a decoder implies.
fn writing(decoder: &Value) -> Option<Writing> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str)?.chars().next();
    match decoder.get("type").and_then(Value::as_str)? {
        "ByteLevel" => Some(Writing::ByteLevel),
        "Metaspace" => text(decoder.get("replacement")).map(Writing::Spaces),
        "Replace" if decoder.get("content").and_then(Value::as_str) == Some(" ") => {
            text(decoder.pointer("/pattern/String")).map(Writing::Spaces)
        }
        "ByteFallback" => Some(Writing::Spaces(' ')),
        "Sequence" => {
            let decoders = decoder.get("decoders").and_then(Value::as_array)?;
            let mut found = decoders.iter().filter_map(writing);
            let first = found.next()?;
            // One of the decoders contains the replacement for spaces.
            Some(
                found
                    .find(|other| *other != Writing::Spaces(' '))
                    .unwrap_or(first),
            )
        }
        _ => None,
    }
}

/// Returns the byte of a token such as `<0x0A>`.
fn byte_token(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

/// Returns whether the character with this code represents its own byte in a byte-level vocabulary (GPT-2's
/// `bytes_to_unicode`), which is the case if it is printable.
const fn is_itself(code: u32) -> bool {
    matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// Returns the bytes that the characters from U+0100 represent, in order.
fn shifted_bytes() -> Vec<u8> {
    (0..=u8::MAX)
        .filter(|byte| !is_itself(u32::from(*byte)))
        .collect()
}

/// Returns the byte that a character represents in a byte-level vocabulary.
fn byte_of(letter: char, shifted: &[u8]) -> Option<u8> {
    let code = u32::from(letter);
    if is_itself(code) {
        return u8::try_from(code).ok();
    }
    let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
    shifted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{detokenizer, fixtures};

    #[test]
    fn characters_stand_for_bytes_as_in_gpt2() {
        let shifted = shifted_bytes();
        let byte_of = |letter| byte_of(letter, &shifted);
        assert_eq!(byte_of('a'), Some(b'a'));
        assert_eq!(byte_of('\u{120}'), Some(b' '));
        assert_eq!(byte_of('\u{10a}'), Some(b'\n'));
        assert_eq!(byte_of('\u{143}'), Some(0xad));
        assert_eq!((byte_of('\u{144}'), byte_of(' ')), (None, None));
    }

    /// Checks that the bytes of tokens add up to the text that the tokenizer decodes.
    #[test]
    fn bytes_of_tokens_make_up_texts() {
        for folder in ["gpt2", "gemma3", "t5"] {
            let tokenizer = fixtures::checkpoint(folder).tokenizer.unwrap();
            let tokenizer = detokenizer::tokenizer(&tokenizer).unwrap();
            let bytes = token_bytes(&tokenizer, tokenizer.get_vocab_size(true) + 3).unwrap();
            assert!(bytes.last().unwrap().is_empty(), "{folder}: padding");
            let tokens = tokenizer.encode("the inner thing, a tour", false).unwrap();
            let text: Vec<u8> = tokens
                .get_ids()
                .iter()
                .flat_map(|token| bytes[*token as usize].clone())
                .collect();
            assert_eq!(
                String::from_utf8(text).unwrap().trim_start(),
                "the inner thing, a tour",
                "{folder}"
            );
        }
    }

    #[test]
    fn other_decoders_are_refused() {
        let of = |json: &str| writing(&serde_json::from_str(json).unwrap());
        assert_eq!(of(r#"{"type": "WordPiece"}"#), None);
        let llama = r#"{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#;
        assert_eq!(of(llama), Some(Writing::Spaces('▁')));
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!((byte_token("<0xZZ>"), byte_token("<0xA>")), (None, None));
    }
}
