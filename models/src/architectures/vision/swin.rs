//! Swin Transformer (Liu et al. 2021), with attention in windows that are shifted in every second block, and Swin v2
//! (Liu et al. 2022), with cosine attention and a computed position bias.

use super::Family;
use super::builder::{Builder, Window};
use super::windows::{WindowAttention, Windows};
use crate::architectures::encoder::{activation, epsilon};
use crate::architectures::vit::patches::side_lengths;
use crate::checkpoint::timm::PACKED;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of norms without a configured value, torch's default.
const EPSILON: f64 = 1e-5;
/// Width of the network that computes the position bias of v2.
const BIAS_WIDTH: usize = 512;
/// Buffers that old versions of transformers saved.
const BUFFERS: [&str; 2] = ["relative_position_index", "relative_coords_table"];

/// Swin v1.
pub(in crate::architectures) struct Swin;
/// Swin v2.
pub(in crate::architectures) struct SwinV2;

impl Family for Swin {
    const BASE: &'static str = "swin";
    const UNUSED_SUFFIXES: &'static [&'static str] = &BUFFERS;

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        SwinConfig::read(config, Self::BASE, false)?.add(builder)
    }
}

impl Family for SwinV2 {
    const BASE: &'static str = "swinv2";
    const UNUSED_SUFFIXES: &'static [&'static str] = &BUFFERS;

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        SwinConfig::read(config, Self::BASE, true)?.add(builder)
    }
}

/// Configuration of a network.
struct SwinConfig<'a> {
    config: &'a Config,
    base: &'a str,
    second: bool,
    activation: Activation,
    epsilon: f64,
    /// Window size, pixels.
    side: usize,
    /// Number of heads per stage.
    heads: Vec<usize>,
    depths: Vec<usize>,
    /// Pretraining window sizes per stage; 0 if they equal those of the model.
    trained: Vec<usize>,
    mlp_ratio: f64,
    biased: bool,
}

/// A block.
struct Block<'a> {
    model: &'a SwinConfig<'a>,
    name: String,
    heads: usize,
    side: usize,
    shift: usize,
    trained: usize,
}

impl<'a> SwinConfig<'a> {
    fn read(config: &'a Config, base: &'a str, second: bool) -> Result<Self, LoadError> {
        let (heads, depths) = super::stages(config, "num_heads")?;
        let trained = config.optional::<Vec<usize>>("pretrained_window_sizes")?;
        let mlp_ratio = config.optional::<f64>("mlp_ratio")?.unwrap_or(4.0);
        if !(mlp_ratio > 0.0 && mlp_ratio <= 64.0) {
            return Err(config.invalid_value("mlp_ratio", "it must be above 0 and at most 64"));
        }
        Ok(Self {
            config,
            base,
            second,
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "layer_norm_eps")?,
            side: config.size("window_size")?,
            heads,
            depths,
            trained: trained.unwrap_or_default(),
            mlp_ratio,
            biased: config.optional("qkv_bias")?.unwrap_or(true),
        })
    }

    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", self.base);
        let (patch, width) = (self.config.size("patch_size")?, self.config.size("embed_dim")?);
        let missing = builder.size().map(|side| side.next_multiple_of(patch) - side);
        let [below, right] = missing;
        let window = Window {
            border: [0, 0, below, right],
            ..Window::patches(patch)
        };
        builder.convolve(&at("embeddings.patch_embeddings.projection"), None, width, window)?;
        builder.normalise(&at("embeddings.norm"), EPSILON)?;
        if self.config.optional("use_absolute_embeddings")?.unwrap_or(false) {
            builder.add_positions(&at("embeddings.position_embeddings"))?;
        }
        let trained_size = side_lengths(self.config, "image_size")?.map(|side| side / patch);
        for (stage, (heads, depth)) in self.heads.iter().zip(&self.depths).enumerate() {
            let name = format!("{}.encoder.layers.{stage}", self.base);
            let width = builder.channels();
            if *heads == 0 || !width.is_multiple_of(*heads) {
                return Err(self.config.invalid_value(
                    "num_heads",
                    format!("{width} channels of a stage must be a multiple"),
                ));
            }
            let [height, across] = trained_size.map(|side| side.checked_shr(stage as u32).unwrap_or(0));
            let (side, extent) = self.side_of(builder.size(), height.min(across))?;
            for block in 0..*depth {
                let shifted = block % 2 == 1 && extent > side;
                let block = Block {
                    model: self,
                    name: format!("{name}.blocks.{block}"),
                    heads: *heads,
                    side,
                    shift: if shifted { side / 2 } else { 0 },
                    trained: self.trained.get(stage).copied().unwrap_or_default(),
                };
                block.add(builder)?;
            }
            if stage + 1 < self.heads.len() {
                builder.merge();
                let (norm, reduction) = (
                    format!("{name}.downsample.norm"),
                    format!("{name}.downsample.reduction"),
                );
                if self.second {
                    builder.multiply_with(&reduction, 2 * width, false)?;
                    builder.normalise(&norm, EPSILON)?;
                } else {
                    builder.normalise(&norm, EPSILON)?;
                    builder.multiply_with(&reduction, 2 * width, false)?;
                }
            }
        }
        builder.normalise(&at("layernorm"), self.epsilon)?;
        builder.mean();
        Ok(())
    }

    /// Returns the window size of a stage, and the size that decides whether windows are shifted: in v2 `trained`, the
    /// pretraining window size.
    fn side_of(&self, size: [usize; 2], trained: usize) -> Result<(usize, usize), LoadError> {
        let smaller = size.into_iter().min().unwrap_or_default();
        if self.second {
            return Ok((self.side.min(trained).max(1), trained));
        }
        // The biases of v1 are valid for one window size only.
        if smaller < self.side {
            return Err(self.config.invalid_value(
                "window_size",
                format!(
                    "it must fit the images of every stage, of which one is {smaller} pixels high or wide"
                ),
            ));
        }
        Ok((self.side, smaller))
    }
}

