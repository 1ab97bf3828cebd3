//! What every model is served with: tensors, the `Model` trait, batches, the executor thread, limits on processor time.

pub(crate) mod batch;
pub mod executor;
pub(crate) mod hidden_states;
pub mod loaded;
pub mod model;
pub mod pace;
pub mod slice;
pub mod tensor;
