//! What serves: tensors, the [`Model`] trait, and the families that burn runs.
//!
//! | module | holds |
//! |---|---|
//! | [`device`] | the device that models run on |
//! | [`tensor`] | tensors as they travel (Open Inference Protocol v2) |
//! | [`power`] | energy readings of a device, their source always named |
//! | [`model`] | the trait that everything servable implements, and what a request must bring |

pub mod device;
pub mod model;
pub mod power;
pub mod tensor;

pub use device::{DeviceChoice, DeviceError, DeviceInfo};
pub use model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
pub use power::{EnergySample, EnergySource, PowerConfig, PowerMeter};
pub use tensor::{Datatype, Tensor, TensorError};
