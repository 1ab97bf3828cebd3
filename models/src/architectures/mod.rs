//! Architectures of classifiers, detectors and question answering models, and the registry that finds a checkpoint's.

mod bert;
pub mod cnn;
mod encoder;
pub mod grid;
mod image;
mod layers;
pub mod mlp;
pub(crate) mod registry;
mod text;
mod vit;

#[cfg(test)]
mod slice_tests;
#[cfg(test)]
mod tests;
