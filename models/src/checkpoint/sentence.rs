//! Sentence-transformers directories: `modules.json` names the modules after the encoder, with a folder for each.

mod settings;
mod texts;

use std::path::Path;

use serde::Deserialize;

pub(crate) use self::settings::Preparation;
pub(crate) use self::texts::SentenceTexts;
use super::files::{MAX_CONFIG, WEIGHTS, open_weights, optional_config, read_capped};
use super::{Config, LoadError, Weights};
use crate::ops::Activation;
use crate::tasks::embedding::{Pooling, Similarity};

/// Modules after the encoder of an embedding model or a cross-encoder.
#[derive(Debug)]
pub struct SentenceModules {
    /// Pooling of the token vectors; `None` without the module `Pooling`.
    pub(crate) pooling: Option<Pooling>,
    /// Layers after pooling, in order.
    pub(crate) layers: Vec<SentenceLayer>,
    /// Whether the last layer returns scores instead of a vector.
    pub(crate) is_scored: bool,
    /// Whether the vector of a text is the mean of table rows, without an encoder.
    pub(crate) is_static: bool,
    /// Number of leading elements of the vector to keep; `None` for all.
    pub(crate) kept: Option<usize>,
    /// Maximum length of a text, tokens; `None` for the tokenizer's maximum.
    pub(crate) max_tokens: Option<usize>,
    /// Preparation of a text before tokenization.
    pub(crate) preparation: Preparation,
    /// Similarity function for two vectors.
    pub(crate) similarity: Similarity,
    /// `config_sentence_transformers.json`, if there is one.
    pub(crate) settings: Option<Config>,
    /// Name of `modules.json` in errors.
    file: String,
}

/// A module after the pooling.
#[derive(Debug)]
pub(crate) enum SentenceLayer {
    /// A linear layer.
    Dense(Box<SentenceDense>),
    /// Normalises the vector to unit length.
    Normalise,
}

/// A linear layer with an activation.
#[derive(Debug)]
pub(crate) struct SentenceDense {
    /// Number of outputs.
    pub outputs: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
    /// Activation; `None` for the identity.
    pub activation: Option<Activation>,
    /// Whether the input is added to the result, through the layer `residual` if the sizes differ.
    pub residual: bool,
    /// The tensors `linear.weight` and `linear.bias`, and `residual.weight`.
    pub weights: Weights,
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Module {
    /// Returns the name of the module's class, without the package.
    fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }
}

/// Name of the text vector among the inputs and outputs of modules.
const VECTOR: &str = "sentence_embedding";

impl SentenceModules {
    /// Returns modules with a pooling only, for a directory without `modules.json`.
    pub(crate) fn pooled_by(pooling: Pooling) -> Self {
        Self {
            pooling: Some(pooling),
            ..Self::empty("modules.json".into())
        }
    }

    fn empty(file: String) -> Self {
        Self {
            pooling: None,
            layers: Vec::new(),
            is_scored: false,
            is_static: false,
            kept: None,
            max_tokens: None,
            preparation: Preparation::default(),
            similarity: Similarity::default(),
            settings: None,
            file,
        }
    }

