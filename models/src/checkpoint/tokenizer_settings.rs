//! Settings of `tokenizer_config.json` that override those of `tokenizer.json`, as in the tokenizers of transformers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::slow_tokenizer::{class_and_type, special_tokens};
use super::{Config, LoadError, optional_config};

/// Sequence settings of `tokenizer_config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SequenceSettings {
    /// Maximum length of a text, tokens; `None` for the model's context.
    pub max_tokens: Option<usize>,
    /// Whether truncation removes the beginning of a text instead of its end.
    pub cuts_beginning: bool,
    /// Whether padding is on the left; the context of a question then comes first.
    pub pads_beginning: bool,
}

impl SequenceSettings {
    /// Reads `model_max_length` (`max_len` in old files), `truncation_side` and `padding_side` of a directory's
    /// `tokenizer_config.json` (`config`).
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for sides other than `left` and `right`.
    pub(super) fn read(dir: &Path, config: Option<&Config>) -> Result<Self, LoadError> {
        // Without a limit, the key holds a huge number, possibly a float.
        let stated = |key: &str| config.and_then(|config| config.keys().get(key));
        let longest = stated("model_max_length").or_else(|| stated("max_len"));
        let longest = longest.and_then(serde_json::Value::as_u64);
        let longest = longest.and_then(|longest| usize::try_from(longest).ok());
        let is_xlnet = match class_and_type(dir, config)? {
            (Some(class), _) => class.trim_end_matches("Fast") == "XLNetTokenizer",
            (None, model_type) => model_type.as_deref() == Some("xlnet"),
        };
        let is_left = |key: &str, default: bool| {
            let Some(config) = config else { return Ok(default) };
            match config.optional::<String>(key)?.as_deref() {
                None => Ok(default),
                Some("left") => Ok(true),
                Some("right") => Ok(false),
                Some(_) => Err(config.invalid_value(key, "left and right are supported")),
            }
        };
        Ok(Self {
            max_tokens: longest.filter(|longest| *longest > 0),
            cuts_beginning: is_left("truncation_side", false)?,
            pads_beginning: is_left("padding_side", is_xlnet)?,
        })
    }
}

/// Tokenizer classes with the normaliser of BERT.
const OF_BERT: [&str; 8] = [
    "BertTokenizer",
    "DistilBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "MPNetTokenizer",
    "SqueezeBertTokenizer",
];
/// Values of `model_type` that imply one of these classes if no file names it.
const TYPES_OF_BERT: [&str; 7] = [
    "bert",
    "distilbert",
    "dpr",
    "electra",
    "ernie",
    "mobilebert",
    "mpnet",
];
/// Keys of the normaliser, with the settings that override them.
const NORMALIZER: [(&str, &str); 3] = [
    ("lowercase", "do_lower_case"),
    ("strip_accents", "strip_accents"),
    ("handle_chinese_chars", "tokenize_chinese_chars"),
];

/// Tokenizer classes with the byte-level splitting of GPT-2, which may prepend a space.
const OF_GPT2: [&str; 6] = [
    "BartTokenizer",
    "BlenderbotTokenizer",
    "GPT2Tokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "RobertaTokenizer",
];
/// Like [`TYPES_OF_BERT`].
const TYPES_OF_GPT2: [&str; 5] = ["bart", "gpt2", "longformer", "roberta", "roberta-prelayernorm"];
const PREFIX_SPACE: &str = "add_prefix_space";

/// Tokenizer classes whose post-processor is overridden: two flags state whether BOS and EOS are added.
const OF_LLAMA: [&str; 4] = [
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
];
const ADD_BOS: &str = "add_bos_token";
const ADD_EOS: &str = "add_eos_token";

