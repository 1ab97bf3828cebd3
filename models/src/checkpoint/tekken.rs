//! Builds the tokenizer of a directory that has Mistral's `tekken.json` instead of a `tokenizer.json`: byte-level BPE
//! by rank, as in tiktoken.
//!
//! Special tokens come first: the id of any other token is its rank plus the number of special tokens. The result is
//! the `tokenizer.json` that transformers 5.24 creates from the file, including the BOS token.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat_template::SpecialTokens;
use super::{LoadError, MAX_TOKENIZER, read_capped};

/// Name of the file.
const FILE: &str = "tekken.json";
/// BOS token.
const BEGIN: &str = "<s>";
/// Maximum number of special tokens; files have 1,000.
const MAX_SPECIAL: usize = 100_000;
/// Maximum bytes of a token, each of which is a possible split.
const MAX_BYTES: usize = 1024;

/// Special tokens by id, for files that list none.
const SPECIAL: [&str; 20] = [
    "<unk>",
    BEGIN,
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The keys of the file that are used.
#[derive(Deserialize)]
struct Tekken {
    config: Settings,
    vocab: Vec<Entry>,
    #[serde(default)]
    special_tokens: Option<Vec<Special>>,
}

#[derive(Deserialize)]
struct Settings {
    /// Regular expression of the words.
    pattern: String,
    /// Number of tokens including special tokens; the list may be longer.
    default_vocab_size: usize,
    default_num_special_tokens: usize,
}

#[derive(Deserialize)]
struct Entry {
    rank: usize,
    /// Bytes of the token in base64.
    token_bytes: String,
}

#[derive(Deserialize)]
struct Special {
    rank: usize,
    token_str: String,
}

/// Builds the `tokenizer.json` from the `tekken.json` of a directory. Returns it with the name of the file; `None`
/// without one.
///
/// # Errors
/// [`LoadError`] for a file that is unreadable, too large or malformed.
pub(super) fn build(dir: &Path) -> Result<Option<(String, Vec<u8>)>, LoadError> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let file = path.display().to_string();
    let bad = |reason: String| LoadError::BadTokenizer {
        file: file.clone(),
        reason,
    };
    let bytes = read_capped(&path, MAX_TOKENIZER)?;
    let tekken: Tekken = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    let json = tekken.json().map_err(bad)?;
    Ok(Some((file, json.to_string().into_bytes())))
}

/// Returns the special tokens for chat templates of a directory; `None` unless `tekken.json` is its tokenizer.
pub(super) fn special_tokens(dir: &Path) -> Option<SpecialTokens> {
    let has = |name: &str| dir.join(name).exists();
    let named = |name: &str| Some(name.to_owned());
    (has(FILE) && !has("tokenizer.json")).then(|| SpecialTokens {
        bos_token: named(BEGIN),
        eos_token: named("</s>"),
        unk_token: named("<unk>"),
        pad_token: named("<pad>"),
    })
}

impl Tekken {
    /// Returns the `tokenizer.json`. The error is the reason.
    fn json(&self) -> Result<Value, String> {
        let special = self.special()?;
        let begin = special.iter().position(|token| token == BEGIN);
        let begin = begin.ok_or_else(|| format!("it has no special token `{BEGIN}`"))?;
        let pieces = self.pieces(special.len())?;
        let ranks: HashMap<&[u8], usize> = pieces.iter().map(Vec::as_slice).zip(0..).collect();
        let mut vocabulary: Map<String, Value> = pieces
            .iter()
            .zip(special.len()..)
            .map(|(piece, id)| (characters(piece), json!(id)))
            .collect();
        for (id, token) in special.iter().enumerate() {
            vocabulary.insert(token.clone(), json!(id));
        }
        let added = special.iter().enumerate().map(|(id, token)| {
            json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": true,
            })
        });
        let first = |kind: u8| json!({"SpecialToken": {"id": BEGIN, "type_id": kind}});
        let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
        let bytes = |words: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words});
        Ok(json!({
            "version": "1.0",
            "added_tokens": added.collect::<Value>(),
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": self.config.pattern}, "behavior": "Isolated", "invert": false},
                bytes(false),
            ]},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [first(0), text("A", 0)],
                "pair": [first(0), text("A", 0), first(1), text("B", 1)],
                "special_tokens": {BEGIN: {"id": BEGIN, "ids": [begin], "tokens": [BEGIN]}},
            },
            "decoder": bytes(true),
            "model": {
                "type": "BPE",
                "fuse_unk": false,
                "ignore_merges": true,
                "vocab": vocabulary,
                "merges": merges(&pieces, &ranks),
            },
        }))
    }

    /// Returns the special tokens by id: those of the file, padded with fillers to the stated number.
    fn special(&self) -> Result<Vec<String>, String> {
        let count = self.config.default_num_special_tokens;
        let mut special: Vec<String> = match &self.special_tokens {
            None => SPECIAL.map(str::to_owned).to_vec(),
            Some(listed) => {
                let mut listed: Vec<&Special> = listed.iter().collect();
                listed.sort_by_key(|token| token.rank);
                if listed.iter().zip(0..).any(|(token, rank)| token.rank != rank) {
                    return Err("the ranks of its special tokens are not 0, 1, 2, ...".into());
                }
                listed.into_iter().map(|token| token.token_str.clone()).collect()
            }
        };
        if special.len() > count || count > MAX_SPECIAL {
            return Err(format!(
                "`default_num_special_tokens` is {count}; it must be from {} to {MAX_SPECIAL}",
                special.len()
            ));
        }
        special.extend((special.len()..count).map(|id| format!("<SPECIAL_{id}>")));
        Ok(special)
    }

    /// Returns the bytes of the other tokens, by rank.
    fn pieces(&self, special: usize) -> Result<Vec<Vec<u8>>, String> {
        let count = self.config.default_vocab_size.checked_sub(special);
        let listed = count.and_then(|count| self.vocab.get(..count));
        let listed = listed.ok_or_else(|| {
            format!(
                "`default_vocab_size` is {}; it must be the number of its {special} special tokens and of tokens of `vocab`",
                self.config.default_vocab_size
            )
        })?;
        let pieces = listed.iter().zip(0..).map(|(entry, rank)| {
            let piece = BASE64_STANDARD.decode(&entry.token_bytes).unwrap_or_default();
            if entry.rank != rank || piece.is_empty() || piece.len() > MAX_BYTES {
                return Err(format!(
                    "entry {rank} of `vocab` is no token of this rank, of 1 to {MAX_BYTES} bytes"
                ));
            }
            Ok(piece)
        });
        pieces.collect()
    }
}

