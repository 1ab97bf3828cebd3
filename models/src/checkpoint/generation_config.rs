//! `generation_config.json`: recommended sampling parameters and EOS tokens of a model.

use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::token_rules::TokenRules;
use super::{Config, LoadError, MAX_CONFIG, read_capped};

/// Keys of a `generation_config.json` that generation uses; all are optional.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// EOS tokens; they replace those of `config.json`.
    pub eos_token_ids: Option<Vec<u32>>,
    /// Whether to sample; otherwise generation is greedy.
    pub do_sample: bool,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Sampling: number of most probable tokens to keep.
    pub top_k: Option<usize>,
    /// Sampling: cumulative probability of the tokens to keep (nucleus sampling).
    pub top_p: Option<f32>,
    /// Sampling: minimum probability of a token, relative to the maximum probability.
    pub min_p: Option<f32>,
    /// Penalty for tokens that already occur in the sequence.
    pub repetition_penalty: Option<f32>,
    /// Number of beams of a beam search, if not sampling.
    pub num_beams: Option<usize>,
    /// Exponent of the length in a beam's score.
    pub length_penalty: Option<f32>,
    /// Stopping criterion of a beam search: `true`, `false` or `"never"`.
    pub early_stopping: Option<EarlyStopping>,
    /// Stop texts.
    pub stop_strings: Option<Vec<String>>,
    /// Maximum tokens of an answer.
    pub max_new_tokens: Option<usize>,
    /// Maximum tokens of an encoder-decoder's answer, including its start token, if there is no `max_new_tokens`.
    pub max_length: Option<usize>,
    /// First token of an encoder-decoder's answer; replaces that of `config.json`.
    pub decoder_start_token_id: Option<u32>,
    /// Token constraints of an answer.
    pub rules: TokenRules,
}

/// Stopping criterion of a beam search once it has as many finished answers as beams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlyStopping {
    /// Stops at once: `true`.
    Yes,
    /// Stops when the best running beam, at its present length, scores no better than the worst finished answer:
    /// `false`.
    #[default]
    No,
    /// Stops when no running beam can score better than the worst finished answer at any length: `"never"`.
    Never,
}

impl<'de> Deserialize<'de> for EarlyStopping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Flag(bool),
            Text(String),
        }
        match Value::deserialize(deserializer)? {
            Value::Flag(true) => Ok(Self::Yes),
            Value::Flag(false) => Ok(Self::No),
            Value::Text(text) if text == "never" => Ok(Self::Never),
            Value::Text(text) => Err(D::Error::custom(format!(
                "early_stopping is `{text}`; use true, false or \"never\""
            ))),
        }
    }
}

impl GenerationConfig {
    /// Reads the `generation_config.json` of a directory, or without it the generation keys of `config.json`.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is unreadable, too large or malformed.
    pub(crate) fn open(dir: &Path, config: &Config) -> Result<Self, LoadError> {
        let file = dir.join("generation_config.json");
        if !file.exists() {
            return Self::of_config(config);
        }
        Self::parse(&Config::parse(
            file.display().to_string(),
            &read_capped(&file, MAX_CONFIG)?,
        )?)
    }

    /// Reads the generation keys of a `config.json`, for checkpoints without a `generation_config.json`. Excludes
    /// token ids, which the decoder reads there.
    ///
    /// # Errors
    /// Same as [`GenerationConfig::open`].
    pub(super) fn of_config(config: &Config) -> Result<Self, LoadError> {
        Ok(Self {
            eos_token_ids: None,
            decoder_start_token_id: None,
            ..Self::parse(config)?
        })
    }

    fn parse(config: &Config) -> Result<Self, LoadError> {
        let do_sample = config.optional("do_sample")?.unwrap_or(false);
        for (key, value) in ignored(config, do_sample)? {
            tracing::warn!(file = config.file(), key, %value, "this setting of generation is not supported and has no effect");
        }
        Ok(Self {
            eos_token_ids: eos_token_ids(config)?,
            do_sample,
            stop_strings: stop_strings(config)?,
            temperature: config.optional("temperature")?,
            top_k: config.optional("top_k")?,
            top_p: config.optional("top_p")?,
            min_p: config.optional("min_p")?,
            repetition_penalty: config.optional("repetition_penalty")?,
            num_beams: config.optional("num_beams")?,
            length_penalty: config.optional("length_penalty")?,
            early_stopping: config.optional("early_stopping")?,
            max_new_tokens: config.optional("max_new_tokens")?,
            max_length: config.optional("max_length")?,
            decoder_start_token_id: config.optional("decoder_start_token_id")?,
            rules: TokenRules::read(config)?,
        })
    }
}

/// Sampling keys that are not implemented, with the value that has no effect.
const IGNORED: [(&str, Option<f64>); 5] = [
    ("num_beams", Some(1.0)),
    ("typical_p", Some(1.0)),
    ("epsilon_cutoff", Some(0.0)),
    ("eta_cutoff", Some(0.0)),
    ("top_h", None),
];

