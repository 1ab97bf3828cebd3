//! Errors of planning.

use std::io;
use std::path::{Path, PathBuf};

use kaskade_planners::allocate::AllocateError;
use kaskade_planners::cascade::PlanError;
use kaskade_planners::gears::GearError;
use kaskade_planners::manager::ManagerError;
use kaskade_policy::invalid::{FileError, Invalid};
use thiserror::Error;

use crate::family::FamilyError;

/// Error of planning for an app.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanningError {
    /// A file cannot be used.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<PlanningError>,
    },
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A profile cannot be read.
    #[error("{} cannot be read; `kaskade profile` writes one", path.display())]
    UnreadableProfile {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A plan cannot be read.
    #[error("cannot be read; `kaskade plan` writes plans")]
    UnreadablePlan(#[source] io::Error),
    /// A file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file does not have the required format.
    #[error(transparent)]
    Format(#[from] FileError),
    /// A file is not valid TOML of its format.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A file is not valid JSON of its format.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A plan or pipeline is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Neither a file nor the app states the pipeline.
    #[error("no pipeline is given: give `--pipeline FILE`, or `--app FILE` of an app with `[pipeline]`")]
    NoPipeline,
    /// The app has no variants.
    #[error("the app has no variants; add `[[variants]]` to its file")]
    NoVariants,
    /// The plan belongs to another app.
    #[error("the plan is for app `{plan}`, not for `{app}`; make one with `kaskade plan`")]
    OtherApp {
        /// App of the plan.
        plan: String,
        /// App to be served.
        app: String,
    },
    /// The profile belongs to another app.
    #[error("the profile is of app `{profile}`, not of `{app}`; profile this one")]
    OtherProfile {
        /// App of the profile.
        profile: String,
        /// App to be planned.
        app: String,
    },
    /// A planner's profile file belongs to another app.
    #[error("{}: is the profile of app `{profile}`, not of `{app}`; `kaskade profile` makes one", path.display())]
    OtherProfileFile {
        /// The file.
        path: PathBuf,
        /// App of the profile.
        profile: String,
        /// App to be planned.
        app: String,
    },
    /// The plan names a variant that the app does not have.
    #[error("variants[{index}].name: the app has no variant `{variant}`; profile and plan again")]
    UnknownVariant {
        /// Index of the variant's replica in the plan.
        index: usize,
        /// The variant.
        variant: String,
    },
    /// The plan names a worker that the app does not have.
    #[error("placement[{index}].worker: the app has no worker `{worker}`; plan again with `--app`")]
    UnknownWorker {
        /// Index of the worker's replica in the plan.
        index: usize,
        /// The worker.
        worker: String,
    },
    /// The plan splits a variant into more partitions than possible.
    #[error(
        "placement[{index}].partition: `{variant}` is split into {of} partitions, and {}; plan again with `--app`, or with a new profile",
        layers_text(*.max_partitions)
    )]
    Partitions {
        /// Index of the replica in the plan.
        index: usize,
        /// The variant.
        variant: String,
        /// Number of partitions in the plan.
        of: u32,
        /// Largest number of partitions of the checkpoint.
        max_partitions: u32,
    },
    /// A checkpoint differs from the one that the plan was made for.
    #[error("placement[{index}].checkpoint: {source}")]
    OtherCheckpoint {
        /// Index of the replica in the plan.
        index: usize,
        /// The difference.
        source: Box<FamilyError>,
    },
    /// The planner cannot bound the quantile of the latency objective.
    #[error(
        "slo: the gear planner bounds p95, not {quantile}; write `slo = {{ p95 = \"{limit}\" }}`, or give the planner another objective"
    )]
    Quantile {
        /// The quantile of the app's objective.
        quantile: &'static str,
        /// Limit of the objective.
        limit: String,
    },
    /// A GPU has slots for several variants of a pipeline.
    #[error(
        "workers: `{worker}` has {places} replicas on `{device}`; in a pipeline a GPU runs one variant, name a worker for each"
    )]
    SharedGpu {
        /// The worker.
        worker: String,
        /// Number of replicas of the worker.
        places: u32,
        /// Device of the worker.
        device: String,
    },
    /// Variants run on different devices of a worker.
    #[error(
        "variants: `{}` runs on `{}` and `{}` on `{}` of worker `{worker}`, which is planned with one device; set `device` of the worker in \
         `[[workers]]`, or give both variants the same `device`, and profile again",
        variants[0], devices[0], variants[1], devices[1]
    )]
    SeveralDevices {
        /// The worker.
        worker: String,
        /// Names of two variants.
        variants: [String; 2],
        /// Devices of these variants.
        devices: [String; 2],
    },
    /// The app's pipeline has no measurements.
    #[error("pipeline.profile: is absent; `kaskade profile` makes one")]
    NoPipelineProfile,
    /// The profile belongs to another pipeline.
    #[error(
        "is of pipeline `{pipeline}` and not of `{app}` as the app describes it; `kaskade profile` makes one"
    )]
    OtherPipeline {
        /// Pipeline of the profile.
        pipeline: String,
        /// App to be planned.
        app: String,
    },
    /// There is no load to plan for.
    #[error(
        "there is no load to plan for: no request has come, and none is stated; send requests, or `kaskade plan request APP --rate N`"
    )]
    NothingToPlan,
    /// The highest load is not stated.
    #[error("the highest load is unknown: the running plan has none; give `--rate`")]
    NoPeak,
    /// No cascade can be planned.
    #[error(transparent)]
    Cascade(#[from] PlanError),
    /// No gears can be planned.
    #[error(transparent)]
    Gears(#[from] GearError),
    /// Workers cannot be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The pipeline cannot be planned for its demand.
    #[error(transparent)]
    Manage(#[from] ManagerError),
}

fn layers_text(max_partitions: u32) -> String {
    match max_partitions {
        0 | 1 => "it cannot be split by layers".to_owned(),
        layers => format!("it has {layers} layers to split by"),
    }
}

impl PlanningError {
    /// Adds the file that the error is about.
    pub(super) fn in_file<E: Into<Self>>(path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            source: Box::new(source.into()),
        }
    }

    /// Adds the file that cannot be read.
    pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreadable {
            path: path.to_owned(),
            source,
        }
    }
}
