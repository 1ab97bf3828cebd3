//! Embeddings of texts: pooling and the layers after it, as sentence-transformers saves them.

use serde::{Deserialize, Serialize};

/// Name of the input that names a prompt of the model, such as `query`, which is put in front of the text.
pub const PROMPT_NAME: &str = "prompt_name";

/// Names of an output that is an embedding, the first one found; models of this build use the first, ONNX files any.
pub const EMBEDDING_OUTPUTS: [&str; 4] = ["embedding", "sentence_embedding", "embeddings", "pooled"];

/// How the vectors of two texts are compared, as sentence-transformers names it: more is more similar, so distances are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// The cosine of the angle between them.
    #[default]
    Cosine,
    /// Their dot product.
    Dot,
    /// Their negative Euclidean distance.
    Euclidean,
    /// The negative sum of the distances in each dimension.
    Manhattan,
}

impl Similarity {
    /// Returns whether this is the one of models that state none.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Vector of a text, from those of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// That of the first token, visible or not.
    First,
    /// That of the first visible token.
    FirstVisible,
    /// That of the last visible token.
    Last,
    /// That of the last token, visible or not.
    End,
    /// The mean over the visible tokens.
    Mean,
    /// Their sum over the square root of their number.
    MeanSqrt,
    /// Their mean, weighted by their places in the text, which count from 1 for the first visible token.
    WeightedMean,
    /// The largest value over the visible tokens, in each dimension.
    Max,
}

/// Returns one vector per sequence, row-major. The rows of `states` are tokens, `width` wide and grouped by sequence;
/// `masks` says which are visible, at least one of each sequence.
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

/// Divides a vector by its length, as torch's `normalize` does.
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
