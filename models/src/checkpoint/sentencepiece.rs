//! Builds the tokenizer of a directory that has a `SentencePiece` model instead of a `tokenizer.json`.
//!
//! The class is `tokenizer_class` of `tokenizer_config.json` or `config.json`, or follows from `model_type`. The
//! result is the `tokenizer.json` that `convert_slow_tokenizer.py` of transformers 4 writes, as in published
//! checkpoints. That script does not convert Marian and M2M100; the result then gives the tokens of the slow
//! tokenizer, with the ids of `vocab.json`.

mod family;
mod languages;
mod normalizers;
mod proto;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::slow_tokenizer::{SPECIAL, Token, class_and_type, special_tokens};
use super::{Config, LoadError, MAX_TOKENIZER, optional_config, read_capped};
use family::Family;
pub(super) use proto::check_table;
use proto::{Algorithm, Model};

/// Names of the model file.
const FILES: [&str; 5] = [
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spm.model",
    MARIAN,
];
/// Marian's model of the source language; answers are decoded with the vocabulary.
const MARIAN: &str = "source.spm";

/// A `SentencePiece` model with the settings next to it.
struct Settings {
    /// Name of the model file in errors.
    file: String,
    family: Family,
    model: Model,
    config: Option<Config>,
    specials: BTreeMap<&'static str, String>,
    /// Tokens of `vocab.json` by id, if it defines the ids.
    listed: Vec<String>,
    /// Pieces with scores, by id.
    vocabulary: Vec<(String, f64)>,
    /// First id of each piece.
    ids: HashMap<String, usize>,
}

/// Builds the `tokenizer.json` from the `SentencePiece` model of a directory. Returns it with the name of the model
/// file; `None` if the directory has no model, or its tokenizer class is not supported.
///
/// # Errors
/// [`LoadError`] for a file that is unreadable, too large or malformed.
pub(super) fn build(dir: &Path) -> Result<Option<(String, Vec<u8>)>, LoadError> {
    let Some(path) = FILES
        .map(|name| dir.join(name))
        .into_iter()
        .find(|path| path.exists())
    else {
        return Ok(None);
    };
    let config = optional_config(dir, "tokenizer_config.json")?;
    let (class, model_type) = class_and_type(dir, config.as_ref())?;
    let Some(family) = Family::of(class.as_deref(), model_type.as_deref()) else {
        return Ok(None);
    };
    let vocabulary = dir.join("vocab.json");
    let has_files = !family.is_listed() || vocabulary.exists();
    if !has_files || (family == Family::Marian) != path.ends_with(MARIAN) {
        return Ok(None);
    }
    let file = path.display().to_string();
    let bad = |reason| LoadError::BadTokenizer {
        file: file.clone(),
        reason,
    };
    let model = Model::parse(&read_capped(&path, MAX_TOKENIZER)?).map_err(bad)?;
    let specials = special_tokens(dir, config.as_ref(), family.specials())?;
    let listed = if family.is_listed() {
        tokens_by_id(&vocabulary)?
    } else {
        Vec::new()
    };
    let mut settings = Settings {
        listed,
        vocabulary: Vec::new(),
        ids: HashMap::new(),
        file: file.clone(),
        family,
        model,
        config,
        specials,
    };
    if family == Family::Marian && settings.flag("separate_vocabs", false)? {
        return Err(settings.bad("its decoder has a vocabulary of its own (separate_vocabs)".into()));
    }
    settings.vocabulary = settings.pieces()?;
    for (id, (piece, _)) in settings.vocabulary.iter().enumerate() {
        settings.ids.entry(piece.clone()).or_insert(id);
    }
    let json = settings.json(dir)?;
    Ok(Some((file, json.to_string().into_bytes())))
}

/// Returns the merges of a BPE model, by falling score of the merged piece: every allowed split of a piece into two
/// pieces with ids.
pub(super) fn merges<'a>(
    pieces: impl Iterator<Item = (&'a str, f64)>,
    ids: &HashMap<&str, usize>,
    is_allowed: impl Fn(&str, &str) -> bool,
) -> Vec<[&'a str; 2]> {
    let mut merges = Vec::new();
    for (piece, score) in pieces {
        let splits = piece.char_indices().enumerate().skip(1);
        let mut local: Vec<_> = splits
            .filter_map(|(length, (at, _))| {
                let (left, right) = piece.split_at_checked(at)?;
                if !is_allowed(left, right) {
                    return None;
                }
                let order = [ids.get(left)?, ids.get(right)?];
                let rest = right.chars().count();
                Some((order, (score, length, rest), [left, right]))
            })
            .collect();
        local.sort_by_key(|(order, _, _)| *order);
        merges.extend(local.into_iter().map(|(_, rank, pair)| (rank, pair)));
    }
    merges.sort_by(|((a, left, right), _), ((b, before, after), _)| {
        b.total_cmp(a).then((before, after).cmp(&(left, right)))
    });
    merges.into_iter().map(|(_, pair)| pair).collect()
}

