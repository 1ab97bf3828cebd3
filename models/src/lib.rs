//! What serves: tensors, the [`Model`] trait, and the families that burn runs.
//!
//! | module | holds |
//! |---|---|
//! | [`tensor`] | tensors as they travel (Open Inference Protocol v2) |
//! | [`idx`] | labelled images in IDX files |
//! | [`model`] | the trait that everything servable implements, and what a request must bring |

pub mod idx;
pub mod model;
pub mod tensor;

pub use model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
pub use tensor::{Datatype, Tensor, TensorError};
