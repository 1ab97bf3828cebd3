//! Token constraints of `generation_config.json`, which allow or force tokens regardless of their probability.

use super::generation_config::token_ids;
use super::{Config, LoadError};

/// Token constraints of an answer; the default allows every token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenRules {
    /// `forced_bos_token_id`: the first token of an encoder-decoder's answer, after its start token.
    pub forced_first: Option<u32>,
    /// `forced_eos_token_id`: one of these tokens ends an answer of maximum length.
    pub forced_last: Vec<u32>,
    /// `suppress_tokens`: tokens that are never generated.
    pub suppressed: Vec<u32>,
    /// `begin_suppress_tokens`: tokens that cannot begin an answer.
    pub suppressed_first: Vec<u32>,
    /// `bad_words_ids`: token sequences that are never generated.
    pub bad_words: Vec<Vec<u32>>,
    /// `no_repeat_ngram_size`: size of n-grams that occur only once, including a decoder's prompt; 0 disables it.
    pub distinct_ngram: usize,
    /// `encoder_no_repeat_ngram_size`: size of n-grams of an encoder's prompt that are not generated; 0 disables it.
    pub distinct_encoder_ngram: usize,
    /// `min_length`: number of tokens before which no answer ends; counts a decoder's prompt, or an answer's start
    /// token.
    pub min_length: usize,
    /// `min_new_tokens`: number of answer tokens before which the answer does not end.
    pub min_new_tokens: usize,
}

/// Keys that affect greedy search and are not implemented, with the value that has no effect.
const UNSUPPORTED: [(&str, Option<f64>); 9] = [
    ("sequence_bias", None),
    ("guidance_scale", Some(1.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("exponential_decay_length_penalty", None),
    ("forced_decoder_ids", None),
    ("force_words_ids", None),
    ("constraints", None),
    ("watermarking_config", None),
    ("penalty_alpha", Some(0.0)),
];

impl TokenRules {
    /// Reads the rules of a `generation_config.json`, or of a `config.json` if there is none.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for a malformed key, or a constraint that is not implemented.
    pub(super) fn read(config: &Config) -> Result<Self, LoadError> {
        for (key, neutral) in UNSUPPORTED {
            let stated = config.optional::<serde_json::Value>(key)?;
            if stated.is_some_and(|value| neutral.is_none() || value.as_f64() != neutral) {
                let reason = "this rule of generation is not supported; remove it if it may be left out";
                return Err(config.invalid_value(key, reason));
            }
        }
        let ids = |key| Ok::<_, LoadError>(token_ids(config, key)?.unwrap_or_default());
        let bad_words: Vec<Vec<u32>> = config.optional("bad_words_ids")?.unwrap_or_default();
        if bad_words.iter().any(Vec::is_empty) {
            return Err(config.invalid_value("bad_words_ids", "a sequence is empty"));
        }
        let count = |key| Ok::<_, LoadError>(config.optional(key)?.unwrap_or(0));
        Ok(Self {
            forced_first: config.optional("forced_bos_token_id")?,
            forced_last: ids("forced_eos_token_id")?,
            suppressed: ids("suppress_tokens")?,
            suppressed_first: ids("begin_suppress_tokens")?,
            bad_words,
            distinct_ngram: count("no_repeat_ngram_size")?,
            distinct_encoder_ngram: count("encoder_no_repeat_ngram_size")?,
            min_length: count("min_length")?,
            min_new_tokens: count("min_new_tokens")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<TokenRules, LoadError> {
        TokenRules::read(&Config::parse("generation_config.json", json.as_bytes()).unwrap())
    }

    #[test]
    fn rules_are_read_with_one_token_or_several() {
        let rules = read(
            r#"{"forced_bos_token_id": 7, "forced_eos_token_id": 2, "suppress_tokens": [4, 5],
                "bad_words_ids": [[95], [3, 4]], "no_repeat_ngram_size": 3, "min_length": 56, "guidance_scale": 1}"#,
        );
        let expected = TokenRules {
            forced_first: Some(7),
            forced_last: vec![2],
            suppressed: vec![4, 5],
            bad_words: vec![vec![95], vec![3, 4]],
            distinct_ngram: 3,
            min_length: 56,
            ..TokenRules::default()
        };
        assert_eq!(rules.unwrap(), expected);
    }

    #[test]
    fn rules_that_are_not_implemented_are_refused() {
        for (json, key) in [
            (r#"{"sequence_bias": [[[1], 2.0]]}"#, "sequence_bias"),
            (r#"{"guidance_scale": 1.5}"#, "guidance_scale"),
            (r#"{"bad_words_ids": [[]]}"#, "bad_words_ids"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
