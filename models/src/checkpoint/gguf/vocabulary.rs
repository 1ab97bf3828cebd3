//! The tokenizer of a file: converts its vocabulary to a `tokenizer.json`, and reads its special tokens.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use super::pre_tokenizers::{PreTokenizer, byte_level};
use crate::checkpoint::chat_template::SpecialTokens;
use crate::checkpoint::sentence::Preparation;
use crate::checkpoint::tokenizer_settings::SequenceSettings;
use crate::checkpoint::{LoadError, TokenizerFile, sentencepiece};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// `SentencePiece`'s replacement for a space.
const SPACE: &str = "\u{2581}";

/// Maximum bytes of a `SentencePiece` token; the trainer's maximum is 16 characters.
const MAX_PIECE: usize = 512;

/// Token types, by their number in the format.
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

/// Keys of EOS tokens.
const ENDS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];
/// Control tokens that llama.cpp treats as EOS even if no key states them.
const NAMED_ENDS: [&str; 7] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
];

/// Vocabulary of a file.
pub(super) struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: &'a [String],
    kinds: &'a [f64],
}

impl<'a> Vocabulary<'a> {
    /// Reads the vocabulary.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for values of the wrong type, or an array whose length differs from the number of tokens.
    pub(super) fn read(metadata: &'a Metadata) -> Result<Self, LoadError> {
        let kinds = "tokenizer.ggml.token_type";
        let vocabulary = Self {
            metadata,
            tokens: metadata.texts(TOKENS)?,
            kinds: metadata.numbers(kinds)?,
        };
        vocabulary.as_many(kinds, vocabulary.kinds)?;
        Ok(vocabulary)
    }

    /// Checks that an array is empty or has one entry per token.
    fn as_many(&self, key: &str, values: &[f64]) -> Result<(), LoadError> {
        if values.is_empty() || values.len() == self.tokens.len() {
            return Ok(());
        }
        let reason = format!(
            "it must have an entry for each of the {} tokens",
            self.tokens.len()
        );
        Err(self.metadata.invalid(key, reason))
    }

    /// Returns the token of a key with its id; `None` if the key is missing.
    fn token(&self, key: &str) -> Result<Option<(u32, &'a str)>, LoadError> {
        let Some(id) = self.metadata.whole(key)? else {
            return Ok(None);
        };
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        let token = self.tokens.get(index).ok_or_else(|| {
            let reason = format!("the vocabulary has {} tokens", self.tokens.len());
            self.metadata.invalid(key, reason)
        })?;
        Ok(Some((id as u32, token)))
    }

    /// Returns the special tokens for chat templates.
    pub(super) fn special(&self) -> Result<SpecialTokens, LoadError> {
        let token = |name: &str| {
            let token = self.token(&format!("tokenizer.ggml.{name}_token_id"))?;
            Ok::<_, LoadError>(token.map(|(_, token)| token.to_owned()))
        };
        Ok(SpecialTokens {
            bos_token: token("bos")?,
            eos_token: token("eos")?,
            unk_token: token("unknown")?,
            pad_token: token("padding")?,
        })
    }

    /// Returns the EOS tokens.
    pub(super) fn ends(&self) -> Result<Vec<u32>, LoadError> {
        let mut ends = Vec::new();
        for key in ENDS {
            ends.extend(self.token(key)?.map(|(id, _)| id));
        }
        let tokens = (0_u32..).zip(self.tokens).zip(self.kinds);
        let named =
            tokens.filter(|((_, token), kind)| **kind == CONTROL && NAMED_ENDS.contains(&token.as_str()));
        ends.extend(named.map(|((id, _), _)| id));
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }

    /// Returns the content of a `tokenizer.json`; `None` if the file has no vocabulary.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an unsupported algorithm or pre-tokenizer.
    pub(super) fn build(&self) -> Result<Option<TokenizerFile>, LoadError> {
        let json = match self.metadata.text(MODEL)? {
            None | Some("none" | "no_vocab") => return Ok(None),
            Some(_) if self.tokens.is_empty() => return Err(self.metadata.missing(TOKENS)),
            Some("llama") => self.sentence_pieces()?,
            Some("gpt2") => self.byte_pairs()?,
            Some(_) => {
                let reason = "llama (SentencePiece) and gpt2 (byte-level BPE) are read";
                return Err(self.metadata.invalid(MODEL, reason));
            }
        };
        Ok(Some(TokenizerFile {
            file: self.metadata.file.clone(),
            json: json.to_string().into(),
            types: true,
            padding: None,
            sequences: SequenceSettings::default(),
            preparation: Preparation::default(),
        }))
    }

