//! Classifiers, detectors and question answering models, one file per architecture, and the registry of all
//! architectures.

mod architecture;
pub mod cnn;
mod dual;
mod encoder;
pub mod grid_detector;
mod image;
mod image_families;
mod layers;
pub mod mlp;
pub(crate) mod onnx;
pub(crate) mod registry;
mod static_embedding;
pub(crate) mod text;
mod text_decoder;
mod text_encoder;
mod text_families;
mod vision;
mod vit;
mod weight_layout;

#[cfg(test)]
mod tests;
