//! The workers of an app, with their devices.

use std::num::{NonZeroU32, NonZeroUsize};

use kaskade_models::device::DeviceChoice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, SubjectToken};

/// A worker: one process that runs replicas on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// Name, unique in the app.
    pub name: SubjectToken,
    /// Device of its replicas: `cpu`, `cuda` or `cuda:1` [default: the variant's, or else the app's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
    /// Memory of its device that it may use: planners place no more on it, and a model that needs more is not loaded
    /// [default: the planner's `memory` when planning, unlimited when loading].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Cores that each of its replicas computes with on the CPU, unless its variant has fewer [default: all that the process
    /// may use, by its affinity mask and control group].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<NonZeroUsize>,
    /// Replicas of each variant. In a pipeline: slots, each of which runs one variant at a time.
    #[serde(default = "one")]
    pub replicas: NonZeroU32,
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Returns the workers of an app that states none: one worker called `local`.
pub(super) fn default_workers() -> Vec<WorkerConfig> {
    vec![WorkerConfig {
        name: SubjectToken::local(),
        device: None,
        memory: None,
        cores: None,
        replicas: NonZeroU32::MIN,
    }]
}
