//! Networks of mobile blocks as built by timm: `MobileNet` v2 and v3 (Howard et al. 2019), `EfficientNet` v1 and v2
//! (Tan and Le 2019, 2021).
//!
//! `config.json` lists the blocks in timm's notation: `ir_r2_k5_s2_e6_c40_se0.25` means two inverted residual blocks
//! with kernel size 5, stride 2, expansion 6, 40 channels and a squeeze to a quarter. `MobileNet` v4 (Qin et al. 2024)
//! has universal inverted residual blocks: `uir_r1_a3_k5_s2_e4_c80` begins with another depthwise convolution, of
//! kernel size 3.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = crate::checkpoint::timm::BLOCKS;
/// Divisor of numbers of channels.
const DIVISOR: usize = 8;
/// Maximum width and depth multiplier, and maximum expansion.
const MAX_FACTOR: f64 = 64.0;
/// Maximum channels, repeats and sizes of a block.
const MAX_SIZE: usize = 1 << 14;

pub(in crate::architectures) struct Blocks;

impl Family for Blocks {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.classifier";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = NetworkConfig::read(config)?;
        let at = |name: &str| format!("{}.{name}", Self::BASE);
        let stem = config.size("stem_size")?;
        let stem = if network.fixed_stem {
            stem
        } else {
            network.scaled(stem)
        };
        network.convolve(builder, [&at("conv_stem"), &at("bn1")], stem, [3, 2])?;
        builder.activate(network.activation);
        for (stage, blocks) in network.stages.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                let name = at(&format!("blocks.{stage}.{index}"));
                // Only the first block of a stage has a stride.
                let stride = if index == 0 { block.stride } else { 1 };
                network.add(builder, &name, block, stride)?;
            }
        }
        let features = config.required::<usize>("num_features")?;
        if features == 0 {
            builder.mean();
        } else if network.late_head {
            builder.mean();
            if config.optional("head_norm")?.unwrap_or(false) {
                network.convolve(builder, [&at("conv_head"), &at("norm_head")], features, [1, 1])?;
            } else {
                builder.convolve(&at("conv_head"), None, features, Window::patches(1))?;
            }
            builder.activate(network.activation);
        } else {
            // Features scale up with the width multiplier, but not down.
            let grow = config.optional("scale_features")?.unwrap_or(false);
            let features = if grow {
                network.scaled(features).max(features)
            } else {
                features
            };
            network.convolve(builder, [&at("conv_head"), &at("bn2")], features, [1, 1])?;
            builder.activate(network.activation);
            builder.mean();
        }
        Ok(())
    }
}

/// Configuration of a network.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
struct NetworkConfig {
    /// Blocks of each stage.
    stages: Vec<Vec<Block>>,
    activation: Activation,
    epsilon: f64,
    /// Width multiplier, and the minimum fraction of channels that rounding must keep.
    width: f64,
    least_share: f64,
    fixed_stem: bool,
    /// Whether padding follows TensorFlow.
    tensorflow: bool,
    /// Whether the last convolution follows the global pooling, with a bias; otherwise it precedes it, with a norm
    /// (`MobileNet` v3).
    late_head: bool,
    /// Whether squeeze channels of networks with a late head are rounded to integers only, not to multiples.
    whole_squeezes: bool,
}

/// A block of the network.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Block {
    kind: Kind,
    kernel: usize,
    /// Kernel size of a convolution before the expansion; 0 without one.
    start: usize,
    stride: usize,
    expansion: f64,
    channels: usize,
    /// Squeeze ratio; 0 without squeeze-and-excitation.
    squeeze: f64,
    /// Activation, if it differs from that of the network.
    activation: Option<Activation>,
    /// Channels to which the expansion applies, if they differ from those of the input; else 0.
    counted: usize,
    /// Whether a convolution has a residual connection.
    skips: bool,
}

/// Kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Depthwise convolution and projection.
    Separable,
    /// Like `Separable`, with an activation after the projection.
    Activated,
    /// Expansion, depthwise convolution and projection.
    Inverted,
    /// Expanding convolution and projection.
    Fused,
    /// Expansion and projection, with depthwise convolutions before and after the expansion; the kernel size of the
    /// first may be 0.
    Universal,
    /// A convolution.
    Plain,
}

