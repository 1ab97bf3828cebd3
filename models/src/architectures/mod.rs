//! Classifiers, detectors and question answering models, one file per architecture, and the registry of all
//! architectures.

mod answer_span;
mod bert;
pub mod cnn;
mod encoder;
pub mod grid;
mod image;
mod layers;
pub mod mlp;
pub(crate) mod onnx;
pub(crate) mod registry;
mod text;
mod vit;

#[cfg(test)]
mod slice_tests;
#[cfg(test)]
mod tests;
