//! Rotary position embeddings in `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files.
//!
//! Angles are computed as in transformers for the types `default`, `linear`, `dynamic`, `llama3`, `yarn` and
//! `longrope`. With `dynamic` and `longrope`, angles depend on the sequence length: `dynamic` changes them beyond
//! `max_position_embeddings`, which no request exceeds; `longrope` beyond the training context, to which requests are
//! limited here.

use serde::Deserialize;

use crate::checkpoint::{Config, LoadError};
use crate::ops::Rotary;

/// Keys of `rope_parameters` and `rope_scaling`.
#[derive(Debug, Clone, Default, Deserialize)]
struct Parameters {
    rope_type: Option<String>,
    /// Older name of `rope_type`; some files have both.
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    short_factor: Option<Vec<f64>>,
    /// Factor of the rotated elements with `LongRoPE` (Phi-3.5 `MoE`).
    short_mscale: Option<f64>,
    /// Scale of the base (`HunYuan`).
    alpha: Option<f64>,
}

/// Keys of an architecture's rotary parameters, with their defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RotaryKeys {
    /// Key of the base, if `rope_parameters` has none.
    pub(crate) theta_key: &'static str,
    /// Default base.
    pub(crate) theta: f64,
    /// Key of the rotated fraction of a head.
    pub(crate) partial_key: &'static str,
    /// Default rotated fraction of a head.
    pub(crate) partial: f64,
    /// Entry of `rope_parameters`, if it has one per layer type.
    pub(crate) layer_type: Option<&'static str>,
    /// Whether `rope_scaling` applies.
    pub(crate) scaled: bool,
}

impl RotaryKeys {
    /// Keys of Llama.
    pub(crate) const LLAMA: Self = Self {
        theta_key: "rope_theta",
        theta: 10_000.0,
        partial_key: "partial_rotary_factor",
        partial: 1.0,
        layer_type: None,
        scaled: true,
    };
}

impl Default for RotaryKeys {
    fn default() -> Self {
        Self::LLAMA
    }
}

/// Rotary positions, and the maximum sequence length for which they are valid.
#[derive(Debug)]
pub(crate) struct RotaryPositions {
    pub(crate) rotary: Rotary,
    /// Maximum tokens of a request; `None`: `max_position_embeddings`.
    pub(crate) context: Option<usize>,
    /// Factor of the scores by `mscale_all_dim`, which only `DeepSeek` applies.
    pub(crate) score_scale: f32,
}

/// Reads the rotary positions of heads of size `head_dim`.
///
/// # Errors
/// [`LoadError::BadKey`] for an unsupported type or value.
pub(crate) fn rotary(
    config: &Config,
    head_dim: usize,
    keys: RotaryKeys,
) -> Result<RotaryPositions, LoadError> {
    let (key, parameters) = parameters(config, keys)?;
    let base = match parameters.rope_theta {
        Some(base) => base,
        None => config.optional(keys.theta_key)?.unwrap_or(keys.theta),
    };
    let partial = match parameters.partial_rotary_factor {
        Some(partial) => partial,
        None => config.optional(keys.partial_key)?.unwrap_or(keys.partial),
    };
    let rotated = (head_dim as f64 * partial) as usize;
    if base.is_nan() || base <= 1.0 {
        return Err(config.invalid_value(keys.theta_key, "the base of the rotary positions must be above 1"));
    }
    if rotated > head_dim || rotated < 2 || !rotated.is_multiple_of(2) {
        let reason =
            format!("{rotated} elements of a head of {head_dim} would be rotated; it must be an even part");
        return Err(config.invalid_value(keys.partial_key, reason));
    }
    let kind = parameters.rope_type.as_deref().or(parameters.kind.as_deref());
    let grown = parameters.alpha.filter(|_| kind == Some("dynamic"));
    let base = match grown {
        Some(alpha) if alpha > 0.0 && rotated > 2 => {
            base * alpha.powf(rotated as f64 / (rotated as f64 - 2.0))
        }
        Some(_) => return Err(config.invalid_value(key, "`alpha` must be positive")),
        None => base,
    };
    let scaling = Scaling {
        config,
        key,
        parameters: &parameters,
        base,
        rotated,
    };
    let plain = scaling.plain();
    let mut context = None;
    let (frequencies, scale) = match kind.unwrap_or("default") {
        // For a text, the components of M-RoPE have equal positions.
        "default" | "dynamic" | "mrope" => (plain, 1.0),
        "proportional" => (scaling.proportional(head_dim), 1.0),
        "linear" => {
            let factor = scaling.needed(parameters.factor, "factor")?;
            (plain.iter().map(|frequency| frequency / factor).collect(), 1.0)
        }
        "llama3" => (scaling.llama3(&plain)?, 1.0),
        "yarn" => scaling.yarn(&plain)?,
        "longrope" | "su" => {
            let (frequencies, scale, trained) = scaling.longrope(&plain)?;
            context = Some(trained as usize);
            (frequencies, scale)
        }
        _ => {
            let reason =
                "the types default, linear, dynamic, llama3, proportional, yarn and longrope are supported";
            return Err(config.invalid_value(key, reason));
        }
    };
    Ok(RotaryPositions {
        rotary: Rotary {
            frequencies: frequencies
                .into_iter()
                .map(|frequency| frequency as f32)
                .collect(),
            neighbours: false,
            scale: scale as f32,
        },
        context,
        score_scale: match kind {
            None | Some("default") => 1.0,
            Some(_) => parameters.score_scale() as f32,
        },
    })
}

