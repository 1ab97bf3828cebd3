//! Model runtime: tensors, the `Model` trait, batches, the executor thread, CPU limits, hidden states between
//! partitions.

pub(crate) mod answers;
pub(crate) mod batch;
pub(crate) mod core_share;
pub(crate) mod cores;
pub(crate) mod datatype;
pub(crate) mod executor;
pub(crate) mod extent;
pub(crate) mod hidden_states;
pub(crate) mod loaded;
pub(crate) mod model;
pub(crate) mod partitioning;
pub(crate) mod sample_request;
pub(crate) mod tensor;
pub(crate) mod usage;
pub(crate) mod warm_up;
