//! `HGNetV2` (Baidu 2023, of PaddleClas): blocks that concatenate the results of all their convolutions, and reduce
//! them by two 1x1 convolutions.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use super::steps::Layer;
use crate::architectures::encoder::activation;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the batch norms, torch's default.
const EPSILON: f64 = 1e-5;
/// A window of two pixels in each direction, inside the image.
const PAIR: Window = Window {
    kernel: 2,
    stride: 1,
    border: [0; 4],
};

pub(in crate::architectures) struct HgNetV2;

impl Family for HgNetV2 {
    const BASE: &'static str = "hgnetv2";
    const CLASSIFIER: &'static str = "fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let affine = config.optional("use_learnable_affine_block")?.unwrap_or(false);
        stem(builder, config, affine)?;
        let sizes = |part: &str| config.required::<Vec<usize>>(&format!("stage_{part}"));
        let flags = |part: &str| config.required::<Vec<bool>>(&format!("stage_{part}"));
        let (inputs, between, outputs) = (
            sizes("in_channels")?,
            sizes("mid_channels")?,
            sizes("out_channels")?,
        );
        let (blocks, layers, kernels) = (
            sizes("num_blocks")?,
            sizes("numb_of_layers")?,
            sizes("kernel_size")?,
        );
        let strides = sizes("downsample_strides")?;
        let (shrinks, light) = (flags("downsample")?, flags("light_block")?);
        for (stage, inputs) in inputs.into_iter().enumerate() {
            let missing =
                || config.invalid_value("stage_in_channels", "all lists of stages must have its length");
            let of = |sizes: &[usize]| sizes.get(stage).copied().ok_or_else(missing);
            let is = |flags: &[bool]| flags.get(stage).copied().ok_or_else(missing);
            if inputs != builder.channels() {
                let reason = format!(
                    "a stage has {inputs} channels, but its input has {}",
                    builder.channels()
                );
                return Err(config.invalid_value("stage_in_channels", reason));
            }
            let name = format!("encoder.stages.{stage}");
            if is(&shrinks)? {
                let name = format!("{name}.downsample");
                depthwise(builder, &name, Window::centred(3, of(&strides)?))?;
            }
            for index in 0..of(&blocks)? {
                let block = Block {
                    name: format!("{name}.blocks.{index}"),
                    between: of(&between)?,
                    outputs: of(&outputs)?,
                    layers: of(&layers)?,
                    kernel: of(&kernels)?,
                    light: is(&light)?,
                    affine,
                };
                if index == 0 {
                    block.add(builder)?;
                } else {
                    builder.add(|builder| block.add(builder), |_| Ok(()))?;
                }
            }
        }
        builder.mean();
        Ok(())
    }
}

/// Adds the first convolutions, two of which are in parallel with pooling.
fn stem<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config, affine: bool) -> Result<(), LoadError> {
    let key = "stem_channels";
    let (channels, strides) = (config.required::<Vec<usize>>(key)?, "stem_strides");
    let (&[_, between, outputs], &[first, second, third, fourth, fifth]) = (
        channels.as_slice(),
        config.required::<Vec<usize>>(strides)?.as_slice(),
    ) else {
        return Err(config.invalid_value(key, "it must have 3 entries, and stem_strides 5"));
    };
    let function = activation(config, "hidden_act")?;
    let convolve = |builder: &mut Builder<'_, '_, O>, part: &str, outputs: usize, window: Window| {
        let name = format!("embedder.{part}");
        convolution(builder, &name, outputs, window)?;
        activate(builder, &name, function, affine)
    };
    convolve(builder, "stem1", between, Window::centred(3, first))?;
    pad(builder);
    builder.fork(2, |builder, branch| {
        if branch == 0 {
            builder.max_pool(PAIR);
            return Ok(());
        }
        let window = |stride| Window { stride, ..PAIR };
        convolve(builder, "stem2a", between / 2, window(second))?;
        pad(builder);
        convolve(builder, "stem2b", between, window(third))
    })?;
    convolve(builder, "stem3", between, Window::centred(3, fourth))?;
    convolve(builder, "stem4", outputs, Window::centred(1, fifth))
}

/// A block of a stage.
struct Block {
    name: String,
    /// Channels of each convolution.
    between: usize,
    outputs: usize,
    /// Number of convolutions.
    layers: usize,
    kernel: usize,
    /// Whether a convolution consists of a 1x1 convolution and a depthwise one.
    light: bool,
    /// Whether a scale and a shift follow activations.
    affine: bool,
}

impl Block {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        self.append(builder, 0)?;
        for (part, outputs) in [(0, self.outputs / 2), (1, self.outputs)] {
            let name = format!("{}.aggregation.{part}", self.name);
            convolution(builder, &name, outputs, Window::centred(1, 1))?;
            activate(builder, &name, Activation::Relu, self.affine)?;
        }
        Ok(())
    }

    /// Concatenates the current channels with those of the convolutions from `layer` on, each of which reads the
    /// result of the one before.
    fn append<O: Ops>(&self, builder: &mut Builder<'_, '_, O>, layer: usize) -> Result<(), LoadError> {
        if layer == self.layers {
            return Ok(());
        }
        builder.append(|builder| {
            let name = format!("{}.layers.{layer}", self.name);
            let window = Window::centred(self.kernel, 1);
            if self.light {
                convolution(
                    builder,
                    &format!("{name}.conv1"),
                    self.between,
                    Window::centred(1, 1),
                )?;
                let name = format!("{name}.conv2");
                depthwise(builder, &name, window)?;
                activate(builder, &name, Activation::Relu, self.affine)?;
            } else {
                convolution(builder, &name, self.between, window)?;
                activate(builder, &name, Activation::Relu, self.affine)?;
            }
            self.append(builder, layer + 1)
        })
    }
}

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

fn depthwise<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str, window: Window) -> Result<(), LoadError> {
    let norm = BatchNorm {
        name: &format!("{name}.normalization"),
        epsilon: EPSILON,
    };
    builder.depthwise_convolve(&format!("{name}.convolution"), Some(norm), window)
}

/// Activates the last result, and applies the scale and the shift of the layer if it has them.
fn activate<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    name: &str,
    activation: Activation,
    affine: bool,
) -> Result<(), LoadError> {
    builder.activate(activation);
    if !affine {
        return Ok(());
    }
    let channels = builder.channels();
    let weights = &mut *builder.layers().weights;
    let scale = weights.take(&format!("{name}.lab.scale"), &[1])?;
    let shift = weights.take(&format!("{name}.lab.bias"), &[1])?;
    let rows = [scale, shift].map(|value| value.repeat(channels)).concat();
    by_channel(builder, rows, Window::patches(1));
    Ok(())
}

/// Adds a row and a column of zeros below and on the right.
fn pad<O: Ops>(builder: &mut Builder<'_, '_, O>) {
    let channels = builder.channels();
    let rows = [1.0, 0.0].map(|value| vec![value; channels]).concat();
    let window = Window {
        border: [0, 0, 1, 1],
        ..Window::patches(1)
    };
    by_channel(builder, rows, window);
}

/// Multiplies every channel by its entry in the first row, and adds that of the second.
fn by_channel<O: Ops>(builder: &mut Builder<'_, '_, O>, rows: Vec<f32>, window: Window) {
    let (convolution, channels) = (builder.convolution(window), builder.channels());
    let [height, width] = convolution.result();
    let rows = builder.layers().ops.upload(rows, channels);
    builder.push(Layer::ConvolveChannels(convolution, rows));
    builder.shape = [height, width, channels];
}