/// Reads the tokens of a `vocab.json`, whose ids must be 0, 1, 2 and so on.
fn tokens_by_id(path: &Path) -> Result<Vec<String>, LoadError> {
    let file = path.display().to_string();
    let parsed = Config::parse(file.clone(), &read_capped(path, MAX_TOKENIZER)?)?;
    let mut tokens = vec![None; parsed.keys().len()];
    for (token, id) in parsed.keys() {
        let index = id.as_u64().and_then(|id| usize::try_from(id).ok());
        match index.and_then(|index| tokens.get_mut(index)) {
            Some(place @ None) => *place = Some(token.clone()),
            _ => {
                return Err(LoadError::BadTokenizer {
                    file,
                    reason: format!("the id of `{token}` is {id}; ids must be 0, 1, 2, ..., each once"),
                });
            }
        }
    }
    Ok(tokens.into_iter().flatten().collect())
}

impl Settings {
    /// Returns a setting of `tokenizer_config.json`; `None` if it is missing.
    fn stated<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, LoadError> {
        let stated = self.config.as_ref().map(|config| config.optional(key));
        Ok(stated.transpose()?.flatten())
    }

    /// Returns a boolean setting; `absent` if no file states it.
    fn flag(&self, key: &str, absent: bool) -> Result<bool, LoadError> {
        Ok(self.stated(key)?.unwrap_or(absent))
    }

    fn special(&self, key: &str) -> &str {
        self.specials.get(key).map_or("", String::as_str)
    }

    fn bad(&self, reason: String) -> LoadError {
        LoadError::BadTokenizer {
            file: self.file.clone(),
            reason,
        }
    }

    /// Returns the complete `tokenizer.json`.
    fn json(&self, dir: &Path) -> Result<Value, LoadError> {
        let added = self.added(dir)?;
        let scheme = self.prepend_scheme()?;
        Ok(json!({
            "version": "1.0",
            "normalizer": self.normalizer()?,
            "pre_tokenizer": self.pre_tokenizer(scheme)?,
            "post_processor": self.post_processor(&added)?,
            "decoder": self.decoder(scheme)?,
            "added_tokens": added,
            "model": self.split_model()?,
        }))
    }

    /// Returns the `model` section, which splits words into tokens.
    fn split_model(&self) -> Result<Value, LoadError> {
        let byte_fallback = self.family.has_byte_fallback();
        Ok(match self.model.algorithm().map_err(|reason| self.bad(reason))? {
            Algorithm::Unigram => json!({
                "type": "Unigram",
                "unk_id": self.unknown_id()?,
                "vocab": self.vocabulary,
                "byte_fallback": byte_fallback,
            }),
            Algorithm::Bpe => {
                let pieces = self.vocabulary.iter().zip(0_u64..);
                let vocabulary: Map<String, Value> = pieces
                    .map(|((piece, _), id)| (piece.clone(), json!(id)))
                    .collect();
                json!({
                    "type": "BPE",
                    "unk_token": if self.family.is_listed() {
                        self.special("unk_token").to_owned()
                    } else {
                        self.model.unknown_piece()
                    },
                    "fuse_unk": true,
                    "byte_fallback": byte_fallback,
                    "vocab": vocabulary,
                    "merges": self.merges(),
                })
            }
        })
    }

    /// Returns the merges of a BPE model: every split of a piece into two pieces, by falling score.
    fn merges(&self) -> Vec<[&str; 2]> {
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (id, piece) in self.model.pieces.iter().enumerate() {
            ids.insert(piece.text(), id);
        }
        if let Some(byte) = ids
            .get("<0x09>")
            .copied()
            .filter(|_| self.family == Family::Gemma)
        {
            ids.entry("\t").or_insert(byte);
        }
        let pieces = self.vocabulary.iter().enumerate();
        let pieces = pieces.filter(|(id, (piece, _))| {
            let is_piece = !self.family.is_listed() || ids.contains_key(piece.as_str());
            is_piece && self.ids.get(piece) == Some(id)
        });
        let pieces = pieces.map(|(_, (piece, score))| (piece.as_str(), *score));
        merges(pieces, &ids, |left, right| {
            !self.family.is_listed() || self.ids.contains_key(left) && self.ids.contains_key(right)
        })
    }

