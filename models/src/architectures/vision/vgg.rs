//! VGG (Simonyan and Zisserman 2015, section 2) as built by timm, with and without batch norms: convolutions and
//! pooling, then two large linear layers.

use super::Family;
use super::builder::{BatchNorm, Builder, Window};
use crate::checkpoint::timm::VGG;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Ops};

/// `model_type` and class of these networks in a configuration.
pub(in crate::architectures) const MODEL_TYPE: &str = VGG;
/// Epsilon of the batch norms.
const EPSILON: f64 = 1e-5;
/// Side of the image that the first large layer reads, pixels.
const SIDE: usize = 7;

pub(in crate::architectures) struct Vgg;

impl Family for Vgg {
    const BASE: &'static str = "timm_model";
    const CLASSIFIER: &'static str = "timm_model.head.fc";

    fn build<O: Ops>(builder: &mut Builder<'_, '_, O>, config: &Config) -> Result<(), LoadError> {
        let normalised = config.optional("batch_norm")?.unwrap_or(false);
        let stages = config.required::<Vec<Vec<usize>>>("stages")?;
        // Convolutions, norms, activations and pooling are numbered consecutively.
        let mut place = 0;
        for channels in stages {
            for channels in channels {
                let [name, norm] = [place, place + 1].map(|place| format!("{}.features.{place}", Self::BASE));
                builder.convolve(&name, None, channels, Window::centred(3, 1))?;
                if normalised {
                    builder.normalise_batch(BatchNorm {
                        name: &norm,
                        epsilon: EPSILON,
                    })?;
                }
                builder.activate(Activation::Relu);
                place += if normalised { 3 } else { 2 };
            }
            builder.max_pool(Window::patches(2));
            place += 1;
        }
        if builder.size() != [SIDE; 2] {
            let reason = format!("images must become {SIDE} by {SIDE} pixels");
            return Err(config.invalid_value("image_size", reason));
        }
        let features = config.size("num_features")?;
        for (name, window) in [("fc1", Window::patches(SIDE)), ("fc2", Window::patches(1))] {
            let name = format!("{}.pre_logits.{name}", Self::BASE);
            builder.convolve(&name, None, features, window)?;
            builder.activate(Activation::Relu);
        }
        Ok(())
    }
}
