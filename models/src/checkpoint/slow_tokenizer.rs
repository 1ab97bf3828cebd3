//! Builds the tokenizer of a directory that has plain vocabulary files instead of a `tokenizer.json`.
//!
//! `vocab.txt` belongs to BERT or ESM tokenizers; `vocab.json` and `merges.txt` to those of GPT-2, RoBERTa, BART and
//! CLIP. The class is `tokenizer_class` of `tokenizer_config.json` or `config.json`, or follows from `model_type`. The
//! result is the `tokenizer.json` that transformers would write.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Config, LoadError, MAX_TOKENIZER, optional_config, read_capped};

/// A tokenizer class that can be built from its vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bert,
    /// Splits at every vocabulary entry wherever it occurs: an amino acid, or a special token.
    Esm,
    Gpt2,
    Roberta,
    /// Lowercased words that end with `</w>`, between a first and a last token.
    Clip,
}

/// Expression of CLIP's words.
const CLIP: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Keys of the special tokens in `tokenizer_config.json` and `special_tokens_map.json`.
pub(super) const SPECIAL: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// A special token: its text, or an object that contains it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    /// Returns the text.
    pub(super) fn content(self) -> String {
        match self {
            Self::Text(content) | Self::Object { content } => content,
        }
    }
}

/// Settings next to the vocabulary.
struct Settings {
    kind: Kind,
    config: Option<Config>,
    specials: BTreeMap<&'static str, String>,
}

/// Builds the `tokenizer.json` from the vocabulary of a directory. Returns it with the name of the vocabulary file;
/// `None` without a vocabulary of a supported class.
///
/// # Errors
/// [`LoadError`] for a file that is unreadable, too large or malformed.
pub(super) fn build(dir: &Path) -> Result<Option<(String, Vec<u8>)>, LoadError> {
    let Some(settings) = Settings::read(dir)? else {
        return Ok(None);
    };
    let (file, vocabulary, merges) = match settings.kind {
        Kind::Bert | Kind::Esm => {
            let path = dir.join("vocab.txt");
            let lines = text(&path)?;
            let pieces = lines.lines().map(|line| line.trim_end_matches('\r'));
            let vocabulary = pieces
                .zip(0_u64..)
                .map(|(piece, id)| (piece.to_owned(), json!(id)));
            (path, vocabulary.collect(), Vec::new())
        }
        Kind::Gpt2 | Kind::Roberta | Kind::Clip => {
            let path = dir.join("vocab.json");
            let parsed = Config::parse(path.display().to_string(), text(&path)?.as_bytes())?;
            let merges = text(&dir.join("merges.txt"))?;
            let lines = merges.lines().filter(|line| !line.is_empty());
            let merges: Vec<String> = lines
                .enumerate()
                .filter(|(index, line)| *index > 0 || !line.starts_with("#version"))
                .map(|(_, line)| line.to_owned())
                .collect();
            (path, parsed.keys().clone(), merges)
        }
    };
    let json = settings.json(dir, &vocabulary, &merges)?;
    Ok(Some((file.display().to_string(), json.to_string().into_bytes())))
}

/// Returns the special tokens: the defaults of the class, overridden by `special_tokens_map.json` and
/// `tokenizer_config.json`.
pub(super) fn special_tokens(
    dir: &Path,
    config: Option<&Config>,
    mut specials: BTreeMap<&'static str, String>,
) -> Result<BTreeMap<&'static str, String>, LoadError> {
    let map = optional_config(dir, "special_tokens_map.json")?;
    for config in [map.as_ref(), config].into_iter().flatten() {
        for key in SPECIAL {
            if let Some(token) = config.optional::<Token>(key)? {
                specials.insert(key, token.content());
            }
        }
    }
    Ok(specials)
}

fn text(path: &Path) -> Result<String, LoadError> {
    let bytes = read_capped(path, MAX_TOKENIZER)?;
    String::from_utf8(bytes).map_err(|_| LoadError::BadTokenizer {
        file: path.display().to_string(),
        reason: "it is not UTF-8".into(),
    })
}

/// Returns the class in `tokenizer_config.json` (`config`), else in `config.json`, and the `model_type` of the latter.
pub(super) fn class_and_type(
    dir: &Path,
    config: Option<&Config>,
) -> Result<(Option<String>, Option<String>), LoadError> {
    let model = optional_config(dir, "config.json")?;
    let stated = |config: Option<&Config>, key| {
        let stated = config.map(|config| config.optional(key)).transpose();
        Ok::<_, LoadError>(stated?.flatten())
    };
    let class = match stated(config, "tokenizer_class")? {
        None => stated(model.as_ref(), "tokenizer_class")?,
        class => class,
    };
    Ok((class, stated(model.as_ref(), "model_type")?))
}