impl Block {
    /// Parses timm's notation; also returns the repeat count.
    fn parse(notation: &str) -> Option<(Self, usize)> {
        let (kind, options) = notation.split_once('_')?;
        let mut block = Self {
            kind: match kind {
                "ds" => Kind::Separable,
                "dsa" => Kind::Activated,
                "ir" => Kind::Inverted,
                "er" => Kind::Fused,
                "uir" => Kind::Universal,
                "cn" => Kind::Plain,
                _ => return None,
            },
            kernel: 1,
            start: 0,
            stride: 1,
            expansion: 1.0,
            channels: 0,
            squeeze: 0.0,
            activation: None,
            counted: 0,
            skips: !matches!(kind, "cn" | "dsa"),
        };
        let mut repeats = 1;
        for option in options.split('_') {
            match option {
                "skip" => block.skips = true,
                "noskip" => block.skips = false,
                "nre" => block.activation = Some(Activation::Relu),
                _ => {
                    let digits = option.find(|letter: char| letter.is_ascii_digit())?;
                    let (key, value) = option.split_at_checked(digits)?;
                    let size = || value.parse().ok().filter(|size| (1..=MAX_SIZE).contains(size));
                    let factor = || {
                        value
                            .parse()
                            .ok()
                            .filter(|factor| *factor > 0.0 && *factor <= MAX_FACTOR)
                    };
                    match key {
                        "r" => repeats = size()?,
                        "a" | "k" if block.kind == Kind::Universal && value == "0" => {
                            *(if key == "a" {
                                &mut block.start
                            } else {
                                &mut block.kernel
                            }) = 0;
                        }
                        "a" if block.kind == Kind::Universal => {
                            block.start = size().filter(|kernel| kernel % 2 == 1)?;
                        }
                        "k" => block.kernel = size().filter(|kernel| kernel % 2 == 1)?,
                        "s" => block.stride = size().filter(|stride| *stride <= 2)?,
                        "e" => block.expansion = factor()?,
                        "c" => block.channels = size()?,
                        "fc" if block.kind == Kind::Fused => block.counted = size()?,
                        "se" => block.squeeze = factor()?,
                        _ => return None,
                    }
                }
            }
        }
        let squeezes = block.squeeze > 0.0 && block.kind == Kind::Universal;
        (block.channels > 0 && !squeezes).then_some((block, repeats))
    }
}

