//! Checkpoints: Hugging Face directories and GGUF files.
//!
//! A Hugging Face directory has `config.json`, `model.safetensors` or `pytorch_model.bin` or its shards, and optionally `tokenizer.json`, or
//! the vocabulary or `SentencePiece` model of a supported tokenizer class.

pub(crate) mod chat_template;
mod config;
mod dates;
mod error;
mod files;
mod fingerprint;
pub(crate) mod generation_config;
mod gguf;
mod preprocessor;
mod pytorch;
pub(crate) mod quantised;
pub(crate) mod sentence;
mod sentencepiece;
mod slow_tokenizer;
pub(crate) mod static_embedding;
mod tekken;
pub(crate) mod text_files;
pub(crate) mod timm;
mod token_rules;
mod tokenizer_json;
mod tokenizer_settings;
mod weight_files;
pub(crate) mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;

pub use chat_template::{ChatTemplate, TemplateError};
pub use config::Config;
pub use error::LoadError;
pub(crate) use files::is_of_pytorch;
use files::{
    MAX_CONFIG, MAX_INDEX, MAX_TOKENIZER, WEIGHTS, open, open_shard, open_weights, optional_config,
    read_capped, read_config,
};
pub use fingerprint::fingerprint_of_bytes;
pub use generation_config::{EarlyStopping, GenerationConfig};
pub use sentence::SentenceModules;
pub use token_rules::TokenRules;
use tokenizer_settings::SequenceSettings;
pub(crate) use weights::transposed;
pub use weights::{WeightTotals, Weights};

/// A checkpoint with parsed configuration. Reads a tensor's data only when it is requested.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory's name.
    pub name: String,
    /// Parsed `config.json`.
    pub config: Config,
    /// Tensors of `model.safetensors` or `pytorch_model.bin`, of its shards, or of the GGUF file.
    pub weights: Weights,
    /// `tokenizer.json`, if there is one.
    pub tokenizer: Option<TokenizerFile>,
    /// Parsed `generation_config.json`.
    pub generation: GenerationConfig,
    /// The chat template and the special tokens.
    pub chat: ChatTemplate,
    /// The modules after the encoder, if the directory was saved by sentence-transformers.
    pub sentence: Option<SentenceModules>,
    /// Image preprocessing: `image_processor` of `processor_config.json`, else `preprocessor_config.json`, if there is
    /// one.
    pub preprocessor: Option<Config>,
}

/// The bytes of a `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    /// Name of the file in errors.
    pub file: String,
    /// Content of the file.
    pub json: Bytes,
    /// Whether the model receives token type ids: `model_input_names` of `tokenizer_config.json` may omit them.
    pub types: bool,
    /// Padding token, if the files next to `tokenizer.json` state one.
    pub(crate) padding: Option<String>,
    /// Maximum length, truncation side and padding side of sequences.
    pub(crate) sequences: SequenceSettings,
    /// Preparation of a text before tokenization: prompts and lower case.
    pub(crate) preparation: sentence::Preparation,
}

impl TokenizerFile {
    /// Reads the `tokenizer.json` of a directory without the settings next to it. `None` without one.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable or too large.
    fn alone(dir: &Path) -> Result<Option<Self>, LoadError> {
        let path = dir.join("tokenizer.json");
        if !path.exists() {
            return Ok(None);
        }
        let json = read_capped(&path, MAX_TOKENIZER)?;
        Ok(Some(Self::of_json(path.display().to_string(), json.into())))
    }

    /// A tokenizer without settings; `file` is its name in errors.
    fn of_json(file: String, json: Bytes) -> Self {
        Self {
            file,
            json,
            types: true,
            padding: None,
            sequences: SequenceSettings::default(),
            preparation: sentence::Preparation::default(),
        }
    }

