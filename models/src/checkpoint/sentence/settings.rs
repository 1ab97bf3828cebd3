//! The settings of sentence-transformers beside `modules.json`: what becomes of a text, and what kind of model it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::files::optional_config;
use crate::checkpoint::{Config, LoadError};
use crate::tasks::embedding::Similarity;

/// What becomes of a text before it is tokenized.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Preparation {
    /// Whether the tokenizer writes it in lower case, except its special tokens.
    pub lower: bool,
    /// Put in front of it, unless a request names another prompt.
    pub prompt: String,
    /// Name of that, which may also name an adapter of the model.
    pub prompt_name: Option<String>,
    /// The prompts that a request may name.
    pub prompts: BTreeMap<String, String>,
}

impl Preparation {
    /// Returns the text to tokenize, with a prompt in front of it.
    pub(crate) fn prompted<'a>(text: &'a str, prompt: &str) -> Cow<'a, str> {
        if prompt.is_empty() {
            return Cow::Borrowed(text);
        }
        format!("{prompt}{text}").into()
    }
}

/// Names of the file with the settings of the encoder; old versions named it after the encoder.
const ENCODER_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Settings of the encoder's file that give texts other tokens than the tokenizer alone.
const OTHER_TOKENS: [&str; 3] = ["query_length", "document_length", "query_expansion"];

/// Reads the maximum length of a text, tokens, if it is stated, and whether texts are written in lower case.
///
/// # Errors
/// [`LoadError::BadKey`] for a setting that changes the tokens or the answer and is not implemented.
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

/// Refuses settings of the encoder that are not implemented.
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

/// Key of the kind of model in `config_sentence_transformers.json`.
pub(super) const KIND: &str = "model_type";
/// The kind that gives scores of pairs.
pub(super) const CROSS_ENCODER: &str = "CrossEncoder";

/// Whether a kind of model gives one vector of a text, or a score.
fn is_supported(kind: &str) -> bool {
    kind == "SentenceTransformer" || kind == CROSS_ENCODER
}

/// Whether the model of a directory gives one vector of a text, or a score, by its `config_sentence_transformers.json`.
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

/// Reads `config_sentence_transformers.json`: its prompts, and which of them is put in front of every text.
///
/// # Errors
/// [`LoadError::BadKey`] for a kind of model that gives neither one vector of a text nor a score, and for an unknown prompt.
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

/// Reads how `config_sentence_transformers.json` compares two vectors.
///
/// # Errors
/// [`LoadError::BadKey`] for a function that compares something other than one vector of each text.
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