impl NetworkConfig {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let factor = |key: &str, absent: f64| {
            let value = config.optional(key)?.unwrap_or(absent);
            if (0.0..=MAX_FACTOR).contains(&value) {
                Ok(value)
            } else {
                Err(config.invalid_value(key, format!("it must be from 0 to {MAX_FACTOR}")))
            }
        };
        let depth = factor("depth_multiplier", 1.0)?;
        let round: fn(f64) -> f64 = match config.optional::<String>("depth_trunc")?.as_deref() {
            None | Some("ceil") => f64::ceil,
            Some("round") => |count: f64| count.round_ties_even().max(1.0),
            Some(_) => return Err(config.invalid_value("depth_trunc", "ceil and round are supported")),
        };
        let listed = config.required::<Vec<Vec<String>>>("block_args")?;
        let is_fixed = |stage: usize| {
            let fixed = config.optional("fix_first_last")?.unwrap_or(false);
            Ok::<bool, LoadError>(fixed && (stage == 0 || stage + 1 == listed.len()))
        };
        let mut stages = Vec::new();
        for (stage, notations) in listed.iter().enumerate() {
            let parsed = notations.iter().map(|notation| Block::parse(notation));
            let Some(blocks) = parsed.collect::<Option<Vec<_>>>() else {
                return Err(config.invalid_value("block_args", "it has a block that is not known"));
            };
            stages.push(repeated(
                &blocks,
                if is_fixed(stage)? { 1.0 } else { depth },
                round,
            ));
        }
        Ok(Self {
            stages,
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "batch_norm_eps")?,
            width: factor("channel_multiplier", 1.0)?,
            least_share: factor("round_limit", 0.9)?,
            fixed_stem: config.optional("fix_stem")?.unwrap_or(false),
            tensorflow: config.optional("tf_padding")?.unwrap_or(false),
            late_head: config.optional("late_head")?.unwrap_or(false),
            whole_squeezes: config.optional("whole_squeezes")?.unwrap_or(false),
        })
    }

    /// Applies the width multiplier to a number of channels.
    fn scaled(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width, self.least_share)
    }

    fn window<O: Ops>(&self, builder: &Builder<'_, '_, O>, [kernel, stride]: [usize; 2]) -> Window {
        if self.tensorflow {
            builder.same_window(kernel, stride)
        } else {
            Window::centred(kernel, stride)
        }
    }

    /// Adds a convolution with a batch norm, by name; `window` is kernel size and stride.
    fn convolve<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        [name, norm]: [&str; 2],
        outputs: usize,
        window: [usize; 2],
    ) -> Result<(), LoadError> {
        let norm = BatchNorm {
            name: norm,
            epsilon: self.epsilon,
        };
        let window = self.window(builder, window);
        builder.convolve(name, Some(norm), outputs, window)
    }

    /// Adds a block.
    fn add<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        block: &Block,
        stride: usize,
    ) -> Result<(), LoadError> {
        if block.skips && stride == 1 && builder.channels() == self.scaled(block.channels) {
            builder.add(|builder| self.branch(builder, name, block, stride), |_| Ok(()))
        } else {
            self.branch(builder, name, block, stride)
        }
    }

    fn branch<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        block: &Block,
        stride: usize,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let activation = block.activation.unwrap_or(self.activation);
        if block.kind == Kind::Universal {
            return self.universal(builder, name, block, stride, activation);
        }
        let counted = match block.counted {
            0 => builder.channels(),
            counted => self.scaled(counted),
        };
        let expanded = divisible(counted as f64 * block.expansion, 0.9);
        let outputs = self.scaled(block.channels);
        let window = [block.kernel, stride];
        let mut norms = ["bn1", "bn2", "bn3"].map(at).into_iter();
        let mut norm = || norms.next().unwrap_or_default();
        match block.kind {
            Kind::Plain => {
                self.convolve(builder, [&at("conv"), &norm()], outputs, window)?;
                builder.activate(activation);
                return Ok(());
            }
            Kind::Fused => {
                self.convolve(builder, [&at("conv_exp"), &norm()], expanded, window)?;
                builder.activate(activation);
            }
            Kind::Inverted => {
                self.convolve(builder, [&at("conv_pw"), &norm()], expanded, [1, 1])?;
                builder.activate(activation);
            }
            Kind::Separable | Kind::Activated | Kind::Universal => {}
        }
        let separable = matches!(block.kind, Kind::Separable | Kind::Activated);
        if separable || block.kind == Kind::Inverted {
            let norm = BatchNorm {
                name: &norm(),
                epsilon: self.epsilon,
            };
            let window = self.window(builder, window);
            builder.depthwise_convolve(&at("conv_dw"), Some(norm), window)?;
            builder.activate(activation);
        }
        if block.squeeze > 0.0 {
            self.squeeze(builder, &at("se"), block, activation)?;
        }
        let projection = if separable { at("conv_pw") } else { at("conv_pwl") };
        self.convolve(builder, [&projection, &norm()], outputs, [1, 1])?;
        if block.kind == Kind::Activated {
            builder.activate(activation);
        }
        Ok(())
    }

    /// Adds the branch of a universal block. The stride applies to its second depthwise convolution if there is one,
    /// else to the first.
    fn universal<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        block: &Block,
        stride: usize,
        activation: Activation,
    ) -> Result<(), LoadError> {
        let names = |part: &str| [format!("{name}.{part}.conv"), format!("{name}.{part}.bn")];
        let expanded = divisible(builder.channels() as f64 * block.expansion, 0.9);
        let depthwise = |builder: &mut Builder<'_, '_, O>, part: &str, window: [usize; 2]| {
            let [name, norm] = names(part);
            let norm = BatchNorm {
                name: &norm,
                epsilon: self.epsilon,
            };
            let window = self.window(builder, window);
            builder.depthwise_convolve(&name, Some(norm), window)
        };
        if block.start > 0 {
            let stride = if block.kernel > 0 { 1 } else { stride };
            depthwise(builder, "dw_start", [block.start, stride])?;
        }
        let [expand, norm] = names("pw_exp");
        self.convolve(builder, [&expand, &norm], expanded, [1, 1])?;
        builder.activate(activation);
        if block.kernel > 0 {
            depthwise(builder, "dw_mid", [block.kernel, stride])?;
            builder.activate(activation);
        }
        let [project, norm] = names("pw_proj");
        self.convolve(builder, [&project, &norm], self.scaled(block.channels), [1, 1])
    }

    /// Adds a squeeze-and-excitation. In `MobileNet` v3 it uses the hard sigmoid and a ratio of the expanded channels,
    /// in other networks a ratio of the block's input channels.
    fn squeeze<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        block: &Block,
        activation: Activation,
    ) -> Result<(), LoadError> {
        let channels = builder.channels();
        let (squeezed, activation, gate) = if self.late_head {
            let squeezed = channels as f64 * block.squeeze;
            let squeezed = if self.whole_squeezes {
                (squeezed.round_ties_even() as usize).max(1)
            } else {
                divisible(squeezed, 0.9)
            };
            (squeezed, Activation::Relu, Activation::HardSigmoid)
        } else {
            // Rounds halves to even, as Python does.
            let squeezed = (channels as f64 * (block.squeeze / block.expansion)).round_ties_even();
            ((squeezed as usize).max(1), activation, Activation::Sigmoid)
        };
        builder.excite(|builder| {
            let pixel = Window::patches(1);
            builder.convolve(&format!("{name}.conv_reduce"), None, squeezed, pixel)?;
            builder.activate(activation);
            builder.convolve(&format!("{name}.conv_expand"), None, channels, pixel)?;
            builder.activate(gate);
            Ok(())
        })
    }
}

