//! A layer's experts on the device, and their computation: one product per expert for all tokens that use it.

use super::host_layer::LinearShape;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{ExpertWeights, LinearWeights, ModelConfig};
use crate::ops::{Ops, OpsError, Span};
use crate::precision::WeightType;

/// A layer's experts on the device.
pub(super) struct Experts<M: Ops> {
    router: M::Linear,
    /// Added to the probabilities for the choice.
    correction: Vec<f32>,
    /// Up and down projection of each.
    projections: Vec<[M::Linear; 2]>,
    shared_gate: Option<M::Linear>,
}

/// Sizes of the linear layers of a layer's experts, in the order of transfer.
#[derive(Debug)]
pub(super) struct ExpertShape {
    router: LinearShape,
    correction: Vec<f32>,
    experts: Vec<[LinearShape; 2]>,
    shared_gate: Option<LinearShape>,
}

/// Tokens that use an expert.
#[derive(Debug, Default, Clone)]
struct Group {
    tokens: Vec<usize>,
    /// The factors of the expert's outputs.
    factors: Vec<f32>,
}

impl ExpertShape {
    /// Stores the linear layers; the experts get weights of this type, router and gate stay f32.
    pub(super) fn new(
        weights: ExpertWeights,
        kind: WeightType,
        store: &mut impl FnMut(LinearWeights, WeightType) -> LinearShape,
    ) -> Self {
        let router = store(weights.router, WeightType::F32);
        let experts = weights.experts.into_iter();
        let experts = experts.map(|parts| parts.map(|part| store(part, kind))).collect();
        let shared_gate = weights.shared_gate.map(|gate| store(gate, WeightType::F32));
        Self {
            router,
            correction: weights.correction,
            experts,
            shared_gate,
        }
    }

    /// Builds the linear layers on the device, in the order in which they were stored.
    pub(super) fn experts<M: Ops>(&self, linear: &mut impl FnMut(LinearShape) -> M::Linear) -> Experts<M> {
        let router = linear(self.router);
        let experts = self.experts.iter();
        let projections = experts.map(|parts| parts.map(&mut *linear)).collect();
        Experts {
            router,
            correction: self.correction.clone(),
            projections,
            shared_gate: self.shared_gate.map(linear),
        }
    }
}

impl<M: Ops> Experts<M> {
    /// Computes the layer's output for the rows `input`. `shared` is the output of the shared expert, if there is one.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(super) fn forward(
        &self,
        ops: &M,
        model_config: &ModelConfig,
        input: &M::Matrix,
        shared: Option<M::Matrix>,
    ) -> Result<M::Matrix, OpsError> {
        let (width, routing) = (model_config.width, model_config.routing.unwrap_or_default());
        let count = self.projections.len();
        let scores = ops.multiply(input, &self.router);
        let scores = ops.values(&scores)?;
        let rows = scores.len() / count.max(1);
        let groups = groups(&scores, &self.correction, count, routing);
        let mut output = ops.upload(vec![0.0; rows * width], width);
        // Always in the order of the experts, so that a token's sum does not depend on the batch.
        for ([up, down], group) in self.projections.iter().zip(&groups) {
            if group.tokens.is_empty() {
                continue;
            }
            let spans = group.tokens.iter().map(|token| Span {
                matrix: input,
                from: *token,
                count: 1,
            });
            let tokens = ops.gather(&spans.collect::<Vec<_>>(), width);
            let (tokens, factors) = if routing.scales_inputs {
                let places: Vec<usize> = (0..group.tokens.len()).collect();
                let mut scaled = ops.upload(vec![0.0; places.len() * width], width);
                ops.add_scaled(&mut scaled, &tokens, &places, &group.factors);
                (scaled, &vec![1.0; places.len()])
            } else {
                (tokens, &group.factors)
            };
            let computed = ops.feed_forward(&tokens, [up, down], model_config.activation, model_config.gated);
            ops.add_scaled(&mut output, &computed, &group.tokens, factors);
        }
        if let Some(shared) = shared {
            let all: Vec<usize> = (0..rows).collect();
            let factors = match &self.shared_gate {
                Some(gate) => {
                    let logits = ops.multiply(input, gate);
                    let logits = ops.values(&logits)?;
                    logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
                }
                None => vec![1.0; rows],
            };
            ops.add_scaled(&mut output, &shared, &all, &factors);
        }
        Ok(output)
    }
}

/// Returns the tokens of each expert, by the scores `[tokens, experts]`.
fn groups(scores: &[f32], correction: &[f32], experts: usize, routing: Routing) -> Vec<Group> {
    let mut groups = vec![Group::default(); experts];
    for (token, scores) in scores.chunks_exact(experts.max(1)).enumerate() {
        for (expert, factor) in routing.choose(scores, correction) {
            if let Some(group) = groups.get_mut(expert) {
                group.tokens.push(token);
                group.factors.push(factor);
            }
        }
    }
    groups
}
