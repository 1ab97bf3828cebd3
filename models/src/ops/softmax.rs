//! Softmax of scores: for kernels, and for a few scores at a time.

use super::elementwise::exp_of_negative;

/// Returns the softmax of a few scores; NaN in a score makes all results NaN.
pub(crate) fn probabilities(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Computes the softmax of a row of scores in place; see [`softmax_beside`].
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32]) {
    softmax_beside(scores, f32::NEG_INFINITY);
}

/// Computes the softmax of a row of scores in place, in sixteen lanes for vectorisation. `sink` is an additional score
/// whose probability is dropped; negative infinity means none. An empty row stays empty; NaN in a score makes all
/// results NaN.
#[inline(always)]
pub(super) fn softmax_beside(scores: &mut [f32], sink: f32) {
    let larger = |most: f32, score: f32| if score > most { score } else { most };
    let (chunks, rest) = scores.as_chunks::<16>();
    let mut most = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (most, score) in most.iter_mut().zip(chunk) {
            *most = larger(*most, *score);
        }
    }
    let most = most.iter().chain(rest).copied().fold(sink, larger);
    let (chunks, rest) = scores.as_chunks_mut::<16>();
    let mut sums = [0.0; 16];
    for chunk in chunks {
        for (sum, score) in sums.iter_mut().zip(chunk) {
            *score = exp_of_negative(most - *score);
            *sum += *score;
        }
    }
    let mut sum = sums.iter().sum::<f32>();
    for score in rest {
        *score = exp_of_negative(most - *score);
        sum += *score;
    }
    // Without a sink, this is far below the precision of the sum.
    sum += exp_of_negative(most - sink);
    let factor = 1.0 / sum;
    for score in scores {
        *score *= factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_probabilities() {
        for count in [1, 5, 16, 33, 100] {
            let scores: Vec<f32> = (0..count)
                .map(|index| ((index * 37) % 19) as f32 / 3.0 - 2.0)
                .collect();
            let sum: f64 = scores.iter().map(|score| f64::from(*score).exp()).sum();
            let mut actual = scores.clone();
            softmax(&mut actual);
            for (score, actual) in scores.iter().zip(actual) {
                assert!((f64::from(*score).exp() / sum - f64::from(actual)).abs() < 1e-6);
            }
        }
        softmax(&mut []);
    }

    #[test]
    fn a_sink_takes_a_part_of_the_probability() {
        for sink in [-3.0_f32, 0.5, 4.0] {
            let scores: Vec<f32> = (0..37).map(|index| (index % 11) as f32 / 3.0 - 2.0).collect();
            let sum: f64 = scores.iter().map(|score| f64::from(*score).exp()).sum();
            let sum = sum + f64::from(sink).exp();
            let mut actual = scores.clone();
            softmax_beside(&mut actual, sink);
            for (score, actual) in scores.iter().zip(actual) {
                assert!((f64::from(*score).exp() / sum - f64::from(actual)).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn not_a_number_reaches_every_probability() {
        for place in [0, 17, 39] {
            let mut scores = vec![0.5; 40];
            scores[place] = f32::NAN;
            softmax(&mut scores);
            assert!(scores.iter().all(|score| score.is_nan()), "{place}");
        }
    }
}
