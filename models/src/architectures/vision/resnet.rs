//! `ResNet` (He et al. 2016, "Deep Residual Learning for Image Recognition") with basic and bottleneck blocks, also as
//! `ResNet`-D (He et al. 2019, "Bag of Tricks", section 4.1).

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::architectures::encoder::activation;
use crate::checkpoint::timm::TWEAKED;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the batch norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Reduction ratio of a bottleneck.
const REDUCTION: usize = 4;

pub(in crate::architectures) struct ResNet;

impl Family for ResNet {
    const BASE: &'static str = "resnet";
    const CLASSIFIER: &'static str = "classifier.1";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let activation = activation(config, "hidden_act")?;
        let (sizes, depths) = super::stages(config, "hidden_sizes")?;
        let bottleneck = match config.optional::<String>("layer_type")?.as_deref() {
            None | Some("bottleneck") => true,
            Some("basic") => false,
            Some(_) => return Err(config.invalid_value("layer_type", "basic and bottleneck are supported")),
        };
        let is_set = |key: &str| Ok::<_, LoadError>(config.optional(key)?.unwrap_or(false));
        let (first_strided, early) = (
            is_set("downsample_in_first_stage")?,
            is_set("downsample_in_bottleneck")?,
        );
        let width = config.size("embedding_size")?;
        let tweaked = is_set(TWEAKED)?;
        if tweaked {
            stem(builder, width, activation)?;
        } else {
            convolution(builder, "resnet.embedder.embedder", width, Window::centred(7, 2))?;
            builder.activate(activation);
        }
        builder.max_pool(Window::centred(3, 2));
        for (stage, (outputs, depth)) in sizes.into_iter().zip(depths).enumerate() {
            for layer in 0..depth {
                let strided = layer == 0 && (stage > 0 || first_strided);
                let block = Block {
                    name: format!("resnet.encoder.stages.{stage}.layers.{layer}"),
                    outputs,
                    stride: if strided { 2 } else { 1 },
                    bottleneck,
                    early,
                    tweaked,
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
    stride: usize,
    bottleneck: bool,
    /// Whether the stride is in the first convolution of a bottleneck instead of the second.
    early: bool,
    /// Whether the shortcut uses average pooling instead of a stride.
    tweaked: bool,
    /// Activation after the sum; between the convolutions it is `ReLU`.
    activation: Activation,
}

impl Block {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        let (stride, outputs) = (self.stride, self.outputs);
        let inner = outputs / REDUCTION;
        let (first, second) = if self.early { (stride, 1) } else { (1, stride) };
        let convolutions = if self.bottleneck {
            vec![
                (inner, Window::centred(1, first)),
                (inner, Window::centred(3, second)),
                (outputs, Window::centred(1, 1)),
            ]
        } else {
            vec![
                (outputs, Window::centred(3, stride)),
                (outputs, Window::centred(3, 1)),
            ]
        };
        let projected = stride != 1 || builder.channels() != outputs;
        builder.add(
            |builder| {
                for (index, (outputs, window)) in convolutions.into_iter().enumerate() {
                    if index > 0 {
                        builder.activate(Activation::Relu);
                    }
                    convolution(builder, &format!("{}.layer.{index}", self.name), outputs, window)?;
                }
                Ok(())
            },
            |builder| {
                if projected {
                    let name = format!("{}.shortcut", self.name);
                    let mut stride = stride;
                    if self.tweaked && stride > 1 {
                        let [height, width] = builder.size();
                        builder.pool_mean(Window {
                            kernel: stride,
                            stride,
                            border: [0, 0, height % stride, width % stride],
                        });
                        stride = 1;
                    }
                    convolution(builder, &name, outputs, Window::centred(1, stride))?;
                }
                Ok(())
            },
        )?;
        builder.activate(self.activation);
        Ok(())
    }
}

/// Adds three small stem convolutions in place of a large one.
fn stem<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    width: usize,
    activation: Activation,
) -> Result<(), LoadError> {
    let name = "resnet.embedder.embedder";
    let sizes = [(width / 2, 2), (width / 2, 1), (width, 1)];
    for (place, (outputs, stride)) in sizes.into_iter().enumerate() {
        let name = format!("{name}.{place}");
        convolution(builder, &name, outputs, Window::centred(3, stride))?;
        builder.activate(activation);
    }
    Ok(())
}

/// Adds a convolution with its batch norm.
fn convolution<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    name: &str,
    outputs: usize,
    window: Window,
) -> Result<(), LoadError> {
    let norm = BatchNorm {
        name: &format!("{name}.normalization"),
        epsilon: EPSILON,
    };
    builder.convolve(&format!("{name}.convolution"), Some(norm), outputs, window)
}