impl Parameters {
    /// Returns the square of the magnitude by `mscale_all_dim`.
    fn score_scale(&self) -> f64 {
        let factor = self.factor.unwrap_or(1.0);
        match self.mscale_all_dim {
            Some(weight) if weight != 0.0 && factor > 1.0 => (0.1 * weight * factor.ln() + 1.0).powi(2),
            _ => 1.0,
        }
    }
}

/// Reads the parameters, and the key that contains them.
fn parameters(config: &Config, keys: RotaryKeys) -> Result<(&'static str, Parameters), LoadError> {
    if let Some(layer_type) = keys.layer_type {
        let by_layer = config.optional::<serde_json::Map<String, serde_json::Value>>("rope_parameters")?;
        if let Some(own) = by_layer.and_then(|mut by_layer| by_layer.remove(layer_type)) {
            let own = Parameters::deserialize(&own);
            let own = own.map_err(|error| config.invalid_value("rope_parameters", error.to_string()))?;
            return Ok(("rope_parameters", own));
        }
    } else if let Some(parameters) = config.optional("rope_parameters")? {
        return Ok(("rope_parameters", parameters));
    }
    let scaling = config.optional("rope_scaling")?.filter(|_| keys.scaled);
    Ok(("rope_scaling", scaling.unwrap_or_default()))
}

/// Inputs shared by the scaling formulas.
struct Scaling<'a> {
    config: &'a Config,
    key: &'static str,
    parameters: &'a Parameters,
    base: f64,
    /// Rotated elements per head.
    rotated: usize,
}

