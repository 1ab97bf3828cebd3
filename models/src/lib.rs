//! Model serving for Kaskade: checkpoints, architectures, the model executor and the language model engine.
//!
//! | folder | holds |
//! |---|---|
//! | `runtime/` | tensors (Open Inference Protocol v2), [`Model`] trait, executor thread, CPU limits, hidden states between partitions |
//! | [`checkpoint`] | Hugging Face directories and GGUF files: configuration, weights, tokenizer file |
//! | [`idx`] | labelled images in IDX files |
//! | [`images`] | decoding of image files, and preprocessing by `preprocessor_config.json` |
//! | [`device`] | selection of the device that models run on, and its memory |
//! | `precision/` | weight types ([`WeightType`]): f32, bf16, f16, and GGML's block formats |
//! | `quantise` | offline quantisation of a checkpoint |
//! | [`power`] | energy readings of a device, with their source |
//! | [`ops`] | tensor operations of models: kernels for the CPU, and burn with the feature `burn` |
//! | `decoder/` | configuration and weights of language models, one file per architecture |
//! | [`generation`] | the engine for language models: hybrid cache, offloading, continuous batching |
//! | [`language`] | language models behind the [`Model`] trait |
//! | [`architectures`] | classifiers, detectors and question answering, and the registry of all architectures |
//! | `tasks/` | outputs of classifiers, question answering and embedding models; [`entities`] of token classifiers |
//! | [`mod@selftest`] | suite that checks a device's results and measures its speed; [`fixtures`] are checkpoints with expected outputs |

pub mod architectures;
pub mod checkpoint;
mod decoder;
pub mod device;
pub mod generation;
pub mod idx;
pub mod images;
pub mod language;
pub mod ops;
pub mod power;
mod precision;
mod quantise;
mod runtime;
pub mod selftest;
mod tasks;
#[cfg(test)]
mod test_support;

pub use architectures::onnx::{folder_of_onnx, load_onnx, parameters_of_onnx, tokenizer_of_onnx};
pub use architectures::registry::{
    CheckpointKind, LoadOptions, architecture, kind_of, load, load_checkpoint, partitioning, reads_texts,
};
pub use checkpoint::text_files::{check_chat_template, unused_vocabulary};
pub use checkpoint::{Checkpoint, LoadError, fingerprint, fingerprint_of_bytes};
pub use device::{Device, DeviceChoice, DeviceError, DeviceInfo, memory};
pub use kaskade_policy::plan::Partition;
pub use language::Generation;
pub use power::{EnergySample, EnergySource, PowerConfig, PowerMeter};
pub use precision::{Table, UnknownWeightType, WeightType};
pub use quantise::{QuantiseError, Quantised, quantise};
pub use runtime::answers::{Answers, Described, OutputSpec, observe_outputs};
pub use runtime::core_share::{CoreShare, Throttled};
pub use runtime::cores::{Cores, CoresError, PinnedModel};
pub use runtime::datatype::Datatype;
pub use runtime::executor::{BatchResult, Executor, RunError, SpawnError, StepResult};
pub use runtime::loaded::{Loaded, ModelInfo, Task};
pub use runtime::model::{
    Availability, Continuous, Extent, InputSpec, Inputs, Model, ModelError, Outputs, Preprocessor, Progress,
    Signature, Waker, check_outputs,
};
pub use runtime::partitioning::Partitioning;
pub use runtime::sample_request::{SampleError, SampleSize, sample_request};
pub use runtime::tensor::{Tensor, TensorError};
pub use runtime::usage::{USAGE, tokens_of, total_usage};
pub use runtime::warm_up::warm_up;
pub use selftest::{SelftestExtent, SelftestOptions, SelftestReport, fixtures, selftest};
pub use tasks::class_names;
pub use tasks::classification::best_class;
pub use tasks::embedding::{EMBEDDING_OUTPUTS, PROMPT_NAME, Similarity};
pub use tasks::entities;
