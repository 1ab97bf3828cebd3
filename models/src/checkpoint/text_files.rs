//! The tokenizer files of a checkpoint, which can be read without the weights.

use std::path::Path;

use super::sentence::SentenceTexts;
use super::{ChatTemplate, Config, LoadError, TokenizerFile, gguf, quantised, static_embedding};

/// Keys of the maximum sequence length, which differ between architectures.
pub(crate) const CONTEXT: [&str; 4] = ["max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"];

/// Section of the language model in the configuration of a multimodal model.
const TEXT_CONFIG: &str = "text_config";

/// Tokenizer files of a checkpoint.
#[derive(Debug)]
pub(crate) struct TextFiles {
    /// The tokenizer, if there is one.
    pub tokenizer: Option<TokenizerFile>,
    /// The chat template and the special tokens.
    pub chat: ChatTemplate,
    /// Maximum sequence length that the configuration states, tokens.
    pub context: Option<usize>,
}

impl TextFiles {
    /// Reads the tokenizer files of a directory, which may lack the weights, or of a GGUF file's header.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable, too large or malformed.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        if let Some(files) = gguf::find(path)? {
            let checkpoint = gguf::open(path, &files)?;
            return Ok(Self {
                context: context(&checkpoint.config)?,
                tokenizer: checkpoint.tokenizer,
                chat: checkpoint.chat,
            });
        }
        let texts = SentenceTexts::read(path)?;
        let folder = texts.as_ref().map(|texts| path.join(&texts.encoder));
        let dir = folder.as_deref().unwrap_or(path);
        let config = dir.join("config.json").exists().then(|| Config::open(dir));
        let config = config.transpose()?;
        let is_static = match (&texts, &config) {
            (Some(texts), _) => texts.is_static,
            (None, Some(config)) => static_embedding::is_static(config)?,
            (None, None) => false,
        };
        let mut tokenizer = if is_static {
            TokenizerFile::alone(dir)?
        } else {
            TokenizerFile::beside(dir)?
        };
        if let (Some(file), Some(mut texts)) = (&mut tokenizer, texts) {
            if config.as_ref().is_some_and(quantised::has_adapters) {
                texts.preparation.prompts.clear();
            }
            file.preparation = texts.preparation;
            file.sequences.max_tokens = texts.max_tokens.or(file.sequences.max_tokens);
        }
        Ok(Self {
            tokenizer,
            chat: ChatTemplate::open(dir)?,
            context: config.as_ref().map(context).transpose()?.flatten(),
        })
    }
}

/// Returns the maximum sequence length that a configuration states.
fn context(config: &Config) -> Result<Option<usize>, LoadError> {
    let nested = config
        .keys()
        .get(TEXT_CONFIG)
        .is_some_and(serde_json::Value::is_object);
    let nested = nested.then(|| config.nested(TEXT_CONFIG)).transpose()?;
    for config in nested.iter().chain([config]) {
        for key in CONTEXT {
            if let Some(size) = config.optional_size(key)? {
                return Ok(Some(size));
            }
        }
    }
    Ok(None)
}
