//! Hiera (Ryali et al. 2023): stages of attention in windows, then over whole images; the first layer of each stage
//! but the first pools its queries. Images keep their order, so that windows are squares of pixels.

use super::Family;
use super::builder::{Builder, Window};
use super::pooled_attention::PooledAttention;
use super::steps::Layer;
use crate::architectures::encoder::{activation, epsilon};
use crate::architectures::vit::patches::side_lengths;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

pub(in crate::architectures) struct Hiera;

impl Family for Hiera {
    const BASE: &'static str = "hiera";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", Self::BASE);
        let network = Network::read(config)?;
        let same = |key: &str, default: usize| {
            if !config.keys().contains_key(key) {
                return Ok(default);
            }
            match side_lengths(config, key)? {
                [one, other] if one == other => Ok(one),
                _ => Err(config.invalid_value(key, "it must be the same in both directions")),
            }
        };
        let padding = same("patch_padding", 3)?;
        let window = Window {
            kernel: same("patch_size", 7)?,
            stride: same("patch_stride", 4)?,
            border: [padding; 4],
        };
        let unit = same("masked_unit_size", 8)?;
        if same("query_stride", 2)? != 2 || unit != 1 << (network.widths.len() - 1) {
            let reason = "units must become one pixel by halving in each stage but the first";
            return Err(config.invalid_value("masked_unit_size", reason));
        }
        builder.convolve(
            &at("embeddings.patch_embeddings.projection"),
            None,
            network.width(0),
            window,
        )?;
        if builder.size().iter().any(|side| !side.is_multiple_of(unit)) {
            let reason = "patches must form whole units of masked_unit_size";
            return Err(config.invalid_value("image_size", reason));
        }
        builder.add_positions(&at("embeddings.position_embeddings"))?;
        for (stage, depth) in network.depths.iter().enumerate() {
            for index in 0..*depth {
                let name = at(&format!("encoder.stages.{stage}.layers.{index}"));
                network.layer(builder, &name, (stage, index == 0 && stage > 0), unit)?;
            }
        }
        builder.mean();
        builder.normalise(&at("pooler.layernorm"), network.epsilon)
    }
}

/// Settings of a network.
struct Network {
    /// Channels of the stages.
    widths: Vec<usize>,
    depths: Vec<usize>,
    heads: Vec<usize>,
    /// Whether the attention of a stage is in windows.
    windowed: Vec<bool>,
    mlp_ratio: f64,
    activation: Activation,
    epsilon: f64,
}

impl Network {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let depths: Vec<usize> = config.required("depths")?;
        let heads: Vec<usize> = config.required("num_heads")?;
        let windowed: Vec<bool> = config.required("masked_unit_attention")?;
        let stages = depths.len();
        if stages == 0 || stages > 8 || heads.len() != stages || windowed.len() != stages {
            let reason = "num_heads and masked_unit_attention must have as many stages, from 1 to 8";
            return Err(config.invalid_value("depths", reason));
        }
        if config.optional("num_query_pool")?.unwrap_or(3) != stages - 1 {
            let reason = "every stage but the first must pool its queries";
            return Err(config.invalid_value("num_query_pool", reason));
        }
        let key = "embed_dim_multiplier";
        let factor = config.optional::<f64>(key)?.unwrap_or(2.0);
        if !(factor > 1.0 && factor <= 16.0) {
            return Err(config.invalid_value(key, "it must be above 1 and at most 16"));
        }
        let first = config.size("embed_dim")?;
        let power = |stage: usize| (first as f64 * factor.powf(stage as f64)) as usize;
        let widths: Vec<usize> = (0..stages).map(power).collect();
        let last = widths.last().copied().unwrap_or_default();
        if config
            .optional_size("hidden_size")?
            .is_some_and(|size| size != last)
        {
            let reason = format!("it must be the width of the last stage, {last}");
            return Err(config.invalid_value("hidden_size", reason));
        }
        let fits = |(width, heads): (&usize, &usize)| *heads > 0 && width.is_multiple_of(*heads);
        if !widths.iter().zip(&heads).all(fits) {
            return Err(config.invalid_value("num_heads", "they must divide the widths of their stages"));
        }
        let key = "mlp_ratio";
        let mlp_ratio = config.optional::<f64>(key)?.unwrap_or(4.0);
        if !(mlp_ratio > 0.0 && mlp_ratio <= 64.0) {
            return Err(config.invalid_value(key, "it must be above 0 and at most 64"));
        }
        Ok(Self {
            widths,
            depths,
            heads,
            windowed,
            mlp_ratio,
            activation: activation(config, "hidden_act")?,
            epsilon: epsilon(config, "layer_norm_eps")?,
        })
    }

    fn width(&self, stage: usize) -> usize {
        self.widths.get(stage).copied().unwrap_or_default()
    }

    /// Returns whether the attention of a stage is in windows.
    fn is_windowed(&self, stage: usize) -> bool {
        self.windowed.get(stage).copied().unwrap_or_default()
    }

    /// Adds a layer of a stage, which pools its queries if it is `pooled`; `unit` is the side of a window before the
    /// first pooling.
    fn layer<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        (stage, pooled): (usize, bool),
        unit: usize,
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let outputs = self.width(stage);
        let heads = self.heads.get(stage).copied().unwrap_or(1);
        // A pooling layer reads the images of the stage before it.
        let before = stage - usize::from(pooled);
        let windowed = self.is_windowed(stage) || self.is_windowed(before);
        let side = windowed.then_some(unit >> before);
        let attention = at("attn");
        if pooled {
            builder.normalise(&at("layernorm_before"), self.epsilon)?;
            builder.add(
                |builder| attend(builder, &attention, (outputs, heads), side, true),
                |builder| {
                    builder.multiply(&at("proj"), outputs)?;
                    builder.max_pool(Window::patches(2));
                    Ok(())
                },
            )?;
        } else {
            builder.add(
                |builder| {
                    builder.normalise(&at("layernorm_before"), self.epsilon)?;
                    attend(builder, &attention, (outputs, heads), side, false)
                },
                |_| Ok(()),
            )?;
        }
        builder.add(
            |builder| {
                builder.normalise(&at("layernorm_after"), self.epsilon)?;
                builder.multiply(&at("mlp.fc1"), (outputs as f64 * self.mlp_ratio) as usize)?;
                builder.activate(self.activation);
                builder.multiply(&at("mlp.fc2"), outputs)
            },
            |_| Ok(()),
        )
    }
}

/// Adds attention in windows of this side, or over whole images; see [`PooledAttention::take`].
fn attend<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    name: &str,
    (outputs, heads): (usize, usize),
    side: Option<usize>,
    pooled: bool,
) -> Result<(), LoadError> {
    let shape = builder.shape;
    let attention = PooledAttention::take(builder.layers(), name, shape, (outputs, heads), side, pooled)?;
    let [height, width, _] = shape;
    let factor = if pooled { 2 } else { 1 };
    builder.shape = [height / factor, width / factor, outputs];
    builder.push(Layer::AttendPooled(Box::new(attention)));
    Ok(())
}
