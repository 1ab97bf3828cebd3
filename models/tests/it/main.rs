//! Integration tests over the committed families and fixtures, in one binary.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

mod critics;
mod digits;
mod onnx;
mod onnx_texts;
mod precision;
mod sentiment;
mod shakespeare;
mod small_families;
mod unseen;
