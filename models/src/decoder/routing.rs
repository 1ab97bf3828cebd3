//! Routing of tokens to experts.

use crate::checkpoint::{Config, LoadError};
use crate::ops::probabilities;

/// Routing settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts per token (top-k).
    pub chosen: usize,
    /// Conversion of router scores to probabilities.
    pub scoring: Scoring,
    /// Whether the probabilities of the selected experts are normalised to sum 1.
    pub normalised: bool,
    /// Expert groups that limit the selection.
    pub groups: Option<ExpertGroups>,
    /// Factor of the selected experts' probabilities.
    pub factor: f32,
    /// Whether the experts' inputs are scaled instead of their outputs (Llama 4).
    pub scales_inputs: bool,
}

/// Conversion of router scores to probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scoring {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// Sigmoid of each score (`DeepSeek` V3).
    Sigmoid,
    /// For each selected expert in turn, the softmax over those not yet selected whose score is near the maximum:
    /// within twice this fraction of the larger of their magnitudes (Phi-3.5 `MoE`, Liu et al. 2024).
    Nearest(f32),
}

/// Groups of consecutive experts: a token uses only experts of some groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Groups per token.
    pub chosen: usize,
    /// Number of most probable experts whose sum is the score of a group.
    pub summed: usize,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            chosen: 0,
            scoring: Scoring::Softmax,
            normalised: false,
            groups: None,
            factor: 1.0,
            scales_inputs: false,
        }
    }
}

impl ExpertGroups {
    /// Reads `n_group` and `topk_group`; `None` if all experts form one group.
    pub(super) fn read(config: &Config, count: usize, summed: usize) -> Result<Option<Self>, LoadError> {
        let groups = config.optional_size("n_group")?.unwrap_or(1);
        let chosen = config.optional_size("topk_group")?.unwrap_or(1);
        if groups == 1 {
            return Ok(None);
        }
        if !count.is_multiple_of(groups) || chosen > groups || count / groups < summed {
            let reason = format!(
                "{count} experts must form groups of at least {summed}, of which {chosen} are chosen"
            );
            return Err(config.invalid_value("n_group", reason));
        }
        Ok(Some(Self {
            count: groups,
            chosen,
            summed,
        }))
    }
}

impl Routing {
    /// Reads `num_experts_per_tok`, which must not exceed the number of experts.
    pub(super) fn read(config: &Config, count: usize, normalised: bool) -> Result<Self, LoadError> {
        Self::by_key(config, "num_experts_per_tok", count, normalised)
    }

    /// Reads the number of experts per token from `key`.
    pub(crate) fn by_key(
        config: &Config,
        key: &str,
        count: usize,
        normalised: bool,
    ) -> Result<Self, LoadError> {
        let chosen = config.size(key)?;
        if chosen > count {
            return Err(config.invalid_value(key, format!("there are {count} experts")));
        }
        Ok(Self {
            chosen,
            normalised,
            ..Self::default()
        })
    }

    /// Selects the experts of a token by its scores. Returns their indices in ascending order, with their factors.
    /// `correction` is added to the probabilities for the selection only, unless it is empty. NaN scores give NaN
    /// factors.
    pub(crate) fn choose(self, scores: &[f32], correction: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = match self.scoring {
            Scoring::Nearest(part) => self.nearest(scores, part),
            Scoring::Softmax => self.top_experts(&probabilities(scores), correction),
            Scoring::Sigmoid => {
                let undefined = scores.iter().any(|score| score.is_nan());
                let sigmoid = |score: &f32| {
                    if undefined {
                        f32::NAN
                    } else {
                        1.0 / (1.0 + (-score).exp())
                    }
                };
                let probabilities: Vec<f32> = scores.iter().map(sigmoid).collect();
                self.top_experts(&probabilities, correction)
            }
        };
        let sum: f32 = chosen.iter().map(|(_, factor)| factor).sum();
        for (_, factor) in &mut chosen {
            if self.normalised {
                // All sigmoids may be zero.
                *factor /= if sum == 0.0 { 1.0 } else { sum };
            }
            *factor *= self.factor;
        }
        chosen.sort_by_key(|(expert, _)| *expert);
        chosen
    }

    /// Returns the most probable experts and their probabilities.
    fn top_experts(self, probabilities: &[f32], correction: &[f32]) -> Vec<(usize, f32)> {
        let corrections = correction.iter().copied().chain(std::iter::repeat(0.0));
        let wanted: Vec<f32> = probabilities
            .iter()
            .zip(corrections)
            .map(|(one, other)| one + other)
            .collect();
        let open = self.selected_groups(&wanted);
        let size = wanted.len() / open.len().max(1);
        let mut experts: Vec<(usize, f32)> = wanted
            .into_iter()
            .enumerate()
            .filter(|(expert, _)| open.get(expert / size.max(1)).copied().unwrap_or(true))
            .collect();
        // The sort is stable, so the first of equal experts is selected.
        experts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        experts.truncate(self.chosen);
        let of = |expert: usize| probabilities.get(expert).copied().unwrap_or_default();
        experts
            .into_iter()
            .map(|(expert, _)| (expert, of(expert)))
            .collect()
    }