/// Returns the content of a directory's `tokenizer.json` (`json`), with the overrides of its `tokenizer_config.json`.
///
/// # Errors
/// [`LoadError`] for a configuration that is unreadable or malformed.
pub(super) fn applied(dir: &Path, json: Vec<u8>) -> Result<Vec<u8>, LoadError> {
    let Some(config) = optional_config(dir, "tokenizer_config.json")? else {
        return Ok(json);
    };
    let (class, model_type) = class_and_type(dir, Some(&config))?;
    let class = class.as_deref().map(|class| class.trim_end_matches("Fast"));
    let is_of = |classes: &[&str], types: &[&str]| match class {
        Some(class) => classes.contains(&class),
        None => model_type.as_deref().is_some_and(|name| types.contains(&name)),
    };
    let stated = |key: &str| config.keys().get(key).filter(|value| value.is_boolean());
    if is_of(&OF_LLAMA, &[]) && (stated(ADD_BOS).is_some() || stated(ADD_EOS).is_some()) {
        return with_ends(dir, &config, json);
    }
    let (parts, settings): (&[&str], Vec<(&str, &Value)>) = if is_of(&OF_BERT, &TYPES_OF_BERT) {
        let settings = NORMALIZER
            .iter()
            .filter_map(|(key, own)| Some((*key, stated(own)?)));
        (&["normalizer"], settings.collect())
    } else if is_of(&OF_GPT2, &TYPES_OF_GPT2) {
        let setting = stated(PREFIX_SPACE).map(|value| (PREFIX_SPACE, value));
        (
            &["pre_tokenizer", "post_processor"],
            setting.into_iter().collect(),
        )
    } else {
        return Ok(json);
    };
    // An invalid tokenizer is rejected where it is used.
    let Ok(mut tokenizer) = serde_json::from_slice::<Value>(&json) else {
        return Ok(json);
    };
    let mut changed = false;
    for part in parts {
        let Some(part) = tokenizer.get_mut(*part).and_then(Value::as_object_mut) else {
            continue;
        };
        for (key, value) in &settings {
            // Other kinds of parts lack the key.
            if let Some(slot) = part.get_mut(*key).filter(|slot| *slot != *value) {
                *slot = (*value).clone();
                changed = true;
            }
        }
    }
    Ok(if changed {
        tokenizer.to_string().into_bytes()
    } else {
        json
    })
}

