//! Mixtures of experts: feed-forward layers of which each token uses a few, chosen by a router (Shazeer et al. 2017).

use super::linear_weights::LinearWeights;
use crate::checkpoint::{Config, LoadError, Weights};
use crate::precision::WeightType;

/// How the router chooses experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Routing {
    /// Experts per token.
    pub chosen: usize,
    /// Whether the probabilities of the chosen experts are divided by their sum.
    pub normalised: bool,
}

/// Weights of a layer's experts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExpertWeights {
    /// Projection to one score per expert; always f32.
    pub router: LinearWeights,
    /// Up projection (gate, values) and down projection of each expert.
    pub experts: Vec<[LinearWeights; 2]>,
    /// Projection to the logit of the shared expert's factor; always f32. The shared expert is the layer's feed-forward layer.
    pub shared_gate: Option<LinearWeights>,
}

/// The names and sizes of a family's experts.
#[derive(Debug, Clone)]
pub(super) struct ExpertLayout {
    /// The module with router and experts.
    pub(super) block: &'static str,
    /// Gate, values and down projection of an expert.
    pub(super) names: [&'static str; 3],
    /// Number of experts.
    pub(super) count: usize,
    /// Size of an expert.
    pub(super) inner: usize,
    /// Size of the shared expert, if there is one.
    pub(super) shared: Option<usize>,
    /// Which layers have experts; the others are dense.
    pub(super) layers: Vec<bool>,
}

impl ExpertLayout {
    /// Experts in every layer, by Qwen's names; `inner` is the key of an expert's size.
    pub(super) fn everywhere(config: &Config, inner: &str) -> Result<Self, LoadError> {
        Ok(Self {
            block: "mlp",
            names: ["gate_proj", "up_proj", "down_proj"],
            // Versions 4 and 5 of transformers name it differently.
            count: config.size(config.present_key(["num_experts", "num_local_experts"]))?,
            inner: config.size(inner)?,
            shared: None,
            layers: vec![true; config.size("num_hidden_layers")?],
        })
    }
}

impl Routing {
    /// Reads `num_experts_per_tok`, which must not exceed the number of experts.
    pub(super) fn read(config: &Config, count: usize, normalised: bool) -> Result<Self, LoadError> {
        let key = "num_experts_per_tok";
        let chosen = config.size(key)?;
        if chosen > count {
            return Err(config.invalid_value(key, format!("there are {count} experts")));
        }
        Ok(Self { chosen, normalised })
    }

    /// Chooses the experts of a token by its scores: their indices in ascending order, and their factors. Scores that are not
    /// numbers make factors that are none.
    pub(crate) fn choose(self, scores: &[f32]) -> Vec<(usize, f32)> {
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f32 = powers.iter().sum();
        let mut chosen: Vec<(usize, f32)> = powers.iter().map(|power| power / sum).enumerate().collect();
        // The order is stable, so the first of equal experts is chosen.
        chosen.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        chosen.truncate(self.chosen);
        if self.normalised {
            let sum: f32 = chosen.iter().map(|(_, factor)| factor).sum();
            for (_, factor) in &mut chosen {
                *factor /= sum;
            }
        }
        chosen.sort_by_key(|(expert, _)| *expert);
        chosen
    }
}

impl ExpertWeights {
    /// Takes the experts of the module `name`: the tensors of each expert, or those of all experts fused.
    pub(super) fn take(
        weights: &mut Weights,
        name: &str,
        width: usize,
        layout: &ExpertLayout,
    ) -> Result<Self, LoadError> {
        let (count, inner) = (layout.count, layout.inner);
        let router = LinearWeights::take(weights, &format!("{name}.gate"), width, count, false)?;
        let [gate, values, down] = layout.names;
        let fused = format!("{name}.experts.gate_up_proj");
        let experts = if weights.contains(&fused) {
            let up = weights.take(&fused, &[count, 2 * inner, width])?;
            let down = weights.take(&format!("{name}.experts.down_proj"), &[count, width, inner])?;
            let each = up.chunks(2 * inner * width).zip(down.chunks(width * inner));
            each.map(|(up, down)| [LinearWeights::tied(up, width), LinearWeights::tied(down, inner)])
                .collect()
        } else {
            let take = |expert: usize| {
                let mut from = |part: &str, inputs: usize, outputs: usize| {
                    let name = format!("{name}.experts.{expert}.{part}");
                    LinearWeights::take(weights, &name, inputs, outputs, false)
                };
                let gate = from(gate, width, inner)?;
                let values = from(values, width, inner)?;
                Ok([gate.concat_outputs(&values), from(down, inner, width)?])
            };
            (0..count).map(take).collect::<Result<_, _>>()?
        };
        let shared_gate = match layout.shared {
            Some(_) => {
                let name = format!("{name}.shared_expert_gate");
                Some(LinearWeights::take(weights, &name, width, 1, false)?)
            }
            None => None,
        };
        Ok(Self {
            router,
            experts,
            shared_gate,
        })
    }

    /// The layers whose weights have the model's type.
    fn typed(&self) -> impl Iterator<Item = &LinearWeights> {
        self.experts.iter().flatten()
    }

    /// The layers that are always f32.
    fn exact(&self) -> impl Iterator<Item = &LinearWeights> {
        [&self.router].into_iter().chain(&self.shared_gate)
    }

    /// Number of weights.
    pub(super) fn elements(&self) -> usize {
        self.typed()
            .chain(self.exact())
            .map(LinearWeights::elements)
            .sum()
    }

    /// Memory if the experts have weights of this type, bytes.
    pub(super) fn bytes(&self, kind: WeightType) -> usize {
        let typed: usize = self.typed().map(|linear| linear.bytes(kind)).sum();
        let exact = self.exact().map(|linear| linear.bytes(WeightType::F32));
        typed + exact.sum::<usize>()
    }

    /// Encodes the weights of the experts in a type.
    pub(super) fn stored_as(self, kind: WeightType) -> Self {
        let experts = self.experts.into_iter();
        Self {
            experts: experts
                .map(|parts| parts.map(|linear| linear.stored_as(kind)))
                .collect(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_experts_are_chosen() {
        let routing = |normalised| Routing {
            chosen: 2,
            normalised,
        };
        let scores = [0.0, 2.0_f32.ln(), 5.0_f32.ln(), f32::NEG_INFINITY];
        let close = |found: &[(usize, f32)], expected: [(usize, f32); 2]| {
            let equal = |((a, x), (b, y)): (&(usize, f32), (usize, f32))| *a == b && (x - y).abs() < 1e-6;
            found.len() == 2 && found.iter().zip(expected).all(equal)
        };
        let found = routing(false).choose(&scores);
        assert!(close(&found, [(1, 0.25), (2, 0.625)]), "{found:?}");
        let found = routing(true).choose(&scores);
        assert!(close(&found, [(1, 2.0 / 7.0), (2, 5.0 / 7.0)]), "{found:?}");
        let found = routing(false).choose(&[1.0; 4]);
        assert!(close(&found, [(0, 0.25), (1, 0.25)]), "ties: {found:?}");
        for scores in [[f32::NAN, 1.0], [f32::INFINITY, 1.0]] {
            let found = routing(true).choose(&scores);
            assert!(found.iter().all(|(_, factor)| factor.is_nan()), "{found:?}");
        }
    }
}