    /// Reads the `tokenizer.json` of a directory, or builds it from Mistral's file ([`tekken`]) or from the vocabulary
    /// of a supported tokenizer class ([`slow_tokenizer`], [`sentencepiece`]). `None` if the directory has none of
    /// them.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable or too large.
    pub(crate) fn beside(dir: &Path) -> Result<Option<Self>, LoadError> {
        let path = dir.join("tokenizer.json");
        let (file, json) = if path.exists() {
            let json = tokenizer_settings::applied(dir, read_capped(&path, MAX_TOKENIZER)?)?;
            (path.display().to_string(), json)
        } else if let Some(built) = tekken::build(dir)? {
            built
        } else if let Some(built) = slow_tokenizer::build(dir)? {
            built
        } else if let Some(built) = sentencepiece::build(dir)? {
            built
        } else {
            return Ok(None);
        };
        let config = optional_config(dir, "tokenizer_config.json")?;
        let mut specials = slow_tokenizer::special_tokens(dir, config.as_ref(), BTreeMap::new())?;
        let types = match &config {
            Some(config) => takes_types(config)?,
            None => true,
        };
        Ok(Some(Self {
            file,
            json: json.into(),
            types,
            padding: specials.remove("pad_token"),
            sequences: SequenceSettings::read(dir, config.as_ref())?,
            preparation: sentence::Preparation::default(),
        }))
    }
}

/// Returns whether transformers passes token type ids for this `tokenizer_config.json`. The generic class that
/// transformers 5 saves for a tokenizer without a class of its own passes none.
fn takes_types(config: &Config) -> Result<bool, LoadError> {
    if let Some(names) = config.optional::<Vec<String>>("model_input_names")? {
        return Ok(names.iter().any(|name| name == "token_type_ids"));
    }
    let class = config.optional::<String>("tokenizer_class")?;
    Ok(class.as_deref() != Some("TokenizersBackend"))
}

impl Config {
    /// Reads the `config.json` of a directory.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is missing, unreadable, too large or malformed.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let file = dir.join("config.json");
        Self::parse(file.display().to_string(), &read_config(&file)?)
    }
}

impl Config {
    /// Reads the configuration of a checkpoint: its `config.json`, which sentence-transformers may have saved in a
    /// subfolder, or the configuration derived from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Same as [`Config::open`].
    pub(crate) fn of_directory(dir: &Path) -> Result<Self, LoadError> {
        if let Some(files) = gguf::find(dir)? {
            return gguf::configuration(&files);
        }
        let mut config = match SentenceModules::open(dir)? {
            Some((modules, folder)) => Self::of_encoder(&dir.join(folder), Some(&modules))?,
            None => Self::of_encoder(dir, None)?,
        };
        timm::translate(&mut config)?;
        Ok(config)
    }
}

/// Returns the fingerprint of a Hugging Face directory, a GGUF file or an ONNX file: the first 16 hexadecimal digits
/// of the SHA-256 of everything that determines the model's outputs.
///
/// The hash covers names and contents of configurations, vocabularies, templates and weights, but not training
/// artefacts nor the directory's own name. For a weights file over 32 MiB it covers the header and the first and last
/// 4 KiB of each tensor (4,096 samples for formats other than safetensors), so that a fingerprint takes milliseconds.
/// The fingerprint distinguishes a retrained model from its predecessor, but does not protect against tampering.
///
/// # Errors
/// [`LoadError`] if a file cannot be read.
pub fn fingerprint(path: &Path) -> Result<String, LoadError> {
    if path.extension().is_some_and(|extension| extension == "onnx") {
        return fingerprint::of(&fingerprint::of_onnx(path)?);
    }
    let Some(files) = gguf::find(path)? else {
        return fingerprint::of(&fingerprint::of_directory(path)?);
    };
    let named = files.into_iter().map(|file| (fingerprint::name_of(&file), file));
    fingerprint::of(&named.collect::<Vec<_>>())
}