/// The same, of answers that are not sampled.
const IGNORED_SEARCHES: [(&str, Option<f64>); 2] =
    [("num_beam_groups", Some(1.0)), ("diversity_penalty", Some(0.0))];

/// Returns the keys that are not implemented and would change answers, with their values.
fn ignored(config: &Config, do_sample: bool) -> Result<Vec<(&'static str, serde_json::Value)>, LoadError> {
    let mut found = Vec::new();
    let keys: &[_] = if do_sample { &IGNORED } else { &IGNORED_SEARCHES };
    for (key, neutral) in keys.iter().copied() {
        let stated = config.optional::<serde_json::Value>(key)?;
        let stated = stated.filter(|value| neutral.is_none() || value.as_f64() != neutral);
        found.extend(stated.map(|value| (key, value)));
    }
    Ok(found)
}

/// Reads `stop_strings`, a string or a list.
fn stop_strings(config: &Config) -> Result<Option<Vec<String>>, LoadError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Stops {
        One(String),
        Several(Vec<String>),
    }
    Ok(config.optional("stop_strings")?.map(|stops| match stops {
        Stops::One(stop) => vec![stop],
        Stops::Several(stops) => stops,
    }))
}

/// Reads `eos_token_id`, a token id or a list; `None` if the key is missing.
///
/// # Errors
/// [`LoadError::BadKey`].
pub(crate) fn eos_token_ids(config: &Config) -> Result<Option<Vec<u32>>, LoadError> {
    token_ids(config, "eos_token_id")
}

/// Reads a key with a token id or a list of them; `None` if the key is missing.
///
/// # Errors
/// [`LoadError::BadKey`].
pub(super) fn token_ids(config: &Config, key: &str) -> Result<Option<Vec<u32>>, LoadError> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "it must be the number of a token, from 0, or a list of them"
    )]
    enum Ends {
        One(u32),
        Several(Vec<u32>),
    }
    Ok(config.optional(key)?.map(|ends| match ends {
        Ends::One(end) => vec![end],
        Ends::Several(ends) => ends,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_read_and_malformed_ones_are_named() {
        let parse = |json: &str| {
            GenerationConfig::parse(&Config::parse("generation_config.json", json.as_bytes()).unwrap())
        };
        let read = parse(
            r#"{"eos_token_id": [1, 106], "do_sample": true, "temperature": 0.6, "top_k": 64, "top_p": null,
                "max_new_tokens": 7, "transformers_version": "5"}"#,
        );
        let expected = GenerationConfig {
            eos_token_ids: Some(vec![1, 106]),
            do_sample: true,
            temperature: Some(0.6),
            top_k: Some(64),
            max_new_tokens: Some(7),
            ..GenerationConfig::default()
        };
        assert_eq!(read.unwrap(), expected);
        let searched =
            parse(r#"{"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"}"#).unwrap();
        assert_eq!(
            (
                searched.num_beams,
                searched.length_penalty,
                searched.early_stopping
            ),
            (Some(4), Some(2.0), Some(EarlyStopping::Never))
        );
        let error = parse(r#"{"early_stopping": "soon"}"#).unwrap_err().to_string();
        assert!(error.contains("use true, false or"), "{error}");
        let error = parse(r#"{"eos_token_id": "end"}"#).unwrap_err().to_string();
        assert!(error.contains("`eos_token_id`"), "{error}");
        let error = parse(r#"{"eos_token_id": -1}"#).unwrap_err().to_string();
        assert!(
            error.contains("`eos_token_id`") && error.contains("from 0"),
            "{error}"
        );
        let json = br#"{"min_length": 9, "max_length": 20, "do_sample": true, "top_k": 5, "eos_token_id": 3, "stop_strings": "END"}"#;
        let config = Config::parse("config.json", json).unwrap();
        let nowhere = GenerationConfig::open(Path::new("/nonexistent"), &config).unwrap();
        assert_eq!((nowhere.rules.min_length, nowhere.max_length), (9, Some(20)));
        assert_eq!((nowhere.do_sample, nowhere.top_k), (true, Some(5)));
        assert_eq!(nowhere.eos_token_ids, None);
        assert_eq!(nowhere.stop_strings, Some(vec!["END".to_owned()]));
    }

    #[test]
    fn rules_of_sampling_that_are_not_implemented_are_found_where_they_apply() {
        let found = |json: &str, do_sample| {
            let config = Config::parse("generation_config.json", json.as_bytes()).unwrap();
            let found = ignored(&config, do_sample).unwrap().into_iter();
            found.map(|(key, _)| key).collect::<Vec<_>>()
        };
        let json =
            r#"{"typical_p": 0.5, "epsilon_cutoff": 0.0, "top_h": 0.4, "eta_cutoff": null, "num_beams": 4}"#;
        assert_eq!(found(json, true), ["num_beams", "typical_p", "top_h"]);
        assert!(found(json, false).is_empty());
        let groups = r#"{"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "typical_p": 0.5}"#;
        assert_eq!(found(groups, false), ["num_beam_groups", "diversity_penalty"]);
    }
}
