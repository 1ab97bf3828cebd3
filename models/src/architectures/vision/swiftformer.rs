//! `SwiftFormer` (Shaker et al. 2023): convolutional encoders, and in the last block of a stage attention whose keys are
//! scaled by the sum of all queries.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use super::steps::Layer;
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

pub(in crate::architectures) struct SwiftFormer;

/// Added to the mean square of queries and keys; transformers only excludes zeros.
const LENGTH_EPSILON: f32 = 1e-24;

impl Family for SwiftFormer {
    const BASE: &'static str = "swiftformer";
    const CLASSIFIER: &'static str = "head";
    // A softmax over one element makes the weights of the queries equal.
    const UNUSED_SUFFIXES: &'static [&'static str] = &[".attn.w_g"];

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = Network {
            ratio: config.required("mlp_ratio")?,
            epsilon: epsilon(config, "batch_norm_eps")?,
            activation: activation(config, "hidden_act")?,
            scales: config.optional("use_layer_scale")?.unwrap_or(true),
        };
        let (widths, depths) = super::stages(config, "embed_dims")?;
        let window = Window {
            kernel: config.size("down_patch_size")?,
            stride: config.size("down_stride")?,
            border: [config.required("down_pad")?; 4],
        };
        let shrinks = config.required::<Vec<bool>>("downsamples")?;
        let first = widths.first().copied().unwrap_or_default();
        for (place, outputs) in [(0, first / 2), (3, first)] {
            let name = |place: usize| format!("swiftformer.patch_embed.patch_embedding.{place}");
            network.convolve(
                builder,
                [&name(place), &name(place + 1)],
                outputs,
                Window::centred(3, 2),
            )?;
            builder.activate(Activation::Relu);
        }
        let mut index = 0;
        for (stage, (width, depth)) in widths.iter().zip(&depths).enumerate() {
            let name = |index: usize| format!("swiftformer.encoder.network.{index}");
            for block in 0..*depth {
                let name = format!("{}.blocks.{block}", name(index));
                if block + 1 == *depth {
                    network.attend(builder, &name)?;
                } else {
                    let between = (network.ratio * *width as f64) as usize;
                    network.local(builder, &name, between)?;
                }
            }
            index += 1;
            let Some(next) = widths.get(stage + 1) else { break };
            if next != width || shrinks.get(stage).copied().unwrap_or_default() {
                let name = name(index);
                network.convolve(
                    builder,
                    [&format!("{name}.proj"), &format!("{name}.norm")],
                    *next,
                    window,
                )?;
                index += 1;
            }
        }
        builder.normalise_batch(network.norm("norm"))?;
        builder.mean();
        Ok(())
    }

    fn classify<O: Ops>(builder: &mut Builder<'_, '_, O>, classes: usize) -> Result<(), LoadError> {
        builder.fork(2, |builder, branch| {
            builder.multiply(if branch == 0 { "head" } else { "dist_head" }, classes)
        })?;
        builder.average_halves(classes);
        Ok(())
    }
}

/// Settings of all blocks.
struct Network {
    /// Width of a feed-forward, in multiples of its input.
    ratio: f64,
    epsilon: f64,
    /// Activation of the feed-forwards after attention.
    activation: Activation,
    /// Whether attention and feed-forward are scaled.
    scales: bool,
}

impl Network {
    const fn norm<'a>(&self, name: &'a str) -> BatchNorm<'a> {
        BatchNorm {
            name,
            epsilon: self.epsilon,
        }
    }

    /// Adds a convolution with a bias, and a batch norm.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        [name, norm]: [&str; 2],
        outputs: usize,
        window: Window,
    ) -> Result<(), LoadError> {
        builder.convolve(name, None, outputs, window)?;
        builder.normalise_batch(self.norm(norm))
    }

    /// Adds a depthwise convolution and a feed-forward, with a residual connection.
    fn local<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        between: usize,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let outputs = builder.channels();
        builder.add(
            |builder| {
                builder.depthwise_convolve(&at("depth_wise_conv"), None, Window::centred(3, 1))?;
                builder.normalise_batch(self.norm(&at("norm")))?;
                builder.convolve(&at("point_wise_conv1"), None, between, Window::centred(1, 1))?;
                builder.activate(Activation::Gelu);
                builder.convolve(&at("point_wise_conv2"), None, outputs, Window::centred(1, 1))?;
                scale(builder, &at("layer_scale"))
            },
            |_| Ok(()),
        )
    }

    /// Adds a block with attention.
    fn attend<O: Ops>(&self, builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let width = builder.channels();
        self.local(builder, &at("local_representation"), width)?;
        let scaled = |builder: &mut Builder<'_, '_, O>, part: &str| {
            if self.scales {
                scale(builder, &at(part))?;
            }
            Ok(())
        };
        builder.add(
            |builder| {
                additive_attention(builder, &at("attn"))?;
                scaled(builder, "layer_scale_1")
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                builder.normalise_batch(self.norm(&at("linear.norm1")))?;
                let between = (width as f64 * self.ratio) as usize;
                builder.convolve(&at("linear.fc1"), None, between, Window::centred(1, 1))?;
                builder.activate(self.activation);
                builder.convolve(&at("linear.fc2"), None, width, Window::centred(1, 1))?;
                scaled(builder, "layer_scale_2")
            },
            |_| Ok(()),
        )
    }
}

/// Adds queries and keys of length 1, multiplies the keys by the sum of all queries, projects them, and adds the
/// queries.
fn additive_attention<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
    let at = |part: &str| format!("{name}.{part}");
    let [height, width, channels] = builder.shape;
    builder.fork(2, |builder, branch| {
        builder.multiply(&at(if branch == 0 { "to_query" } else { "to_key" }), channels)?;
        let unit = vec![1.0 / (channels as f32).sqrt(); channels];
        let norm = builder.layers().ops.norm(unit, None, LENGTH_EPSILON);
        builder.push(Layer::Normalise(norm));
        Ok(())
    })?;
    builder.excite(|builder| {
        // Ones for the queries; for the keys, the mean query times the number of pixels.
        let mut weight = vec![0.0; 4 * channels * channels];
        let diagonal = weight.iter_mut().skip(channels).step_by(2 * channels + 1);
        diagonal
            .take(channels)
            .for_each(|value| *value = (height * width) as f32);
        let mut bias = vec![1.0; channels];
        bias.resize(2 * channels, 0.0);
        let linear = builder
            .layers()
            .upload_folded(weight, bias, 2 * channels, 2 * channels);
        builder.push(Layer::Multiply(linear));
        Ok(())
    })?;
    let weights = &mut *builder.layers().weights;
    let projection = weights.take(&at("proj.weight"), &[channels, channels])?;
    let bias = weights.take(&at("proj.bias"), &[channels])?;
    let mut weight = vec![0.0; channels * channels];
    weight
        .iter_mut()
        .step_by(channels + 1)
        .for_each(|value| *value = 1.0);
    weight.extend(crate::checkpoint::transposed(&projection, channels));
    let linear = builder.layers().upload(weight, bias, 2 * channels, channels);
    builder.push(Layer::Multiply(linear));
    builder.shape = [height, width, channels];
    builder.multiply(&at("final"), channels)
}

/// Multiplies the channels of the last result by a matrix of one column.
fn scale<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
    let shape = [builder.channels(), 1, 1];
    let factors = builder.layers().weights.take(name, &shape)?;
    builder.scale_by(factors);
    Ok(())
}
