//! Pyramid Vision Transformer v1 (Wang et al. 2021): patches with learned positions, spatial-reduction attention, and
//! a class token in the last stage.

use super::Family;
use super::builder::{Builder, Window};
use super::spatial_reduction::ReducedNames;
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Maximum of sizes in lists.
const MAX_SIZE: usize = 1 << 14;
/// Maximum feed-forward ratio.
const MAX_RATIO: f64 = 64.0;

pub(in crate::architectures) struct FirstPvt;

/// Dimensions of a stage.
struct Stage {
    place: usize,
    width: usize,
    heads: usize,
    /// Reduction ratio of the attended image, in both directions.
    reduction: usize,
    /// Intermediate size of the feed-forwards.
    between: usize,
    epsilon: f64,
    activation: Activation,
    biased: bool,
}

impl Family for FirstPvt {
    const BASE: &'static str = "pvt";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let (widths, depths) = super::stages(config, "hidden_sizes")?;
        let list = |key: &str| {
            let values: Vec<usize> = config.required(key)?;
            if values.len() == widths.len() && values.iter().all(|value| (1..=MAX_SIZE).contains(value)) {
                return Ok(values);
            }
            let reason = format!("it must have {} values from 1 to {MAX_SIZE}", widths.len());
            Err(config.invalid_value(key, reason))
        };
        let heads = list("num_attention_heads")?;
        if widths.iter().zip(&heads).any(|(width, heads)| width % heads != 0) {
            return Err(config.invalid_value("num_attention_heads", "they must divide `hidden_sizes`"));
        }
        let key = "sequence_reduction_ratios";
        let reductions = list(key)?;
        if reductions.last().is_some_and(|reduction| *reduction > 1) {
            return Err(config.invalid_value(key, "the last stage, which has a class token, must have 1"));
        }
        let ratios: Vec<f64> = config.required("mlp_ratios")?;
        if ratios.len() != widths.len() || !ratios.iter().all(|ratio| *ratio > 0.0 && *ratio <= MAX_RATIO) {
            let reason = format!(
                "it must have {} values above 0, at most {MAX_RATIO}",
                widths.len()
            );
            return Err(config.invalid_value("mlp_ratios", reason));
        }
        // The class swaps these two keys.
        let (strides, kernels) = (list("patch_sizes")?, list("strides")?);
        let epsilon = epsilon(config, "layer_norm_eps")?;
        let end = widths.len().saturating_sub(1);
        let windows = kernels.into_iter().zip(strides);
        let sizes = widths
            .into_iter()
            .zip(heads)
            .zip(reductions.into_iter().zip(ratios));
        for (place, (((width, heads), (reduction, ratio)), ((kernel, stride), depth))) in
            sizes.zip(windows.zip(depths)).enumerate()
        {
            let stage = Stage {
                place,
                width,
                heads,
                reduction,
                between: (width as f64 * ratio) as usize,
                epsilon,
                activation: activation(config, "hidden_act")?,
                biased: config.optional("qkv_bias")?.unwrap_or(true),
            };
            let window = Window {
                kernel,
                stride,
                border: [0; 4],
            };
            if builder.size().into_iter().any(|side| side < kernel) {
                return Err(config.invalid_value("strides", "they must fit the images of every stage"));
            }
            stage.embed(builder, window, place == end)?;
            if builder.size().into_iter().any(|side| side < reduction) {
                return Err(config.invalid_value(key, "they must fit the images of every stage"));
            }
            for block in 0..depth {
                stage.add_block(builder, block)?;
            }
        }
        builder.normalise(&format!("{}.encoder.layer_norm", Self::BASE), epsilon)?;
        builder.keep_first();
        Ok(())
    }
}

impl Stage {
    /// Adds the patches with their positions; in the last stage, prepends the class token.
    fn embed<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        window: Window,
        is_last: bool,
    ) -> Result<(), LoadError> {
        let name = format!("{}.encoder.patch_embeddings.{}", FirstPvt::BASE, self.place);
        let at = |part: &str| format!("{name}.{part}");
        builder.convolve(&at("projection"), None, self.width, window)?;
        builder.normalise(&at("layer_norm"), self.epsilon)?;
        if is_last {
            builder.prepend(&at("cls_token"))?;
        }
        builder.add_positions(&at("position_embeddings"))
    }

    fn add_block<O: Ops>(&self, builder: &mut Builder<'_, '_, O>, block: usize) -> Result<(), LoadError> {
        let name = format!("{}.encoder.block.{}.{block}", FirstPvt::BASE, self.place);
        let at = |part: &str| format!("{name}.{part}");
        let own = |part: &str| format!("{name}.attention.self.{part}");
        let attention = ReducedNames {
            query: own("query"),
            key: own("key"),
            value: own("value"),
            output: at("attention.output.dense"),
        };
        builder.add(
            |builder| {
                builder.normalise(&at("layer_norm_1"), self.epsilon)?;
                builder.attend_reduced(&attention, self.heads, self.biased, |builder| {
                    if self.reduction > 1 {
                        let window = Window::patches(self.reduction);
                        builder.convolve(&own("sequence_reduction"), None, self.width, window)?;
                        builder.normalise(&own("layer_norm"), self.epsilon)?;
                    }
                    Ok(())
                })
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                builder.normalise(&at("layer_norm_2"), self.epsilon)?;
                builder.multiply(&at("mlp.dense1"), self.between)?;
                builder.activate(self.activation);
                builder.multiply(&at("mlp.dense2"), self.width)
            },
            |_| Ok(()),
        )
    }
}
