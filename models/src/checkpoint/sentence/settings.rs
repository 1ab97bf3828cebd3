//! Settings of sentence-transformers besides `modules.json`: preparation of texts, and the kind of model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::files::optional_config;
use crate::checkpoint::{Config, LoadError};
use crate::tasks::embedding::Similarity;

/// Preparation of a text before tokenization.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Preparation {
    /// Whether the tokenizer lowercases the text, except special tokens.
    pub lower: bool,
    /// Prompt to prepend, unless a request names another one.
    pub prompt: String,
    /// Name of the default prompt, which may also select an adapter of the model.
    pub prompt_name: Option<String>,
    /// Prompts that a request may select by name.
    pub prompts: BTreeMap<String, String>,
}

impl Preparation {
    /// Returns the text to tokenize: the prompt followed by the text.
    pub(crate) fn prompted<'a>(text: &'a str, prompt: &str) -> Cow<'a, str> {
        if prompt.is_empty() {
            return Cow::Borrowed(text);
        }
        format!("{prompt}{text}").into()
    }
}

/// Names of the encoder's settings file; old versions of sentence-transformers named it after the encoder.
const ENCODER_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Settings of the encoder's file that change the tokens of a text.
const OTHER_TOKENS: [&str; 3] = ["query_length", "document_length", "query_expansion"];

/// Reads the maximum length of a text in tokens, if stated, and whether texts are lowercased.
///
/// # Errors
/// [`LoadError::BadKey`] for a setting that changes tokens or outputs and is not implemented.
pub(super) fn encoder(folder: &Path) -> Result<(Option<usize>, bool), LoadError> {
    for name in ENCODER_FILES {
        let Some(config) = optional_config(folder, name)? else {
            continue;
        };
        refuse_others(&config)?;
        let lower = config.optional("do_lower_case")?.unwrap_or(false);
        return Ok((config.optional_size("max_seq_length")?, lower));
    }
    Ok((None, false))
}

/// Rejects encoder settings that are not implemented.
fn refuse_others(config: &Config) -> Result<(), LoadError> {
    let one_of = |key: &str, allowed: &[&str]| match config.optional::<String>(key)? {
        Some(value) if !allowed.contains(&value.as_str()) => {
            Err(config.invalid_value(key, format!("{} are supported", allowed.join(" and "))))
        }
        _ => Ok(()),
    };
    one_of(
        "transformer_task",
        &["feature-extraction", "sequence-classification"],
    )?;
    one_of("module_output_name", &["token_embeddings", "scores"])?;
    for key in OTHER_TOKENS {
        if config.optional::<Value>(key)?.is_some() {
            return Err(config.invalid_value(key, "only null is supported"));
        }
    }
    let key = "processing_kwargs";
    let stated = config.optional::<Map<String, Value>>(key)?.unwrap_or_default();
    let empty = |part: &str| {
        let part = stated.get(part).and_then(Value::as_object);
        part.is_none_or(Map::is_empty)
    };
    if !["text", "common"].into_iter().all(empty) {
        let reason =
            "settings of the tokenizer are not supported here; state `max_seq_length` for a maximum length";
        return Err(config.invalid_value(key, reason));
    }
    let key = "modality_config";
    if let Some(kinds) = config.optional::<Map<String, Value>>(key)? {
        let method = kinds.get("text").and_then(|text| text.get("method"));
        if method.and_then(Value::as_str) != Some("forward") {
            let reason =
                "only texts that the method `forward` reads are supported, not messages of a chat template";
            return Err(config.invalid_value(key, reason));
        }
    }
    Ok(())
}

/// Key of the model kind in `config_sentence_transformers.json`.
pub(super) const KIND: &str = "model_type";
/// Model kind that scores pairs.
pub(super) const CROSS_ENCODER: &str = "CrossEncoder";

/// Returns whether models of this kind return one vector or a score per text.
fn is_supported(kind: &str) -> bool {
    kind == "SentenceTransformer" || kind == CROSS_ENCODER
}

/// Returns whether the model of a directory returns one vector or a score per text, by its
/// `config_sentence_transformers.json`.
///
/// # Errors
/// [`LoadError`] for a file that is malformed.
pub(super) fn gives_vectors(dir: &Path) -> Result<bool, LoadError> {
    let Some(config) = optional_config(dir, "config_sentence_transformers.json")? else {
        return Ok(true);
    };
    let kind = config.optional::<String>(KIND)?;
    Ok(kind.as_deref().is_none_or(is_supported))
}

