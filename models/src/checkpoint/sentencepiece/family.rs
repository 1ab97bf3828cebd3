//! What the families of `SentencePiece` tokenizers differ in: vocabulary, special tokens and the steps around the model.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Settings, content_of};
use crate::checkpoint::LoadError;

/// A tokenizer class that has a `SentencePiece` model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    T5,
    Albert,
    XlmRoberta,
    Camembert,
    Deberta,
    Llama,
    Gemma,
}

/// `SentencePiece`'s replacement of a space.
const SPACE: &str = "\u{2581}";
/// What is joined: `A` and `B` are the texts, others special tokens; the numbers are token types.
type Parts<'a> = Vec<(&'a str, u8)>;
/// Most sentinel tokens of T5; it has 100.
const MAX_EXTRA_IDS: usize = 10_000;

impl Family {
    /// Returns the family of a tokenizer class; without one, that of a `model_type`.
    pub(super) fn of(class: Option<&str>, model_type: Option<&str>) -> Option<Self> {
        let class = class.map(|class| class.trim_end_matches("Fast"));
        match (class, model_type) {
            (Some("T5Tokenizer" | "MT5Tokenizer"), _) | (None, Some("t5" | "mt5")) => Some(Self::T5),
            (Some("AlbertTokenizer"), _) | (None, Some("albert")) => Some(Self::Albert),
            (Some("XLMRobertaTokenizer"), _) | (None, Some("xlm-roberta")) => Some(Self::XlmRoberta),
            (Some("CamembertTokenizer"), _) | (None, Some("camembert")) => Some(Self::Camembert),
            (Some("DebertaV2Tokenizer"), _) | (None, Some("deberta-v2")) => Some(Self::Deberta),
            (Some("LlamaTokenizer"), _) | (None, Some("llama" | "mistral" | "mixtral")) => Some(Self::Llama),
            (Some("GemmaTokenizer"), _) | (None, Some("gemma" | "gemma2" | "gemma3_text")) => {
                Some(Self::Gemma)
            }
            _ => None,
        }
    }

    /// The special tokens of the class, where no file states others.
    pub(super) fn specials(self) -> BTreeMap<&'static str, String> {
        let pairs: &[(&'static str, &str)] = match self {
            Self::T5 => &[
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
            ],
            Self::Llama => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
            ],
            Self::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
            ],
            Self::XlmRoberta | Self::Camembert => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            Self::Albert | Self::Deberta => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("sep_token", "[SEP]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
        };
        let more: &[(&'static str, &str)] = match self {
            Self::Albert => &[("unk_token", "<unk>"), ("pad_token", "<pad>")],
            Self::Deberta => &[("unk_token", "[UNK]"), ("pad_token", "[PAD]")],
            _ => &[],
        };
        let pairs = pairs.iter().chain(more);
        pairs.map(|(key, token)| (*key, (*token).to_owned())).collect()
    }

    /// The special tokens that have no name.
    pub(super) fn more_specials(self, extra_ids: usize) -> Vec<String> {
        match self {
            Self::T5 => sentinels(extra_ids),
            Self::Camembert => ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
                .map(String::from)
                .into(),
            _ => Vec::new(),
        }
    }

    /// Whether a piece that the user defined is special.
    pub(super) fn is_special(self, piece: &str) -> bool {
        self == Self::Gemma && matches!(piece, "<start_of_turn>" | "<end_of_turn>")
    }

    /// Whether a special token is sought in the normalised text.
    pub(super) fn is_normalized(self, key: &str) -> bool {
        self == Self::Deberta && key == "unk_token"
    }

    /// Whether a special token takes the spaces before it.
    pub(super) fn strips_left(self, key: &str) -> bool {
        matches!(self, Self::Albert | Self::XlmRoberta | Self::Camembert) && key == "mask_token"
    }

    /// Whether characters without a piece become their bytes.
    pub(super) fn has_byte_fallback(self) -> bool {
        matches!(self, Self::Llama | Self::Gemma)
    }
}

fn sentinels(count: usize) -> Vec<String> {
    (0..count)
        .rev()
        .map(|index| format!("<extra_id_{index}>"))
        .collect()
}

impl Settings {
    /// Number of T5's sentinel tokens.
    pub(super) fn extra_ids(&self) -> Result<usize, LoadError> {
        let Some(config) = self.config.as_ref().filter(|_| self.family == Family::T5) else {
            return Ok(if self.family == Family::T5 { 100 } else { 0 });
        };
        let count = config.optional("extra_ids")?.unwrap_or(100);
        if count > MAX_EXTRA_IDS {
            return Err(config.invalid_value("extra_ids", format!("it must be at most {MAX_EXTRA_IDS}")));
        }
        Ok(count)
    }

