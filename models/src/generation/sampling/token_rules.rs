//! Token constraints of a checkpoint, applied to logits before sampling. They correspond to transformers' logits
//! processors, in their order.

use crate::checkpoint::TokenRules;

/// The tokens of a request so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TextSoFar<'a> {
    /// Tokens of an encoder's prompt.
    pub(crate) source: &'a [u32],
    /// Tokens of a decoder's prompt, or an answer's start token.
    pub(crate) prompt: &'a [u32],
    /// Tokens of the answer.
    pub(crate) answer: &'a [u32],
    /// EOS tokens.
    pub(crate) ends: &'a [u32],
}

/// Sets the logits of forbidden tokens to negative infinity; a forced token gets 0 and all others negative infinity.
/// `max_tokens` is the answer's maximum length.
pub(crate) fn apply(rules: &TokenRules, logits: &mut [f32], text: &TextSoFar<'_>, max_tokens: usize) {
    let said = [text.prompt, text.answer].concat();
    let mut forbid = |token: u32| {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    };
    for (size, within) in [
        (rules.distinct_ngram, said.as_slice()),
        (rules.distinct_encoder_ngram, text.source),
    ] {
        if let Some(before) = size.checked_sub(1)
            && let Some(first) = said.len().checked_sub(before)
        {
            let begun = said.get(first..).unwrap_or_default();
            let repeated = within.windows(size).filter_map(|window| window.split_last());
            let repeated = repeated.filter(|(_, known)| *known == begun);
            repeated.for_each(|(token, _)| forbid(*token));
        }
    }
    // A bad word that is an EOS token is not forbidden.
    let bad_words = rules.bad_words.iter().filter_map(|words| words.split_last());
    let bad_words = bad_words.filter(|(last, before)| !(before.is_empty() && text.ends.contains(last)));
    let begun = bad_words.filter(|(_, before)| said.ends_with(before));
    begun.for_each(|(last, _)| forbid(*last));
    if said.len() < rules.min_length || text.answer.len() < rules.min_new_tokens {
        text.ends.iter().for_each(|end| forbid(*end));
    }
    // As in transformers, the second token is forced only if the text so far has one token.
    if let (Some(first), [_]) = (rules.forced_first, said.as_slice()) {
        force(logits, &[first]);
    }
    if !rules.forced_last.is_empty() && text.answer.len() + 1 == max_tokens {
        force(logits, &rules.forced_last);
    }
    let begins = match rules.forced_first {
        Some(_) if text.prompt.len() <= 1 => text.answer.len() == 1,
        _ => text.answer.is_empty(),
    };
    let first = rules.suppressed_first.iter().filter(|_| begins);
    for token in rules.suppressed.iter().chain(first) {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Sets the logits of tokens to negative infinity.
pub(crate) fn forbid(logits: &mut [f32], tokens: &[u32]) {
    for token in tokens {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn force(logits: &mut [f32], tokens: &[u32]) {
    logits.fill(f32::NEG_INFINITY);
    for token in tokens {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f32 = f32::NEG_INFINITY;

    fn applied(
        rules: &TokenRules,
        source: &[u32],
        prompt: &[u32],
        answer: &[u32],
        max_tokens: usize,
    ) -> Vec<f32> {
        let text = TextSoFar {
            source,
            prompt,
            answer,
            ends: &[4],
        };
        let mut logits = vec![1.0, 2.0, 3.0, 4.0, 5.0];
        apply(rules, &mut logits, &text, max_tokens);
        logits
    }

    #[test]
    fn sequences_occur_once() {
        let rules = || TokenRules {
            distinct_ngram: 2,
            ..TokenRules::default()
        };
        assert_eq!(
            applied(&rules(), &[], &[0], &[1, 2, 1], 9),
            [1.0, 2.0, NONE, 4.0, 5.0]
        );
        assert_eq!(
            applied(&rules(), &[], &[3, 1], &[3], 9),
            [1.0, NONE, 3.0, 4.0, 5.0]
        );
        let single = TokenRules {
            distinct_ngram: 1,
            ..TokenRules::default()
        };
        assert_eq!(applied(&single, &[], &[0], &[2], 9), [NONE, 2.0, NONE, 4.0, 5.0]);
        let encoder = TokenRules {
            distinct_encoder_ngram: 3,
            ..TokenRules::default()
        };
        assert_eq!(
            applied(&encoder, &[1, 2, 3], &[0], &[1, 2], 9),
            [1.0, 2.0, 3.0, NONE, 5.0]
        );
        assert_eq!(
            applied(&encoder, &[1, 2, 3], &[1], &[], 9),
            [1.0, 2.0, 3.0, 4.0, 5.0]
        );
    }

    #[test]
    fn forbidden_words_and_early_ends_do_not_occur() {
        let words = TokenRules {
            bad_words: vec![vec![3], vec![4], vec![1, 2]],
            ..TokenRules::default()
        };
        assert_eq!(applied(&words, &[], &[0], &[], 9), [1.0, 2.0, 3.0, NONE, 5.0]);
        assert_eq!(applied(&words, &[], &[0], &[1], 9), [1.0, 2.0, NONE, NONE, 5.0]);
        let length = TokenRules {
            min_length: 3,
            ..TokenRules::default()
        };
        assert_eq!(applied(&length, &[], &[0], &[1], 9)[4..], [NONE]);
        assert_eq!(applied(&length, &[], &[0], &[1, 1], 9)[4..], [5.0]);
        let new = TokenRules {
            min_new_tokens: 1,
            suppressed: vec![0],
            suppressed_first: vec![1],
            ..TokenRules::default()
        };
        assert_eq!(applied(&new, &[], &[0, 0], &[], 9), [NONE, NONE, 3.0, 4.0, NONE]);
        assert_eq!(applied(&new, &[], &[0, 0], &[2], 9), [NONE, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn the_first_and_the_last_token_may_be_forced() {
        let rules = || TokenRules {
            forced_first: Some(2),
            forced_last: vec![4],
            suppressed_first: vec![1],
            ..TokenRules::default()
        };
        assert_eq!(
            applied(&rules(), &[], &[0], &[], 3),
            [NONE, NONE, 0.0, NONE, NONE]
        );
        assert_eq!(applied(&rules(), &[], &[0], &[2], 3), [1.0, NONE, 3.0, 4.0, 5.0]);
        assert_eq!(
            applied(&rules(), &[], &[0], &[2, 3], 3),
            [NONE, NONE, NONE, NONE, 0.0]
        );
        // With a prompt of several tokens, no token is forced.
        assert_eq!(
            applied(&rules(), &[], &[0, 0], &[], 3),
            [1.0, NONE, 3.0, 4.0, 5.0]
        );
    }
}