impl Scaling<'_> {
    fn plain(&self) -> Vec<f64> {
        let rotated = self.rotated as f64;
        (0..self.rotated / 2)
            .map(|pair| 1.0 / self.base.powf(2.0 * pair as f64 / rotated))
            .collect()
    }

    /// Returns the frequencies of a whole head, of which only the first pairs rotate (Gemma 4).
    fn proportional(&self, head_dim: usize) -> Vec<f64> {
        let factor = self.parameters.factor.unwrap_or(1.0);
        let frequency = |pair: usize| {
            if pair < self.rotated / 2 {
                1.0 / (self.base.powf(2.0 * pair as f64 / head_dim as f64) * factor)
            } else {
                0.0
            }
        };
        (0..head_dim / 2).map(frequency).collect()
    }

    fn needed(&self, value: Option<f64>, name: &str) -> Result<f64, LoadError> {
        value.filter(|value| *value > 0.0).ok_or_else(|| {
            self.config
                .invalid_value(self.key, format!("`{name}` must be present and positive"))
        })
    }

    /// Returns the training context, tokens; newer files state it among the parameters.
    fn trained(&self) -> Result<f64, LoadError> {
        let key = "original_max_position_embeddings";
        let trained = match self.parameters.original_max_position_embeddings {
            None => self.config.optional(key)?,
            trained => trained,
        };
        self.needed(trained, key)
    }

    /// Keeps high frequencies, divides low ones, and interpolates those between (Grattafiori et al. 2024).
    fn llama3(&self, plain: &[f64]) -> Result<Vec<f64>, LoadError> {
        let factor = self.needed(self.parameters.factor, "factor")?;
        let low = self.needed(self.parameters.low_freq_factor, "low_freq_factor")?;
        let high = self.needed(self.parameters.high_freq_factor, "high_freq_factor")?;
        let trained = self.trained()?;
        let scaled = |frequency: &f64| {
            let turns = trained * frequency / std::f64::consts::TAU;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        };
        Ok(plain.iter().map(scaled).collect())
    }

    /// `YaRN` (Peng et al. 2023, section 3.2 and equation 15). Returns the frequencies and the factor of the rotated
    /// elements.
    fn yarn(&self, plain: &[f64]) -> Result<(Vec<f64>, f64), LoadError> {
        let trained = match self.trained() {
            Err(_) => self.config.size("max_position_embeddings")? as f64,
            trained => trained?,
        };
        let factor = self.needed(self.parameters.factor, "factor")?;
        let magnitude = |weight: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * weight * factor.ln() + 1.0
            }
        };
        let given = |value: Option<f64>| value.filter(|value| *value != 0.0);
        let scales = given(self.parameters.mscale).zip(given(self.parameters.mscale_all_dim));
        let scale = match (self.parameters.attention_factor, scales) {
            (Some(scale), _) => scale,
            (None, Some((one, all))) => magnitude(one) / magnitude(all),
            (None, None) => magnitude(1.0),
        };
        let rotated = self.rotated as f64;
        // Pair that makes this many rotations within the training context.
        let pair_of =
            |turns: f64| rotated * (trained / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.base.ln());
        let fast = pair_of(given(self.parameters.beta_fast).unwrap_or(32.0));
        let slow = pair_of(given(self.parameters.beta_slow).unwrap_or(1.0));
        let (low, high) = if self.parameters.truncate.unwrap_or(true) {
            (fast.floor(), slow.ceil())
        } else {
            (fast, slow)
        };
        let (low, high) = (low.max(0.0), high.min(rotated - 1.0));
        let width = if high > low { high - low } else { 0.001 };
        let stretch = |(pair, frequency): (usize, &f64)| {
            let stretched = ((pair as f64 - low) / width).clamp(0.0, 1.0);
            frequency * (1.0 - stretched + stretched / factor)
        };
        Ok((plain.iter().enumerate().map(stretch).collect(), scale))
    }

    /// `LongRoPE` (Ding et al. 2024), for sequences within the training context. Returns the frequencies, the factor
    /// of the rotated elements, and the training context.
    fn longrope(&self, plain: &[f64]) -> Result<(Vec<f64>, f64, f64), LoadError> {
        let trained = self.trained()?;
        let short = self.parameters.short_factor.as_deref().unwrap_or_default();
        if short.len() != plain.len() || short.iter().any(|factor| factor.is_nan() || *factor <= 0.0) {
            let reason = format!("`short_factor` must have {} positive factors", plain.len());
            return Err(self.config.invalid_value(self.key, reason));
        }
        let factor = match self.parameters.factor {
            Some(factor) => factor,
            None => self.config.size("max_position_embeddings")? as f64 / trained,
        };
        let scale = match self.parameters.short_mscale.or(self.parameters.attention_factor) {
            Some(scale) => scale,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / trained.ln()).sqrt(),
        };
        let frequencies = plain
            .iter()
            .zip(short)
            .map(|(frequency, factor)| frequency / factor);
        Ok((frequencies.collect(), scale, trained))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, keys: RotaryKeys) -> Result<RotaryPositions, LoadError> {
        rotary(&Config::parse("config.json", json.as_bytes()).unwrap(), 8, keys)
    }

    #[test]
    fn older_files_have_two_names_of_the_type() {
        let json = r#"{"rope_theta": 100, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}"#;
        let both = read(json, RotaryKeys::default()).unwrap().rotary;
        let older = read(
            &json.replace(r#""rope_type": "linear", "#, ""),
            RotaryKeys::default(),
        );
        assert_eq!(both, older.unwrap().rotary);
        assert!((both.frequencies[0] - 0.5).abs() < 1e-7);
    }

    #[test]
    fn invalid_values_are_named() {
        let error = |json: &str| read(json, RotaryKeys::default()).unwrap_err().to_string();
        for (json, expected) in [
            (r#"{"rope_scaling": {"type": "wave"}}"#, "longrope are supported"),
            (
                r#"{"rope_scaling": {"type": "linear"}}"#,
                "`factor` must be present",
            ),
            (r#"{"partial_rotary_factor": 0.4}"#, "3 elements of a head of 8"),
            (r#"{"rope_theta": 1.0}"#, "must be above 1"),
            (
                r#"{"rope_scaling": {"type": "longrope", "short_factor": [1], "original_max_position_embeddings": 4}}"#,
                "must have 4 positive factors",
            ),
        ] {
            assert!(error(json).contains(expected), "{json}: {}", error(json));
        }
    }

    #[test]
    fn layers_may_have_their_own_base() {
        let json = r#"{"rope_parameters": {"full_attention": {"rope_theta": 10000.0}, "sliding_attention": {"rope_theta": 100.0}}}"#;
        let of = |layer_type| {
            let keys = RotaryKeys {
                layer_type: Some(layer_type),
                ..RotaryKeys::default()
            };
            read(json, keys).unwrap().rotary.frequencies[1]
        };
        assert!((of("full_attention") - 0.1).abs() < 1e-6);
        assert!((of("sliding_attention") - 100_f32.powf(-0.25)).abs() < 1e-6);
    }
}
