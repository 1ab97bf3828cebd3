//! MLP-Mixer (Tolstikhin et al. 2021) and `ResMLP` (Touvron et al. 2021) as built by timm: linear layers over the
//! pixels of a channel, and over the channels of a pixel.

use super::Family;
use super::builder::{Builder, Window};
use crate::checkpoint::timm::MIXER;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = MIXER;
/// Epsilon of the norms.
const EPSILON: f64 = 1e-6;

pub(in crate::architectures) struct Mixer;

impl Family for Mixer {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.head";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let at = |name: &str| format!("{}.{name}", Self::BASE);
        let (patch, width) = (config.size("patch_size")?, config.size("hidden_size")?);
        if builder.size().iter().any(|side| !side.is_multiple_of(patch)) {
            return Err(config.invalid_value("patch_size", "it must divide the sides of the images"));
        }
        builder.convolve(&at("stem.proj"), None, width, Window::patches(patch))?;
        let residual = config.optional("affine")?.unwrap_or(false);
        for block in 0..config.size("num_hidden_layers")? {
            let name = at(&format!("blocks.{block}"));
            if residual {
                add_residual(builder, &name)?;
            } else {
                add_mixer(builder, &name)?;
            }
        }
        if residual {
            builder.mean();
            return builder.scale_and_shift(&at("norm"));
        }
        builder.normalise(&at("norm"), EPSILON)?;
        builder.mean();
        Ok(())
    }
}

/// Adds a block of MLP-Mixer.
fn add_mixer<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
    let (shape, width) = (builder.shape, builder.channels());
    builder.add(
        |builder| {
            builder.normalise(&format!("{name}.norm1"), EPSILON)?;
            builder.exchange();
            feed_forward(builder, &format!("{name}.mlp_tokens"), width / 2)?;
            builder.exchange_back(shape);
            Ok(())
        },
        |_| Ok(()),
    )?;
    builder.add(
        |builder| {
            builder.normalise(&format!("{name}.norm2"), EPSILON)?;
            feed_forward(builder, &format!("{name}.mlp_channels"), 4 * width)
        },
        |_| Ok(()),
    )
}

/// Adds a block of `ResMLP`.
fn add_residual<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str) -> Result<(), LoadError> {
    let (shape, width) = (builder.shape, builder.channels());
    let [height, across, _] = shape;
    builder.add(
        |builder| {
            builder.copy();
            builder.scale_and_shift(&format!("{name}.norm1"))?;
            builder.exchange();
            builder.multiply(&format!("{name}.linear_tokens"), height * across)?;
            builder.exchange_back(shape);
            builder.scale(&format!("{name}.ls1"))
        },
        |_| Ok(()),
    )?;
    builder.add(
        |builder| {
            builder.copy();
            builder.scale_and_shift(&format!("{name}.norm2"))?;
            feed_forward(builder, &format!("{name}.mlp_channels"), 4 * width)?;
            builder.scale(&format!("{name}.ls2"))
        },
        |_| Ok(()),
    )
}

/// Adds two linear layers with a GELU between them.
fn feed_forward<O: Ops>(builder: &mut Builder<'_, '_, O>, name: &str, inner: usize) -> Result<(), LoadError> {
    let outputs = builder.channels();
    builder.multiply(&format!("{name}.fc1"), inner)?;
    builder.activate(Activation::Gelu);
    builder.multiply(&format!("{name}.fc2"), outputs)
}

impl<O: Ops> Builder<'_, '_, O> {
    /// Multiplies the channels of the last result by the scale `{name}.alpha` and adds the shift `{name}.beta`.
    fn scale_and_shift(&mut self, name: &str) -> Result<(), LoadError> {
        let [height, width, channels] = self.shape;
        let mut take = |part: &str| {
            let weights = &mut *self.layers().weights;
            weights.take(&format!("{name}.{part}"), &[1, 1, channels])
        };
        let (alpha, beta) = (take("alpha")?, take("beta")?);
        self.scale_by(alpha);
        self.add_rows(beta.repeat(height * width));
        Ok(())
    }
}
