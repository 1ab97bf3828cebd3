//! Settings for texts and vectors in a sentence-transformers directory, read without the weights of its modules.

use std::path::Path;

use super::{Module, Preparation, SentenceModules, pooling, settings};
use crate::checkpoint::{Config, LoadError};
use crate::tasks::embedding::Similarity;

/// Settings for texts, and for the whole model.
#[derive(Debug)]
pub(crate) struct SentenceTexts {
    /// Preparation of a text before tokenization.
    pub preparation: Preparation,
    /// Maximum length of a text, tokens; `None` for the tokenizer's maximum.
    pub max_tokens: Option<usize>,
    /// Folder of the encoder, relative to the directory.
    pub encoder: String,
    /// Whether the encoder is an embedding table, whose texts get no special tokens.
    pub is_static: bool,
    /// `config_sentence_transformers.json`, if there is one.
    pub settings: Option<Config>,
}

impl SentenceTexts {
    /// Reads the settings of a directory. `None` without `modules.json`.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is missing or malformed, and for a setting that is not supported.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        let Some((listed, modules)) = SentenceModules::listed(dir)? else {
            return Ok(None);
        };
        let (mut preparation, mut max_tokens) = (Preparation::default(), None);
        let (mut encoder, mut is_static) = (None, false);
        let settings = settings::model(dir, &mut preparation)?;
        for module in modules {
            match module.name() {
                "Transformer" => {
                    (max_tokens, preparation.lower) = settings::encoder(&dir.join(&module.path))?;
                    encoder = Some(module.path);
                }
                "CLIPModel" => encoder = Some(module.path),
                "StaticEmbedding" if encoder.is_none() => (encoder, is_static) = (Some(module.path), true),
                "Pooling" => {
                    pooling(&dir.join(&module.path), &mut preparation)?;
                }
                _ => {}
            }
        }
        let encoder =
            encoder.ok_or_else(|| listed.bad("it has no module `Transformer` or `StaticEmbedding`"))?;
        Ok(Some(Self {
            preparation,
            max_tokens,
            encoder,
            is_static,
            settings,
        }))
    }

    /// Reads the settings of a directory for an ONNX graph of its encoder; also returns whether the token vectors must
    /// be pooled. `None` without `modules.json`, and for modules of another kind, such as multi-vector (`ColBERT`) or
    /// sparse models, whose graph is served unchanged.
    ///
    /// # Errors
    /// Same as [`SentenceTexts::read`].
    pub(crate) fn of_graph(dir: &Path) -> Result<Option<(Self, bool)>, LoadError> {
        let Some((_, modules)) = SentenceModules::listed(dir)? else {
            return Ok(None);
        };
        let mut names = modules.iter().map(Module::name);
        let has_encoder = names.any(|name| ["Transformer", "CLIPModel"].contains(&name));
        let pools = names.next() == Some("Pooling");
        if !has_encoder || !settings::gives_vectors(dir)? {
            return Ok(None);
        }
        Ok(Self::read(dir)?.map(|texts| (texts, pools)))
    }

    /// Returns the number of leading elements of the vector to keep; `None` for all.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if the value is not a size.
    pub(crate) fn kept(&self) -> Result<Option<usize>, LoadError> {
        match &self.settings {
            Some(settings) => settings.optional_size("truncate_dim"),
            None => Ok(None),
        }
    }

    /// Returns the similarity function for two vectors.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an unsupported function.
    pub(crate) fn similarity(&self) -> Result<Similarity, LoadError> {
        match &self.settings {
            Some(settings) => settings::similarity(settings),
            None => Ok(Similarity::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory with these modules, each with a folder, and settings of the whole model.
    fn directory(modules: &[&str], settings: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let listed = modules.iter().enumerate().map(|(index, kind)| {
            let path = format!("{index}_{kind}");
            std::fs::create_dir(dir.path().join(&path)).unwrap();
            std::fs::write(dir.path().join(&path).join("config.json"), "{}").unwrap();
            serde_json::json!({"path": path, "type": format!("x.{kind}")})
        });
        let listed = listed.collect::<serde_json::Value>().to_string();
        std::fs::write(dir.path().join("modules.json"), listed).unwrap();
        std::fs::write(dir.path().join("config_sentence_transformers.json"), settings).unwrap();
        dir
    }

    #[test]
    fn a_graph_is_pooled_only_if_the_pooling_follows_its_encoder() {
        let of = |modules: &[&str], settings: &str| {
            let read = SentenceTexts::of_graph(directory(modules, settings).path()).unwrap();
            read.map(|(texts, pools)| (texts.encoder, pools))
        };
        let encoder = |pools| Some(("0_Transformer".to_owned(), pools));
        assert_eq!(of(&["Transformer", "Pooling", "Normalize"], "{}"), encoder(true));
        assert_eq!(of(&["Transformer", "Dense"], "{}"), encoder(false));
        assert_eq!(of(&["Transformer", "Dense", "Pooling"], "{}"), encoder(false));
        assert_eq!(
            of(&["Transformer"], r#"{"model_type": "CrossEncoder"}"#),
            encoder(false)
        );
        assert_eq!(of(&["CLIPModel"], "{}"), Some(("0_CLIPModel".to_owned(), false)));
        assert_eq!(
            of(&["Transformer", "Dense"], r#"{"model_type": "ColBERT"}"#),
            None
        );
        assert_eq!(of(&["MLMTransformer", "SpladePooling"], "{}"), None);
    }

    #[test]
    fn texts_of_a_static_embedding_are_read_without_special_tokens() {
        let dir = directory(
            &["StaticEmbedding", "Normalize"],
            r#"{"prompts": {"query": "Q: "}}"#,
        );
        let texts = SentenceTexts::read(dir.path()).unwrap().unwrap();
        assert!(texts.is_static && texts.encoder == "0_StaticEmbedding");
        assert_eq!(texts.preparation.prompts.len(), 1);
    }
}
