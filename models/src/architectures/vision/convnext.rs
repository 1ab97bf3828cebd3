//! `ConvNeXt` (Liu et al. 2022, section 2) and its second version (Woo et al. 2023), which normalises the
//! responses of a layer instead of scaling its output.

use super::Family;
use super::builder::{Builder, Window};
use crate::architectures::encoder::{activation, epsilon};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::Device;
use crate::ops::Ops;
use crate::runtime::loaded::Built;

/// Added to the variance of all norms but the last.
const EPSILON: f64 = 1e-6;

/// Builds a classifier of the first version.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(in crate::architectures) fn build(
    checkpoint: &mut Checkpoint,
    device: &Device,
) -> Result<Built, LoadError> {
    super::build::<First>(checkpoint, device)
}

/// Builds a classifier of the second version.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(in crate::architectures) fn build_second(
    checkpoint: &mut Checkpoint,
    device: &Device,
) -> Result<Built, LoadError> {
    super::build::<Second>(checkpoint, device)
}

struct First;
struct Second;

impl Family for First {
    const BASE: &'static str = "convnext";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let scaled = config.optional("layer_scale_init_value")?.unwrap_or(1e-6) > 0.0;
        steps(builder, config, Self::BASE, scaled, false)
    }
}

impl Family for Second {
    const BASE: &'static str = "convnextv2";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        steps(builder, config, Self::BASE, false, true)
    }
}

fn steps<O: Ops>(
    builder: &mut Builder<'_, '_, O>,
    config: &Config,
    base: &str,
    scaled: bool,
    responses: bool,
) -> Result<(), LoadError> {
    let activation = activation(config, "hidden_act")?;
    let (sizes, depths) = super::stages(config, "hidden_sizes")?;
    let patch = config.size("patch_size")?;
    for (stage, (width, depth)) in sizes.into_iter().zip(depths).enumerate() {
        if stage == 0 {
            let name = format!("{base}.embeddings.patch_embeddings");
            builder.convolve(&name, None, width, Window::patches(patch))?;
            builder.normalise(&format!("{base}.embeddings.layernorm"), EPSILON)?;
        } else {
            let name = format!("{base}.encoder.stages.{stage}.downsampling_layer");
            builder.normalise(&format!("{name}.0"), EPSILON)?;
            builder.convolve(&format!("{name}.1"), None, width, Window::patches(2))?;
        }
        for layer in 0..depth {
            let name = format!("{base}.encoder.stages.{stage}.layers.{layer}");
            let at = |part: &str| format!("{name}.{part}");
            builder.add(
                |builder| {
                    builder.convolve_channels(&at("dwconv"), None, Window::centred(7, 1))?;
                    builder.normalise(&at("layernorm"), EPSILON)?;
                    builder.multiply(&at("pwconv1"), 4 * width)?;
                    builder.activate(activation);
                    if responses {
                        builder.normalise_responses(&at("grn"), EPSILON as f32)?;
                    }
                    builder.multiply(&at("pwconv2"), width)?;
                    if scaled {
                        builder.scale(&at("layer_scale_parameter"))?;
                    }
                    Ok(())
                },
                |_| Ok(()),
            )?;
        }
    }
    builder.mean();
    builder.normalise(&format!("{base}.layernorm"), epsilon(config, "layer_norm_eps")?)
}
