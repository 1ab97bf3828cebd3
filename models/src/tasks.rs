//! Task outputs: converts logits to the outputs of classifiers, token classifiers, question answering and embedding
//! models.

pub(crate) mod answer_span;
pub mod class_names;
pub(crate) mod classification;
pub(crate) mod embedding;
pub mod entities;
pub(crate) mod labelling;
