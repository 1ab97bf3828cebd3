//! Feed-forward of an encoder block: two linear layers, or experts of which a router selects a few for each token.

use super::residual::Added;
use super::{BlockConfig, BlockNames, EncoderConfig};
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::decoder::routing::Routing;
use crate::generation::layers::experts::{ExpertSettings, Experts};
use crate::ops::{Activation, Ops, OpsError};

/// Experts of a block, with the names of their tensors relative to the prefix of the block.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::architectures) struct ExpertsConfig {
    /// Number of experts.
    pub count: usize,
    /// Selection of the experts of a token.
    pub routing: Routing,
    /// Layer that scores the experts, without a bias.
    pub router: &'static str,
    /// First layers of all experts, `[experts * intermediate_size, width]`, without biases.
    pub up: &'static str,
    /// Second layers of all experts, `[experts * intermediate_size, width]`: rows are inputs.
    pub down: &'static str,
    /// Bias that is added to the sum of the experts.
    pub bias: &'static str,
}

/// The feed-forward of a block.
pub(in crate::architectures) struct FeedForward<O: Ops> {
    inner: Inner<O>,
    activation: Activation,
    gated: bool,
    /// Treatment of the output before the residual addition.
    added: Added<O>,
}

/// Linear layers of a feed-forward.
enum Inner<O: Ops> {
    Dense([O::Linear; 2]),
    /// Two layers with a norm before the second one (sub-LN).
    Normalised([O::Linear; 2], O::Norm),
    Experts(Box<Experts<O>>, ExpertSettings),
}

impl EncoderConfig {
    /// Takes the feed-forward of a block.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take_feed_forward<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        config: &BlockConfig,
        names: &BlockNames,
    ) -> Result<FeedForward<O>, LoadError> {
        let width = self.width;
        let at = |name: &str| format!("{}.{name}", config.prefix);
        let [scale, norm] = [names.scales, names.output_norms].map(|names| names.map(|[_, own]| at(own)));
        let added = Added::take(layers, [scale, norm], width, |layers, name| {
            self.norm(layers, name)
        })?;
        let inner = match (&config.experts, names.inner_norm) {
            (Some(experts), _) => {
                let settings = ExpertSettings {
                    width,
                    routing: experts.routing,
                    activation: self.activation,
                    gated: false,
                };
                let experts = self.take_experts(layers, experts, &at)?;
                Inner::Experts(Box::new(experts), settings)
            }
            (None, None) => Inner::Dense(self.take_dense(layers, names, &at)?),
            (None, Some(norm)) => {
                let dense = self.take_dense(layers, names, &at)?;
                let (inner, epsilon) = (self.intermediate_size, self.epsilon);
                Inner::Normalised(dense, layers.layer_norm(&at(norm), inner, epsilon)?)
            }
        };
        Ok(FeedForward {
            inner,
            activation: self.activation,
            gated: self.gated,
            added,
        })
    }

    fn take_dense<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        names: &BlockNames,
        at: &impl Fn(&str) -> String,
    ) -> Result<[O::Linear; 2], LoadError> {
        let (width, intermediate_size) = (self.width, self.intermediate_size);
        let parts = if self.gated { 2 } else { 1 };
        let up = parts * intermediate_size;
        let ups: Vec<String> = names.up.iter().map(|part| at(part)).collect();
        let up_bias = self.feed_forward_bias && self.up_bias;
        let up = if self.values_first {
            layers.swapped(&ups.concat(), width, up, up_bias)?
        } else {
            let (layouts, biased) = (vec![self.weight_layouts.up; ups.len()], vec![up_bias; ups.len()]);
            layers.concatenated_of(&ups, &layouts, [width, up / ups.len().max(1)], &biased)?
        };
        let down = layers.linear_from_host(
            &at(names.down),
            self.weight_layouts.down,
            [intermediate_size, width],
            self.feed_forward_bias,
        )?;
        Ok([up, down])
    }

    fn take_experts<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        config: &ExpertsConfig,
        at: &impl Fn(&str) -> String,
    ) -> Result<Experts<O>, LoadError> {
        let (width, inner) = (self.width, self.intermediate_size);
        let router = layers.linear_with(&at(config.router), width, config.count, false)?;
        let shape = [config.count.saturating_mul(inner), width];
        let [ups, downs] = [
            layers.weights.take(&at(config.up), &shape)?,
            layers.weights.take(&at(config.down), &shape)?,
        ];
        let each = (inner * width).max(1);
        let projections = ups.chunks(each).zip(downs.chunks(each));
        let projections = projections.map(|(up, down)| {
            let up = layers.upload(transposed(up, width), Vec::new(), width, inner);
            [up, layers.upload(down.to_vec(), Vec::new(), inner, width)]
        });
        let projections = projections.collect();
        let bias = layers.weights.take(&at(config.bias), &[width])?;
        Ok(Experts::new(router, projections, bias))
    }
}

impl<O: Ops> FeedForward<O> {
    /// Computes the feed-forward of the rows, after the norm if there is one, and adds the rows.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; only experts wait for the device.
    pub(super) fn add_to(
        &self,
        ops: &O,
        x: &O::Matrix,
        norm: Option<&O::Norm>,
    ) -> Result<O::Matrix, OpsError> {
        if let (Inner::Dense([up, down]), true) = (&self.inner, self.added.is_unchanged()) {
            return Ok(ops.feed_forward_residual(x, norm, [up, down], self.activation, self.gated));
        }
        let normalised = norm.map(|norm| ops.normalise(x, norm));
        let input = normalised.as_ref().unwrap_or(x);
        let output = match &self.inner {
            Inner::Dense([up, down]) => ops.feed_forward(input, [up, down], self.activation, self.gated),
            Inner::Normalised([up, down], norm) => {
                let inner = ops.activate(ops.multiply(input, up), self.activation, self.gated);
                ops.multiply_normalised(&inner, norm, down)
            }
            Inner::Experts(experts, settings) => experts.forward(ops, settings, [x, input], None)?,
        };
        Ok(self.added.to(ops, x, output))
    }
}