    /// Returns which groups of experts a token may use.
    fn selected_groups(self, wanted: &[f32]) -> Vec<bool> {
        let Some(groups) = self.groups else {
            return vec![true];
        };
        let size = (wanted.len() / groups.count.max(1)).max(1);
        let sum_of_largest = |group: &[f32]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            group.iter().take(groups.summed).sum::<f32>()
        };
        let sums = wanted.chunks(size).map(sum_of_largest);
        let mut order: Vec<(usize, f32)> = sums.enumerate().collect();
        let mut open = vec![false; order.len()];
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for (group, _) in order.into_iter().take(groups.chosen) {
            if let Some(open) = open.get_mut(group) {
                *open = true;
            }
        }
        open
    }

    /// Selects experts one after the other by score.
    fn nearest(self, scores: &[f32], part: f32) -> Vec<(usize, f32)> {
        let mut left: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
        let mut chosen = Vec::new();
        for _ in 0..self.chosen {
            let best = left.iter().copied().reduce(|best, other| {
                if other.1.total_cmp(&best.1).is_gt() {
                    other
                } else {
                    best
                }
            });
            let Some((best, largest)) = best else { break };
            let is_near = |score: f32| {
                let distance = (largest - score) / score.abs().max(largest);
                distance.is_nan() || distance <= 2.0 * part
            };
            let near = left
                .iter()
                .map(|(_, score)| *score)
                .filter(|score| is_near(*score));
            let sum: f32 = near.map(|score| (score - largest).exp()).sum();
            chosen.push((best, 1.0 / sum));
            left.retain(|(expert, _)| *expert != best);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(chosen: usize, normalised: bool) -> Routing {
        Routing {
            chosen,
            normalised,
            ..Routing::default()
        }
    }

    fn close(found: &[(usize, f32)], expected: &[(usize, f32)]) -> bool {
        let equal = |((a, x), (b, y)): (&(usize, f32), &(usize, f32))| a == b && (x - y).abs() < 1e-6;
        found.len() == expected.len() && found.iter().zip(expected).all(equal)
    }

    #[test]
    fn the_most_probable_experts_are_chosen() {
        let scores = [0.0, 2.0_f32.ln(), 5.0_f32.ln(), f32::NEG_INFINITY];
        let found = routing(2, false).choose(&scores, &[]);
        assert!(close(&found, &[(1, 0.25), (2, 0.625)]), "{found:?}");
        let found = routing(2, true).choose(&scores, &[]);
        assert!(close(&found, &[(1, 2.0 / 7.0), (2, 5.0 / 7.0)]), "{found:?}");
        let found = routing(2, false).choose(&[1.0; 4], &[]);
        assert!(close(&found, &[(0, 0.25), (1, 0.25)]), "ties: {found:?}");
    }

    #[test]
    fn scores_that_are_not_numbers_make_factors_that_are_none() {
        let scorings = [Scoring::Softmax, Scoring::Sigmoid, Scoring::Nearest(0.01)];
        for scoring in scorings {
            let routing = Routing {
                scoring,
                ..routing(2, true)
            };
            for scores in [[f32::NAN, 1.0], [-f32::NAN, 1.0], [1.0, f32::NAN]] {
                let found = routing.choose(&scores, &[]);
                assert!(
                    found.iter().all(|(_, factor)| factor.is_nan()),
                    "{scoring:?}: {found:?}"
                );
            }
        }
        let found = routing(2, true).choose(&[f32::INFINITY, 1.0], &[]);
        assert!(found.iter().all(|(_, factor)| factor.is_nan()), "{found:?}");
    }

    #[test]
    fn a_correction_changes_the_choice_and_not_the_factors() {
        let routing = Routing {
            scoring: Scoring::Sigmoid,
            factor: 2.0,
            ..routing(2, true)
        };
        let logit = |p: f32| (p / (1.0 - p)).ln();
        let scores = [0.1, 0.6, 0.5, 0.3].map(logit);
        let found = routing.choose(&scores, &[]);
        assert!(close(&found, &[(1, 12.0 / 11.0), (2, 10.0 / 11.0)]), "{found:?}");
        let found = routing.choose(&scores, &[0.0, 0.0, -0.3, 0.1]);
        assert!(close(&found, &[(1, 4.0 / 3.0), (3, 2.0 / 3.0)]), "{found:?}");
    }

    #[test]
    fn groups_limit_the_choice() {
        let of = |summed| Routing {
            groups: Some(ExpertGroups {
                count: 3,
                chosen: 1,
                summed,
            }),
            ..routing(2, false)
        };
        let scores = [8.0, 1.0, 5.0, 5.5, 0.0, 2.0].map(f32::ln);
        // The best expert is in the first group, the best sum of two in the second.
        let found = of(1).choose(&scores, &[]);
        assert!(close(&found, &[(0, 8.0 / 21.5), (1, 1.0 / 21.5)]), "{found:?}");
        let found = of(2).choose(&scores, &[]);
        assert!(close(&found, &[(2, 5.0 / 21.5), (3, 5.5 / 21.5)]), "{found:?}");
    }

    #[test]
    fn only_near_scores_share_the_probability() {
        let routing = Routing {
            scoring: Scoring::Nearest(0.01),
            ..routing(2, false)
        };
        let found = routing.choose(&[1.0, 4.0, 3.95, 1.01], &[]);
        let first = 1.0 / (1.0 + (-0.05_f32).exp());
        assert!(close(&found, &[(1, first), (2, 1.0)]), "{found:?}");
    }
}
