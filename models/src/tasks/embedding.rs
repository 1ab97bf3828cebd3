//! Text embeddings: pooling and the layers after it, as saved by sentence-transformers.

use serde::{Deserialize, Serialize};

/// Name of the input that selects a prompt of the model, such as `query`, to prepend to the text.
pub const PROMPT_NAME: &str = "prompt_name";

/// Names of embedding outputs in order of preference. Models of this crate use the first; ONNX files may use any.
pub const EMBEDDING_OUTPUTS: [&str; 4] = ["embedding", "sentence_embedding", "embeddings", "pooled"];

/// Similarity function for the embeddings of two texts, by its name in sentence-transformers. Larger is more similar,
/// so distances are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// Cosine similarity.
    #[default]
    Cosine,
    /// Dot product.
    Dot,
    /// Negative Euclidean distance.
    Euclidean,
    /// Negative Manhattan distance.
    Manhattan,
}

impl Similarity {
    /// Returns whether this is the default similarity.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Pooling: how token vectors are combined into the vector of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Vector of the first token, visible or not.
    First,
    /// Vector of the first visible token.
    FirstVisible,
    /// Vector of the last visible token.
    Last,
    /// Vector of the last token, visible or not.
    End,
    /// Mean of the visible tokens.
    Mean,
    /// Sum of the visible tokens over the square root of their number.
    MeanSqrt,
    /// Mean of the visible tokens, weighted by position: 1 for the first visible token.
    WeightedMean,
    /// Maximum over the visible tokens, per dimension.
    Max,
}

/// Returns one vector per sequence, row-major. The rows of `states` are tokens, `width` wide and grouped by sequence;
/// `masks` states which tokens are visible, at least one per sequence.
pub(crate) fn pooled(states: &[f32], width: usize, masks: &[&[bool]], pooling: Pooling) -> Vec<f32> {
    let mut rows = states.chunks_exact(width.max(1));
    let mut vectors = Vec::with_capacity(masks.len() * width);
    for mask in masks {
        let tokens: Vec<&[f32]> = rows.by_ref().take(mask.len()).collect();
        let visible = || {
            tokens
                .iter()
                .zip(*mask)
                .filter(|(_, visible)| **visible)
                .map(|(row, _)| *row)
        };
        match pooling {
            Pooling::First => vectors.extend_from_slice(tokens.first().copied().unwrap_or_default()),
            Pooling::FirstVisible => vectors.extend_from_slice(visible().next().unwrap_or_default()),
            Pooling::Last => vectors.extend_from_slice(visible().next_back().unwrap_or_default()),
            Pooling::End => vectors.extend_from_slice(tokens.last().copied().unwrap_or_default()),
            Pooling::Mean | Pooling::MeanSqrt | Pooling::WeightedMean => {
                let (mut sum, mut all) = (vec![0.0; width], 0.0);
                let from_first = tokens.iter().zip(*mask).skip_while(|(_, seen)| !**seen);
                for (place, (row, _)) in (1..).zip(from_first).filter(|(_, (_, seen))| **seen) {
                    let weight = if pooling == Pooling::WeightedMean {
                        place as f32
                    } else {
                        1.0
                    };
                    all += weight;
                    for (sum, value) in sum.iter_mut().zip(*row) {
                        *sum += weight * value;
                    }
                }
                let divisor = if pooling == Pooling::MeanSqrt {
                    f32::sqrt(all)
                } else {
                    all
                };
                vectors.extend(sum.into_iter().map(|sum| sum / divisor.max(1.0)));
            }
            Pooling::Max => {
                let mut most = vec![f32::NEG_INFINITY; width];
                for row in visible() {
                    for (most, value) in most.iter_mut().zip(row) {
                        // `f32::max` would drop NaN.
                        *most = if value.is_nan() || *value > *most {
                            *value
                        } else {
                            *most
                        };
                    }
                }
                vectors.extend(most);
            }
        }
    }
    vectors
}

/// Normalises a vector to unit length, as torch's `normalize` does.
pub(crate) fn normalised(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let length = if length < 1e-12 { 1e-12 } else { length };
    for value in vector {
        *value /= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_tokens_do_not_count() {
        let states = [1.0, 2.0, 9.0, 9.0, 3.0, -4.0, 5.0, 6.0];
        let masks: [&[bool]; 2] = [&[true, false, true], &[true]];
        let of = |pooling| pooled(&states, 2, &masks, pooling);
        assert_eq!(of(Pooling::First), [1.0, 2.0, 5.0, 6.0]);
        assert_eq!(of(Pooling::End), [3.0, -4.0, 5.0, 6.0]);
        assert_eq!(of(Pooling::Mean), [2.0, -1.0, 5.0, 6.0]);
        assert_eq!(of(Pooling::Max), [3.0, 2.0, 5.0, 6.0]);
        assert_eq!(of(Pooling::Last), [3.0, -4.0, 5.0, 6.0]);
        assert_eq!(of(Pooling::WeightedMean), [2.5, -2.5, 5.0, 6.0]);
        let root = 2_f32.sqrt();
        assert_eq!(of(Pooling::MeanSqrt), [4.0 / root, -2.0 / root, 5.0, 6.0]);
    }

    #[test]
    fn hidden_tokens_before_the_text_do_not_count() {
        let (states, mask): (_, &[bool]) = ([9.0, 9.0, 1.0, 2.0, 3.0, -4.0], &[false, true, true]);
        let of = |pooling| pooled(&states, 2, &[mask], pooling);
        assert_eq!(of(Pooling::FirstVisible), [1.0, 2.0]);
        assert_eq!(of(Pooling::First), [9.0, 9.0]);
        let thirds = [7.0 / 3.0, -2.0];
        for (value, expected) in of(Pooling::WeightedMean).into_iter().zip(thirds) {
            assert!((value - expected).abs() < 1e-6, "{value}");
        }
    }

    #[test]
    fn not_a_number_stays() {
        for values in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            for pooling in [Pooling::Mean, Pooling::Max] {
                assert!(
                    pooled(&values, 1, &[&[true, true]], pooling)[0].is_nan(),
                    "{pooling:?}"
                );
            }
        }
        let mut vector = [3.0, 4.0];
        normalised(&mut vector);
        assert!((vector[0] - 0.6).abs() < 1e-6 && (vector[1] - 0.8).abs() < 1e-6);
        let mut vector = [f32::NAN, 1.0];
        normalised(&mut vector);
        assert!(vector.iter().all(|value| value.is_nan()));
    }
}
