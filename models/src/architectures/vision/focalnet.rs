//! `FocalNet` (Yang et al. 2022): instead of attention, a pixel is multiplied by a gated sum of its surroundings of
//! growing size.

use super::Family;
use super::builder::{Builder, Window};
use super::modulation::Modulation;
use super::steps::Layer;
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Config, LoadError, transposed};
use crate::ops::{Activation, Ops};

/// Growth of the windows from level to level, pixels.
const GROWTH: usize = 2;

pub(in crate::architectures) struct FocalNet;

impl Family for FocalNet {
    const BASE: &'static str = "focalnet";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let network = Network::read(config)?;
        let sizes = |key: &str| config.required::<Vec<usize>>(key);
        let (depths, levels, windows) = (sizes("depths")?, sizes("focal_levels")?, sizes("focal_windows")?);
        if levels.len() < depths.len() || windows.len() < depths.len() {
            return Err(config.invalid_value(
                "focal_levels",
                "it needs an entry for every stage, as focal_windows",
            ));
        }
        let width = config.size("embed_dim")?;
        let name = "focalnet.embeddings";
        let window = [7, 4, 2];
        network.embed(
            builder,
            &format!("{name}.patch_embeddings.projection"),
            width,
            (config.size("patch_size")?, window),
        )?;
        builder.normalise(&format!("{name}.norm"), network.epsilon)?;
        for (stage, (depth, around)) in depths.iter().zip(levels.iter().zip(&windows)).enumerate() {
            let name = format!("focalnet.encoder.stages.{stage}");
            for layer in 0..*depth {
                network.layer(builder, &format!("{name}.layers.{layer}"), [*around.0, *around.1])?;
            }
            if stage + 1 < depths.len() {
                let outputs = 2 * builder.channels();
                let name = format!("{name}.downsample");
                network.embed(builder, &format!("{name}.projection"), outputs, (2, [3, 2, 1]))?;
                builder.normalise(&format!("{name}.norm"), network.epsilon)?;
            }
        }
        builder.normalise("focalnet.layernorm", network.epsilon)?;
        builder.mean();
        Ok(())
    }
}

/// Settings of all layers.
struct Network {
    /// Whether windows overlap when images shrink.
    overlaps: bool,
    activation: Activation,
    ratio: f64,
    epsilon: f64,
    /// Whether layers have scales.
    scales: bool,
    /// Whether norms follow the parts of a layer.
    norms_after: bool,
    modulation: ModulationSettings,
}

/// Settings of the modulation.
struct ModulationSettings {
    /// Whether a norm follows.
    has_norm: bool,
    /// Whether the surroundings are averaged.
    averages: bool,
}

impl Network {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let flag = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
        Ok(Self {
            overlaps: flag("use_conv_embed")?,
            activation: activation(config, "hidden_act")?,
            ratio: config.required("mlp_ratio")?,
            epsilon: epsilon(config, "layer_norm_eps")?,
            scales: flag("use_layerscale")?,
            norms_after: flag("use_post_layernorm")?,
            modulation: ModulationSettings {
                has_norm: flag("use_post_layernorm_in_modulation")?,
                averages: flag("normalize_modulator")?,
            },
        })
    }

    /// Adds a convolution by patches, or by overlapping windows of this kernel size, stride and padding.
    fn embed<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        outputs: usize,
        (patch, [kernel, stride, padding]): (usize, [usize; 3]),
    ) -> Result<(), LoadError> {
        // Images are filled up to whole patches.
        let [down, across] = builder
            .size()
            .map(|side| side.next_multiple_of(patch.max(1)) - side);
        let (mut window, own) = if self.overlaps {
            (Window::centred(kernel, stride), padding)
        } else {
            (Window::patches(patch), 0)
        };
        window.border = [own, own, own + down, own + across];
        builder.convolve(name, None, outputs, window)
    }

    /// Adds a layer: modulation and feed-forward; `around` is the number of levels and the size of the first window.
    fn layer<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        around: [usize; 2],
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let width = builder.channels();
        let part = |builder: &mut Builder<'_, '_, O>, norm: &str, scale: &str, mlp: bool| {
            builder.add(
                |builder| {
                    if !self.norms_after {
                        builder.normalise(&at(norm), self.epsilon)?;
                    }
                    if mlp {
                        builder.multiply(&at("mlp.fc1"), (width as f64 * self.ratio) as usize)?;
                        builder.activate(self.activation);
                        builder.multiply(&at("mlp.fc2"), width)?;
                    } else {
                        self.modulate(builder, &at("modulation"), around)?;
                    }
                    if self.norms_after {
                        builder.normalise(&at(norm), self.epsilon)?;
                    }
                    if self.scales {
                        builder.scale(&at(scale))?;
                    }
                    Ok(())
                },
                |_| Ok(()),
            )
        };
        part(builder, "norm1", "gamma_1", false)?;
        part(builder, "norm2", "gamma_2", true)
    }

    fn modulate<O: Ops>(
        &self,
        builder: &mut Builder<'_, '_, O>,
        name: &str,
        [levels, first]: [usize; 2],
    ) -> Result<(), LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let [height, across, width] = builder.shape;
        let rows = 2 * width + levels + 1;
        let weights = &mut *builder.layers().weights;
        let weight = weights.take(&at("projection_in.weight"), &[rows, width])?;
        let bias = weights.take(&at("projection_in.bias"), &[rows])?;
        let part = |builder: &mut Builder<'_, '_, O>, from: usize, count: usize| {
            let own = weight
                .get(from * width..(from + count) * width)
                .unwrap_or_default();
            let bias = bias.get(from..from + count).unwrap_or_default().to_vec();
            builder
                .layers()
                .upload(transposed(own, width), bias, width, count)
        };
        let input = [part(builder, 0, width), part(builder, width, width)];
        let gates = (0..=levels).map(|level| part(builder, 2 * width + level, 1));
        let gates: Vec<O::Linear> = gates.collect();
        let mut windows = Vec::with_capacity(levels);
        for level in 0..levels {
            let window = Window::centred(first + GROWTH * level, 1);
            let kernel = window.kernel;
            let name = at(&format!("focal_layers.{level}.0.weight"));
            let weight = builder
                .layers()
                .weights
                .take(&name, &[width, 1, kernel, kernel])?;
            let mut rows = transposed(&weight, kernel * kernel);
            // Appends the bias.
            rows.resize(rows.len() + width, 0.0);
            let convolution = builder.convolution(window);
            windows.push((convolution, builder.layers().ops.upload(rows, width)));
        }
        let layers = builder.layers();
        let context = layers.by_pixel(&at("projection_context"), &[width, width, 1, 1], 1)?;
        let norm = if self.modulation.has_norm {
            Some(layers.layer_norm(&at("layernorm"), width, self.epsilon)?)
        } else {
            None
        };
        let share = self.modulation.averages.then(|| {
            let share = vec![1.0 / (levels + 1) as f32; width];
            layers.ops.norm(share, None, 0.0)
        });
        let modulation = Modulation {
            input,
            gates,
            spread: layers.upload(vec![1.0; width], Vec::new(), 1, width),
            windows,
            share,
            context,
            norm,
            pixels: height * across,
        };
        builder.push(Layer::Modulate(Box::new(modulation)));
        builder.multiply(&at("projection_out"), width)
    }
}