/// Returns the merges: every split of a token into two other tokens, by the rank of the token, then by those of its
/// parts.
fn merges(pieces: &[Vec<u8>], ranks: &HashMap<&[u8], usize>) -> Vec<[String; 2]> {
    let mut merges = Vec::new();
    for piece in pieces {
        let splits = (1..piece.len()).filter_map(|end| {
            let (left, right) = piece.split_at_checked(end)?;
            Some((*ranks.get(left)?, *ranks.get(right)?, [left, right]))
        });
        let mut splits: Vec<(usize, usize, [&[u8]; 2])> = splits.collect();
        splits.sort_unstable();
        merges.extend(splits.into_iter().map(|(.., parts)| parts.map(characters)));
    }
    merges
}

/// Maps bytes to the characters of byte-level vocabularies, as in GPT-2.
fn characters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| character(*byte)).collect()
}

/// Returns the character for a byte: itself if it is printable, else the next one from U+0100.
pub(super) fn character(byte: u8) -> char {
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !prints(*other)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    /// Expected ids are those of mistral-common: `models/fixtures/make_tekken_fixture.py`.
    #[test]
    fn texts_have_the_tokens_of_mistral_common() {
        #[derive(Deserialize)]
        struct Case {
            text: String,
            ids: Vec<u32>,
        }
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tekken");
        let (_, json) = build(&dir).unwrap().unwrap();
        let tokenizer = Tokenizer::from_bytes(json).unwrap();
        let cases = std::fs::read(dir.join("expected.json")).unwrap();
        let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
        assert!(cases.len() >= 8);
        for Case { text, ids } in cases {
            let found = tokenizer.encode(text.as_str(), true).unwrap();
            assert_eq!(found.get_ids(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
        }
        // Chat prompts contain special tokens by name, including fillers.
        let prompt = tokenizer.encode("[INST]a<SPECIAL_24>", false).unwrap();
        let ids = prompt.get_ids();
        assert_eq!((ids[0], ids.len(), ids[2]), (3, 3, 24));
    }

    #[test]
    fn malformed_files_are_refused_with_the_reason() {
        let file = |change: &dyn Fn(&mut Value)| {
            let mut file = json!({
                "config": {"pattern": ".", "default_vocab_size": 22, "default_num_special_tokens": 20},
                "vocab": [{"rank": 0, "token_bytes": "YQ=="}, {"rank": 1, "token_bytes": "Yg=="}],
            });
            change(&mut file);
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(FILE), file.to_string()).unwrap();
            build(dir.path())
                .map(|built| built.is_some())
                .map_err(|error| error.to_string())
        };
        assert_eq!(file(&|_| ()), Ok(true));
        for (change, reason) in [
            (
                &(|file: &mut Value| file["config"]["default_vocab_size"] = 23.into()) as &dyn Fn(&mut Value),
                "`default_vocab_size`",
            ),
            (
                &|file| file["config"]["default_num_special_tokens"] = 19.into(),
                "`default_num_special_tokens`",
            ),
            (&|file| file["vocab"][1]["rank"] = 2.into(), "entry 1"),
            (&|file| file["vocab"][0]["token_bytes"] = "?".into(), "entry 0"),
            (
                &|file| file["special_tokens"] = json!([{"rank": 1, "token_str": "<s>"}]),
                "special tokens",
            ),
            (
                &|file| file["special_tokens"] = json!([{"rank": 0, "token_str": "<x>"}]),
                "`<s>`",
            ),
            (&|file| file["vocab"] = 1.into(), "tekken.json"),
        ] {
            let error = file(change).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
