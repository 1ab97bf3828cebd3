//! A layer's experts on the device, and their computation: one matrix product per expert for all tokens that use it.

use super::linear_shape::LinearShape;
use crate::decoder::routing::Routing;
use crate::decoder::weights::{ExpertWeights, LinearWeights, ModelConfig, NormWeights};
use crate::ops::{Activation, Ops, OpsError, Span};
use crate::precision::WeightType;

/// A layer's experts on the device.
pub(crate) struct Experts<M: Ops> {
    router: M::Linear,
    /// Selection bias of the experts.
    correction: Vec<f32>,
    /// Up and down projection of each expert.
    projections: Vec<[M::Linear; 2]>,
    shared_gate: Option<M::Linear>,
    /// Factor per expert of its output; empty without factors.
    scales: Vec<f32>,
    /// Bias of a token's sum of experts; empty without one.
    bias: Vec<f32>,
    beside: Option<ParallelNorms<M>>,
}

/// Settings that the experts of all layers share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertSettings {
    /// Hidden size.
    pub(crate) width: usize,
    /// Routing of tokens.
    pub(crate) routing: Routing,
    /// Activation of an expert.
    pub(crate) activation: Activation,
    /// Whether an expert is gated.
    pub(crate) gated: bool,
}

impl From<&ModelConfig> for ExpertSettings {
    fn from(config: &ModelConfig) -> Self {
        Self {
            width: config.width,
            routing: config.routing.unwrap_or_default(),
            activation: config.activation,
            gated: config.gated,
        }
    }
}

/// Norms of experts that run in parallel with the feed-forward.
struct ParallelNorms<M: Ops> {
    /// Norm of the router's input.
    router: M::Norm,
    /// Norm of the experts' input.
    input: M::Norm,
    /// Norm of the experts' output.
    output: M::Norm,
    /// Norm of the feed-forward's output.
    dense: M::Norm,
}

/// Shapes of the linear layers of a layer's experts, in the order of transfer.
#[derive(Debug)]
pub(crate) struct ExpertShape {
    router: LinearShape,
    correction: Vec<f32>,
    experts: Vec<[LinearShape; 2]>,
    shared_gate: Option<LinearShape>,
    scales: Vec<f32>,
    beside: Option<([NormWeights; 4], f32)>,
}

/// Tokens that use an expert.
#[derive(Debug, Default, Clone)]
struct Group {
    tokens: Vec<usize>,
    /// Routing factors of the tokens.
    factors: Vec<f32>,
}

impl ExpertShape {
    /// Stores the linear layers; experts get weights of this type, router and gate stay f32.
    pub(crate) fn new(
        weights: ExpertWeights,
        (kind, epsilon): (WeightType, f32),
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
            scales: weights.scales,
            beside: weights.beside.map(|norms| (norms, epsilon)),
        }
    }

    /// Builds the linear layers on the device, in the order in which they were stored.
    pub(crate) fn experts<M: Ops>(
        &self,
        ops: &M,
        linear: &mut impl FnMut(LinearShape) -> M::Linear,
    ) -> Experts<M> {
        let router = linear(self.router);
        let experts = self.experts.iter();
        let projections = experts.map(|parts| parts.map(&mut *linear)).collect();
        Experts {
            router,
            correction: self.correction.clone(),
            projections,
            shared_gate: self.shared_gate.map(linear),
            scales: self.scales.clone(),
            bias: Vec::new(),
            beside: self.beside.clone().map(|(norms, epsilon)| {
                let [router, input, output, dense] =
                    norms.map(|NormWeights { gamma, beta }| ops.norm(gamma, beta, epsilon));
                ParallelNorms {
                    router,
                    input,
                    output,
                    dense,
                }
            }),
        }
    }
}

impl<M: Ops> Experts<M> {
    /// Creates experts without a shared expert from a router, the two layers of each expert, and a bias of a token's
    /// sum, which is empty without one.
    pub(crate) fn new(router: M::Linear, projections: Vec<[M::Linear; 2]>, bias: Vec<f32>) -> Self {
        Self {
            router,
            correction: Vec::new(),
            projections,
            shared_gate: None,
            scales: Vec::new(),
            bias,
            beside: None,
        }
    }

    /// Computes the layer's output for the rows `input`, which are the normalised hidden states `x`. `shared` is the
    /// output of the shared expert, if there is one.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn forward(
        &self,
        ops: &M,
        settings: &ExpertSettings,
        [x, input]: [&M::Matrix; 2],
        shared: Option<M::Matrix>,
    ) -> Result<M::Matrix, OpsError> {
        let Some(norms) = &self.beside else {
            return self.chosen(ops, settings, [input, input], shared);
        };
        let [scored, read] = [&norms.router, &norms.input].map(|norm| ops.normalise(x, norm));
        let chosen = self.chosen(ops, settings, [&scored, &read], None)?;
        let mut output = ops.normalise(&chosen, &norms.output);
        if let Some(dense) = shared {
            ops.add(&mut output, &ops.normalise(&dense, &norms.dense));
        }
        Ok(output)
    }

    /// Routes by the rows `rated`, computes the selected experts on the rows `input`, and adds the shared expert.
    fn chosen(
        &self,
        ops: &M,
        settings: &ExpertSettings,
        [rated, input]: [&M::Matrix; 2],
        shared: Option<M::Matrix>,
    ) -> Result<M::Matrix, OpsError> {
        let (width, routing) = (settings.width, settings.routing);
        let count = self.projections.len();
        let scores = ops.multiply(rated, &self.router);
        let scores = ops.values(&scores)?;
        let rows = scores.len() / count.max(1);
        let mut groups = groups(&scores, &self.correction, count, routing);
        for (group, scale) in groups.iter_mut().zip(&self.scales) {
            group.factors.iter_mut().for_each(|factor| *factor *= scale);
        }
        let mut output = if self.bias.is_empty() {
            ops.zeros(rows, width)
        } else {
            ops.upload(self.bias.repeat(rows), width)
        };
        // In the order of the experts, so that a token's sum does not depend on the batch.
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
            let count = group.tokens.len();
            let ones = vec![1.0; if routing.scales_inputs { count } else { 0 }];
            let (tokens, factors) = if routing.scales_inputs {
                let places: Vec<usize> = (0..count).collect();
                let mut scaled = ops.upload(vec![0.0; count * width], width);
                ops.add_scaled(&mut scaled, &tokens, &places, &group.factors);
                (scaled, &ones)
            } else {
                (tokens, &group.factors)
            };
            let computed = ops.feed_forward(&tokens, [up, down], settings.activation, settings.gated);
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

/// Groups tokens by expert, from the scores `[tokens, experts]`.
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