    /// Reads the modules of a directory with the relative folder of the encoder; `None` without `modules.json`.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is missing or malformed, and for a module or setting that is not supported.
    pub(crate) fn open(dir: &Path) -> Result<Option<(Self, String)>, LoadError> {
        let Some((mut read, modules)) = Self::listed(dir)? else {
            return Ok(None);
        };
        let (mut encoder, mut has_vector) = (None, false);
        read.settings = settings::model(dir, &mut read.preparation)?;
        if let Some(settings) = &read.settings {
            read.kept = settings.optional_size("truncate_dim")?;
            read.similarity = settings::similarity(settings)?;
        }
        for Module { path, kind } in modules {
            let folder = dir.join(&path);
            let name = kind.rsplit('.').next().unwrap_or_default();
            if read.is_scored {
                return Err(read.bad(format!("the module `{kind}` after the scores is not supported")));
            }
            match name {
                "Transformer" => {
                    (read.max_tokens, read.preparation.lower) = settings::encoder(&folder)?;
                    encoder = Some(path);
                }
                // A dual encoder for texts and images, including projections.
                "CLIPModel" => (encoder, has_vector) = (Some(path), true),
                "StaticEmbedding" if encoder.is_none() => {
                    (encoder, has_vector) = (Some(path), true);
                    (read.is_static, read.pooling) = (true, Some(Pooling::Mean));
                }
                "Pooling" if !has_vector => {
                    read.pooling = Some(pooling(&folder, &mut read.preparation)?);
                    has_vector = true;
                }
                "Dense" | "Normalize" if !has_vector => {
                    let reason = format!("the module `{kind}` before a `Pooling`: {PER_TOKEN}");
                    return Err(read.bad(reason));
                }
                "Dense" => {
                    let (layer, is_scored) = dense(&folder)?;
                    read.layers.push(SentenceLayer::Dense(Box::new(layer)));
                    read.is_scored = is_scored;
                }
                "Normalize" => {
                    if let Some(config) = optional_config(&folder, "config.json")? {
                        check_names(&config, &[VECTOR])?;
                    }
                    read.layers.push(SentenceLayer::Normalise);
                }
                _ => return Err(read.bad(format!("the module `{kind}` is not supported"))),
            }
        }
        let encoder =
            encoder.ok_or_else(|| read.bad("it has no module `Transformer` or `StaticEmbedding`"))?;
        Ok(Some((read, encoder)))
    }

    /// Reads the list of modules; their folders must be inside the directory.
    fn listed(dir: &Path) -> Result<Option<(Self, Vec<Module>)>, LoadError> {
        let file = dir.join("modules.json");
        if !file.exists() {
            return Ok(None);
        }
        let read = Self::empty(file.display().to_string());
        let json = read_capped(&file, MAX_CONFIG)?;
        let modules: Vec<Module> = serde_json::from_slice(&json).map_err(|error| LoadError::BadConfig {
            file: read.file.clone(),
            reason: error.to_string(),
        })?;
        let outside = |module: &&Module| module.path.contains(['/', '\\']) || module.path == "..";
        if let Some(Module { path, .. }) = modules.iter().find(outside) {
            return Err(read.bad(format!("`{path}` is not a folder of its directory")));
        }
        Ok(Some((read, modules)))
    }

    /// Rejects modules that return neither a text vector nor a score, for an encoder without a head.
    ///
    /// # Errors
    /// [`LoadError::BadModules`], and [`LoadError::BadKey`] for a cross-encoder without a score layer.
    pub(crate) fn checked(self) -> Result<Self, LoadError> {
        if self.pooling.is_none() {
            return Err(self.bad(format!("it has no module `Pooling`: {PER_TOKEN}")));
        }
        let settings = self.settings.as_ref().filter(|_| !self.is_scored);
        if let Some(settings) = settings
            && settings.optional::<String>(settings::KIND)?.as_deref() == Some(settings::CROSS_ENCODER)
        {
            let reason = "a cross-encoder needs a classifier in `architectures` of config.json, or a module `Dense` whose \
                          `module_output_name` is `scores`";
            return Err(settings.invalid_value(settings::KIND, reason));
        }
        Ok(self)
    }

    /// Builds an error about the list of modules.
    pub(crate) fn bad(&self, reason: impl Into<String>) -> LoadError {
        LoadError::BadModules {
            file: self.file.clone(),
            reason: reason.into(),
        }
    }
}

/// Reason for rejecting a directory without pooling.
const PER_TOKEN: &str = "a model of one vector for each token (ColBERT) is not supported, only one of a vector or a score for each text";

