//! Sampling of the next token.
//!
//! | module | holds |
//! |---|---|
//! | `sampling_options` | optional parameters of a request, an app or a checkpoint |
//! | `penalties` | penalties for repeated tokens, and logit biases |
//! | `token_rules` | token constraints of a checkpoint |
//! | `grammar` | grammars that constrain answers |
//! | `draw` | random choice of a token by its probability |
//! | `beam_options`, `beam_search` | beam search: its parameters, and the choice of beams |

pub(crate) mod beam_options;
pub(crate) mod beam_search;
pub(crate) mod draw;
pub(crate) mod grammar;
pub(crate) mod penalties;
pub(crate) mod sampling_options;
pub(crate) mod token_rules;

use std::sync::Arc;

use kaskade_policy::confidence::{Calibration, Estimator, Scores};
use pulp::{Arch, Simd, WithSimd};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

use self::beam_options::BeamOptions;
use self::draw::draw;
use self::grammar::{AllowedTokens, Grammar};
use self::penalties::{changed_logits, log_of_sum};
use self::token_rules::TextSoFar;
use crate::checkpoint::TokenRules;
use crate::ops::elementwise::exp_of_negative;

/// Sampling parameters of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Maximum tokens of the answer, at least 1.
    pub max_tokens: usize,
    /// Minimum tokens of the answer: no EOS token is sampled before.
    pub min_tokens: usize,
    /// Temperature; 0 is greedy search. Higher values are more random.
    pub temperature: f32,
    /// Number of most probable tokens to sample from; 0 means all.
    pub top_k: usize,
    /// Nucleus sampling: samples from the most probable tokens with this cumulative probability; 1 means all.
    pub top_p: f32,
    /// Minimum probability of a token, relative to the maximum probability; 0 means none.
    pub min_p: f32,
    /// Penalty for tokens of prompt and answer: positive logits are divided by it, others multiplied; 1 means none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the answer; 0 means none.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens in the answer, once per occurrence; 0 means none.
    pub frequency_penalty: f32,
    /// Random seed: the same seed gives the same answer.
    pub seed: u64,
    /// Stop texts, which are removed from the answer.
    pub stop: Vec<String>,
    /// Number of most probable tokens to report per token, at most [`MAX_TOP_LOGPROBS`].
    pub top_logprobs: usize,
    /// Number of most probable tokens to report per prompt token, at most [`MAX_TOP_LOGPROBS`]; `None` reports nothing
    /// about the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether to continue after EOS tokens.
    pub ignore_eos: bool,
    /// Whether the answer is a separate text, as in a chat, so that a tokenizer may strip the space before its first
    /// word. Otherwise it continues the prompt.
    pub begins_text: bool,
    /// Biases to add to the logits of tokens, from -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Grammar that the answer must match; requires a tokenizer.
    pub grammar: Option<Arc<Grammar>>,
    /// Special tokens to include in the answer's text, by their names.
    pub shown_tokens: Vec<u32>,
    /// Beam search. With several beams, the whole answer is reported at the end.
    pub beam: BeamOptions,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: 64,
            min_tokens: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            stop: Vec::new(),
            top_logprobs: 0,
            prompt_logprobs: None,
            ignore_eos: false,
            begins_text: false,
            logit_bias: Vec::new(),
            grammar: None,
            shown_tokens: Vec::new(),
            beam: BeamOptions::default(),
        }
    }
}

