//! Samples a token by its probability, from the vocabulary or from its most probable tokens.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::generation::sampling::Sampling;

/// Samples a token under the sampling parameters; `None` if no token is allowed.
pub(crate) fn draw(rng: &mut ChaCha8Rng, logits: &[f32], sampling: &Sampling) -> Option<usize> {
    let mut tokens = Descending::new(logits, sampling.top_k);
    let most = *logits.get(tokens.at(0)?)?;
    let temperature = f64::from(sampling.temperature);
    let weight = |token: usize| {
        let logit = logits.get(token).copied().unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit - most) / temperature).exp()
    };
    let total: f64 = tokens.order.iter().map(|token| weight(*token)).sum();
    let (top_p, min_p) = (f64::from(sampling.top_p), f64::from(sampling.min_p));
    let (mut count, mut kept) = (tokens.order.len(), total);
    if top_p < 1.0 || min_p > 0.0 {
        // Keeps the fewest tokens that reach the probability: a token is kept while those before it do not reach it.
        (count, kept) = (0, 0.0);
        while let Some(token) = tokens.at(count) {
            // Weights are relative to the most probable token.
            let weight = weight(token);
            if count > 0 && (kept >= top_p * total || weight < min_p) {
                break;
            }
            kept += weight;
            count += 1;
        }
    }
    let mut left = rng.random::<f64>() * kept;
    let mut last = None;
    for place in 0..count {
        last = tokens.at(place);
        left -= weight(last?);
        if left < 0.0 {
            break;
        }
    }
    last
}

/// Tokens in order of falling probability, ties by token id. Sorted lazily: a vocabulary is long, and sampling rarely
/// goes beyond its first tokens.
struct Descending<'a> {
    logits: &'a [f32],
    order: Vec<usize>,
    sorted: usize,
}

impl<'a> Descending<'a> {
    /// Creates the list of allowed tokens, limited to the `top_k` most probable ones if that is not 0.
    fn new(logits: &'a [f32], top_k: usize) -> Self {
        let may_come = |(_, logit): &(usize, &f32)| **logit > f32::NEG_INFINITY;
        let order = logits.iter().enumerate().filter(may_come);
        let mut tokens = Self {
            logits,
            order: order.map(|(token, _)| token).collect(),
            sorted: 0,
        };
        if top_k > 0 && top_k < tokens.order.len() {
            tokens.sort(top_k);
            tokens.order.truncate(top_k);
        }
        tokens
    }

    /// Returns the token at index `place`.
    fn at(&mut self, place: usize) -> Option<usize> {
        /// Number of tokens that are sorted first.
        const FIRST: usize = 256;
        if place >= self.sorted && self.sorted < self.order.len() {
            self.sort((8 * self.sorted).max(FIRST).max(place + 1));
        }
        self.order.get(place).copied()
    }

    /// Sorts the first `until` tokens.
    fn sort(&mut self, until: usize) {
        let logit = |token: &usize| self.logits.get(*token).copied().unwrap_or(f32::NEG_INFINITY);
        let before = |a: &usize, b: &usize| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
        let until = until.min(self.order.len());
        let Some(rest) = self.order.get_mut(self.sorted..) else {
            return;
        };
        let count = until.saturating_sub(self.sorted);
        if let Some(last) = count.checked_sub(1).filter(|_| count < rest.len()) {
            rest.select_nth_unstable_by(last, before);
        }
        if let Some(next) = rest.get_mut(..count) {
            next.sort_unstable_by(before);
        }
        self.sorted = self.sorted.max(until);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Computes the result by definition: sorts all tokens and sums all weights.
    fn drawn_by_definition(logits: &[f32], sampling: &Sampling, random: f64) -> usize {
        let mut order: Vec<usize> = (0..logits.len())
            .filter(|token| logits[*token] > f32::NEG_INFINITY)
            .collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if sampling.top_k > 0 {
            order.truncate(sampling.top_k);
        }
        let weight = |token: &usize| {
            (f64::from(logits[*token] - logits[order[0]]) / f64::from(sampling.temperature)).exp()
        };
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut before = 0.0;
        let kept = weights.iter().take_while(|weight| {
            let keep = before < f64::from(sampling.top_p) * total && **weight >= f64::from(sampling.min_p);
            before += **weight;
            keep
        });
        let kept = kept.count().max(1);
        let mut left = random * weights[..kept].iter().sum::<f64>();
        let drawn = weights[..kept].iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[drawn.unwrap_or(kept - 1)]
    }

    #[test]
    fn tokens_are_drawn_as_if_all_were_sorted() {
        let mut numbers = ChaCha8Rng::seed_from_u64(7);
        for case in 0..400_u64 {
            let spread = [0.0_f32, 0.5, 4.0, 20.0][case as usize % 4];
            let mut logits: Vec<f32> = (0..3_000)
                .map(|_| (numbers.random::<f32>() * spread * 8.0).round() / 8.0)
                .collect();
            logits[5] = f32::NEG_INFINITY;
            let sampling = Sampling {
                temperature: [0.3, 1.0, 2.0][case as usize % 3],
                top_k: [0, 0, 1, 40, 400, 5_000][case as usize % 6],
                top_p: [1.0, 0.9, 0.999, 0.0][case as usize / 4 % 4],
                min_p: [0.0, 0.0, 0.05, 0.9][case as usize / 16 % 4],
                ..Sampling::default()
            };
            let random = ChaCha8Rng::seed_from_u64(case).random::<f64>();
            let found = draw(&mut ChaCha8Rng::seed_from_u64(case), &logits, &sampling);
            let expected = drawn_by_definition(&logits, &sampling, random);
            assert_eq!(found, Some(expected), "{sampling:?}");
        }
        let none = [f32::NEG_INFINITY; 3];
        assert_eq!(
            draw(&mut ChaCha8Rng::seed_from_u64(0), &none, &Sampling::default()),
            None
        );
    }
}