    /// Returns the added tokens, at which texts are split first, by id.
    fn added(&self, dir: &Path) -> Result<Vec<Value>, LoadError> {
        let mut added = Added {
            tokens: BTreeMap::new(),
            next: self.vocabulary.len(),
        };
        for piece in &self.model.pieces {
            let id = self.ids.get(piece.text());
            if let Some((special, id)) = piece.added().zip(id) {
                let special = special || self.family.is_special(piece.text());
                added.insert(*id, piece.text(), special, false);
            }
        }
        for (id, token) in self
            .listed
            .iter()
            .enumerate()
            .filter(|(_, token)| self.is_code(token))
        {
            added.insert(id, token, false, false);
        }
        let extra = optional_config(dir, "added_tokens.json")?;
        let extra = extra.map(|extra| extra.keys().clone()).unwrap_or_default();
        let extra: BTreeMap<&String, usize> = extra
            .iter()
            .filter_map(|(content, id)| Some((content, usize::try_from(id.as_u64()?).ok()?)))
            .collect();
        for (content, id) in &extra {
            added.insert(*id, content, false, true);
        }
        let stated = match &self.config {
            Some(config) => config.optional::<BTreeMap<usize, Map<String, Value>>>("added_tokens_decoder")?,
            None => None,
        };
        let mut stated = stated.unwrap_or_default();
        for (id, token) in &mut stated {
            token.insert("id".into(), json!(id));
            added.tokens.insert(*id, token.clone());
        }
        let id_of = |content: &String| self.ids.get(content).or_else(|| extra.get(content)).copied();
        let named = SPECIAL.iter().filter_map(|key| self.specials.get_key_value(key));
        let mut tokens: Vec<(&str, String)> = named.map(|(key, content)| (*key, content.clone())).collect();
        let more = self.more_specials()?;
        tokens.extend(more.into_iter().map(|content| ("", content)));
        let listed = self.config.as_ref();
        let listed = listed.map(|config| config.optional::<Vec<Token>>("additional_special_tokens"));
        let listed = listed.transpose()?.flatten().unwrap_or_default();
        tokens.extend(listed.into_iter().map(|token| ("", token.content())));
        // `added_tokens_decoder` takes precedence.
        tokens.retain(|(_, content)| !stated.values().any(|token| content_of(token) == content));
        for (key, content) in tokens {
            let id = id_of(&content).unwrap_or_else(|| added.id_of(&content));
            added.insert(id, &content, true, self.family.is_normalized(key));
            if self.family.strips_left(key) {
                added.set(id, "lstrip");
            }
        }
        Ok(added.tokens.into_values().map(Value::Object).collect())
    }
}

/// Added tokens so far.
struct Added {
    tokens: BTreeMap<usize, Map<String, Value>>,
    /// Next free id.
    next: usize,
}

impl Added {
    /// Returns the id for a token that the vocabulary lacks.
    fn id_of(&self, content: &str) -> usize {
        let known = self.tokens.iter().find(|(_, token)| content_of(token) == content);
        let free = self.tokens.last_key_value().map_or(0, |(id, _)| id + 1);
        known.map_or(self.next.max(free), |(id, _)| *id)
    }

    fn insert(&mut self, id: usize, content: &str, special: bool, normalized: bool) {
        let mut token = Map::new();
        token.insert("id".into(), json!(id));
        token.insert("content".into(), json!(content));
        for key in ["single_word", "lstrip", "rstrip"] {
            token.insert(key.into(), json!(false));
        }
        token.insert("normalized".into(), json!(normalized));
        token.insert("special".into(), json!(special));
        self.tokens.insert(id, token);
    }

    fn set(&mut self, id: usize, key: &str) {
        if let Some(token) = self.tokens.get_mut(&id) {
            token.insert(key.into(), json!(true));
        }
    }
}

/// Returns the text of an added token.
fn content_of(token: &Map<String, Value>) -> &str {
    token.get("content").and_then(Value::as_str).unwrap_or_default()
}
