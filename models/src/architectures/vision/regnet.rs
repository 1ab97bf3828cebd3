//! `RegNet` X and Y (Radosavovic et al. 2020, "Designing Network Design Spaces"): `ResNet` with grouped convolutions,
//! and in Y with squeeze-and-excitation.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::architectures::encoder::activation;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the batch norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Reduction ratio of a squeeze.
const REDUCTION: f64 = 4.0;

pub(in crate::architectures) struct RegNet;

impl Family for RegNet {
    const BASE: &'static str = "regnet";
    const CLASSIFIER: &'static str = "classifier.1";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let activation = activation(config, "hidden_act")?;
        let (sizes, depths) = super::stages(config, "hidden_sizes")?;
        let squeezes = match config.optional::<String>("layer_type")?.as_deref() {
            None | Some("y") => true,
            Some("x") => false,
            Some(_) => return Err(config.invalid_value("layer_type", "x and y are supported")),
        };
        let first_strided = config.optional("downsample_in_first_stage")?.unwrap_or(true);
        let group = config.size("groups_width")?;
        let width = config.size("embedding_size")?;
        convolution(
            builder,
            "regnet.embedder.embedder",
            (width, 1),
            Window::centred(3, 2),
        )?;
        builder.activate(activation);
        for (stage, (outputs, depth)) in sizes.into_iter().zip(depths).enumerate() {
            let groups = (outputs / group).max(1);
            if outputs % groups != 0 || outputs == 0 {
                let reason = format!("{groups} groups must divide the {outputs} channels of a stage");
                return Err(config.invalid_value("groups_width", reason));
            }
            for layer in 0..depth {
                let strided = layer == 0 && (stage > 0 || first_strided);
                let block = Block {
                    name: format!("regnet.encoder.stages.{stage}.layers.{layer}"),
                    outputs,
                    groups,
                    stride: if strided { 2 } else { 1 },
                    squeezes,
                    activation,
                };
                block.add(builder)?;
            }
        }
        builder.mean();
        Ok(())
    }
}

/// A residual block.
struct Block {
    name: String,
    outputs: usize,
    groups: usize,
    stride: usize,
    squeezes: bool,
    activation: Activation,
}

impl Block {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        let (stride, outputs, inputs) = (self.stride, self.outputs, builder.channels());
        let at = |index: usize| format!("{}.layer.{index}", self.name);
        builder.add(
            |builder| {
                convolution(builder, &at(0), (outputs, 1), Window::centred(1, 1))?;
                builder.activate(self.activation);
                convolution(
                    builder,
                    &at(1),
                    (outputs, self.groups),
                    Window::centred(3, stride),
                )?;
                builder.activate(self.activation);
                if self.squeezes {
                    // Rounds halves to even, as Python does.
                    let squeezed = (inputs as f64 / REDUCTION).round_ties_even() as usize;
                    builder.excite(|builder| {
                        let name = |index| format!("{}.attention.{index}", at(2));
                        builder.convolve(&name(0), None, squeezed, Window::centred(1, 1))?;
                        builder.activate(Activation::Relu);
                        builder.convolve(&name(2), None, outputs, Window::centred(1, 1))?;
                        builder.activate(Activation::Sigmoid);
                        Ok(())
                    })?;
                }
                let last = at(if self.squeezes { 3 } else { 2 });
                convolution(builder, &last, (outputs, 1), Window::centred(1, 1))
            },
            |builder| {
                if stride != 1 || inputs != outputs {
                    let name = format!("{}.shortcut", self.name);
                    convolution(builder, &name, (outputs, 1), Window::centred(1, stride))?;
                }
                Ok(())
            },
        )?;
        builder.activate(self.activation);
        Ok(())
    }
}

/// Adds a grouped convolution with its batch norm.
fn convolution<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    name: &str,
    (outputs, groups): (usize, usize),
    window: Window,
) -> Result<(), LoadError> {
    let norm = BatchNorm {
        name: &format!("{name}.normalization"),
        epsilon: EPSILON,
    };
    let name = format!("{name}.convolution");
    if groups == 1 {
        builder.convolve(&name, Some(norm), outputs, window)
    } else {
        builder.convolve_groups(&name, norm, (outputs, groups), window)
    }
}
