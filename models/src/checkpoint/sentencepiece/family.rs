//! Differences between families of `SentencePiece` tokenizers: vocabulary and special tokens.

use std::collections::{BTreeMap, HashMap};

use super::{Settings, languages};
use crate::checkpoint::LoadError;

/// A tokenizer class with a `SentencePiece` model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    T5,
    Albert,
    XlmRoberta,
    Camembert,
    Deberta,
    Llama,
    Gemma,
    Pegasus,
    Mbart,
    Mbart50,
    Nllb,
    M2m100,
    Marian,
}

/// Prefix that makes a token unreachable: normalised texts contain no spaces.
pub(super) const UNREACHABLE: char = ' ';
/// Maximum number of T5's sentinel tokens (100 in T5), and maximum id offset of Pegasus (103 in Pegasus).
const MAX_EXTRA_IDS: usize = 10_000;

impl Family {
    /// Returns the family of a tokenizer class, else that of a `model_type`.
    pub(super) fn of(class: Option<&str>, model_type: Option<&str>) -> Option<Self> {
        let class = class.map(|class| class.trim_end_matches("Fast"));
        match (class, model_type) {
            (Some("T5Tokenizer" | "MT5Tokenizer"), _) | (None, Some("t5" | "mt5" | "umt5")) => Some(Self::T5),
            (Some("AlbertTokenizer"), _) | (None, Some("albert")) => Some(Self::Albert),
            (Some("XLMRobertaTokenizer"), _) | (None, Some("xlm-roberta")) => Some(Self::XlmRoberta),
            (Some("CamembertTokenizer"), _) | (None, Some("camembert")) => Some(Self::Camembert),
            (Some("DebertaV2Tokenizer"), _) | (None, Some("deberta-v2")) => Some(Self::Deberta),
            (Some("LlamaTokenizer"), _) | (None, Some("llama" | "mistral" | "mixtral")) => Some(Self::Llama),
            (Some("GemmaTokenizer"), _) | (None, Some("gemma" | "gemma2" | "gemma3_text")) => {
                Some(Self::Gemma)
            }
            (Some("PegasusTokenizer"), _) | (None, Some("pegasus")) => Some(Self::Pegasus),
            (Some("MBartTokenizer"), _) | (None, Some("mbart")) => Some(Self::Mbart),
            (Some("MBart50Tokenizer"), _) => Some(Self::Mbart50),
            (Some("NllbTokenizer"), _) => Some(Self::Nllb),
            (Some("M2M100Tokenizer"), _) | (None, Some("m2m_100")) => Some(Self::M2m100),
            (Some("MarianTokenizer"), _) | (None, Some("marian")) => Some(Self::Marian),
            _ => None,
        }
    }

    /// Returns the default special tokens of the class.
    pub(super) fn specials(self) -> BTreeMap<&'static str, String> {
        let pairs: &[(&'static str, &str)] = match self {
            Self::T5 | Self::Marian | Self::Pegasus => &[
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
            Self::M2m100 => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
            ],
            Self::XlmRoberta | Self::Camembert | Self::Mbart | Self::Mbart50 | Self::Nllb => &[
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
            Self::Pegasus => &[("mask_token", "<mask_2>")],
            _ => &[],
        };
        let pairs = pairs.iter().chain(more);
        pairs.map(|(key, token)| (*key, (*token).to_owned())).collect()
    }

    /// Returns whether a user-defined piece is a special token.
    pub(super) fn is_special(self, piece: &str) -> bool {
        self == Self::Gemma && matches!(piece, "<start_of_turn>" | "<end_of_turn>")
    }

    /// Returns whether a special token is matched in the normalised text.
    pub(super) fn is_normalized(self, key: &str) -> bool {
        matches!(
            (self, key),
            (Self::Deberta, "unk_token") | (Self::Nllb, "mask_token")
        )
    }

    /// Returns whether a special token absorbs the spaces before it.
    pub(super) fn strips_left(self, key: &str) -> bool {
        let strips = matches!(
            self,
            Self::Albert | Self::XlmRoberta | Self::Camembert | Self::Mbart | Self::Mbart50 | Self::Nllb
        );
        strips && key == "mask_token"
    }

    /// Returns whether characters without a piece are split into bytes.
    pub(super) fn has_byte_fallback(self) -> bool {
        matches!(self, Self::Llama | Self::Gemma)
    }

    /// Returns whether `vocab.json` defines the ids. transformers has only slow tokenizers for these classes, which
    /// split texts with `SentencePiece` itself.
    pub(super) fn is_listed(self) -> bool {
        matches!(self, Self::M2m100 | Self::Marian)
    }
}

fn sentinels(count: usize) -> Vec<String> {
    (0..count)
        .rev()
        .map(|index| format!("<extra_id_{index}>"))
        .collect()
}

impl Settings {
    /// Returns the number of T5's sentinel tokens.
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

    /// Returns the special tokens without a name.
    pub(super) fn more_specials(&self) -> Result<Vec<String>, LoadError> {
        Ok(match self.family {
            Family::T5 => sentinels(self.extra_ids()?),
            Family::Camembert => ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
                .map(String::from)
                .into(),
            Family::Pegasus => {
                let (sentence, offset) = self.pegasus_masks()?;
                let unknown = (2..offset).map(|index| format!("<unk_{index}>"));
                sentence.into_iter().chain(unknown).collect()
            }
            _ => self.languages()?,
        })
    }

