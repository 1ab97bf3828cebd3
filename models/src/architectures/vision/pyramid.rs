//! Image encoder of `SegFormer` (Xie et al. 2021), and Pyramid Vision Transformer v2 (Wang et al. 2022): overlapping
//! patches, spatial-reduction attention, and depthwise convolutions instead of positions.

use super::Family;
use super::builder::{Builder, Window};
use super::spatial_reduction::ReducedNames;
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of `SegFormer`'s norms, torch's default.
const EPSILON: f64 = 1e-5;

/// The encoder of `SegFormer`.
pub(in crate::architectures) struct Segformer;
/// Pyramid Vision Transformer v2.
pub(in crate::architectures) struct Pvt;

impl Family for Segformer {
    const BASE: &'static str = "segformer";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        add(builder, config, EPSILON, &|stage, block| {
            let encoder = format!("{}.encoder", Self::BASE);
            let block = format!("{encoder}.block.{stage}.{block}");
            let own = format!("{block}.attention.self");
            Names {
                patches: format!("{encoder}.patch_embeddings.{stage}"),
                attention: ReducedNames {
                    query: format!("{own}.query"),
                    key: format!("{own}.key"),
                    value: format!("{own}.value"),
                    output: format!("{block}.attention.output.dense"),
                },
                reduction: format!("{own}.sr"),
                reduction_norm: format!("{own}.layer_norm"),
                norm: format!("{encoder}.layer_norm.{stage}"),
                block,
            }
        })
    }
}

impl Family for Pvt {
    const BASE: &'static str = "pvt_v2";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        if config.optional("linear_attention")?.unwrap_or(false) {
            return Err(config.invalid_value("linear_attention", "only false is supported"));
        }
        add(
            builder,
            config,
            epsilon(config, "layer_norm_eps")?,
            &|stage, block| {
                let layer = format!("{}.encoder.layers.{stage}", Self::BASE);
                let block = format!("{layer}.blocks.{block}");
                let own = format!("{block}.attention");
                Names {
                    patches: format!("{layer}.patch_embedding"),
                    attention: ReducedNames {
                        query: format!("{own}.query"),
                        key: format!("{own}.key"),
                        value: format!("{own}.value"),
                        output: format!("{own}.proj"),
                    },
                    reduction: format!("{own}.spatial_reduction"),
                    reduction_norm: format!("{own}.layer_norm"),
                    norm: format!("{layer}.layer_norm"),
                    block,
                }
            },
        )
    }
}

/// Tensor names of a block and its stage.
struct Names {
    patches: String,
    block: String,
    attention: ReducedNames,
    reduction: String,
    reduction_norm: String,
    norm: String,
}

/// Dimensions of a stage.
struct Stage {
    width: usize,
    depth: usize,
    heads: usize,
    /// Patch size and stride, pixels.
    patch: [usize; 2],
    /// Reduction ratio of the attended image, in both directions.
    reduction: usize,
    mlp_ratio: f64,
}

/// Adds all stages; `names` returns the names of a block by its stage and its index there.
fn add<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    config: &Config,
    epsilon: f64,
    names: &dyn Fn(usize, usize) -> Names,
) -> Result<(), LoadError> {
    let activation = activation(config, "hidden_act")?;
    let biased = config.optional("qkv_bias")?.unwrap_or(true);
    for (index, stage) in stages(config)?.iter().enumerate() {
        let [kernel, stride] = stage.patch;
        let Names { patches, norm, .. } = names(index, 0);
        builder.convolve(
            &format!("{patches}.proj"),
            None,
            stage.width,
            Window::centred(kernel, stride),
        )?;
        builder.normalise(&format!("{patches}.layer_norm"), epsilon)?;
        if builder.size().into_iter().any(|side| side < stage.reduction) {
            return Err(config.invalid_value("sr_ratios", "they must fit the images of every stage"));
        }
        for block in 0..stage.depth {
            let names = names(index, block);
            stage.add_block(builder, &names, (epsilon, activation, biased))?;
        }
        builder.normalise(&norm, epsilon)?;
    }
    builder.mean();
    Ok(())
}

impl Stage {
    fn add_block<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        names: &Names,
        (epsilon, activation, biased): (f64, Activation, bool),
    ) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", names.block);
        builder.add(
            |builder| {
                builder.normalise(&at("layer_norm_1"), epsilon)?;
                builder.attend_reduced(&names.attention, self.heads, biased, |builder| {
                    if self.reduction > 1 {
                        let window = Window::patches(self.reduction);
                        builder.convolve(&names.reduction, None, self.width, window)?;
                        builder.normalise(&names.reduction_norm, epsilon)?;
                    }
                    Ok(())
                })
            },
            |_| Ok(()),
        )?;
        builder.add(
            |builder| {
                builder.normalise(&at("layer_norm_2"), epsilon)?;
                let between = (self.width as f64 * self.mlp_ratio) as usize;
                builder.multiply(&at("mlp.dense1"), between)?;
                builder.depthwise_convolve(&at("mlp.dwconv.dwconv"), None, Window::centred(3, 1))?;
                builder.activate(activation);
                builder.multiply(&at("mlp.dense2"), self.width)
            },
            |_| Ok(()),
        )
    }
}

/// Reads the dimensions of all stages.
fn stages(config: &Config) -> Result<Vec<Stage>, LoadError> {
    let (widths, depths) = super::stages(config, "hidden_sizes")?;
    let list = |key: &str| {
        let values: Vec<usize> = config.required(key)?;
        if values.len() == widths.len() && values.iter().all(|value| (1..=1 << 16).contains(value)) {
            return Ok(values);
        }
        let reason = format!(
            "it must have {} values from 1 to 65536, as `hidden_sizes` has",
            widths.len()
        );
        Err(config.invalid_value(key, reason))
    };
    let heads = list("num_attention_heads")?;
    let (patches, strides, reductions) = (list("patch_sizes")?, list("strides")?, list("sr_ratios")?);
    if patches.iter().any(|patch| patch % 2 == 0) {
        return Err(config.invalid_value("patch_sizes", "odd ones are supported"));
    }
    let ratios: Vec<f64> = config.required("mlp_ratios")?;
    if ratios.len() != widths.len() || !ratios.iter().all(|ratio| *ratio > 0.0 && *ratio <= 64.0) {
        return Err(config.invalid_value(
            "mlp_ratios",
            "it must have a value above 0, at most 64, for every stage",
        ));
    }
    if widths.iter().zip(&heads).any(|(width, heads)| width % heads != 0) {
        return Err(config.invalid_value("num_attention_heads", "they must divide `hidden_sizes`"));
    }
    let sizes = widths
        .into_iter()
        .zip(depths)
        .zip(heads)
        .zip(patches.into_iter().zip(strides));
    let stages = sizes.zip(reductions.into_iter().zip(ratios));
    let stages = stages.map(
        |((((width, depth), heads), (patch, stride)), (reduction, mlp_ratio))| Stage {
            width,
            depth,
            heads,
            patch: [patch, stride],
            reduction,
            mlp_ratio,
        },
    );
    Ok(stages.collect())
}
