//! Optional sampling parameters of a request, an app or a checkpoint.

use std::sync::Arc;

use super::beam_options::BeamOptions;
use super::grammar::Grammar;
use crate::checkpoint::{EarlyStopping, GenerationConfig};
use crate::generation::sampling::Sampling;

/// Sampling parameters that a request, an app or a checkpoint states; each is described in [`Sampling`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingOptions {
    /// Maximum tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Minimum tokens of the answer.
    pub min_tokens: Option<usize>,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Number of most probable tokens to sample from.
    pub top_k: Option<usize>,
    /// Cumulative probability of the tokens to sample from.
    pub top_p: Option<f32>,
    /// Minimum probability of a token, relative to the maximum probability.
    pub min_p: Option<f32>,
    /// Penalty for tokens of prompt and answer.
    pub repetition_penalty: Option<f32>,
    /// Penalty for tokens of the answer so far.
    pub presence_penalty: Option<f32>,
    /// Penalty for tokens of the answer, per occurrence.
    pub frequency_penalty: Option<f32>,
    /// Random seed.
    pub seed: Option<u64>,
    /// Stop texts.
    pub stop: Option<Vec<String>>,
    /// Number of most probable tokens to report.
    pub top_logprobs: Option<usize>,
    /// Number of most probable tokens to report for the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether to continue after EOS tokens.
    pub ignore_eos: Option<bool>,
    /// Biases to add to the logits of tokens.
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// Grammar that the answer must match.
    pub grammar: Option<Arc<Grammar>>,
    /// Number of beams of a beam search.
    pub num_beams: Option<usize>,
    /// Exponent of the length in a beam's score.
    pub length_penalty: Option<f32>,
    /// Stopping criterion of a beam search.
    pub early_stopping: Option<EarlyStopping>,
}

impl SamplingOptions {
    /// Fills missing parameters from `other`.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            max_tokens: self.max_tokens.or(other.max_tokens),
            min_tokens: self.min_tokens.or(other.min_tokens),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            seed: self.seed.or(other.seed),
            stop: self.stop.clone().or_else(|| other.stop.clone()),
            top_logprobs: self.top_logprobs.or(other.top_logprobs),
            prompt_logprobs: self.prompt_logprobs.or(other.prompt_logprobs),
            ignore_eos: self.ignore_eos.or(other.ignore_eos),
            logit_bias: self.logit_bias.clone().or_else(|| other.logit_bias.clone()),
            grammar: self.grammar.clone().or_else(|| other.grammar.clone()),
            num_beams: self.num_beams.or(other.num_beams),
            length_penalty: self.length_penalty.or(other.length_penalty),
            early_stopping: self.early_stopping.or(other.early_stopping),
        }
    }

    /// Returns the parameters of a request with missing ones from the defaults of the app and the checkpoint. A missing
    /// temperature is `temperature`, else 1 if the request truncates: greedy search would ignore its `top_k`, `top_p`
    /// or `min_p`.
    #[must_use]
    pub fn with_defaults(&self, defaults: &Self, temperature: Option<f32>) -> Self {
        let mut merged = self.or(defaults);
        if merged.temperature.is_none() {
            merged.temperature = temperature.or(self.truncates().then_some(1.0));
        }
        merged
    }

    /// Returns whether a `top_k`, `top_p` or `min_p` excludes tokens.
    pub fn truncates(&self) -> bool {
        self.top_k.is_some_and(|top| top > 0)
            || self.top_p.is_some_and(|top| top < 1.0)
            || self.min_p.is_some_and(|least| least > 0.0)
    }

    /// Returns the parameters with defaults for missing ones: greedy search, and the seed `seed`.
    pub fn sampling(self, seed: u64) -> Sampling {
        let greedy = Sampling::default();
        Sampling {
            max_tokens: self.max_tokens.unwrap_or(greedy.max_tokens),
            min_tokens: self.min_tokens.unwrap_or(greedy.min_tokens),
            temperature: self.temperature.unwrap_or(greedy.temperature),
            top_k: self.top_k.unwrap_or(greedy.top_k),
            top_p: self.top_p.unwrap_or(greedy.top_p),
            min_p: self.min_p.unwrap_or(greedy.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(greedy.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(greedy.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(greedy.frequency_penalty),
            seed: self.seed.unwrap_or(seed),
            stop: self.stop.unwrap_or_default(),
            top_logprobs: self.top_logprobs.unwrap_or(greedy.top_logprobs),
            prompt_logprobs: self.prompt_logprobs,
            ignore_eos: self.ignore_eos.unwrap_or(greedy.ignore_eos),
            begins_text: greedy.begins_text,
            logit_bias: self.logit_bias.unwrap_or_default(),
            grammar: self.grammar,
            shown_tokens: greedy.shown_tokens,
            beam: BeamOptions {
                beams: self.num_beams.unwrap_or(greedy.beam.beams),
                length_penalty: self.length_penalty.unwrap_or(greedy.beam.length_penalty),
                early_stopping: self.early_stopping.unwrap_or(greedy.beam.early_stopping),
            },
        }
    }
}

impl From<&GenerationConfig> for SamplingOptions {
    /// Without `do_sample`, answers of a checkpoint use greedy search or beam search, as in transformers.
    fn from(config: &GenerationConfig) -> Self {
        let sampled = Self {
            temperature: Some(config.temperature.unwrap_or(1.0)),
            top_k: config.top_k,
            top_p: config.top_p,
            min_p: config.min_p,
            ..Self::default()
        };
        let searched = Self {
            num_beams: config.num_beams,
            length_penalty: config.length_penalty,
            early_stopping: config.early_stopping,
            ..Self::default()
        };
        Self {
            max_tokens: config.max_new_tokens,
            repetition_penalty: config.repetition_penalty,
            stop: config.stop_strings.clone(),
            ..if config.do_sample { sampled } else { searched }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_samples_only_if_it_says_so() {
        let stated = GenerationConfig {
            temperature: Some(0.6),
            top_k: Some(20),
            max_new_tokens: Some(9),
            ..GenerationConfig::default()
        };
        let greedy = SamplingOptions::from(&stated).sampling(3);
        assert_eq!((greedy.temperature, greedy.top_k, greedy.max_tokens), (0.0, 0, 9));
        let sampled = GenerationConfig {
            do_sample: true,
            ..stated
        };
        let options = SamplingOptions::from(&sampled);
        let own = SamplingOptions {
            top_k: Some(5),
            ..SamplingOptions::default()
        };
        let merged = own.or(&options).sampling(3);
        assert_eq!((merged.temperature, merged.top_k, merged.seed), (0.6, 5, 3));
    }
}