/// Returns a `tokenizer.json` that adds BOS and EOS by the flags. A file without these tokens is returned unchanged.
///
/// # Errors
/// [`LoadError::BadKey`] for a value that is not a token.
fn with_ends(dir: &Path, config: &Config, json: Vec<u8>) -> Result<Vec<u8>, LoadError> {
    let Ok(Value::Object(mut tokenizer)) = serde_json::from_slice::<Value>(&json) else {
        return Ok(json);
    };
    let mut texts = special_tokens(dir, Some(config), BTreeMap::new())?;
    let id = |text: &str| {
        let added = tokenizer.get("added_tokens").and_then(Value::as_array);
        let mut added = added.into_iter().flatten();
        let own = added.find(|token| token.get("content").and_then(Value::as_str) == Some(text));
        let vocabulary = || tokenizer.get("model")?.get("vocab")?.get(text);
        own.and_then(|token| token.get("id")).or_else(vocabulary).cloned()
    };
    let (mut ends, mut known) = ([None, None], Map::new());
    for ((end, flag), (key, default)) in ends
        .iter_mut()
        .zip([ADD_BOS, ADD_EOS])
        .zip([("bos_token", true), ("eos_token", false)])
    {
        if !config.optional::<bool>(flag)?.unwrap_or(default) {
            continue;
        }
        let text = texts.remove(key).unwrap_or_default();
        let Some(id) = id(&text) else {
            return Ok(json);
        };
        known.insert(text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
        *end = Some(text);
    }
    let [first, last] = ends;
    let around = |text: &str, kind: u8| {
        let special = |token: &Option<String>| {
            let token = token.as_ref()?;
            Some(json!({"SpecialToken": {"id": token, "type_id": kind}}))
        };
        let text = json!({"Sequence": {"id": text, "type_id": kind}});
        let parts = [special(&first), Some(text), special(&last)];
        parts.into_iter().flatten().collect::<Vec<Value>>()
    };
    let pair = [around("A", 0), around("B", 1)].concat();
    let template = json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": known,
    });
    tokenizer.insert("post_processor".into(), template);
    Ok(Value::Object(tokenizer).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(model_type: &str, settings: &Value, tokenizer: &Value) -> Value {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"model_type": model_type}).to_string();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
        let json = applied(dir.path(), tokenizer.to_string().into_bytes()).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    #[test]
    fn the_configuration_replaces_what_the_normalizer_of_bert_states() {
        let normalizer = json!({
            "type": "BertNormalizer", "lowercase": true, "strip_accents": null, "handle_chinese_chars": true, "clean_text": true,
        });
        let tokenizer = json!({"normalizer": normalizer});
        let settings = json!({"do_lower_case": false, "strip_accents": true, "tokenize_chinese_chars": null});
        let expected = json!({
            "type": "BertNormalizer", "lowercase": false, "strip_accents": true, "handle_chinese_chars": true, "clean_text": true,
        });
        for class in [Value::Null, json!("BertTokenizerFast"), json!("MPNetTokenizer")] {
            let mut settings = settings.clone();
            settings["tokenizer_class"] = class;
            assert_eq!(changed("bert", &settings, &tokenizer)["normalizer"], expected);
        }
        // This class uses the file unchanged.
        let mut general = settings.clone();
        general["tokenizer_class"] = json!("PreTrainedTokenizerFast");
        assert_eq!(changed("bert", &general, &tokenizer), tokenizer);
        assert_eq!(changed("llama", &settings, &tokenizer), tokenizer);
        let other = json!({"normalizer": {"type": "Lowercase"}});
        assert_eq!(changed("bert", &settings, &other), other);
    }

    #[test]
    fn the_flags_of_llama_decide_which_tokens_are_added() {
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let tokenizer = json!({
            "added_tokens": [{"id": 1, "content": "<s>"}],
            "model": {"vocab": {"<s>": 1, "</s>": 2}},
            "post_processor": {"type": "TemplateProcessing", "single": [special("<s>"), text]},
        });
        let single = |settings: Value| {
            let mut all = json!({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": {"content": "</s>"}});
            for (key, value) in settings.as_object().unwrap() {
                all[key] = value.clone();
            }
            changed("mistral", &all, &tokenizer)["post_processor"].clone()
        };
        let both = single(json!({"add_eos_token": true}));
        assert_eq!(both["single"], json!([special("<s>"), text, special("</s>")]));
        assert_eq!(both["special_tokens"]["</s>"]["ids"], json!([2]));
        let neither = single(json!({"add_bos_token": false, "add_eos_token": false}));
        assert_eq!(neither["single"], json!([text]));
        // Without flags, with other classes, and without the token, the file is unchanged.
        for settings in [
            json!({}),
            json!({"add_bos_token": false, "tokenizer_class": "Qwen2Tokenizer"}),
            json!({"add_eos_token": true, "eos_token": "<end>"}),
        ] {
            assert_eq!(single(settings), tokenizer["post_processor"]);
        }
    }

    #[test]
    fn sequences_are_cut_as_the_configuration_says() {
        let read = |model_type: &str, settings: Value| {
            let dir = tempfile::tempdir().unwrap();
            let model = json!({"model_type": model_type}).to_string();
            std::fs::write(dir.path().join("config.json"), model).unwrap();
            let config = Config::parse("tokenizer_config.json", settings.to_string().as_bytes()).unwrap();
            SequenceSettings::read(dir.path(), Some(&config))
        };
        assert_eq!(
            read("bert", json!({"model_max_length": 1e30})).unwrap(),
            SequenceSettings::default()
        );
        let stated = read("bert", json!({"model_max_length": 8, "truncation_side": "left"})).unwrap();
        assert_eq!((stated.max_tokens, stated.cuts_beginning), (Some(8), true));
        assert!(read("xlnet", json!({})).unwrap().pads_beginning);
        assert!(
            !read("xlnet", json!({"padding_side": "right"}))
                .unwrap()
                .pads_beginning
        );
        let error = read("bert", json!({"truncation_side": "middle"}))
            .unwrap_err()
            .to_string();
        assert!(error.contains("truncation_side"), "{error}");
    }

    #[test]
    fn the_configuration_decides_whether_a_space_comes_first() {
        let tokenizer = json!({
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
            "post_processor": {"type": "RobertaProcessing", "add_prefix_space": false},
        });
        let found = changed("roberta", &json!({"add_prefix_space": true}), &tokenizer);
        for part in ["pre_tokenizer", "post_processor"] {
            assert_eq!(found[part]["add_prefix_space"], json!(true), "{part}");
        }
        assert_eq!(changed("roberta", &json!({}), &tokenizer), tokenizer);
    }

    #[test]
    fn old_files_name_the_maximum_length_otherwise() {
        for (settings, expected) in [
            (json!({"max_len": 9}), Some(9)),
            (json!({"max_len": 9, "model_max_length": 7}), Some(7)),
            (json!({"max_len": 9, "model_max_length": 1e30}), None),
            (json!({}), None),
        ] {
            let config = Config::parse("tokenizer_config.json", settings.to_string().as_bytes()).unwrap();
            let read = SequenceSettings::read(Path::new("/none/such"), Some(&config)).unwrap();
            assert_eq!(read.max_tokens, expected, "{settings}");
        }
    }
}