impl Config {
    /// Reads the configuration of the sentence-transformers encoder in a folder, or of a directory without `modules`.
    ///
    /// # Errors
    /// Same as [`Config::open`]; [`LoadError::AdapterBesideWeights`] if the folder also holds an adapter.
    fn of_encoder(folder: &Path, modules: Option<&SentenceModules>) -> Result<Self, LoadError> {
        files::check_adapter(folder)?;
        match modules {
            Some(modules) if modules.is_static => static_embedding::configuration(folder),
            _ => Self::open(folder),
        }
    }
}

impl Checkpoint {
    /// Returns whether sentence-transformers modules pool the token vectors into one, so that the head of the
    /// architecture is not needed.
    pub(crate) fn pools_tokens(&self) -> bool {
        let modules = self.sentence.as_ref();
        modules.is_some_and(|modules| modules.pooling.is_some() && !modules.is_scored)
    }

    /// Returns the names of the prompts in `config_sentence_transformers.json`.
    pub(crate) fn prompts(&self) -> Vec<String> {
        let tokenizer = self.tokenizer.iter();
        let names = tokenizer.flat_map(|tokenizer| tokenizer.preparation.prompts.keys());
        names.cloned().collect()
    }

    /// Opens a directory, or a GGUF file. Reads only the header of the weights.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is missing, unreadable, too large or malformed.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        if let Some(files) = gguf::find(dir)? {
            return gguf::open(dir, &files);
        }
        let display = |path: &Path| path.display().to_string();
        let (sentence, folder) = SentenceModules::open(dir)?.unzip();
        let modules: Option<&SentenceModules> = sentence.as_ref();
        let mut preparation = modules
            .map(|modules| modules.preparation.clone())
            .unwrap_or_default();
        let max_tokens = modules.and_then(|modules| modules.max_tokens);
        let whole = dir;
        let dir = &folder.map_or_else(|| dir.to_owned(), |folder| dir.join(folder));
        let mut config = Config::of_encoder(dir, modules)?;
        if quantised::has_adapters(&config) {
            // Each prompt selects an adapter; that of the default prompt is merged into the weights.
            preparation.prompts.clear();
        }
        let task = preparation.prompt_name.as_deref();
        timm::translate(&mut config)?;
        let mut weights = whole_or_sharded(dir)?;
        weights.strip_wrappers();
        weights.quantised_as(quantised::read(&config, task)?);
        if let Some(renamed) = timm::renamed(&config) {
            weights.rename(renamed);
        }
        let preprocessor = preprocessor_of(dir, Some(&config))?;
        let mut tokenizer = if static_embedding::is_static(&config)? {
            TokenizerFile::alone(dir)?
        } else {
            TokenizerFile::beside(dir)?
        };
        if let Some(file) = &mut tokenizer {
            file.preparation = preparation;
            file.sequences.max_tokens = max_tokens.or(file.sequences.max_tokens);
        }
        Ok(Self {
            sentence,
            name: whole
                .canonicalize()
                .unwrap_or_else(|_| whole.to_owned())
                .file_name()
                .map_or_else(|| display(whole), |name| name.to_string_lossy().into_owned()),
            generation: GenerationConfig::open(dir, &config)?,
            config,
            weights,
            tokenizer,
            chat: ChatTemplate::open(dir)?,
            preprocessor,
        })
    }

    /// Opens a checkpoint in memory, such as `include_bytes!`; `name` replaces the directory in errors.
    ///
    /// # Errors
    /// [`LoadError`] for malformed bytes.
    pub fn from_bytes(
        name: &str,
        config: &[u8],
        weights: impl Into<Bytes>,
        tokenizer: Option<Bytes>,
    ) -> Result<Self, LoadError> {
        let mut config = Config::parse(format!("{name}/config.json"), config)?;
        timm::translate(&mut config)?;
        let mut weights = Weights::from_bytes(format!("{name}/model.safetensors"), weights.into())?;
        weights.strip_wrappers();
        weights.quantised_as(quantised::read(&config, None)?);
        if let Some(renamed) = timm::renamed(&config) {
            weights.rename(renamed);
        }
        Ok(Self {
            name: name.to_owned(),
            generation: GenerationConfig::of_config(&config)?,
            preprocessor: timm::preprocessor(&config)?,
            config,
            weights,
            tokenizer: tokenizer.map(|json| TokenizerFile::of_json(format!("{name}/tokenizer.json"), json)),
            chat: ChatTemplate::default(),
            sentence: None,
        })
    }

    /// Opens a GGUF file in memory; `name` replaces its path in errors.
    ///
    /// # Errors
    /// [`LoadError`] if bytes are malformed or a feature is not supported.
    pub fn from_gguf(name: &str, bytes: impl Into<Bytes>) -> Result<Self, LoadError> {
        gguf::from_bytes(name, bytes.into())
    }
}