    /// Returns the vocabulary: that of the model, with the ids and the extra tokens of the class.
    pub(super) fn pieces(&self) -> Result<Vec<(String, f64)>, LoadError> {
        let from = |first: usize| {
            let pieces = self.model.pieces.iter().skip(first);
            pieces.map(|piece| (piece.text().to_owned(), piece.value()))
        };
        let start = |tokens: &[&str]| -> Vec<(String, f64)> {
            tokens.iter().map(|token| ((*token).to_owned(), 0.0)).collect()
        };
        Ok(match self.family {
            Family::Deberta => from(0).collect(),
            Family::T5 => {
                let sentinels = sentinels(self.extra_ids()?).into_iter();
                from(0).chain(sentinels.map(|token| (token, 0.0))).collect()
            }
            Family::Albert => from(0)
                .map(|(piece, score)| {
                    let mut ends = piece.chars().rev();
                    let joined = ends.next() == Some(',') && ends.next().is_some_and(char::is_numeric);
                    let penalty = if joined { 100.0 } else { 0.0 };
                    (piece, score - penalty)
                })
                .collect(),
            Family::XlmRoberta => {
                let mut pieces = start(&["<s>", "<pad>", "</s>", "<unk>"]);
                pieces.extend(from(3));
                pieces.push(("<mask>".into(), 0.0));
                pieces
            }
            Family::Camembert => {
                let mut pieces = start(&["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"]);
                pieces.push(("<unk>NOTUSED".into(), -100.0));
                pieces.extend(from(1));
                pieces.push(("<mask>".into(), 0.0));
                pieces
            }
            Family::Llama => {
                let first = self.model.pieces.iter().take(3);
                let mut pieces: Vec<_> = first.map(|piece| (piece.text().to_owned(), 0.0)).collect();
                pieces.extend(from(3));
                pieces
            }
            Family::Gemma => {
                let first = ["pad_token", "eos_token", "bos_token"].map(|key| self.special(key));
                let mut pieces = start(&first);
                pieces.extend(from(3));
                // Older models have no piece for a tab but its byte.
                if !pieces.iter().any(|(piece, _)| piece == "\t") {
                    let byte = pieces.iter_mut().find(|(piece, _)| piece == "<0x09>");
                    if let Some(piece) = byte {
                        *piece = ("\t".into(), 0.0);
                    }
                }
                pieces
            }
        })
    }

    /// The id of the token for unknown characters.
    pub(super) fn unknown_id(&self) -> i32 {
        match self.family {
            Family::XlmRoberta | Family::Camembert | Family::Gemma => 3,
            Family::Llama => 0,
            Family::T5 | Family::Albert | Family::Deberta => self.model.unknown_id(),
        }
    }