/// Reads `config_sentence_transformers.json`: the prompts, and the name of the default prompt.
///
/// # Errors
/// [`LoadError::BadKey`] for a kind of model that returns neither one vector nor a score per text, and for an unknown
/// prompt.
pub(super) fn model(dir: &Path, preparation: &mut Preparation) -> Result<Option<Config>, LoadError> {
    let Some(config) = optional_config(dir, "config_sentence_transformers.json")? else {
        return Ok(None);
    };
    let kind = config.optional::<String>(KIND)?;
    if kind.is_some_and(|kind| !is_supported(&kind)) {
        let reason =
            "SentenceTransformer and CrossEncoder are supported, which give one vector of a text or a score";
        return Err(config.invalid_value(KIND, reason));
    }
    preparation.prompts = config
        .optional::<BTreeMap<String, String>>("prompts")?
        .unwrap_or_default();
    let key = "default_prompt_name";
    preparation.prompt_name = config.optional::<String>(key)?;
    if let Some(name) = &preparation.prompt_name {
        let prompt = preparation.prompts.get(name).cloned();
        preparation.prompt =
            prompt.ok_or_else(|| config.invalid_value(key, "`prompts` has no prompt of this name"))?;
    }
    Ok(Some(config))
}

/// Reads the similarity function from `config_sentence_transformers.json`.
///
/// # Errors
/// [`LoadError::BadKey`] for a function that does not compare one vector per text.
pub(super) fn similarity(config: &Config) -> Result<Similarity, LoadError> {
    let key = "similarity_fn_name";
    match config.optional::<String>(key)?.as_deref() {
        None | Some("cosine") => Ok(Similarity::Cosine),
        Some("dot") => Ok(Similarity::Dot),
        Some("euclidean") => Ok(Similarity::Euclidean),
        Some("manhattan") => Ok(Similarity::Manhattan),
        Some(other) => Err(config.invalid_value(
            key,
            format!("cosine, dot, euclidean and manhattan are supported, not `{other}`"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_compared_as_the_file_says() {
        let read = |json: &str| similarity(&Config::parse("settings.json", json.as_bytes()).unwrap());
        for (json, expected) in [
            ("{}", Similarity::Cosine),
            (r#"{"similarity_fn_name": null}"#, Similarity::Cosine),
            (r#"{"similarity_fn_name": "cosine"}"#, Similarity::Cosine),
            (r#"{"similarity_fn_name": "dot"}"#, Similarity::Dot),
            (r#"{"similarity_fn_name": "euclidean"}"#, Similarity::Euclidean),
            (r#"{"similarity_fn_name": "manhattan"}"#, Similarity::Manhattan),
        ] {
            assert_eq!(read(json).unwrap(), expected, "{json}");
        }
        let error = read(r#"{"similarity_fn_name": "maxsim"}"#)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`similarity_fn_name`") && error.contains("`maxsim`"),
            "{error}"
        );
    }

    #[test]
    fn a_prompt_is_put_in_front_of_a_text() {
        assert_eq!(Preparation::prompted(" The Sea\n", ""), " The Sea\n");
        assert_eq!(Preparation::prompted("The Sea ", "Query: "), "Query: The Sea ");
    }

    #[test]
    fn settings_that_give_other_tokens_are_refused_by_their_key() {
        let read = |json: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("sentence_bert_config.json"), json).unwrap();
            encoder(dir.path())
        };
        let message = r#"{"message": {"method": "forward", "method_output_name": "last_hidden_state"}}"#;
        for (key, value) in [
            ("modality_config", message),
            ("transformer_task", r#""text-generation""#),
            ("module_output_name", r#""sentence_embedding""#),
            ("query_length", "32"),
            ("document_length", "180"),
            ("query_expansion", r#"{"length": 32}"#),
            ("processing_kwargs", r#"{"text": {"max_length": 8}}"#),
        ] {
            let error = read(&format!(r#"{{"{key}": {value}}}"#)).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
        let usual = r#"{"transformer_task": "feature-extraction", "module_output_name": "token_embeddings", "query_length": null,
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, "max_seq_length": 9}"#;
        assert_eq!(read(usual).unwrap(), (Some(9), false));
    }
}
