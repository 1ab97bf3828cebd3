//! What the registry knows of an architecture.

use super::dual::DualEncoderConfig;
use super::text_encoder::config::TextEncoderConfig;
use super::text_encoder::head::TextTask;
use super::vit::config::VitConfig;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::Device;
use crate::runtime::loaded::Built;

/// A supported architecture.
pub(super) struct Architecture {
    /// `architectures[0]` of its `config.json`.
    pub name: &'static str,
    /// `model_type` of its `config.json`.
    pub model_type: &'static str,
    /// Prefix of a tensor that only this class of its `model_type` has; `None` for the base model.
    pub head: Option<&'static str>,
    /// Builds the model from a checkpoint.
    pub build: Build,
    /// Name prefixes of tensors that its checkpoints contain but the model does not use.
    pub unused: &'static [&'static str],
}

/// How an architecture builds a model.
#[derive(Clone, Copy)]
pub(super) enum Build {
    /// As a whole only.
    Whole(fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>),
    /// A partition of its layers, or the whole, from the description of a text encoder.
    Text(fn(&Config) -> Result<TextEncoderConfig, LoadError>, TextTask),
    /// Likewise, an image classifier.
    Image(VitConfig),
    /// As a whole only, an encoder of texts and images.
    Dual(DualEncoderConfig),
}