/// Rejects a module that reads something other than the text vector, or writes something other than `outputs`. Returns
/// the name of its output.
fn check_names(config: &Config, outputs: &[&str]) -> Result<String, LoadError> {
    let named = |key: &str, allowed: &[&str]| {
        let name = config.optional::<String>(key)?.unwrap_or_else(|| VECTOR.into());
        if allowed.contains(&name.as_str()) {
            return Ok(name);
        }
        Err(config.invalid_value(key, format!("{} is supported", allowed.join(" or "))))
    };
    named("module_input_name", &[VECTOR])?;
    named("module_output_name", outputs)
}

fn pooling(folder: &Path, preparation: &mut Preparation) -> Result<Pooling, LoadError> {
    let config = Config::open(folder)?;
    let key = "include_prompt";
    if !config.optional(key)?.unwrap_or(true) {
        if !preparation.prompt.is_empty() {
            return Err(
                config.invalid_value(key, "a default prompt that pooling leaves out is not supported")
            );
        }
        preparation.prompts.clear();
    }
    let modes = [
        ("cls", "pooling_mode_cls_token", Pooling::FirstVisible),
        ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
        ("max", "pooling_mode_max_tokens", Pooling::Max),
        (
            "mean_sqrt_len_tokens",
            "pooling_mode_mean_sqrt_len_tokens",
            Pooling::MeanSqrt,
        ),
        (
            "weightedmean",
            "pooling_mode_weightedmean_tokens",
            Pooling::WeightedMean,
        ),
        ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
    ];
    let key = "pooling_mode";
    let stated = config.optional::<Named>(key)?.map(Named::names);
    let mut chosen = Vec::new();
    match &stated {
        Some(names) => {
            for own in names {
                let known = modes.iter().find(|(name, ..)| name == own);
                let (.., pooling) = known.ok_or_else(|| config.invalid_value(key, ONE_POOLING))?;
                chosen.push(*pooling);
            }
        }
        None => {
            for (_, flag, pooling) in modes {
                if config.optional::<bool>(flag)?.unwrap_or(false) {
                    chosen.push(pooling);
                }
            }
        }
    }
    match chosen.as_slice() {
        [] if stated.is_none() => Ok(Pooling::Mean),
        [pooling] => Ok(*pooling),
        _ if stated.is_some() => Err(config.invalid_value(key, ONE_POOLING)),
        _ => Err(config.invalid_value("pooling_mode_*", format!("several flags are true; {ONE_POOLING}"))),
    }
}

const ONE_POOLING: &str =
    "exactly one of cls, mean, max, mean_sqrt_len_tokens, weightedmean and lasttoken is supported";

/// A name, or a list of names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    One(String),
    Several(Vec<String>),
}

impl Named {
    fn names(self) -> Vec<String> {
        match self {
            Self::One(name) => vec![name],
            Self::Several(names) => names,
        }
    }
}

/// Reads a linear layer; also returns whether its outputs are scores.
fn dense(folder: &Path) -> Result<(SentenceDense, bool), LoadError> {
    let config = Config::open(folder)?;
    let output = check_names(&config, &[VECTOR, "scores"])?;
    let key = "activation_function";
    let name = config.optional::<String>(key)?.unwrap_or_else(|| "Tanh".into());
    let exists = |file: &&str| folder.join(file).exists();
    let file = folder.join(WEIGHTS.into_iter().find(exists).unwrap_or(WEIGHTS[0]));
    let layer = SentenceDense {
        outputs: config.size("out_features")?,
        bias: config.optional("bias")?.unwrap_or(true),
        activation: match name.rsplit('.').next().unwrap_or_default() {
            "Identity" => None,
            "Tanh" => Some(Activation::Tanh),
            "ReLU" => Some(Activation::Relu),
            "GELU" => Some(Activation::Gelu),
            _ => return Err(config.invalid_value(key, "Identity, Tanh, ReLU and GELU are supported")),
        },
        residual: config.optional("use_residual")?.unwrap_or(false),
        weights: Weights::from_file(file.display().to_string(), open_weights(folder, &file)?)?,
    };
    Ok((layer, output == "scores"))
}
