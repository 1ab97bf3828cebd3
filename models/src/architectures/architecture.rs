//! Registry entry of an architecture.

use super::dual::DualEncoderConfig;
use super::text_encoder::config::TextEncoderConfig;
use super::text_encoder::head::TextTask;
use super::vit::config::VitConfig;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::Device;
use crate::runtime::loaded::Built;

/// A supported architecture.
pub(super) struct Architecture {
    /// `architectures[0]` in `config.json`.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Tensor name prefix that only this class of its `model_type` has; `None` for the base model.
    pub head: Option<&'static str>,
    /// Function that builds the model from a checkpoint.
    pub build: Build,
    /// Name prefixes of tensors in checkpoints that the model does not use.
    pub unused: &'static [&'static str],
}

/// Function that builds a model of an architecture.
#[derive(Clone, Copy)]
pub(super) enum Build {
    /// Builds the whole model.
    Whole(fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>),
    /// Builds a partition or the whole model from the description of a text encoder.
    Text(fn(&Config) -> Result<TextEncoderConfig, LoadError>, TextTask),
    /// Builds a partition or the whole of an image classifier.
    Image(VitConfig),
    /// Builds a whole dual encoder of texts and images.
    Dual(DualEncoderConfig),
}
