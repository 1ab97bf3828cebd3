//! Errors of the placement, with their figures.

use serde::Serialize;
use thiserror::Error;

use super::channel::Route;
use kaskade_policy::invalid::Invalid;

/// A figure of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// `w_i(b)`.
    Memory,
    /// `u_i(b)`.
    Utilisation,
    /// `l_i(b)`.
    Latency,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Utilisation => "utilisation",
            Self::Latency => "latency",
        }
    }

    fn stand_in(self) -> &'static str {
        match self {
            Self::Memory => ", or give bytes per weight to assume",
            Self::Utilisation => ", or assume that a batch keeps the whole device busy",
            Self::Latency => "",
        }
    }
}

/// Formats a number of partitions: `1 partition`, `4 partitions`.
fn counted_partitions(number: u32) -> String {
    let noun = if number == 1 { "partition" } else { "partitions" };
    format!("{number} {noun}")
}

/// A cascade cannot be placed. The caller keeps an older plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlacementError {
    /// There are no devices.
    #[error("there are 0 devices; name at least one")]
    NoDevices,
    /// An option has a value that is not allowed.
    #[error("{option}: {found} is not {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        found: f64,
        /// Allowed values.
        expected: &'static str,
    },
    /// A channel's figures are no times.
    #[error(
        "the figures of the channel {route:?} give no time; use finite latencies of at least 0 and bandwidths above 0, or samples of both"
    )]
    Channel {
        /// Route whose channel it is.
        route: Route,
    },
    /// A nearer channel is slower than a farther one.
    #[error(
        "to move {bytes:.0} bytes takes {near_s:e} s by {near:?} and {far_s:e} s by {far:?}; a nearer channel that is slower would be avoided by \
         going farther, so measure both again"
    )]
    ChannelOrder {
        /// Size of the message.
        bytes: f64,
        /// The nearer route.
        near: Route,
        /// Time over the nearer route, seconds.
        near_s: f64,
        /// The farther route.
        far: Route,
        /// Time over the farther route, seconds.
        far_s: f64,
    },
    /// The profile is unsound: a NaN, a missing column, figures out of range.
    #[error("the profile cannot be placed from: {0}")]
    Profile(#[source] Invalid),
    /// The cascade is unsound.
    #[error("the cascade cannot be placed: {0}")]
    Cascade(#[source] Invalid),
    /// The cascade names a variant that the profile lacks.
    #[error("variant `{name}` of the cascade is not in the profile; profile it, or plan without it")]
    NoVariant {
        /// Name of the variant.
        name: String,
    },
    /// The profile has a hole.
    #[error(
        "the profile has no {} of `{variant}` at batch {batch}; measure it again{}",
        .figure.name(),
        .figure.stand_in()
    )]
    Hole {
        /// The variant.
        variant: String,
        /// The batch size.
        batch: u32,
        /// The missing figure.
        figure: Figure,
    },
    /// A figure of the profile is impossible.
    #[error("the {} of `{variant}` at batch {batch} is {found}; measure it again", .figure.name())]
    NotAFigure {
        /// The variant.
        variant: String,
        /// The batch size.
        batch: u32,
        /// The impossible figure.
        figure: Figure,
        /// Value of the figure.
        found: f64,
    },
    /// The plan to place is not a cascade of whole models.
    #[error("stage `{stage}` {why}; only a cascade of whole models can be placed")]
    NotACascade {
        /// The stage.
        stage: String,
        /// The error.
        why: &'static str,
    },
    /// A model fits no device, however it is cut (eq. 3).
    #[error(
        "memory: `{variant}` with {} (its maximum) needs {needed_bytes:.0} bytes on each device, and the largest device has {device_bytes}; use \
         devices with more memory, more devices, or allow more partitions",
        counted_partitions(*partitions)
    )]
    TooLarge {
        /// The variant.
        variant: String,
        /// Maximum number of partitions of the variant.
        partitions: u32,
        /// Memory of each partition, in a batch of one, bytes.
        needed_bytes: f64,
        /// Memory of the largest device, bytes.
        device_bytes: u64,
    },
    /// One copy of every model exceeds the memory (eq. 3).
    #[error(
        "memory: one copy of every model needs {needed_bytes:.0} bytes, and the {devices} devices have {device_bytes:.0} together; use more devices or fewer models"
    )]
    NoMemory {
        /// Memory of one copy of every model, bytes.
        needed_bytes: f64,
        /// Memory of all devices, bytes.
        device_bytes: f64,
        /// Number of devices.
        devices: usize,
    },
    /// The load exceeds the devices' time (eq. 4).
    #[error(
        "utilisation: {qps:.3} requests/s need {needed:.3} devices of kernel time at least, and {bound} of each of the {devices} devices may be used \
         ({available:.3} together); use more devices or plan for at most {max_qps:.3} requests/s"
    )]
    Overloaded {
        /// The load, requests/s.
        qps: f64,
        /// Kernel time per second that the load needs, in the best batches, seconds.
        needed: f64,
        /// Share of a device that may be used.
        bound: f64,
        /// Kernel time of all devices, at their speeds, seconds per second.
        available: f64,
        /// Number of devices.
        devices: usize,
        /// Load that the devices would carry without any other constraint, requests/s.
        max_qps: f64,
    },
    /// Every combination breaks a constraint, or none was packed.
    #[error(
        "no combination of replicas and partitions was placed for {qps:.3} requests/s: of {examined} examined, {memory} have more memory than there is, \
         {utilisation} more kernel time, and {unpacked} fit in total but not on single devices{}; use more devices or a lower load",
        if *.proven { " (proven)" } else { "" }
    )]
    Unplaced {
        /// The load, requests/s.
        qps: f64,
        /// Examined combinations.
        examined: u64,
        /// Examined combinations that break eq. 3 in sum or in an instance.
        memory: u64,
        /// Examined combinations that break eq. 4 in sum or in an instance.
        utilisation: u64,
        /// Combinations that were tried and not packed.
        unpacked: u64,
        /// Whether it is proven that none of them can be packed.
        proven: bool,
    },
    /// The plan would be unsound.
    #[error("the options do not make a sound plan: {0}")]
    Plan(#[source] Invalid),
}
