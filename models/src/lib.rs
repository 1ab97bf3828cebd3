//! What serves: tensors, the [`Model`] trait, and the families that burn runs.
//!
//! | module | holds |
//! |---|---|
//! | [`tensor`] | tensors as they travel (Open Inference Protocol v2) |
//! | [`idx`] | labelled images in IDX files |
//! | [`power`] | energy readings of a device, their source always named |
//! | [`manifest`] | which checkpoints make up a family |
//! | [`memory`] | memory of a device and of this process |
//! | [`model`] | the trait that everything servable implements, and what a request must bring |
//! | [`mod@selftest`] | the suite that tells whether a device computes what it should, and how fast |
//! | [`checkpoint`] | Hugging Face directories, read strictly |
//! | [`executor`] | the thread that a model lives on |
//! | [`engine`] | generating with language models: a hybrid cache, offloading, continuous batching |
//! | [`fixtures`] | small checkpoints with known answers, to compare a device with transformers |
//! | [`families`] | the models that burn runs, and the registry that finds a checkpoint's |
//! | [`device`] | the device that models run on |
//! | [`pace`] | models that take no more than a share of a core |
//! | [`slice`](mod@slice) | models cut by layers |

pub mod architectures;
pub mod checkpoint;
mod data;
mod decoder;
pub mod device;
pub mod generation;
pub mod language;
pub mod ops;
pub mod power;
mod runtime;
pub mod selftest;

pub use architectures::registry::{LoadOptions, load, load_checkpoint};
/// Where a model's tensors live and compute: burn's device, chosen at run time.
pub use burn::tensor::Device;
pub use checkpoint::{Checkpoint, LoadError};
pub use data::{idx, manifest};
pub use device::{DeviceChoice, DeviceError, DeviceInfo, memory};
pub use language::Generation;
pub use power::{EnergySample, EnergySource, PowerConfig, PowerMeter};
pub use runtime::executor::{BatchResult, Executor, RunError, SpawnError, Stepped};
pub use runtime::loaded::{Loaded, ModelInfo, Task};
pub use runtime::model::{
    Continuous, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Progress, Signature, check_outputs,
};
pub use runtime::pace::{CoreShare, Paced};
pub use runtime::slice::Slice;
pub use runtime::tensor::{Datatype, Tensor, TensorError};
pub use selftest::{SelftestExtent, SelftestOptions, SelftestReport, fixtures, selftest};
