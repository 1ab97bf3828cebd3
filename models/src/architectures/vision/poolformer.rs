//! `PoolFormer` (Yu et al. 2022, "`MetaFormer`"): average pooling instead of attention.

use super::Family;
use super::builder::{Builder, Window};
use crate::architectures::encoder::activation;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of the norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Maximum patch size, stride, padding and pooling size.
const MAX_SIDE: usize = 63;

pub(in crate::architectures) struct PoolFormer;

impl Family for PoolFormer {
    const BASE: &'static str = "poolformer";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let (widths, depths) = super::stages(config, "hidden_sizes")?;
        let sides = |key: &str, least: usize| {
            let sides: Vec<usize> = config.required(key)?;
            if sides.len() == widths.len() && sides.iter().all(|side| (least..=MAX_SIDE).contains(side)) {
                return Ok(sides);
            }
            let reason = format!("it must have a value from {least} to {MAX_SIDE} for each stage");
            Err(config.invalid_value(key, reason))
        };
        let (kernels, strides, borders) = (
            sides("patch_sizes", 1)?,
            sides("strides", 1)?,
            sides("padding", 0)?,
        );
        let pool = config.optional_size("pool_size")?.unwrap_or(3);
        if pool.is_multiple_of(2) || pool > MAX_SIDE {
            let reason = format!("it must be odd, and at most {MAX_SIDE}");
            return Err(config.invalid_value("pool_size", reason));
        }
        let ratio = config.optional::<f64>("mlp_ratio")?.unwrap_or(4.0);
        if !(ratio > 0.0 && ratio <= 64.0) {
            return Err(config.invalid_value("mlp_ratio", "it must be above 0, at most 64"));
        }
        let windows = kernels.into_iter().zip(strides).zip(borders);
        let windows = windows.map(|((kernel, stride), border)| Window {
            kernel,
            stride,
            border: [border; 4],
        });
        let is_scaled = config.optional("use_layer_scale")?.unwrap_or(true);
        for (stage, ((width, depth), window)) in widths.iter().zip(depths).zip(windows).enumerate() {
            let encoder = format!("{}.encoder", Self::BASE);
            let patches = format!("{encoder}.patch_embeddings.{stage}.projection");
            builder.convolve(&patches, None, *width, window)?;
            if builder.size().contains(&0) {
                return Err(config.invalid_value("patch_sizes", "they must fit the images of every stage"));
            }
            for layer in 0..depth {
                let block = Block {
                    name: format!("{encoder}.block.{stage}.{layer}"),
                    pool,
                    between: (*width as f64 * ratio) as usize,
                    activation: activation(config, "hidden_act")?,
                    is_scaled,
                };
                block.add(builder)?;
            }
        }
        builder.normalise_images("norm", EPSILON)?;
        builder.mean();
        Ok(())
    }
}

/// A block: average pooling and a feed-forward.
struct Block {
    name: String,
    /// Pooling size, pixels.
    pool: usize,
    /// Intermediate size of the feed-forward.
    between: usize,
    activation: Activation,
    /// Whether the block has layer scales.
    is_scaled: bool,
}

impl Block {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", self.name);
        let scale = |builder: &mut Builder<'_, '_, O>, name: &str| {
            if self.is_scaled {
                builder.scale(&at(name))?;
            }
            Ok(())
        };
        builder.add(
            |builder| {
                builder.normalise_images(&at("before_norm"), EPSILON)?;
                builder.mean_around(self.pool)?;
                scale(builder, "layer_scale_1")
            },
            |_| Ok(()),
        )?;
        let outputs = builder.channels();
        builder.add(
            |builder| {
                builder.normalise_images(&at("after_norm"), EPSILON)?;
                builder.convolve(&at("output.conv1"), None, self.between, Window::centred(1, 1))?;
                builder.activate(self.activation);
                builder.convolve(&at("output.conv2"), None, outputs, Window::centred(1, 1))?;
                scale(builder, "layer_scale_2")
            },
            |_| Ok(()),
        )
    }
}
