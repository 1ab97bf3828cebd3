//! Builds a tokenizer from a `tokenizer.json`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};

use super::sentencepiece::check_table;
use super::{LoadError, TokenizerFile};

/// The section that is validated; the rest is skipped.
#[derive(Deserialize)]
struct Checked {
    #[serde(default)]
    normalizer: Value,
}

impl TokenizerFile {
    /// Builds the tokenizer. First validates the normalisation tables, which the crate `tokenizers` does not: a
    /// damaged table would cause a panic or an allocation of gigabytes.
    ///
    /// # Errors
    /// [`LoadError::BadTokenizer`].
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        let bad = |reason: String| LoadError::BadTokenizer {
            file: self.file.clone(),
            reason,
        };
        let checked: Checked = serde_json::from_slice(&self.json).map_err(|error| bad(error.to_string()))?;
        if !are_tables_sound(&checked.normalizer) {
            let reason = "its normalisation table (precompiled_charsmap) is damaged";
            return Err(bad(reason.to_owned()));
        }
        let mut tokenizer = Tokenizer::from_bytes(&self.json).map_err(|error| bad(error.to_string()))?;
        if self.preparation.lower {
            write_in_lower_case(&mut tokenizer);
        }
        Ok(tokenizer)
    }
}

/// Makes a tokenizer lowercase texts before anything else, as sentence-transformers does, but not special tokens in a
/// text.
fn write_in_lower_case(tokenizer: &mut Tokenizer) {
    let mut steps = match tokenizer.get_normalizer() {
        Some(NormalizerWrapper::Sequence(steps)) => steps.as_ref().to_vec(),
        other => other.cloned().into_iter().collect(),
    };
    let is_lower = |step: &NormalizerWrapper| matches!(step, NormalizerWrapper::Lowercase(_));
    if !steps.iter().any(is_lower) {
        steps.insert(0, Lowercase.into());
        tokenizer.with_normalizer(Some(Sequence::new(steps)));
    }
}

/// Returns whether all tables of a normaliser, including nested ones, are valid.
fn are_tables_sound(normalizer: &Value) -> bool {
    match normalizer {
        Value::Object(fields) => fields.iter().all(|(name, value)| match value {
            Value::String(table) if name == "precompiled_charsmap" => {
                let table = BASE64_STANDARD.decode(table).ok();
                table.and_then(|table| check_table(&table)).is_some()
            }
            value => are_tables_sound(value),
        }),
        Value::Array(inside) => inside.iter().all(are_tables_sound),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sentencepiece::check_table;
    use super::*;

    /// Builds a byte tokenizer with this normaliser.
    fn built(normalizer: &Value) -> Result<Tokenizer, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let json = json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
        });
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        TokenizerFile::beside(folder.path()).unwrap().unwrap().tokenizer()
    }

    #[test]
    fn a_damaged_normalisation_table_is_refused() {
        // An empty trie, which panics at the first text, and one of 4 GiB, for which memory is reserved before
        // reading.
        for table in ["AAAAAA==", "/////w=="] {
            let table = json!({"type": "Precompiled", "precompiled_charsmap": table});
            let inside = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, table]});
            for normalizer in [table, inside] {
                let error = built(&normalizer).unwrap_err().to_string();
                assert!(
                    error.contains("tokenizer.json") && error.contains("precompiled_charsmap"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_text_is_written_in_lower_case_without_its_special_tokens() {
        let json = json!({
            "version": "1.0",
            "added_tokens": [{"id": 2, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1, "[SEP]": 2, "A": 3}, "unk_token": "[UNK]"},
        });
        let mut file = TokenizerFile::of_json("tokenizer.json".into(), json.to_string().into());
        let ids = |file: &TokenizerFile| {
            let encoding = file.tokenizer().unwrap().encode("A [SEP] a", false);
            encoding.unwrap().get_ids().to_vec()
        };
        assert_eq!(ids(&file), [3, 2, 0]);
        file.preparation.lower = true;
        assert_eq!(ids(&file), [0, 2, 0]);
    }

    #[test]
    fn a_sound_table_and_none_are_taken() {
        for normalizer in [Value::Null, json!({"type": "NFC"})] {
            assert_eq!(
                built(&normalizer).unwrap().encode("a", false).unwrap().get_ids(),
                [0]
            );
        }
        // A trie whose root has no children, without replacements.
        let mut table = 1_024_u32.to_le_bytes().to_vec();
        table.extend([0; 1_024]);
        check_table(&table).unwrap();
        let table = json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(table)});
        assert_eq!(built(&table).unwrap().encode("a", false).unwrap().get_ids(), [0]);
    }
}
