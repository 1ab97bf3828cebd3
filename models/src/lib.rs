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

pub mod checkpoint;
pub mod continuous;
pub mod device;
pub mod engine;
pub mod executor;
pub mod families;
pub mod fixtures;
pub mod idx;
pub mod language;
pub mod manifest;
pub mod memory;
pub mod model;
pub mod pace;
pub mod power;
pub mod selftest;
pub mod slice;
pub mod tensor;

/// Where a model's tensors live and compute: burn's device, chosen at run time.
pub use burn::tensor::Device;
pub use checkpoint::{Checkpoint, LoadError};
pub use continuous::{Continuous, Progress};
pub use device::{DeviceChoice, DeviceError, DeviceInfo};
pub use executor::{BatchResult, Executor, RunError, SpawnError, Stepped};
pub use families::{LoadOptions, Loaded, ModelInfo, Task, load, load_checkpoint};
pub use language::Generation;
pub use model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature, check_outputs};
pub use pace::{CoreShare, Paced};
pub use power::{EnergySample, EnergySource, PowerConfig, PowerMeter};
pub use selftest::{SelftestExtent, SelftestOptions, SelftestReport, selftest};
pub use slice::Slice;
pub use tensor::{Datatype, Tensor, TensorError};