    /// Returns the language tokens, by id.
    fn languages(&self) -> Result<Vec<String>, LoadError> {
        let texts = |codes: &[&[&str]]| codes.concat().into_iter().map(String::from).collect();
        Ok(match self.family {
            Family::Mbart => texts(&[languages::MBART]),
            Family::Mbart50 => texts(&[languages::MBART, languages::MBART_50]),
            Family::Nllb => texts(&[languages::NLLB]),
            Family::M2m100 => {
                let codes = match self.stated::<String>("language_codes")?.as_deref() {
                    None | Some("m2m100") => languages::M2M_100,
                    Some("wmt21") => languages::WMT_21,
                    Some(other) => {
                        let reason = format!("language_codes is `{other}`; m2m100 and wmt21 are supported");
                        return Err(self.bad(reason));
                    }
                };
                codes.iter().map(|code| format!("__{code}__")).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Returns the token of the source language.
    pub(super) fn source_language(&self) -> Result<String, LoadError> {
        let stated: Option<String> = self.stated("src_lang")?;
        let or = |absent: &str| stated.unwrap_or_else(|| absent.to_owned());
        Ok(match self.family {
            Family::M2m100 => format!("__{}__", or("en")),
            Family::Nllb => or("eng_Latn"),
            _ => or("en_XX"),
        })
    }

    /// Returns Pegasus' token for a masked sentence, and the offset of its ids from those of the model.
    fn pegasus_masks(&self) -> Result<(Option<String>, usize), LoadError> {
        let offset = self.stated("offset")?.unwrap_or(103);
        let key = self
            .config
            .as_ref()
            .and_then(|config| config.keys().get("mask_token_sent"));
        let sentence = match key {
            None => Some("<mask_1>".to_owned()),
            Some(_) => self.stated("mask_token_sent")?,
        };
        let is_shifted = (2..=MAX_EXTRA_IDS).contains(&offset);
        if is_shifted != sentence.is_some() || !is_shifted && offset != 0 {
            return Err(self.bad(format!(
                "offset is {offset} and mask_token_sent is {sentence:?}; supported are an offset of 2 to {MAX_EXTRA_IDS} with a \
                 token, and 0 with none"
            )));
        }
        Ok((sentence, offset))
    }

    /// Returns the vocabulary: the model's pieces, with the ids and the extra tokens of the class.
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
            Family::XlmRoberta | Family::Mbart | Family::Mbart50 | Family::Nllb => {
                let mut pieces = start(&["<s>", "<pad>", "</s>", "<unk>"]);
                pieces.extend(from(3));
                pieces.extend(self.languages()?.into_iter().map(|token| (token, 0.0)));
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
            Family::Pegasus => {
                let (sentence, offset) = self.pegasus_masks()?;
                let mut pieces = start(&[self.special("pad_token"), self.special("eos_token")]);
                if let Some(sentence) = sentence {
                    pieces.extend(start(&[&sentence, self.special("mask_token")]));
                }
                pieces.extend((2..offset).map(|index| (format!("<unk_{index}>"), -100.0)));
                pieces.extend(from(2));
                pieces
            }
            Family::M2m100 | Family::Marian => self.listed_pieces()?,
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
                // Older models have no piece for a tab except its byte.
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

    /// Returns the vocabulary of `vocab.json`, with the scores of the model. A token that is not a piece of the model
    /// gets the prefix [`UNREACHABLE`], unless texts are split at it first.
    fn listed_pieces(&self) -> Result<Vec<(String, f64)>, LoadError> {
        let pieces = self.model.pieces.iter().filter(|piece| piece.is_text());
        let scores: HashMap<&str, f64> = pieces.map(|piece| (piece.text(), piece.value())).collect();
        let is_added =
            |token: &String| self.is_code(token) || self.specials.values().any(|special| special == token);
        let piece = |token: &String| match scores.get(token.as_str()) {
            Some(score) => (token.clone(), *score),
            None if is_added(token) => (token.clone(), 0.0),
            None => (format!("{UNREACHABLE}{token}"), 0.0),
        };
        let mut pieces: Vec<_> = self.listed.iter().map(piece).collect();
        pieces.extend(self.languages()?.into_iter().map(|token| (token, 0.0)));
        Ok(pieces)
    }

    /// Returns whether a token is a language code of Marian, such as `>>fra<<`.
    pub(super) fn is_code(&self, token: &str) -> bool {
        self.family == Family::Marian && token.starts_with(">>") && token.ends_with("<<")
    }

    /// Returns the id of the unknown token.
    pub(super) fn unknown_id(&self) -> Result<i64, LoadError> {
        Ok(match self.family {
            Family::Llama => 0,
            Family::T5 | Family::Albert | Family::Deberta => self.model.unknown_id().into(),
            Family::Pegasus | Family::M2m100 | Family::Marian => {
                let unknown = self.special("unk_token");
                let id = self.ids.get(unknown).and_then(|id| i64::try_from(*id).ok());
                id.ok_or_else(|| self.bad(format!("its vocabulary has no `{unknown}`")))?
            }
            _ => 3,
        })
    }
}
