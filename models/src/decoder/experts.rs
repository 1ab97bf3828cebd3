//! Mixture of experts (MoE): feed-forward layers of which a router selects a few per token (Shazeer et al. 2017).

use super::linear_weights::{LinearWeights, NormWeights};
use crate::checkpoint::{Config, LoadError, Weights};
use crate::precision::WeightType;

/// Weights of a layer's experts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExpertWeights {
    /// Projection to a score per expert; always f32.
    pub router: LinearWeights,
    /// Bias added to the experts' probabilities for selection; empty without one.
    pub correction: Vec<f32>,
    /// Up projection (gate, values) and down projection of each expert.
    pub experts: Vec<[LinearWeights; 2]>,
    /// Projection to the logit of the shared expert's gate; always f32. The shared expert is stored as the layer's
    /// feed-forward.
    pub shared_gate: Option<LinearWeights>,
    /// Factor per expert of its output; empty without factors.
    pub scales: Vec<f32>,
    /// Norms of experts that run in parallel with the feed-forward and read the hidden states themselves (Gemma 4).
    pub beside: Option<[NormWeights; 4]>,
}

/// Tensor names and sizes of a family's experts.
#[derive(Debug, Clone)]
pub(super) struct ExpertLayout {
    /// Module that contains router and experts.
    pub(super) block: &'static str,
    /// Name of the router within the module.
    pub(super) router: &'static str,
    /// Whether the router has a bias.
    pub(super) router_bias: bool,
    /// Selection bias within the module, if there is one.
    pub(super) correction: Option<Correction>,
    /// Storage layout of the experts' tensors.
    pub(super) tensors: ExpertTensors,
    /// Number of experts.
    pub(super) count: usize,
    /// Intermediate size of an expert.
    pub(super) inner: usize,
    /// The shared expert, if there is one.
    pub(super) shared: Option<SharedExpert>,
    /// Whether each layer has experts; others are dense.
    pub(super) layers: Vec<bool>,
    /// Whether the experts run in parallel with the feed-forward, which is stored as the shared expert.
    pub(super) is_parallel: bool,
}

/// Tensor with the selection bias (`e_score_correction_bias`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction {
    /// Name within the module.
    pub(super) name: &'static str,
    /// Whether the tensor is a matrix with one row.
    pub(super) is_row: bool,
}

