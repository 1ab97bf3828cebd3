//! `CvT` (Wu et al. 2021): overlapping patches, and attention with convolutional projections.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use super::conv_attention::ConvolvedAttention;
use super::steps::Layer;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// Epsilon of all norms, torch's default.
const EPSILON: f64 = 1e-5;
/// Maximum kernel size, stride and padding.
const MAX_SIDE: usize = 63;
/// Maximum width and depth.
const MAX_SIZE: usize = 1 << 16;

pub(in crate::architectures) struct Cvt;

impl Family for Cvt {
    const BASE: &'static str = "cvt";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        for stage in stages(config)? {
            stage.add(builder, config)?;
        }
        builder.keep_first();
        builder.normalise("layernorm", EPSILON)?;
        builder.mean();
        Ok(())
    }
}

/// Dimensions of a stage.
struct Stage {
    name: String,
    width: usize,
    depth: usize,
    heads: usize,
    patches: Window,
    /// Windows of queries, and of keys and values.
    windows: [Window; 2],
    between: usize,
    biased: bool,
    with_class: bool,
}

impl Stage {
    fn add<O: Ops>(&self, builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let patches = format!("{}.embedding.convolution_embeddings", self.name);
        builder.convolve(&format!("{patches}.projection"), None, self.width, self.patches)?;
        builder.normalise(&format!("{patches}.normalization"), EPSILON)?;
        let size = builder.size();
        let [queries, keys] = self.windows.map(|window| builder.convolution(window).result());
        if size.contains(&0) || keys.contains(&0) || queries != size {
            let reason = "patches and convolutions must fit the images of every stage";
            return Err(config.invalid_value("patch_sizes", reason));
        }
        if self.with_class {
            builder.prepend(&format!("{}.cls_token", self.name))?;
        }
        for layer in 0..self.depth {
            let name = format!("{}.layers.{layer}", self.name);
            let at = |part: &str| format!("{name}.{part}");
            builder.add(
                |builder| {
                    builder.normalise(&at("layernorm_before"), EPSILON)?;
                    self.attend(builder, &at("attention.attention"), size)?;
                    builder.multiply(&at("attention.output.dense"), self.width)
                },
                |_| Ok(()),
            )?;
            builder.add(
                |builder| {
                    builder.normalise(&at("layernorm_after"), EPSILON)?;
                    builder.multiply(&at("intermediate.dense"), self.between)?;
                    builder.activate(Activation::Gelu);
                    builder.multiply(&at("output.dense"), self.width)
                },
                |_| Ok(()),
            )?;
        }
        Ok(())
    }

    fn attend<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        [height, width]: [usize; 2],
    ) -> Result<(), LoadError> {
        let mut projected = |part: &str, window: Window| {
            let name = format!("{name}.convolution_projection_{part}.convolution_projection");
            builder.beside([height, width, self.width], |builder| {
                let norm = BatchNorm {
                    name: &format!("{name}.normalization"),
                    epsilon: EPSILON,
                };
                builder.depthwise_convolve(&format!("{name}.convolution"), Some(norm), window)
            })
        };
        let [queries, keys] = self.windows;
        let steps = [
            projected("query", queries)?,
            projected("key", keys)?,
            projected("value", keys)?,
        ];
        let names = ["query", "key", "value"].map(|part| format!("{name}.projection_{part}"));
        let attention = ConvolvedAttention::take(
            builder.layers(),
            names,
            steps,
            (self.width, self.heads, self.biased),
            (height * width, self.with_class),
        )?;
        builder.push(Layer::AttendConvolved(Box::new(attention)));
        Ok(())
    }
}

/// Reads the dimensions of all stages.
fn stages(config: &Config) -> Result<Vec<Stage>, LoadError> {
    let depths: Vec<usize> = config.required("depth")?;
    let count = depths.len();
    if count == 0 {
        return Err(config.invalid_value("depth", "it must have at least one stage"));
    }
    let sizes = |key: &str, least: usize, most: usize| {
        let values: Vec<usize> = config.required(key)?;
        if values.len() == count && values.iter().all(|value| (least..=most).contains(value)) {
            return Ok(values);
        }
        let reason = format!("it must have {count} values from {least} to {most}, as `depth` has");
        Err(config.invalid_value(key, reason))
    };
    let flags = |key: &str| {
        let values: Vec<bool> = config.required(key)?;
        if values.len() == count {
            return Ok(values);
        }
        Err(config.invalid_value(key, format!("it must have {count} values, as `depth` has")))
    };
    let depths = sizes("depth", 0, MAX_SIZE)?;
    let (widths, heads) = (sizes("embed_dim", 1, MAX_SIZE)?, sizes("num_heads", 1, MAX_SIZE)?);
    let extents = |key: &str, least| sizes(key, least, MAX_SIDE);
    let patches = [
        extents("patch_sizes", 1)?,
        extents("patch_stride", 1)?,
        extents("patch_padding", 0)?,
    ];
    let kernels = extents("kernel_qkv", 1)?;
    let queries = [extents("stride_q", 1)?, extents("padding_q", 0)?];
    let keys = [extents("stride_kv", 1)?, extents("padding_kv", 0)?];
    let (biased, with_class) = (flags("qkv_bias")?, flags("cls_token")?);
    if !with_class
        .iter()
        .copied()
        .eq((1..=count).map(|stage| stage == count))
    {
        return Err(config.invalid_value("cls_token", "the last stage must have one, and no other"));
    }
    let methods: Vec<String> = config.required("qkv_projection_method")?;
    if methods.len() != count || methods.iter().any(|method| method != "dw_bn") {
        let reason = "only dw_bn is supported, once for each stage";
        return Err(config.invalid_value("qkv_projection_method", reason));
    }
    let ratios: Vec<f64> = config.required("mlp_ratio")?;
    if ratios.len() != count || !ratios.iter().all(|ratio| *ratio > 0.0 && *ratio <= 64.0) {
        let reason = "it must have a value above 0, at most 64, for every stage";
        return Err(config.invalid_value("mlp_ratio", reason));
    }
    if widths.iter().zip(&heads).any(|(width, heads)| width % heads != 0) {
        return Err(config.invalid_value("num_heads", "they must divide `embed_dim`"));
    }
    let at = |values: &[usize], index: usize| values.get(index).copied().unwrap_or_default();
    let window = |kernels: &[usize], [strides, borders]: [&[usize]; 2], index: usize| Window {
        kernel: at(kernels, index),
        stride: at(strides, index),
        border: [at(borders, index); 4],
    };
    let [patch, strides, borders] = &patches;
    let ratios = ratios.iter().zip(biased.into_iter().zip(with_class));
    let stages = ratios
        .enumerate()
        .map(|(index, (ratio, (biased, with_class)))| Stage {
            name: format!("{}.encoder.stages.{index}", Cvt::BASE),
            width: at(&widths, index),
            depth: at(&depths, index),
            heads: at(&heads, index),
            patches: window(patch, [strides, borders], index),
            windows: [
                window(&kernels, queries.each_ref().map(Vec::as_slice), index),
                window(&kernels, keys.each_ref().map(Vec::as_slice), index),
            ],
            between: (at(&widths, index) as f64 * ratio) as usize,
            biased,
            with_class,
        });
    Ok(stages.collect())
}
