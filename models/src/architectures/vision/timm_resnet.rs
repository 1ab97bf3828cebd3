//! `ResNet` variants as built by timm: `ResNeXt` (Xie et al. 2017), wide networks (Zagoruyko and Komodakis 2016),
//! `SENet` (Hu et al. 2018), and the stems of the "Bag of Tricks" (He et al. 2019).

use super::Family;
use super::blocks::divisible;
use super::builder::{BatchNorm, Builder, Window};
use crate::checkpoint::timm::RESNET;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = RESNET;
/// Epsilon of the batch norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Reduction ratio of a bottleneck.
const EXPANSION: usize = 4;
/// Channels of a stage to which the group width refers.
const BASE_WIDTH: usize = 64;

pub(in crate::architectures) struct TimmResNet;

impl Family for TimmResNet {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let (channels, depths) = super::stages(config, "channels")?;
        let network = Network::read(config)?;
        stem(builder, config)?;
        for (stage, (planes, depth)) in channels.into_iter().zip(depths).enumerate() {
            for block in 0..depth {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let name = format!("{}.layer{}.{block}", Self::BASE, stage + 1);
                network.block(builder, &name, planes, stride)?;
            }
        }
        builder.mean();
        Ok(())
    }
}

/// Configuration shared by all blocks.
struct Network {
    bottleneck: bool,
    groups: usize,
    group_width: usize,
    /// Whether shortcuts use average pooling instead of a stride.
    means: bool,
    /// Divisor of the channels of a block's first convolution.
    narrow: usize,
    /// Kernel size of shortcuts with a stride.
    shortcut_kernel: usize,
    squeeze: f64,
}

impl Network {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let size = |key| Ok::<_, LoadError>(config.optional_size(key)?.unwrap_or(1));
        let network = Self {
            bottleneck: config.optional("bottleneck")?.unwrap_or(true),
            groups: size("cardinality")?,
            group_width: config.optional_size("base_width")?.unwrap_or(BASE_WIDTH),
            means: config.optional("avg_down")?.unwrap_or(false),
            narrow: size("block_reduce_first")?,
            shortcut_kernel: size("down_kernel_size")?,
            squeeze: config.optional("squeeze_ratio")?.unwrap_or(0.0),
        };
        if !network.bottleneck && (network.groups, network.group_width) != (1, BASE_WIDTH) {
            let reason = "basic blocks have one group, of base_width 64";
            return Err(config.invalid_value("cardinality", reason));
        }
        if !(0.0..=1.0).contains(&network.squeeze) {
            return Err(config.invalid_value("squeeze_ratio", "it must be from 0 to 1"));
        }
        Ok(network)
    }

    /// Adds a residual block.
    fn block<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        planes: usize,
        stride: usize,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let outputs = planes * if self.bottleneck { EXPANSION } else { 1 };
        let inputs = builder.channels();
        builder.add(
            |builder| {
                if self.bottleneck {
                    let width = planes * self.group_width / BASE_WIDTH * self.groups;
                    let first = Window::patches(1);
                    convolve(builder, [&at("conv1"), &at("bn1")], width / self.narrow, first)?;
                    builder.activate(Activation::Relu);
                    let window = Window::centred(3, stride);
                    convolve_groups(builder, [&at("conv2"), &at("bn2")], (width, self.groups), window)?;
                    builder.activate(Activation::Relu);
                    convolve(builder, [&at("conv3"), &at("bn3")], outputs, Window::patches(1))?;
                } else {
                    let first = Window::centred(3, stride);
                    convolve(builder, [&at("conv1"), &at("bn1")], outputs / self.narrow, first)?;
                    builder.activate(Activation::Relu);
                    convolve(
                        builder,
                        [&at("conv2"), &at("bn2")],
                        outputs,
                        Window::centred(3, 1),
                    )?;
                }
                if self.squeeze > 0.0 {
                    let squeezed = divisible(outputs as f64 * self.squeeze, 0.0);
                    squeeze(builder, &at("se"), squeezed)?;
                }
                Ok(())
            },
            |builder| {
                if stride != 1 || inputs != outputs {
                    self.shortcut(builder, &at("downsample"), outputs, stride)?;
                }
                Ok(())
            },
        )?;
        builder.activate(Activation::Relu);
        Ok(())
    }

    /// Adds the projection of a shortcut.
    fn shortcut<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        stride: usize,
    ) -> Result<(), LoadError> {
        if self.means {
            if stride > 1 {
                let [height, width] = builder.size();
                builder.pool_mean(Window {
                    kernel: stride,
                    stride,
                    border: [0, 0, height % stride, width % stride],
                });
            }
            let (name, norm) = (format!("{name}.1"), format!("{name}.2"));
            return convolve(builder, [&name, &norm], outputs, Window::patches(1));
        }
        let kernel = if stride > 1 { self.shortcut_kernel } else { 1 };
        let (name, norm) = (format!("{name}.0"), format!("{name}.1"));
        convolve(builder, [&name, &norm], outputs, Window::centred(kernel, stride))
    }
}

