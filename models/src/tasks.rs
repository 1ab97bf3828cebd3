//! What models answer: outputs of classifiers, token classifiers, question answering and embeddings from the numbers that an
//! architecture computes.

pub(crate) mod answer_span;
pub mod class_names;
pub(crate) mod classification;
pub(crate) mod embedding;
pub mod entities;
pub(crate) mod labelling;