impl Block<'_> {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", self.name);
        let (model, width) = (self.model, builder.channels());
        let inner = (width as f64 * model.mlp_ratio) as usize;
        let norm = |builder: &mut Builder<'_, '_, O>, name: &str, is_second: bool| {
            if model.second == is_second {
                return builder.normalise(&at(name), model.epsilon);
            }
            Ok(())
        };
        builder.add(
            |builder| {
                norm(builder, "layernorm_before", false)?;
                let attention = self.attention(builder)?;
                builder.attend(attention);
                norm(builder, "layernorm_before", true)
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                norm(builder, "layernorm_after", false)?;
                builder.multiply(&at("intermediate.dense"), inner)?;
                builder.activate(model.activation);
                builder.multiply(&at("output.dense"), width)?;
                norm(builder, "layernorm_after", true)
            },
            |_| Ok(()),
        )
    }

    fn attention<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<WindowAttention<O>, LoadError> {
        let (width, heads, side) = (builder.channels(), self.heads, self.side);
        let at = |name: &str| format!("{}.attention.self.{name}", self.name);
        let windows = Windows::new(builder.size(), side, self.shift);
        let layers = builder.layers();
        let biased = self.model.biased;
        let packed = self.model.config.optional(PACKED)?.unwrap_or(false);
        let projections = if packed && self.model.second {
            layers.with_split_biases(&at("qkv"), &["q_bias", "v_bias"].map(at), width, 1)?
        } else if packed {
            layers.linear_with(&at("qkv"), width, 3 * width, biased)?
        } else {
            let prefixes = ["query", "key", "value"].map(at);
            let biased = [biased, biased && !self.model.second, biased];
            layers.concatenated_with(&prefixes, width, width, &biased)?
        };
        let output = layers.linear(&format!("{}.attention.output.dense", self.name), width, width)?;
        let head_dim = width / heads;
        let (table, cosine, scale) = if self.model.second {
            let scales = layers.weights.take(&at("logit_scale"), &[heads, 1, 1])?;
            let scales = scales.iter().map(|scale| scale.min(100.0_f32.ln()).exp());
            let mut factors: Vec<f32> = scales.flat_map(|scale| vec![scale; head_dim]).collect();
            factors.resize(3 * width, 1.0);
            // Uses an RMS norm: the root mean square is the L2 norm over the square root of the number of elements.
            let unit = vec![1.0 / (head_dim as f32).sqrt(); head_dim];
            let norms = (
                layers.ops.norm(unit, None, 1e-24),
                layers.ops.norm(factors, None, 0.0),
            );
            (self.computed_bias(builder)?, Some(norms), 1.0)
        } else {
            let span = 2 * side - 1;
            let name = at("relative_position_bias_table");
            let table = layers.weights.take(&name, &[span * span, heads])?;
            (table, None, 1.0 / (head_dim as f32).sqrt())
        };
        let scores = windows.scores(heads, |head, query, key| {
            let distance = |query: usize, key: usize| query + side - 1 - key;
            let row =
                distance(query / side, key / side) * (2 * side - 1) + distance(query % side, key % side);
            table.get(row * heads + head).copied().unwrap_or_default()
        });
        let scores = builder.layers().ops.upload(scores, (side * side) * (side * side));
        Ok(WindowAttention {
            windows,
            heads,
            scale,
            cosine,
            scores: Some(scores),
            projections,
            output,
        })
    }

    /// Computes the bias of every distance, `[distances, heads]`, with a network of two layers.
    fn computed_bias<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<Vec<f32>, LoadError> {
        let at = |name: &str| format!("{}.attention.self.continuous_position_bias_mlp.{name}", self.name);
        let weights = &mut *builder.layers().weights;
        let first = weights.take(&at("0.weight"), &[BIAS_WIDTH, 2])?;
        let bias = weights.take(&at("0.bias"), &[BIAS_WIDTH])?;
        let second = weights.take(&at("2.weight"), &[self.heads, BIAS_WIDTH])?;
        let side = if self.trained > 0 { self.trained } else { self.side };
        let longest = side.saturating_sub(1).max(1) as f32;
        let coordinate = |place: usize| {
            let distance = place as f32 - (self.side - 1) as f32;
            let scaled = distance / longest * 8.0;
            scaled.signum() * (scaled.abs() + 1.0).log2() / 8.0_f32.log2()
        };
        let span = 2 * self.side - 1;
        let mut table = Vec::with_capacity(span * span * self.heads);
        for (y, x) in (0..span).flat_map(|y| (0..span).map(move |x| (coordinate(y), coordinate(x)))) {
            let hidden = first.chunks_exact(2).zip(&bias).map(|(weights, bias)| {
                let products = weights.iter().zip([y, x]).map(|(weight, value)| weight * value);
                (products.sum::<f32>() + bias).max(0.0)
            });
            let hidden: Vec<f32> = hidden.collect();
            for weights in second.chunks_exact(BIAS_WIDTH) {
                let products = weights.iter().zip(&hidden).map(|(weight, value)| weight * value);
                table.push(16.0 / (1.0 + (-products.sum::<f32>()).exp()));
            }
        }
        Ok(table)
    }
}
