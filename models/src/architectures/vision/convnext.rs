//! `ConvNeXt` (Liu et al. 2022, section 2), and `ConvNeXt` V2 (Woo et al. 2023), which has a global response
//! normalisation instead of layer scales.

use super::Family;
use super::builder::{Builder, Window};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Ops;

/// Epsilon of all norms except the last.
const EPSILON: f64 = 1e-6;

/// `ConvNeXt`.
pub(in crate::architectures) struct ConvNext;
/// `ConvNeXt` V2.
pub(in crate::architectures) struct ConvNextV2;
/// The variant of `DINOv3`.
pub(in crate::architectures) struct DinoConvNext;

/// Tensor names of a variant.
struct Names {
    /// Stem convolution and its norm.
    stem: [&'static str; 2],
    /// Prefix of the stages.
    stages: &'static str,
    /// Norm and convolution between two stages.
    between: &'static str,
    /// Depthwise convolution, norm, and the two linear layers of a block.
    layers: [&'static str; 4],
    /// Layer scale of a block.
    scale: &'static str,
    /// Final norm.
    norm: &'static str,
}

const NAMES: Names = Names {
    stem: ["embeddings.patch_embeddings", "embeddings.layernorm"],
    stages: "encoder.stages",
    between: "downsampling_layer",
    layers: ["dwconv", "layernorm", "pwconv1", "pwconv2"],
    scale: "layer_scale_parameter",
    norm: "layernorm",
};
const DINO_NAMES: Names = Names {
    stem: ["stages.0.downsample_layers.0", "stages.0.downsample_layers.1"],
    stages: "stages",
    between: "downsample_layers",
    layers: [
        "depthwise_conv",
        "layer_norm",
        "pointwise_conv1",
        "pointwise_conv2",
    ],
    scale: "gamma",
    norm: "layer_norm",
};

/// Configuration of a variant.
struct NetworkConfig<'a> {
    base: &'a str,
    names: &'static Names,
    /// Patch size of the stem, pixels.
    patch: usize,
    /// Whether blocks have layer scales.
    scaled: bool,
    /// Whether blocks have a global response normalisation.
    responses: bool,
    /// Epsilon of all norms except the last.
    epsilon: f64,
}

impl Family for ConvNext {
    const BASE: &'static str = "convnext";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig {
            base: Self::BASE,
            names: &NAMES,
            patch: config.size("patch_size")?,
            scaled: config.optional("layer_scale_init_value")?.unwrap_or(1e-6) > 0.0,
            responses: false,
            epsilon: EPSILON,
        };
        steps(builder, config, &network)
    }
}

impl Family for ConvNextV2 {
    const BASE: &'static str = "convnextv2";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig {
            base: Self::BASE,
            names: &NAMES,
            patch: config.size("patch_size")?,
            scaled: false,
            responses: true,
            epsilon: EPSILON,
        };
        steps(builder, config, &network)
    }
}

impl Family for DinoConvNext {
    const BASE: &'static str = "model";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig {
            base: Self::BASE,
            names: &DINO_NAMES,
            patch: 4,
            scaled: true,
            responses: false,
            epsilon: epsilon(config, "layer_norm_eps")?,
        };
        steps(builder, config, &network)
    }
}

fn steps<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    config: &Config,
    network: &NetworkConfig<'_>,
) -> Result<(), LoadError> {
    let activation = activation(config, "hidden_act")?;
    let (sizes, depths) = super::stages(config, "hidden_sizes")?;
    let (base, names) = (network.base, network.names);
    let in_base = |name: &str| format!("{base}.{name}");
    for (stage, (width, depth)) in sizes.into_iter().zip(depths).enumerate() {
        if stage == 0 {
            let [patches, norm] = names.stem;
            builder.convolve(&in_base(patches), None, width, Window::patches(network.patch))?;
            builder.normalise(&in_base(norm), network.epsilon)?;
        } else {
            let name = format!("{base}.{}.{stage}.{}", names.stages, names.between);
            builder.normalise(&format!("{name}.0"), network.epsilon)?;
            builder.convolve(&format!("{name}.1"), None, width, Window::patches(2))?;
        }
        for layer in 0..depth {
            let name = format!("{base}.{}.{stage}.layers.{layer}", names.stages);
            let at = |part: &str| format!("{name}.{part}");
            let [channels, norm, up, down] = names.layers;
            builder.add(
                |builder| {
                    builder.depthwise_convolve(&at(channels), None, Window::centred(7, 1))?;
                    builder.normalise(&at(norm), network.epsilon)?;
                    builder.mix(&at(up), 4 * width)?;
                    builder.activate(activation);
                    if network.responses {
                        builder.global_response_norm(&at("grn"), EPSILON as f32)?;
                    }
                    builder.mix(&at(down), width)?;
                    if network.scaled {
                        builder.scale(&at(names.scale))?;
                    }
                    Ok(())
                },
                |_| Ok(()),
            )?;
        }
    }
    builder.mean();
    builder.normalise(&in_base(names.norm), epsilon(config, "layer_norm_eps")?)
}

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds a linear layer over channels, which small timm networks store as a 1x1 convolution.
    fn mix(&mut self, name: &str, outputs: usize) -> Result<(), LoadError> {
        let shape = [outputs, self.channels(), 1, 1];
        if self.layers().weights.has_shape(&format!("{name}.weight"), &shape) {
            return self.convolve(name, None, outputs, Window::patches(1));
        }
        self.multiply(name, outputs)
    }
}
