//! Settings of `tokenizer_config.json` that replace those of `tokenizer.json`, as the tokenizers of transformers apply them.

use std::path::Path;

use serde_json::Value;

use super::slow_tokenizer::class_and_type;
use super::{LoadError, optional_config};

/// Classes of tokenizers whose normalizer is that of BERT.
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
/// The `model_type`s that these classes belong to, where no file names the class.
const TYPES_OF_BERT: [&str; 7] = [
    "bert",
    "distilbert",
    "dpr",
    "electra",
    "ernie",
    "mobilebert",
    "mpnet",
];
/// Keys of the normalizer, and those that replace them.
const NORMALIZER: [(&str, &str); 3] = [
    ("lowercase", "do_lower_case"),
    ("strip_accents", "strip_accents"),
    ("handle_chinese_chars", "tokenize_chinese_chars"),
];

/// Classes of tokenizers that split texts into bytes as GPT-2 does, and may put a space in front of them.
const OF_GPT2: [&str; 6] = [
    "BartTokenizer",
    "BlenderbotTokenizer",
    "GPT2Tokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "RobertaTokenizer",
];
/// As [`TYPES_OF_BERT`].
const TYPES_OF_GPT2: [&str; 5] = ["bart", "gpt2", "longformer", "roberta", "roberta-prelayernorm"];
const PREFIX_SPACE: &str = "add_prefix_space";

/// Returns the content of a directory's `tokenizer.json`, here `json`, with the settings of its `tokenizer_config.json`.
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
    // A file that is no tokenizer is refused where it is used.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        // Classes that take the file as it is.
        let mut general = settings.clone();
        general["tokenizer_class"] = json!("PreTrainedTokenizerFast");
        assert_eq!(changed("bert", &general, &tokenizer), tokenizer);
        assert_eq!(changed("llama", &settings, &tokenizer), tokenizer);
        let other = json!({"normalizer": {"type": "Lowercase"}});
        assert_eq!(changed("bert", &settings, &other), other);
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
}