/// Rounds a number of channels to a multiple of [`DIVISOR`], at least [`DIVISOR`], and at least the fraction `share`
/// of the number.
pub(super) fn divisible(channels: f64, share: f64) -> usize {
    let divisor = DIVISOR as f64;
    let rounded = ((channels + divisor / 2.0) as usize / DIVISOR * DIVISOR).max(DIVISOR);
    if (rounded as f64) < share * channels {
        rounded + DIVISOR
    } else {
        rounded
    }
}

/// Repeats the blocks of a stage by the depth multiplier; later blocks are repeated first.
fn repeated(blocks: &[(Block, usize)], depth: f64, round: fn(f64) -> f64) -> Vec<Block> {
    let mut total: usize = blocks.iter().map(|(_, repeats)| repeats).sum();
    let mut scaled = round(total as f64 * depth);
    let mut counts = Vec::new();
    for (_, repeats) in blocks.iter().rev() {
        let share = (*repeats as f64 / total as f64 * scaled)
            .round_ties_even()
            .max(1.0);
        counts.push(share as usize);
        total = total.saturating_sub(*repeats);
        scaled -= share;
    }
    let counted = blocks.iter().zip(counts.into_iter().rev());
    counted
        .flat_map(|((block, _), count)| std::iter::repeat_n(*block, count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_of_blocks_is_parsed() {
        let (block, repeats) = Block::parse("ir_r3_k5_s2_e3_c40_se0.25_nre").unwrap();
        assert_eq!(repeats, 3);
        let expected = Block {
            kind: Kind::Inverted,
            kernel: 5,
            start: 0,
            stride: 2,
            expansion: 3.0,
            channels: 40,
            squeeze: 0.25,
            activation: Some(Activation::Relu),
            counted: 0,
            skips: true,
        };
        assert_eq!(block, expected);
        assert!(!Block::parse("cn_r1_k1_s1_c96").unwrap().0.skips);
        let (block, _) = Block::parse("uir_r1_a3_k0_s1_e4_c96").unwrap();
        assert_eq!((block.start, block.kernel), (3, 0));
        for unknown in [
            "ir",
            "uib_r1_k3_s1_c8",
            "ir_r1_a3_k3_s1_c8",
            "ir_r1_k0_s1_c8",
            "ir_r1_k4_s1_c8",
            "ir_r1_k3_s3_c8",
            "ir_r1_k3",
            "ir_d2_c8",
            "ir_é1",
        ] {
            assert!(Block::parse(unknown).is_none(), "{unknown}");
        }
    }

    /// As in timm's `_scale_stage_depth`.
    #[test]
    fn later_blocks_of_a_stage_grow_first() {
        let parsed =
            ["ir_r1_k3_c80", "ir_r1_k5_c80", "ir_r2_k7_c80"].map(|block| Block::parse(block).unwrap());
        let kernels: Vec<usize> = repeated(&parsed, 1.2, f64::ceil)
            .iter()
            .map(|block| block.kernel)
            .collect();
        assert_eq!(kernels, [3, 5, 5, 7, 7]);
        assert_eq!(repeated(&parsed, 1.0, f64::ceil).len(), 4);
    }

    #[test]
    fn channels_are_rounded_as_in_timm() {
        let rounded = [3.0, 12.0, 18.0, 100.0].map(|channels| divisible(channels, 0.9));
        assert_eq!(rounded, [8, 16, 24, 104]);
        assert_eq!(divisible(18.0, 0.0), 16);
    }
}
