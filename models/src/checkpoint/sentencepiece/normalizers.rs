//! Sections of `tokenizer.json` besides the model: normalisation, spaces, special tokens around a text, decoding.

use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::family::{Family, UNREACHABLE};
use super::{Settings, content_of};
use crate::checkpoint::LoadError;

/// `SentencePiece`'s replacement for a space.
const SPACE: &str = "\u{2581}";
/// Parts of a template with token types: `A` and `B` are the texts, others are special tokens.
type Parts<'a> = Vec<(&'a str, u8)>;

impl Settings {
    /// Returns where a space is prepended to a text: `always`, `first` (not after added tokens), `never`.
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
        let table =
            table.map(|table| json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(table)}));
        let replace =
            |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let spaces = |to: &str| json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": to});
        let strip = |left: bool| json!({"type": "Strip", "strip_left": left, "strip_right": true});
        let mut steps = Vec::new();
        match self.family {
            Family::T5
            | Family::XlmRoberta
            | Family::Camembert
            | Family::Pegasus
            | Family::Mbart
            | Family::Mbart50
            | Family::Nllb => {
                steps.extend(table);
                steps.extend([strip(false), spaces(SPACE)]);
            }
            Family::M2m100 | Family::Marian => {
                steps.extend(table);
                if self.model.removes_spaces() {
                    let ends = format!("^ +|[ {SPACE}]+$");
                    steps.push(json!({"type": "Replace", "pattern": {"Regex": ends}, "content": ""}));
                    steps.push(spaces(" "));
                }
                if self.model.begins_with_space() {
                    steps.push(json!({"type": "Prepend", "prepend": SPACE}));
                }
                steps.push(replace(" ", SPACE));
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
            Family::T5
            | Family::Albert
            | Family::XlmRoberta
            | Family::Camembert
            | Family::Mbart
            | Family::Mbart50
            | Family::Nllb => words(true),
            Family::Pegasus => json!({
                "type": "Sequence",
                "pretokenizers": [{"type": "WhitespaceSplit"}, words(true)],
            }),
            Family::M2m100 | Family::Marian => Value::Null,
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
        let words = json!({
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": scheme,
            "split": true,
        });
        if self.family.is_listed() {
            let strip = json!({"type": "Strip", "content": UNREACHABLE, "start": 1, "stop": 0});
            return Ok(json!({"type": "Sequence", "decoders": [strip, words]}));
        }
        if !self.family.has_byte_fallback() {
            return Ok(words);
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

    /// Returns the post-processor that adds special tokens to one text or a pair.
    pub(super) fn post_processor(&self, added: &[Value]) -> Result<Value, LoadError> {
        let language = self.source_language()?;
        let (language, eos) = (language.as_str(), self.special("eos_token"));
        let (single, pair): (Parts<'_>, Parts<'_>) = match self.family {
            Family::Pegasus | Family::Marian => joined(&[], &[eos]),
            Family::Mbart => joined(&[], &[eos, language]),
            Family::Nllb if self.flag("legacy_behaviour", false)? => joined(&[], &[eos, language]),
            Family::Mbart50 | Family::Nllb | Family::M2m100 => joined(&[language], &[eos]),
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

/// Returns the template parts of one text and of a pair, between `before` and `after`; these models have no token
/// types.
fn joined<'a>(before: &[&'a str], after: &[&'a str]) -> (Parts<'a>, Parts<'a>) {
    let around = |texts: &[&'a str]| [before, texts, after].concat();
    let untyped = |parts: Vec<&'a str>| parts.into_iter().map(|part| (part, 0)).collect();
    (untyped(around(&["A"])), untyped(around(&["A", "B"])))
}
