//! Errors of planning.

use std::io;
use std::path::{Path, PathBuf};

use kaskade_planners::allocate::AllocateError;
use kaskade_planners::cascade::PlanError;
use kaskade_planners::gears::GearError;
use kaskade_planners::manager::ManageError;
use kaskade_policy::invalid::{FileError, Invalid};
use thiserror::Error;

use crate::family::FamilyError;

/// A plan for an app cannot be made, or its inputs cannot be used.
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
        /// The system's message.
        source: io::Error,
    },
    /// A profile cannot be read.
    #[error("{} cannot be read; `kaskade profile` writes one", path.display())]
    UnreadableProfile {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// A plan cannot be read.
    #[error("cannot be read; `kaskade plan` writes plans")]
    UnreadablePlan(#[source] io::Error),
    /// The system does not read a file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file is not of its format.
    #[error(transparent)]
    Format(#[from] FileError),
    /// A file is no TOML of its format.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A file is no JSON of its format.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A plan or pipeline is not sound.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Neither a file nor the app names the pipeline.
    #[error("no pipeline is given: give `--pipeline FILE`, or `--app FILE` of an app with `[pipeline]`")]
    NoPipeline,
    /// The app has no variants.
    #[error("the app has no variants; add `[[variants]]` to its file")]
    NoVariants,
    /// The plan is another app's.
    #[error("the plan is for app `{plan}`, not for `{app}`; make one with `kaskade plan`")]
    OtherApp {
        /// The app that it is for.
        plan: String,
        /// The app that is to be served.
        app: String,
    },
    /// The profile is another app's.
    #[error("the profile is of app `{profile}`, not of `{app}`; profile this one")]
    OtherProfile {
        /// The app that it is of.
        profile: String,
        /// The app that is planned.
        app: String,
    },
    /// The profile that a planner is given is another app's.
    #[error("{}: is the profile of app `{profile}`, not of `{app}`; `kaskade profile` makes one", path.display())]
    OtherProfileFile {
        /// The file.
        path: PathBuf,
        /// The app that it is of.
        profile: String,
        /// The app that is planned.
        app: String,
    },
    /// The plan names a variant that the app does not have.
    #[error("variants[{index}].name: the app has no variant `{variant}`; profile and plan again")]
    UnknownVariant {
        /// Its place in the plan.
        index: usize,
        /// The variant.
        variant: String,
    },
    /// The plan names a worker that the app does not have.
    #[error("placement[{index}].worker: the app has no worker `{worker}`; plan again with `--app`")]
    UnknownWorker {
        /// The place of its replica in the plan.
        index: usize,
        /// The worker.
        worker: String,
    },
    /// The plan splits a variant that cannot be split so.
    #[error(
        "placement[{index}].partition: `{variant}` is split into {of} partitions, and {}; plan again with `--app`, or with a new profile",
        layers_text(*.most)
    )]
    Partitions {
        /// The place of its replica in the plan.
        index: usize,
        /// The variant.
        variant: String,
        /// Partitions in the plan.
        of: u32,
        /// Most partitions of the checkpoint.
        most: u32,
    },
    /// A checkpoint is not the one that the plan was made for.
    #[error("placement[{index}].checkpoint: {source}")]
    OtherCheckpoint {
        /// The place of its replica in the plan.
        index: usize,
        /// How it differs.
        source: Box<FamilyError>,
    },
    /// The planner cannot bound the quantile of the objective.
    #[error(
        "slo: the gear planner bounds p95, not {quantile}; write `slo = {{ p95 = \"{limit}\" }}`, or give the planner another objective"
    )]
    Quantile {
        /// The quantile of the app's objective.
        quantile: &'static str,
        /// Its limit.
        limit: String,
    },
    /// A GPU is to hold several variants of a pipeline.
    #[error(
        "workers: `{worker}` has {places} replicas on `{device}`; in a pipeline a GPU runs one variant, name a worker for each"
    )]
    SharedGpu {
        /// The worker.
        worker: String,
        /// Its replicas.
        places: u32,
        /// Its device.
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
        /// Two variants.
        variants: [String; 2],
        /// Their devices.
        devices: [String; 2],
    },
    /// Nothing was measured of the app's pipeline.
    #[error("pipeline.profile: is absent; `kaskade profile` makes one")]
    NoPipelineProfile,
    /// The profile is of another pipeline.
    #[error(
        "is of pipeline `{pipeline}` and not of `{app}` as the app describes it; `kaskade profile` makes one"
    )]
    OtherPipeline {
        /// The pipeline that it is of.
        pipeline: String,
        /// The app that is planned.
        app: String,
    },
    /// There is no load to plan for.
    #[error(
        "there is no load to plan for: no request has come, and none is stated; send requests, or `kaskade plan request APP --rate N`"
    )]
    NothingToPlan,
    /// The highest load is unknown.
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
    Manage(#[from] ManageError),
}

fn layers_text(most: u32) -> String {
    match most {
        0 | 1 => "it cannot be split by layers".to_owned(),
        layers => format!("it has {layers} layers to split by"),
    }
}

impl PlanningError {
    /// Names the file in which something is wrong.
    pub(super) fn of<E: Into<Self>>(path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File {
            path: path.to_owned(),
            source: Box::new(source.into()),
        }
    }

    /// Names the file that cannot be read.
    pub(super) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreadable {
            path: path.to_owned(),
            source,
        }
    }
}
