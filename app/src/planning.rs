//! Plans for an app: cascades, gears, placements and pipelines, from measurements.
//!
//! | module | holds |
//! |---|---|
//! | [`cascade`](mod@cascade) | confidence cascades from a profile |
//! | [`gears`] | gear plans from a profile, by load |
//! | [`placement`] | placements on devices: as text, as a drawing |
//! | [`pipelines`] | sources of pipelines |
//! | [`allocator`] | the planner of an app that is a pipeline |
//! | [`replan`] | the planner that runs while an app serves |
//! | [`initial`] | the initial plan of an app, and whether a plan fits an app |
//! | `check` | whether a plan fits an app |
//! | `worker_device` | the device that a worker is planned with |
//! | `batch_counts` | batches that variants have run, from the totals in heartbeats |
//! | `error` | errors of planning |

pub mod allocator;
mod batch_counts;
pub mod cascade;
mod check;
mod error;
pub mod gears;
pub mod initial;
pub mod pipelines;
pub mod placement;
pub mod replan;
mod worker_device;

use std::path::Path;

use kaskade_policy::profile::Profile;

use self::cascade::CascadePlanner;
pub use self::error::PlanningError;

/// Starts to plan a confidence cascade from a profile.
///
/// ```no_run
/// use kaskade_app::planning;
/// use kaskade_planners::cascade::Objective;
///
/// let profile = planning::read_profile("profile.json".as_ref())?;
/// let planned = planning::cascade(&profile).objective(Objective::Eo).plan()?;
/// std::fs::write("plan.json", planned.plan.to_json()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cascade(profile: &Profile) -> CascadePlanner<'_> {
    CascadePlanner::new(profile)
}

/// Reads a profile.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read_profile(path: &Path) -> Result<Profile, PlanningError> {
    let text = std::fs::read_to_string(path).map_err(|source| PlanningError::UnreadableProfile {
        path: path.to_owned(),
        source,
    })?;
    Profile::from_json(&text).map_err(PlanningError::of(path))
}