/// Storage layout of experts.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExpertTensors {
    /// Gate, up and down projection of each expert, by these names; or all experts fused.
    Each([&'static str; 3]),
    /// Like [`Self::Each`]; if fused, rows are inputs (Llama 4).
    ByInput([&'static str; 3]),
    /// The fused up projections of all experts, gates first, and the fused down projections, by these names.
    Fused([&'static str; 2]),
    /// Like [`Self::Fused`], with biases; columns are outputs, and gate and up columns alternate (gpt-oss).
    Alternating,
    /// Like [`Self::Alternating`], but all gate columns precede the up columns.
    Biased,
}

/// An expert that every token uses (shared expert).
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedExpert {
    /// Module of the expert; `None` if it has the names of a dense feed-forward.
    pub(super) block: Option<&'static str>,
    /// Intermediate size.
    pub(super) inner: usize,
    /// Whether its layers have biases.
    pub(super) bias: bool,
    /// Gate of the shared expert, within the module of the experts; without one, its factor is 1.
    pub(super) gate: Option<&'static str>,
}

impl ExpertLayout {
    /// Creates a layout with experts in every layer and Qwen's names; `inner` is the key of the intermediate size.
    pub(super) fn everywhere(config: &Config, inner: &str) -> Result<Self, LoadError> {
        // The name differs between versions 4 and 5 of transformers.
        let count = config.present_key(["num_experts", "num_local_experts"]);
        Self::counted(config, config.size(count)?, inner)
    }

    /// Same as [`ExpertLayout::everywhere`], with `count` experts.
    pub(super) fn counted(config: &Config, count: usize, inner: &str) -> Result<Self, LoadError> {
        Ok(Self {
            block: "mlp",
            router: "gate",
            router_bias: false,
            correction: None,
            tensors: ExpertTensors::Each(["gate_proj", "up_proj", "down_proj"]),
            count,
            inner: config.size(inner)?,
            shared: None,
            layers: vec![true; config.size("num_hidden_layers")?],
            is_parallel: false,
        })
    }
}

impl ExpertWeights {
    /// Takes the experts of the module `name`.
    pub(super) fn take(
        weights: &mut Weights,
        name: &str,
        width: usize,
        layout: &ExpertLayout,
    ) -> Result<Self, LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let count = layout.count;
        let router = LinearWeights::take(weights, &at(layout.router), width, count, layout.router_bias)?;
        let correction = match layout.correction {
            Some(Correction { name, is_row: true }) => weights.take(&at(name), &[1, count])?,
            Some(Correction { name, is_row: false }) => weights.take(&at(name), &[count])?,
            None => Vec::new(),
        };
        let all = ["experts.gate_up_proj", "experts.down_proj"];
        let experts = match layout.tensors {
            ExpertTensors::Alternating => biased(weights, all.map(at), width, (layout, 2))?,
            ExpertTensors::Biased => biased(weights, all.map(at), width, (layout, 1))?,
            ExpertTensors::Fused(names) => fused(weights, names.map(at), width, layout)?,
            ExpertTensors::Each(_) | ExpertTensors::ByInput(_) if weights.contains(&at(all[0])) => {
                fused(weights, all.map(at), width, layout)?
            }
            ExpertTensors::Each(names) | ExpertTensors::ByInput(names) => {
                each(weights, name, names, width, layout)?
            }
        };
        let gate = layout.shared.and_then(|shared| shared.gate);
        let shared_gate = gate.map(|gate| LinearWeights::take(weights, &at(gate), width, 1, false));
        let (mut scales, mut beside) = (Vec::new(), None);
        if layout.is_parallel {
            scales = weights.take(&at("router.per_expert_scale"), &[count])?;
            let mut router = weights.take(&at("router.scale"), &[width])?;
            for factor in &mut router {
                *factor /= (width as f32).sqrt();
            }
            let mut norm = |part: &str| NormWeights::take_rms(weights, &at(part), width);
            beside = Some([
                NormWeights {
                    gamma: router,
                    beta: None,
                },
                norm("pre_feedforward_layernorm_2")?,
                norm("post_feedforward_layernorm_2")?,
                norm("post_feedforward_layernorm_1")?,
            ]);
        }
        Ok(Self {
            scales,
            beside,
            router,
            correction,
            experts,
            shared_gate: shared_gate.transpose()?,
        })
    }

    /// Returns the linear layers that have the model's weight type.
    fn typed(&self) -> impl Iterator<Item = &LinearWeights> {
        self.experts.iter().flatten()
    }

    /// Returns the linear layers that are always f32.
    fn exact(&self) -> impl Iterator<Item = &LinearWeights> {
        [&self.router].into_iter().chain(&self.shared_gate)
    }

    /// Returns the norms of parallel experts.
    pub(super) fn norms(&self) -> impl Iterator<Item = &NormWeights> {
        self.beside.iter().flatten()
    }

    /// Returns the number of weights.
    pub(super) fn elements(&self) -> usize {
        self.correction.len()
            + self.scales.len()
            + self
                .typed()
                .chain(self.exact())
                .map(LinearWeights::elements)
                .sum::<usize>()
    }

    /// Returns the memory of the experts with weights of this type, bytes.
    pub(super) fn bytes(&self, kind: WeightType) -> usize {
        let typed: usize = self.typed().map(|linear| linear.bytes(kind)).sum();
        let exact = self.exact().map(|linear| linear.bytes(WeightType::F32));
        let numbers = self.correction.len() + self.scales.len();
        typed + exact.sum::<usize>() + size_of::<f32>() * numbers
    }

    /// Encodes the weights of the experts as this type.
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

/// Takes separate tensors per expert.
fn each(
    weights: &mut Weights,
    name: &str,
    [gate, values, down]: [&str; 3],
    width: usize,
    layout: &ExpertLayout,
) -> Result<Vec<[LinearWeights; 2]>, LoadError> {
    let (inner, kind) = (layout.inner, weights.weight_type());
    let take = |expert: usize| {
        let mut from = |part: &str, inputs: usize, outputs: usize| {
            let name = format!("{name}.experts.{expert}.{part}");
            LinearWeights::take(weights, &name, inputs, outputs, false)
        };
        let gate = from(gate, width, inner)?;
        let values = from(values, width, inner)?;
        let up = gate.concat_outputs(&values);
        Ok([up, from(down, inner, width)?].map(|linear| linear.stored_as(kind)))
    };
    (0..layout.count).map(take).collect()
}

/// Takes fused tensors of all experts, whose rows are outputs, or inputs if the file has that shape (Qwen3-VL).
fn fused(
    weights: &mut Weights,
    [up, down]: [String; 2],
    width: usize,
    layout: &ExpertLayout,
) -> Result<Vec<[LinearWeights; 2]>, LoadError> {
    let (count, inner, kind) = (layout.count, layout.inner, weights.weight_type());
    let always = matches!(layout.tensors, ExpertTensors::ByInput(_));
    let mut take = |name: &str, inputs: usize, outputs: usize| {
        let (by_output, by_input) = ([count, outputs, inputs], [count, inputs, outputs]);
        if always || inputs != outputs && weights.has_shape(name, &by_input) {
            return weights.take_each(name, &by_input, |_, weight| {
                LinearWeights::input_major(weight, Vec::new(), inputs).stored_as(kind)
            });
        }
        weights.take_each(name, &by_output, |_, weight| {
            LinearWeights::tied(&weight, inputs).stored_as(kind)
        })
    };
    let up = take(&up, width, 2 * inner)?;
    Ok(pairs(up, take(&down, inner, width)?))
}

/// Takes fused tensors of all experts with biases. Rows are inputs, and outputs alternate between `parts` parts.
fn biased(
    weights: &mut Weights,
    [up, down]: [String; 2],
    width: usize,
    (layout, parts): (&ExpertLayout, usize),
) -> Result<Vec<[LinearWeights; 2]>, LoadError> {
    let (count, inner, kind) = (layout.count, layout.inner, weights.weight_type());
    let mut take = |name: &str, inputs: usize, outputs: usize, parts: usize| {
        let biases = weights.take(&format!("{name}_bias"), &[count, outputs])?;
        weights.take_each(name, &[count, inputs, outputs], |expert, weight| {
            let bias = biases.chunks(outputs).nth(expert).unwrap_or_default();
            let linear = LinearWeights::input_major(weight, bias.to_vec(), inputs);
            linear.by_part(1, parts).stored_as(kind)
        })
    };
    let up = take(&up, width, 2 * inner, parts)?;
    Ok(pairs(up, take(&down, inner, width, 1)?))
}

fn pairs(up: Vec<LinearWeights>, down: Vec<LinearWeights>) -> Vec<[LinearWeights; 2]> {
    up.into_iter().zip(down).map(|(up, down)| [up, down]).collect()
}