/// Why sampling parameters are invalid.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SamplingError {
    /// The maximum number of tokens is 0.
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokens,
    /// The temperature is negative or not a number.
    #[error("temperature {0} is invalid; use 0 (greedy) or more")]
    Temperature(f32),
    /// The cumulative probability is not in (0, 1].
    #[error("top_p {0} is invalid; use a probability above 0, 1 for all tokens")]
    TopP(f32),
    /// The fraction is not in [0, 1].
    #[error("min_p {0} is invalid; use a part from 0, for all tokens, to 1")]
    MinP(f32),
    /// A penalty is out of range or not a number.
    #[error("{0} {1} is invalid; repetition_penalty must be above 0, the others between -2 and 2")]
    Penalty(&'static str, f32),
    /// Too many tokens to report.
    #[error("{0} {1} is invalid; at most {MAX_TOP_LOGPROBS} tokens are reported")]
    TopLogprobs(&'static str, usize),
    /// A bias is not a number from -100 to 100.
    #[error("the bias {1} of token {0} is invalid; use -100 to 100")]
    LogitBias(u32, f32),
    /// A token with a bias is not in the vocabulary.
    #[error("token {token} is not in this model's vocabulary, 0..={last}")]
    BiasedToken {
        /// The token.
        token: u32,
        /// The last token id of the vocabulary.
        last: usize,
    },
    /// The number of beams is 0 or too large.
    #[error("num_beams {0} is invalid; use 1 (no beam search) to {MAX_BEAMS}")]
    Beams(usize),
    /// Another parameter cannot be combined with beam search.
    #[error("num_beams is above 1, which does not go together with {0}; leave one of them out")]
    BeamsWith(&'static str),
    /// The length penalty is not a number.
    #[error("length_penalty {0} is invalid; use a finite number, above 0 for longer answers")]
    LengthPenalty(f32),
    /// An empty stop text would end every answer at once.
    #[error("a stop text is empty; remove it")]
    EmptyStop,
}

/// A sampled token with its probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    /// Token id.
    pub token: u32,
    /// Probability among all tokens, at temperature 1.
    pub probability: f32,
    /// Probability minus that of the best other token; negative if another token was more probable.
    pub margin: f32,
    /// Confidence of the model in the most probable token: the square of its probability among the `CONFIDENCE_TOP_K`
    /// most probable tokens (HybridServe Edinburgh §IV-A). Over the whole vocabulary, the many improbable tokens would
    /// dominate. Under a grammar only allowed tokens count, because the model chooses among these alone: the
    /// confidence in the only allowed token is 1.
    pub confidence: f32,
}

/// Maximum of [`Sampling::top_logprobs`], as in the `OpenAI` API.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Maximum of [`BeamOptions::beams`].
const MAX_BEAMS: usize = 64;

/// Number of most probable tokens for the computation of confidence.
pub(crate) const CONFIDENCE_TOP_K: u32 = 10;

impl SamplingError {
    /// Returns the name of the invalid input of the request.
    pub const fn input(&self) -> &'static str {
        match self {
            Self::NoTokens => "max_tokens",
            Self::Temperature(_) => "temperature",
            Self::TopP(_) => "top_p",
            Self::MinP(_) => "min_p",
            Self::Penalty(name, _) | Self::TopLogprobs(name, _) => name,
            Self::LogitBias(..) | Self::BiasedToken { .. } => "logit_bias",
            Self::Beams(_) | Self::BeamsWith(_) => "num_beams",
            Self::LengthPenalty(_) => "length_penalty",
            Self::EmptyStop => "stop",
        }
    }
}

impl Sampling {
    /// Replaces a beam width that is only a default by 1, if beam search does not support the other parameters.
    pub fn limit_default_beams(&mut self) {
        if self.temperature > 0.0 || self.grammar.is_some() || self.prompt_logprobs.is_some() {
            self.beam.beams = 1;
        }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn check(&self) -> Result<(), SamplingError> {
        if self.max_tokens == 0 {
            return Err(SamplingError::NoTokens);
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(SamplingError::TopP(self.top_p));
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return Err(SamplingError::MinP(self.min_p));
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(SamplingError::Penalty(
                "repetition_penalty",
                self.repetition_penalty,
            ));
        }
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if !(-2.0..=2.0).contains(&penalty) {
                return Err(SamplingError::Penalty(name, penalty));
            }
        }
        for (name, count) in [
            ("top_logprobs", Some(self.top_logprobs)),
            ("prompt_logprobs", self.prompt_logprobs),
        ] {
            if let Some(count) = count.filter(|count| *count > MAX_TOP_LOGPROBS) {
                return Err(SamplingError::TopLogprobs(name, count));
            }
        }
        let mut biases = self.logit_bias.iter();
        if let Some((token, bias)) = biases.find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            return Err(SamplingError::LogitBias(*token, *bias));
        }
        if !(1..=MAX_BEAMS).contains(&self.beam.beams) {
            return Err(SamplingError::Beams(self.beam.beams));
        }
        if !self.beam.length_penalty.is_finite() {
            return Err(SamplingError::LengthPenalty(self.beam.length_penalty));
        }
        if self.beam.beams > 1 {
            let others = [
                ("a temperature above 0", self.temperature > 0.0),
                ("a format or tools", self.grammar.is_some()),
                ("prompt_logprobs", self.prompt_logprobs.is_some()),
            ];
            if let Some((other, _)) = others.iter().find(|(_, is_stated)| *is_stated) {
                return Err(SamplingError::BeamsWith(other));
            }
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(SamplingError::EmptyStop);
        }
        Ok(())
    }
}

/// Returns the most probable token, the first on ties; `None` if a logit is not finite or there are none.
pub(crate) fn greedy(logits: &[f32]) -> Option<SampledToken> {
    Sampler::new(0).sample(
        logits,
        &Sampling::default(),
        &TokenRules::default(),
        &TextSoFar::default(),
        None,
    )
}

/// Random number generator of one answer.
#[derive(Debug, Clone)]
pub(super) struct Sampler {
    rng: ChaCha8Rng,
}