/// Adds the stem, and the pooling or the convolution after it.
fn stem<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
    let at = |name: &str| format!("{}.{name}", TimmResNet::BASE);
    let width = config.size("stem_width")?;
    let kind: String = config.required("stem_type")?;
    let first = match kind.as_str() {
        "" => None,
        "deep" => Some(width),
        "deep_tiered" => Some(width / 4 * 3),
        _ => return Err(config.invalid_value("stem_type", "``, deep and deep_tiered are supported")),
    };
    let outputs = if let Some(first) = first {
        convolve(
            builder,
            [&at("conv1.0"), &at("conv1.1")],
            first,
            Window::centred(3, 2),
        )?;
        builder.activate(Activation::Relu);
        convolve(
            builder,
            [&at("conv1.3"), &at("conv1.4")],
            width,
            Window::centred(3, 1),
        )?;
        builder.activate(Activation::Relu);
        convolve(
            builder,
            [&at("conv1.6"), &at("bn1")],
            2 * width,
            Window::centred(3, 1),
        )?;
        2 * width
    } else {
        convolve(builder, [&at("conv1"), &at("bn1")], width, Window::centred(7, 2))?;
        width
    };
    builder.activate(Activation::Relu);
    if config.optional("replace_stem_pool")?.unwrap_or(false) {
        let (name, norm) = (at("maxpool.0"), at("maxpool.1"));
        convolve(builder, [&name, &norm], outputs, Window::centred(3, 2))?;
        builder.activate(Activation::Relu);
    } else {
        builder.max_pool(Window::centred(3, 2));
    }
    Ok(())
}

/// Adds a squeeze-and-excitation.
fn squeeze<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str, squeezed: usize) -> Result<(), LoadError> {
    let channels = builder.channels();
    builder.excite(|builder| {
        let pixel = Window::patches(1);
        builder.convolve(&format!("{name}.fc1"), None, squeezed, pixel)?;
        builder.activate(Activation::Relu);
        builder.convolve(&format!("{name}.fc2"), None, channels, pixel)?;
        builder.activate(Activation::Sigmoid);
        Ok(())
    })
}

/// Adds a convolution with a batch norm, by name.
fn convolve<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    names: [&str; 2],
    outputs: usize,
    window: Window,
) -> Result<(), LoadError> {
    convolve_groups(builder, names, (outputs, 1), window)
}

fn convolve_groups<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    [name, norm]: [&str; 2],
    (outputs, groups): (usize, usize),
    window: Window,
) -> Result<(), LoadError> {
    let norm = BatchNorm {
        name: norm,
        epsilon: EPSILON,
    };
    if groups == 1 {
        builder.convolve(name, Some(norm), outputs, window)
    } else {
        builder.convolve_groups(name, norm, (outputs, groups), window)
    }
}