/// Returns the image preprocessing of a model whose files are in a folder: `image_processor` of `processor_config.json`,
/// else `preprocessor_config.json`, else `pretrained_cfg` of a timm `config.json`. `None` without any.
///
/// # Errors
/// [`LoadError`] for a file that is unreadable or malformed, and for unsupported settings of timm.
pub(crate) fn preprocessor_of(dir: &Path, config: Option<&Config>) -> Result<Option<Config>, LoadError> {
    let absent = Config::of_keys(String::new(), serde_json::Map::new());
    let config = config.unwrap_or(&absent);
    match preprocessor::read(dir, config)? {
        None => timm::preprocessor(config),
        stated => Ok(stated),
    }
}

/// Returns whether a path is a checkpoint: a Hugging Face or sentence-transformers directory, a GGUF file, or a
/// directory that holds one. The content is not validated.
pub fn is_checkpoint(path: &Path) -> bool {
    let has = |name: &str| path.join(name).is_file();
    has("config.json") || has("modules.json") || !matches!(gguf::find(path), Ok(None))
}

/// Returns why a path is no checkpoint by [`is_checkpoint`] and how to fix it, as text to append to the path.
pub fn why_no_checkpoint(path: &Path) -> String {
    files::why_no_checkpoint(path)
}

/// Opens the weights of a directory: the first that exists of `model.safetensors`, the shards of its index,
/// `pytorch_model.bin`, and the shards of its index.
fn whole_or_sharded(dir: &Path) -> Result<Weights, LoadError> {
    let display = |path: &Path| path.display().to_string();
    let index_of = |file: &str| dir.join(format!("{file}.index.json"));
    let exists = |file: &&str| dir.join(file).exists() || index_of(file).exists();
    let file = WEIGHTS.into_iter().find(exists).unwrap_or(WEIGHTS[0]);
    let (whole, index) = (dir.join(file), index_of(file));
    if whole.exists() || !index.exists() {
        return Weights::from_file(display(&whole), open_weights(dir, &whole)?);
    }
    let names: BTreeMap<String, String> =
        Config::parse(display(&index), &read_capped(&index, MAX_INDEX)?)?.required("weight_map")?;
    let files: BTreeSet<&String> = names.values().collect();
    let positions: BTreeMap<&String, usize> = files.iter().copied().zip(0..).collect();
    let shard_of_tensor = names
        .iter()
        .filter_map(|(name, file)| Some((name.clone(), *positions.get(file)?)));
    let shards = files
        .into_iter()
        .map(|name| {
            // Only file names are allowed: an index must not refer to other directories.
            let plain = Path::new(name)
                .file_name()
                .is_some_and(|file| file == name.as_str());
            let path = dir.join(name);
            if !plain {
                return Err(LoadError::BadWeights {
                    file: display(&index),
                    reason: format!("it names `{name}`, which is not a file of its directory"),
                });
            }
            Weights::from_file(display(&path), open_shard(&path)?)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Weights::from_shards(display(&index), shards, &shard_of_tensor.collect())
}