    /// Where a space is put before a text: `always`, `first` (not after added tokens), `never`.
    pub(super) fn prepend_scheme(&self) -> Result<&'static str, LoadError> {
        if !matches!(self.family, Family::T5 | Family::Llama) {
            return Ok("always");
        }
        Ok(match (self.is_spaced()?, self.flag("legacy", true)?) {
            (false, _) => "never",
            (true, true) => "always",
            (true, false) => "first",
        })
    }

    fn is_spaced(&self) -> Result<bool, LoadError> {
        self.flag("add_prefix_space", true)
    }

    pub(super) fn normalizer(&self) -> Result<Value, LoadError> {
        let table = self.model.table();
        let table = table.map(|table| json!({"type": "Precompiled", "precompiled_charsmap": base64(table)}));
        let replace =
            |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let spaces = |to: &str| json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": to});
        let strip = |left: bool| json!({"type": "Strip", "strip_left": left, "strip_right": true});
        let mut steps = Vec::new();
        match self.family {
            Family::T5 | Family::XlmRoberta | Family::Camembert => {
                steps.extend(table);
                steps.extend([strip(false), spaces(SPACE)]);
            }
            Family::Albert => {
                steps.extend([replace("``", "\""), replace("''", "\"")]);
                if !self.flag("keep_accents", false)? {
                    steps.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
                }
                if self.flag("do_lower_case", true)? {
                    steps.push(json!({"type": "Lowercase"}));
                }
                steps.extend(table);
                steps.push(spaces(" "));
            }
            Family::Deberta => {
                if self.flag("do_lower_case", false)? {
                    steps.push(json!({"type": "Lowercase"}));
                }
                steps.push(strip(true));
                steps.extend(table);
                steps.push(spaces(" "));
            }
            Family::Llama if self.flag("legacy", true)? => {
                if self.is_spaced()? {
                    steps.push(json!({"type": "Prepend", "prepend": SPACE}));
                }
                steps.push(replace(" ", SPACE));
            }
            Family::Llama => return Ok(Value::Null),
            Family::Gemma => return Ok(replace(" ", SPACE)),
        }
        Ok(json!({"type": "Sequence", "normalizers": steps}))
    }

    pub(super) fn pre_tokenizer(&self, scheme: &str) -> Result<Value, LoadError> {
        let words = |split: bool| {
            json!({
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": scheme,
                "split": split,
            })
        };
        Ok(match self.family {
            Family::T5 | Family::Albert | Family::XlmRoberta | Family::Camembert => words(true),
            Family::Deberta => {
                let punctuation = json!({"type": "Punctuation", "behavior": "Isolated"});
                let split = self.flag("split_by_punct", false)?;
                let mut steps: Vec<Value> = split.then_some(punctuation).into_iter().collect();
                steps.push(words(true));
                json!({"type": "Sequence", "pretokenizers": steps})
            }
            Family::Llama if self.flag("legacy", true)? => Value::Null,
            Family::Llama => words(false),
            Family::Gemma => json!({
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "MergedWithPrevious",
                "invert": false,
            }),
        })
    }

    pub(super) fn decoder(&self, scheme: &str) -> Result<Value, LoadError> {
        if !self.family.has_byte_fallback() {
            return Ok(json!({
                "type": "Metaspace",
                "replacement": SPACE,
                "prepend_scheme": scheme,
                "split": true,
            }));
        }
        let mut steps = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.family == Family::Llama && self.is_spaced()? {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({"type": "Sequence", "decoders": steps}))
    }

    /// Returns the step that adds special tokens around one or two texts.
    pub(super) fn post_processor(&self, added: &[Value]) -> Result<Value, LoadError> {
        let (single, pair): (Parts<'_>, Parts<'_>) = match self.family {
            Family::T5 => (
                vec![("A", 0), ("</s>", 0)],
                vec![("A", 0), ("</s>", 0), ("B", 0), ("</s>", 0)],
            ),
            Family::Albert | Family::Deberta => (
                vec![("[CLS]", 0), ("A", 0), ("[SEP]", 0)],
                vec![("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)],
            ),
            Family::XlmRoberta | Family::Camembert => (
                vec![("<s>", 0), ("A", 0), ("</s>", 0)],
                ["<s>", "A", "</s>", "</s>", "B", "</s>"]
                    .map(|part| (part, 0))
                    .into(),
            ),
            Family::Llama | Family::Gemma => {
                let bos = self
                    .flag("add_bos_token", true)?
                    .then(|| self.special("bos_token"));
                let eos = self
                    .flag("add_eos_token", false)?
                    .then(|| self.special("eos_token"));
                let around = |text, kind| {
                    let parts = bos.into_iter().chain([text]).chain(eos);
                    parts.map(move |part| (part, kind)).collect::<Vec<_>>()
                };
                (around("A", 0), [around("A", 0), around("B", 1)].concat())
            }
        };
        let mut tokens = Map::new();
        for (token, _) in single.iter().filter(|(part, _)| *part != "A") {
            let id = self.ids.get(*token).map(|id| json!(id)).or_else(|| {
                let tokens = added.iter().filter_map(Value::as_object);
                let mut found = tokens.filter(|found| content_of(found) == *token);
                found.next()?.get("id").cloned()
            });
            let Some(id) = id else {
                return Err(self.bad(format!(
                    "it has no piece `{token}`, which its class adds to every text"
                )));
            };
            let known = json!({"id": token, "ids": [id], "tokens": [token]});
            tokens.insert((*token).to_owned(), known);
        }
        let parts = |parts: Parts<'_>| -> Vec<Value> {
            let part = |(part, kind): (&str, u8)| match part {
                "A" | "B" => json!({"Sequence": {"id": part, "type_id": kind}}),
                _ => json!({"SpecialToken": {"id": part, "type_id": kind}}),
            };
            parts.into_iter().map(part).collect()
        };
        Ok(json!({
            "type": "TemplateProcessing",
            "single": parts(single),
            "pair": parts(pair),
            "special_tokens": tokens,
        }))
    }
}

/// Encodes bytes in base64, as the format of `tokenizer.json` has them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [first, second, third] =
            [0, 1, 2].map(|index| u32::from(chunk.get(index).copied().unwrap_or_default()));
        let bits = first << 16 | second << 8 | third;
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            let known = DIGITS.get(value as usize).filter(|_| digit <= chunk.len());
            text.push(known.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
}