impl Sampler {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Samples the next token from its logits, given the tokens of prompt and answer; `None` if a logit is not finite
    /// or there are none. The reported probabilities exclude penalties, biases, constraints and grammar.
    pub(super) fn sample(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        rules: &TokenRules,
        text: &TextSoFar<'_>,
        allowed: Option<&AllowedTokens>,
    ) -> Option<SampledToken> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        let changed = candidates(logits, sampling, rules, text, allowed);
        let candidates = changed.as_deref().unwrap_or(logits);
        let preferred = self::best(candidates)?;
        let token = if sampling.temperature > 0.0 {
            draw(&mut self.rng, candidates, sampling).unwrap_or(preferred)
        } else {
            preferred
        };
        describe(logits, token, allowed)
    }
}

/// Returns the logits, or log probabilities, after penalties, biases, constraints and grammar; `None` if none of these
/// apply.
fn candidates(
    logits: &[f32],
    sampling: &Sampling,
    rules: &TokenRules,
    text: &TextSoFar<'_>,
    allowed: Option<&AllowedTokens>,
) -> Option<Vec<f32>> {
    let mut changed = changed_logits(logits, sampling, text.prompt, text.answer);
    if *rules != TokenRules::default() {
        let changed = changed.get_or_insert_with(|| logits.to_vec());
        token_rules::apply(rules, changed, text, sampling.max_tokens);
    }
    if text.answer.len() < sampling.min_tokens {
        let values = changed.get_or_insert_with(|| logits.to_vec());
        token_rules::forbid(values, text.ends);
    }
    if let Some(allowed) = allowed {
        let values = changed.get_or_insert_with(|| logits.to_vec());
        forbid_others(values, allowed);
        // If the constraints forbid all tokens that the grammar allows, the grammar takes precedence.
        if largest(values) == f32::NEG_INFINITY {
            values.copy_from_slice(logits);
            forbid_others(values, allowed);
        }
    }
    changed
}

/// Returns the log probabilities of the next token for beam search. Penalties, biases and constraints are applied to the
/// log probabilities, as in transformers. `None` if a logit is not finite or there are none.
pub(super) fn log_probs(
    logits: &[f32],
    sampling: &Sampling,
    rules: &TokenRules,
    text: &TextSoFar<'_>,
) -> Option<Vec<f32>> {
    if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let total = log_of_sum(logits) as f32;
    let log_probs: Vec<f32> = logits.iter().map(|logit| logit - total).collect();
    Some(candidates(&log_probs, sampling, rules, text, None).unwrap_or(log_probs))
}

/// Returns a token with its probabilities; `None` if there is no such token. The logits must be finite.
pub(super) fn describe(
    logits: &[f32],
    token: usize,
    allowed: Option<&AllowedTokens>,
) -> Option<SampledToken> {
    let (chosen, most) = (*logits.get(token)?, largest(logits));
    let total = Arch::new().dispatch(Weights { logits, most });
    let (before, after) = logits.split_at_checked(token).unwrap_or_default();
    let other = largest(before).max(largest(after.get(1..).unwrap_or_default()));
    let probability = |logit: f32| (logit - most).exp() / total;
    Some(SampledToken {
        token: u32::try_from(token).ok()?,
        probability: probability(chosen),
        margin: probability(chosen) - probability(other),
        confidence: match allowed {
            None => confidence(logits),
            Some(allowed) => {
                let logits = logits.iter().enumerate();
                let among = logits.filter(|(token, _)| allowed.contains(*token));
                confidence(&among.map(|(_, logit)| *logit).collect::<Vec<f32>>())
            }
        },
    })
}

/// Sets the logits of tokens that are not allowed to negative infinity.
fn forbid_others(logits: &mut [f32], allowed: &AllowedTokens) {
    for (token, logit) in logits.iter_mut().enumerate() {
        if !allowed.contains(token) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Computes the confidence; the logits must be finite. A vocabulary of one token gives full confidence.
fn confidence(logits: &[f32]) -> f32 {
    let calibration = Calibration {
        estimator: Estimator::TopK { k: CONFIDENCE_TOP_K },
        temperature: 1.0,
    };
    calibration
        .confidence(&Scores::Logits(logits))
        .map_or(1.0, |confidence| confidence as f32)
}

/// Returns the index of the maximum, the first on ties; no value may be NaN.
fn best(logits: &[f32]) -> Option<usize> {
    let most = largest(logits);
    logits.iter().position(|logit| *logit >= most)
}

/// Returns the maximum, computed in lanes because a vocabulary is long; no value may be NaN.
fn largest(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = logits.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *logit);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// Computes the sum of `exp(logit - most)`; no logit may be larger than `most`.
struct Weights<'a> {
    logits: &'a [f32],
    most: f32,
}

impl WithSimd for Weights<'_> {
    type Output = f32;

    #[expect(
        clippy::inline_always,
        reason = "only inlined code is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let (chunks, rest) = self.logits.as_chunks::<16>();
        let mut lanes = [0.0; 16];
        for chunk in chunks {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                *lane += exp_of_negative(self.most - logit);
            }
        }
        let rest = rest.iter().map(|logit| exp_of_negative(self.most - logit));
        lanes.iter().sum::<f32>() + rest.sum::<f32>()
    }
}

#[cfg(test)]
mod tests;