impl Settings {
    /// Reads the settings; `None` if the directory has no vocabulary of a supported class.
    fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        let has = |name: &str| dir.join(name).exists();
        let is_pieces = has("vocab.txt");
        let is_merged = has("vocab.json") && has("merges.txt");
        if !is_pieces && !is_merged {
            return Ok(None);
        }
        let config = optional_config(dir, "tokenizer_config.json")?;
        let (class, model_type) = class_and_type(dir, config.as_ref())?;
        let class = class.as_deref().map(|class| class.trim_end_matches("Fast"));
        let kind = match (class, model_type.as_deref()) {
            (
                Some(
                    "BertTokenizer"
                    | "ConvBertTokenizer"
                    | "DistilBertTokenizer"
                    | "ElectraTokenizer"
                    | "MobileBertTokenizer"
                    | "SqueezeBertTokenizer",
                ),
                _,
            )
            | (
                None,
                Some(
                    "bert" | "convbert" | "distilbert" | "electra" | "ernie" | "megatron-bert" | "mobilebert"
                    | "nomic_bert" | "squeezebert",
                ),
            ) => Kind::Bert,
            (Some("EsmTokenizer"), _) | (None, Some("esm")) => Kind::Esm,
            (Some("GPT2Tokenizer"), _) | (None, Some("gpt2" | "gpt_neo" | "gptj")) => Kind::Gpt2,
            (Some("RobertaTokenizer" | "BartTokenizer" | "LukeTokenizer"), _)
            | (None, Some("roberta" | "roberta-prelayernorm" | "data2vec-text" | "bart" | "luke")) => {
                Kind::Roberta
            }
            (Some("CLIPTokenizer"), _) | (None, Some("clip" | "clip_text_model")) => Kind::Clip,
            _ => return Ok(None),
        };
        if is_pieces != matches!(kind, Kind::Bert | Kind::Esm) {
            return Ok(None);
        }
        let specials = special_tokens(dir, config.as_ref(), kind.specials())?;
        Ok(Some(Self {
            kind,
            config,
            specials,
        }))
    }

    fn flag(&self, key: &str, absent: bool) -> Result<bool, LoadError> {
        let stated = self
            .config
            .as_ref()
            .map(|config| config.optional(key))
            .transpose()?;
        Ok(stated.flatten().unwrap_or(absent))
    }

    fn special(&self, key: &str) -> &str {
        self.specials.get(key).map_or("", String::as_str)
    }

    /// Returns the complete `tokenizer.json`.
    fn json(
        &self,
        dir: &Path,
        vocabulary: &Map<String, Value>,
        merges: &[String],
    ) -> Result<Value, LoadError> {
        let added = self.added(dir, vocabulary)?;
        let id = |token: &str| vocabulary.get(token).cloned().unwrap_or_default();
        let (sep, cls) = (self.special("sep_token"), self.special("cls_token"));
        let one = |token: &str, kind: u8| json!({"SpecialToken": {"id": token, "type_id": kind}});
        let text = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
        let known = |token: &str| json!({"id": token, "ids": [id(token)], "tokens": [token]});
        let spaced = self.flag("add_prefix_space", false)?;
        let bytes = |trimmed: bool| json!({"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": trimmed, "use_regex": true});
        let (normalizer, splitter, processor, decoder) = match self.kind {
            Kind::Bert => (
                json!({
                    "type": "BertNormalizer",
                    "clean_text": true,
                    "handle_chinese_chars": self.flag("tokenize_chinese_chars", true)?,
                    "strip_accents": self.config.as_ref().and_then(|config| config.keys().get("strip_accents")),
                    "lowercase": self.flag("do_lower_case", true)?,
                }),
                json!({"type": "BertPreTokenizer"}),
                json!({
                    "type": "TemplateProcessing",
                    "single": [one(cls, 0), text("A", 0), one(sep, 0)],
                    "pair": [one(cls, 0), text("A", 0), one(sep, 0), text("B", 1), one(sep, 1)],
                    "special_tokens": {cls: known(cls), sep: known(sep)},
                }),
                json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            ),
            Kind::Esm => {
                let eos = self.special("eos_token");
                let processor = json!({
                    "type": "TemplateProcessing",
                    "single": [one(cls, 0), text("A", 0), one(eos, 0)],
                    "pair": [one(cls, 0), text("A", 0), one(eos, 0), text("B", 0), one(eos, 0)],
                    "special_tokens": {cls: known(cls), eos: known(eos)},
                });
                let splitter = json!({"type": "WhitespaceSplit"});
                (Value::Null, splitter, processor, Value::Null)
            }
            Kind::Gpt2 => {
                let bos = self.special("bos_token");
                let processor = if self.flag("add_bos_token", false)? {
                    json!({
                        "type": "TemplateProcessing",
                        "single": [one(bos, 0), text("A", 0)],
                        "pair": [one(bos, 0), text("A", 0), one(bos, 1), text("B", 1)],
                        "special_tokens": {bos: known(bos)},
                    })
                } else {
                    bytes(false)
                };
                (Value::Null, bytes(true), processor, bytes(true))
            }
            Kind::Roberta => (
                Value::Null,
                bytes(true),
                json!({
                    "type": "RobertaProcessing",
                    "sep": [sep, id(sep)],
                    "cls": [cls, id(cls)],
                    "trim_offsets": true,
                    "add_prefix_space": spaced,
                }),
                bytes(true),
            ),
            Kind::Clip => self.clip(vocabulary, bytes(true)),
        };
        Ok(json!({
            "version": "1.0",
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": splitter,
            "post_processor": processor,
            "decoder": decoder,
            "model": self.model(vocabulary, merges),
        }))
    }

    /// Returns the normaliser, the pre-tokenizer, the post-processor and the decoder of CLIP; `bytes` is the step that
    /// splits words and maps them to bytes.
    fn clip(&self, vocabulary: &Map<String, Value>, bytes: Value) -> (Value, Value, Value, Value) {
        let end = |key: &str| {
            let token = self.special(key);
            json!([token, vocabulary.get(token)])
        };
        let normalizers = json!([
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ]);
        let words =
            json!({"type": "Split", "pattern": {"Regex": CLIP}, "behavior": "Removed", "invert": true});
        let processor = json!({
            "type": "RobertaProcessing",
            "sep": end("eos_token"),
            "cls": end("bos_token"),
            "trim_offsets": false,
            "add_prefix_space": false,
        });
        (
            json!({"type": "Sequence", "normalizers": normalizers}),
            json!({"type": "Sequence", "pretokenizers": [words, &bytes]}),
            processor,
            bytes,
        )
    }

    /// Returns the `model` section, which splits words into tokens.
    fn model(&self, vocabulary: &Map<String, Value>, merges: &[String]) -> Value {
        match self.kind {
            Kind::Bert => json!({
                "type": "WordPiece",
                "unk_token": self.special("unk_token"),
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocabulary,
            }),
            Kind::Esm => json!({
                "type": "WordLevel",
                "unk_token": self.special("unk_token"),
                "vocab": vocabulary,
            }),
            Kind::Clip => json!({
                "type": "BPE",
                "unk_token": self.special("unk_token"),
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "</w>",
                "fuse_unk": false,
                "vocab": vocabulary,
                "merges": merges,
            }),
            Kind::Gpt2 | Kind::Roberta => json!({
                "type": "BPE",
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": false,
                "vocab": vocabulary,
                "merges": merges,
            }),
        }
    }

    /// Returns the added tokens, at which texts are split first, by id: the special tokens, and those of
    /// `added_tokens.json` and `added_tokens_decoder`.
    fn added(&self, dir: &Path, vocabulary: &Map<String, Value>) -> Result<Vec<Value>, LoadError> {
        let plain = |id: u64, content: &str, special: bool, left: bool| {
            json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": left,
                "rstrip": false,
                "normalized": !special,
                "special": special,
            })
        };
        let mut added = BTreeMap::new();
        let extra = optional_config(dir, "added_tokens.json")?;
        let extra: Map<String, Value> = extra.map(|extra| extra.keys().clone()).unwrap_or_default();
        for (content, id) in &extra {
            if let Some(id) = id.as_u64() {
                added.insert(id, plain(id, content, false, false));
            }
        }
        if self.kind == Kind::Esm {
            for (content, id) in vocabulary {
                let id = id.as_u64().unwrap_or_default();
                added.insert(id, plain(id, content, false, false));
            }
        }
        for (key, content) in &self.specials {
            let id = vocabulary.get(content).or_else(|| extra.get(content));
            if let Some(id) = id.and_then(Value::as_u64) {
                let left = self.kind == Kind::Roberta && *key == "mask_token";
                added.insert(id, plain(id, content, true, left));
            }
        }
        let decoder = match &self.config {
            Some(config) => config.optional::<BTreeMap<u64, Map<String, Value>>>("added_tokens_decoder")?,
            None => None,
        };
        for (id, mut token) in decoder.unwrap_or_default() {
            token.insert("id".into(), json!(id));
            added.insert(id, Value::Object(token));
        }
        Ok(added.into_values().collect())
    }
}

impl Kind {
    /// Returns the default special tokens of the class.
    fn specials(self) -> BTreeMap<&'static str, String> {
        let tokens: &[(&'static str, &str)] = match self {
            Self::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Esm => &[
                ("unk_token", "<unk>"),
                ("cls_token", "<cls>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
                ("eos_token", "<eos>"),
            ],
            Self::Gpt2 => &[
                ("bos_token", "<|endoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
            ],
            Self::Clip => &[
                ("bos_token", "<|startoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
            Self::Roberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
        };
        tokens
            .iter()
            .map(|(key, token)| (*key, (*token).to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