    /// Returns the first id of every token.
    fn ids(&self) -> HashMap<&'a str, usize> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            ids.entry(token.as_str()).or_insert(id);
        }
        ids
    }

    /// Builds a `SentencePiece` BPE tokenizer, whose merges follow from the scores.
    fn sentence_pieces(&self) -> Result<Value, LoadError> {
        let key = "tokenizer.ggml.scores";
        let scores = self.metadata.numbers(key)?;
        if scores.is_empty() || scores.iter().any(|score| !score.is_finite()) {
            return Err(self.metadata.invalid(key, "every token needs a score"));
        }
        self.as_many(key, scores)?;
        if let Some(id) = self.tokens.iter().position(|token| token.len() > MAX_PIECE) {
            let reason = format!("token {id} has more than {MAX_PIECE} bytes");
            return Err(self.metadata.invalid(TOKENS, reason));
        }
        let ids = self.ids();
        let pieces = self.tokens.iter().enumerate().zip(scores);
        let pieces = pieces
            .filter(|((id, token), _)| ids.get(token.as_str()) == Some(id))
            .map(|((_, token), score)| (token.as_str(), *score));
        let merges = sentencepiece::merges(pieces, &ids, |_, _| true);
        let unknown = self
            .tokens
            .iter()
            .zip(self.kinds)
            .find(|(_, kind)| **kind == UNKNOWN);
        let unknown = match self.token("tokenizer.ggml.unknown_token_id")? {
            Some((_, token)) => Some(token),
            None => unknown.map(|(token, _)| token.as_str()),
        };
        let begins_with_space = self
            .metadata
            .flag("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(true);
        let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})];
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if begins_with_space {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok(json!({
            "version": "1.0",
            "added_tokens": self.added()?,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": null,
            "post_processor": self.post_processor(true)?,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "unk_token": unknown,
                "fuse_unk": true,
                "byte_fallback": true,
                "vocab": vocabulary(&ids),
                "merges": merges,
            },
        }))
    }

    /// Builds a byte-level BPE tokenizer, as in GPT-2.
    fn byte_pairs(&self) -> Result<Value, LoadError> {
        let key = "tokenizer.ggml.pre";
        let name = self.metadata.text(key)?.unwrap_or("default");
        let Some(splitter) = PreTokenizer::of(name) else {
            let reason = format!("{} are read", PreTokenizer::names().join(", "));
            return Err(self.metadata.invalid(key, reason));
        };
        let processor = self.post_processor(splitter.begins)?;
        Ok(json!({
            "version": "1.0",
            "added_tokens": self.added()?,
            "normalizer": splitter.normalizer(),
            "pre_tokenizer": splitter.json(),
            "post_processor": if processor.is_null() { byte_level(true) } else { processor },
            "decoder": byte_level(true),
            "model": {
                "type": "BPE",
                "fuse_unk": false,
                "ignore_merges": splitter.ignores_merges,
                "vocab": vocabulary(&self.ids()),
                "merges": self.metadata.texts("tokenizer.ggml.merges")?,
            },
        }))
    }

    /// Returns the added tokens, at which texts are split first: control tokens and user-defined tokens. Without token
    /// types, those that keys name.
    fn added(&self) -> Result<Vec<Value>, LoadError> {
        let added = |id: usize, content: &str, special: bool| {
            json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            })
        };
        let typed = self.tokens.iter().enumerate().zip(self.kinds);
        let typed = typed.filter(|((_, token), _)| !token.is_empty());
        let mut tokens: Vec<Value> = typed
            .filter(|(_, kind)| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind))
            .map(|((id, token), kind)| added(id, token, *kind != USER_DEFINED))
            .collect();
        if self.kinds.is_empty() {
            for name in ["bos", "eos", "unknown", "padding"] {
                let token = self.token(&format!("tokenizer.ggml.{name}_token_id"))?;
                tokens.extend(token.map(|(id, token)| added(id as usize, token, true)));
            }
        }
        Ok(tokens)
    }

    /// Returns the post-processor that adds BOS and EOS; null if it adds neither.
    fn post_processor(&self, begins: bool) -> Result<Value, LoadError> {
        let token = |flag: &str, absent: bool, key: &str| {
            let flag = self.metadata.flag(&format!("tokenizer.ggml.{flag}"))?;
            if flag.unwrap_or(absent) {
                self.token(key)
            } else {
                Ok(None)
            }
        };
        let first = token("add_bos_token", begins, "tokenizer.ggml.bos_token_id")?;
        let last = token("add_eos_token", false, "tokenizer.ggml.eos_token_id")?;
        if first.is_none() && last.is_none() {
            return Ok(Value::Null);
        }
        let special = |token: Option<(u32, &str)>, kind: u8| {
            token.map(|(_, token)| json!({"SpecialToken": {"id": token, "type_id": kind}}))
        };
        let around = |name: &str, kind: u8| {
            let text = json!({"Sequence": {"id": name, "type_id": kind}});
            let parts = special(first, kind)
                .into_iter()
                .chain([text])
                .chain(special(last, kind));
            parts.collect::<Vec<_>>()
        };
        let known = first.into_iter().chain(last);
        let known: Map<String, Value> = known
            .map(|(id, token)| {
                (
                    token.to_owned(),
                    json!({"id": token, "ids": [id], "tokens": [token]}),
                )
            })
            .collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        Ok(json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": known,
        }))
    }
}

/// Returns the vocabulary for `tokenizer.json`.
fn vocabulary(ids: &HashMap<&str, usize>) -> Map<String, Value> {
    let entries = ids.iter();
    entries
        .map(|(token, id)| ((*token).to_owned(), json!(id)))
        .collect()
}
