//! Directories of sentence-transformers: `modules.json` names the modules after the encoder, with a folder for each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{Config, LoadError, MAX_CONFIG, Weights, open_weights, optional_config, read_capped};
use crate::ops::Activation;
use crate::tasks::embedding::Pooling;

/// What follows the encoder in an embedding model.
#[derive(Debug)]
pub struct SentenceModules {
    /// Vector of a text from those of its tokens.
    pub(crate) pooling: Pooling,
    /// Layers after the pooling.
    pub(crate) dense: Vec<SentenceDense>,
    /// Whether the vector is divided by its length.
    pub(crate) normalise: bool,
    /// Maximum length of a text, tokens; `None` for the model's context.
    pub(crate) max_tokens: Option<usize>,
    /// What becomes of a text before it is tokenized.
    pub(crate) preparation: Preparation,
}

/// What becomes of a text before it is tokenized.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Preparation {
    /// Whether spaces at its ends are dropped.
    pub strip: bool,
    /// Whether it is written in lower case.
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
    pub(crate) fn applied<'a>(&self, text: &'a str, prompt: &str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if !prompt.is_empty() {
            text = format!("{prompt}{text}").into();
        }
        if self.strip {
            text = match text {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_owned().into(),
            };
        }
        if self.lower {
            text = text.to_lowercase().into();
        }
        text
    }
}

/// A linear layer with its activation.
#[derive(Debug)]
pub(crate) struct SentenceDense {
    /// Number of outputs.
    pub outputs: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// Its activation; `None` for the identity.
    pub activation: Option<Activation>,
    /// The tensors `linear.weight` and `linear.bias`.
    pub weights: Weights,
}

impl Default for SentenceModules {
    /// The mean of the tokens, which sentence-transformers uses for a directory without `modules.json`.
    fn default() -> Self {
        Self {
            pooling: Pooling::Mean,
            dense: Vec::new(),
            normalise: false,
            max_tokens: None,
            preparation: Preparation::default(),
        }
    }
}

/// An entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl SentenceModules {
    /// Reads the modules of a directory, if it has `modules.json`, with the folder of the encoder, relative to it.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is missing or malformed, and for a module that is not supported.
    pub(crate) fn open(dir: &Path) -> Result<Option<(Self, String)>, LoadError> {
        let file = dir.join("modules.json");
        if !file.exists() {
            return Ok(None);
        }
        let shown = file.display().to_string();
        let bad = |reason: String| LoadError::BadConfig {
            file: shown.clone(),
            reason,
        };
        let json = read_capped(&file, MAX_CONFIG)?;
        let modules: Vec<Module> = serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))?;
        let (mut read, mut encoder) = (Self::default(), None);
        read.preparation.strip = true;
        read_prompts(dir, &mut read.preparation)?;
        for Module { path, kind } in modules {
            // Only folders of this directory are allowed.
            if path.contains(['/', '\\']) || path == ".." {
                return Err(bad(format!("`{path}` is not a folder of its directory")));
            }
            let folder = dir.join(&path);
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {
                    (read.max_tokens, read.preparation.lower) = encoder_settings(&folder)?;
                    encoder = Some(path);
                }
                // An encoder of texts and images, with projections.
                "CLIPModel" => encoder = Some(path),
                "Pooling" => read.pooling = pooling(&folder, &mut read.preparation)?,
                "Dense" => read.dense.push(dense(&folder)?),
                "Normalize" => read.normalise = true,
                _ => return Err(bad(format!("the module `{kind}` is not supported"))),
            }
        }
        let encoder = encoder.ok_or_else(|| bad("it has no module `Transformer`".into()))?;
        Ok(Some((read, encoder)))
    }
}

/// Reads the maximum length of a text, which is else that of the tokenizer, and whether texts are written in lower case.
fn encoder_settings(folder: &Path) -> Result<(Option<usize>, bool), LoadError> {
    let settings = optional_config(folder, "sentence_bert_config.json")?;
    let (mut longest, mut lower) = (None, false);
    if let Some(settings) = settings {
        longest = settings.optional_size("max_seq_length")?;
        lower = settings.optional("do_lower_case")?.unwrap_or(false);
    }
    if longest.is_none()
        && let Some(tokenizer) = optional_config(folder, "tokenizer_config.json")?
    {
        // Without a limit it is a huge number, also as a float.
        let stated = tokenizer
            .keys()
            .get("model_max_length")
            .and_then(serde_json::Value::as_u64);
        longest = stated
            .and_then(|stated| usize::try_from(stated).ok())
            .filter(|stated| *stated > 0);
    }
    Ok((longest, lower))
}

/// Reads the prompts of `config_sentence_transformers.json`, and which of them is put in front of every text.
fn read_prompts(dir: &Path, preparation: &mut Preparation) -> Result<(), LoadError> {
    let Some(config) = optional_config(dir, "config_sentence_transformers.json")? else {
        return Ok(());
    };
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
    Ok(())
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
        ("cls", "pooling_mode_cls_token", Pooling::First),
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
    let named = config.optional::<String>(key)?;
    let mut chosen = Vec::new();
    for (name, flag, pooling) in modes {
        if config.optional::<bool>(flag)?.unwrap_or(false) || named.as_deref() == Some(name) {
            chosen.push(pooling);
        }
    }
    match chosen.as_slice() {
        [pooling] => Ok(*pooling),
        _ => Err(config.invalid_value(
            key,
            "exactly one of cls, mean, max, mean_sqrt_len_tokens, weightedmean and lasttoken is supported",
        )),
    }
}

fn dense(folder: &Path) -> Result<SentenceDense, LoadError> {
    let config = Config::open(folder)?;
    let key = "activation_function";
    let name = config.optional::<String>(key)?.unwrap_or_else(|| "Tanh".into());
    let file = folder.join("model.safetensors");
    Ok(SentenceDense {
        outputs: config.size("out_features")?,
        bias: config.optional("bias")?.unwrap_or(true),
        activation: match name.rsplit('.').next().unwrap_or_default() {
            "Identity" => None,
            "Tanh" => Some(Activation::Tanh),
            "ReLU" => Some(Activation::Relu),
            "GELU" => Some(Activation::Gelu),
            _ => return Err(config.invalid_value(key, "Identity, Tanh, ReLU and GELU are supported")),
        },
        weights: Weights::from_file(file.display().to_string(), open_weights(folder, &file)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_prepared_as_sentence_transformers_does_it() {
        let mut preparation = Preparation::default();
        assert_eq!(preparation.applied(" The Sea ", ""), " The Sea ");
        preparation.strip = true;
        assert_eq!(preparation.applied(" The Sea ", ""), "The Sea");
        preparation.lower = true;
        assert_eq!(preparation.applied(" The Sea ", "Query: "), "query:  the sea");
    }
}
