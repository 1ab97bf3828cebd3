//! The tokenizer files of a checkpoint, which can be read without the weights.

use std::path::Path;

use super::chat_template::Message;
use super::sentence::SentenceTexts;
use super::slow_tokenizer::class_and_type;
use super::{
    ChatTemplate, Config, LoadError, TemplateError, TokenizerFile, gguf, optional_config, quantised,
    static_embedding,
};

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

/// Vocabulary files of tokenizers.
const VOCABULARIES: [&str; 9] = [
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "bpe.codes",
];

/// Returns which vocabulary files of a directory are not used, and why, if no tokenizer can be built from them.
pub fn unused_vocabulary(dir: &Path) -> Option<String> {
    let found = VOCABULARIES.iter().filter(|name| dir.join(name).is_file());
    let found: Vec<String> = found.map(|name| format!("`{name}`")).collect();
    if found.is_empty() || !matches!(TokenizerFile::beside(dir), Ok(None)) {
        return None;
    }
    let config = optional_config(dir, "tokenizer_config.json").ok()?;
    let (class, model_type) = class_and_type(dir, config.as_ref()).ok()?;
    let whose = match (class, model_type) {
        (Some(class), _) => format!("the tokenizer class is `{class}`"),
        (None, Some(model_type)) => format!("the `model_type` is `{model_type}`"),
        (None, None) => "`tokenizer_class` and `model_type` are missing".to_owned(),
    };
    Some(format!(
        "no tokenizer is built from {}, because {whose}; only `tokenizer.json` is read of this class, which transformers writes: \
         AutoTokenizer.from_pretrained(NAME).save_pretrained(DIRECTORY)",
        found.join(", ")
    ))
}

/// Checks the chat template of a directory or a GGUF file, if it has one. Returns a remark if the template fails for one
/// message of a user, as templates of special tasks do.
///
/// # Errors
/// A description of the error, if the template cannot be parsed.
pub fn check_chat_template(path: &Path) -> Result<Option<String>, String> {
    // Loading reports files that cannot be read.
    let Ok(TextFiles { chat, .. }) = TextFiles::open(path) else {
        return Ok(None);
    };
    chat.check_syntax().map_err(|error| error.to_string())?;
    let message = Message {
        role: "user".to_owned(),
        content: "Hello".into(),
        ..Message::default()
    };
    match chat.render(&[message], &[], &serde_json::Map::new()) {
        Ok(_) | Err(TemplateError::Missing) => Ok(None),
        Err(error) => Ok(Some(format!("for a chat of one message, {error}"))),
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
