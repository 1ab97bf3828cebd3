//! Penalties for repeated tokens and logit biases, applied before sampling.

use std::collections::{BTreeMap, BTreeSet};

use crate::generation::sampling::Sampling;

/// Applies penalties in vLLM's order: `repetition_penalty`, a factor for tokens of prompt and answer (Keskar et al.
/// 2019, "CTRL"), then `presence_penalty` and `frequency_penalty`, which are subtracted for tokens of the answer, as
/// in the `OpenAI` API. Then adds `logit_bias`. Returns `None` if nothing changes.
pub(crate) fn changed_logits(
    logits: &[f32],
    sampling: &Sampling,
    prompt: &[u32],
    answer: &[u32],
) -> Option<Vec<f32>> {
    let (presence, frequency) = (sampling.presence_penalty, sampling.frequency_penalty);
    let repetition = sampling.repetition_penalty;
    let (repeats, counts) = (
        (repetition - 1.0).abs() > f32::EPSILON,
        presence != 0.0 || frequency != 0.0,
    );
    if !(repeats || counts) && sampling.logit_bias.is_empty() {
        return None;
    }
    let mut changed = logits.to_vec();
    let mut change = |token: u32, of: &dyn Fn(f32) -> f32| {
        if let Some(logit) = changed.get_mut(token as usize) {
            *logit = of(*logit);
        }
    };
    if repeats {
        let tokens: BTreeSet<u32> = prompt.iter().chain(answer).copied().collect();
        for token in tokens {
            change(token, &|logit| {
                if logit > 0.0 {
                    logit / repetition
                } else {
                    logit * repetition
                }
            });
        }
    }
    if counts {
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        for token in answer {
            *seen.entry(*token).or_default() += 1;
        }
        for (token, count) in seen {
            change(token, &|logit| logit - presence - frequency * count as f32);
        }
    }
    for (token, bias) in &sampling.logit_bias {
        change(*token, &|logit| logit + bias);
    }
    Some(changed)
}

/// Returns the `count` most probable tokens with their log probabilities among all tokens, in falling order.
pub(crate) fn top_logprobs(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let total = log_of_sum(logits);
    let mut top: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let by_logit = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < top.len() {
        top.select_nth_unstable_by(count, by_logit);
        top.truncate(count);
    }
    top.sort_by(by_logit);
    for (_, logit) in &mut top {
        *logit = logprob(*logit, total);
    }
    top
}

/// Returns the log probability of a token; -9999 for an impossible token, as in the `OpenAI` API.
pub(crate) fn logprob(logit: f32, log_of_sum: f64) -> f32 {
    let logprob = (f64::from(logit) - log_of_sum) as f32;
    if logprob == f32::NEG_INFINITY {
        -9_999.0
    } else {
        logprob
    }
}

/// Returns the natural log-sum-exp of the logits.
pub(crate) fn log_of_sum(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    f64::from(most) + total.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_follow_their_definitions() {
        let none = Sampling::default();
        assert_eq!(changed_logits(&[1.0], &none, &[0], &[0]), None);
        let logits = [2.0, -2.0, 4.0, 1.0];
        let repetition = Sampling {
            repetition_penalty: 2.0,
            ..Sampling::default()
        };
        let changed = changed_logits(&logits, &repetition, &[0, 0], &[1, 9]).unwrap();
        assert_eq!(changed, [1.0, -4.0, 4.0, 1.0]);
        let counted = Sampling {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Sampling::default()
        };
        let changed = changed_logits(&logits, &counted, &[0], &[2, 2, 3]).unwrap();
        assert_eq!(changed, [2.0, -2.0, 3.0, 0.25]);
        let both = Sampling {
            repetition_penalty: 2.0,
            ..counted
        };
        let changed = changed_logits(&logits, &both, &[], &[0, 3]).unwrap();
        assert_eq!(changed, [0.25, -2.0, 4.0, -0.25], "repetition first, as in vLLM");
        let biased = Sampling {
            logit_bias: vec![(1, 5.0), (3, -100.0), (9, 1.0)],
            ..Sampling::default()
        };
        let changed = changed_logits(&logits, &biased, &[0], &[2]).unwrap();
        assert_eq!(changed, [2.0, 3.0, 4.0, -99.0]);
    }

    #[test]
    fn the_most_probable_tokens_come_first_with_their_logarithms() {
        let logits = [0.0, 3.0_f32.ln(), 6.0_f32.ln(), 6.0_f32.ln()];
        let top = top_logprobs(&logits, 3);
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 3, 1]);
        for ((_, logprob), expected) in top.iter().zip([6.0_f32, 6.0, 3.0]) {
            assert!((logprob - (expected / 16.0).ln()).abs() < 1e-6);
        }
        assert_eq!(top_logprobs(&logits, 9).len(), 4);
        assert!(top_logprobs(&logits, 0).is_empty());
    }
}
