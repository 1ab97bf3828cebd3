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

use kaskade_planners::gears::DeviceSpec;
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

/// Returns the name of a host's device of that number, of the kind on which a profile was measured: `cpu`, `cuda:1`. A profile that was not
/// measured on the processor is taken for one of a GPU.
pub fn device_name(profile: &Profile, number: usize) -> String {
    let is_cpu = profile.device.split([' ', ':']).next() == Some("cpu");
    match (is_cpu, number) {
        (true, 0) => "cpu".to_owned(),
        (true, number) => format!("cpu:{number}"),
        (false, number) => format!("cuda:{number}"),
    }
}

/// Returns that many hosts `w0`, `w1`, ..., each with one device of the kind on which the profile was measured.
pub fn fleet(profile: &Profile, count: usize, memory_bytes: u64) -> Vec<DeviceSpec> {
    let mut devices = DeviceSpec::fleet(count, memory_bytes);
    for device in &mut devices {
        device.device = device_name(profile, 0);
    }
    devices
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
    Profile::from_json(&text).map_err(PlanningError::in_file(path))
}

#[cfg(test)]
mod tests {
    use kaskade_policy::confidence::Estimator;

    use super::*;

    /// Plans for a profile of a processor named GPUs.
    #[test]
    fn devices_are_of_the_kind_that_was_measured() {
        let mut profile = Profile::new("a", Estimator::MaxSquared, Vec::new());
        for (measured, planned) in [
            ("cpu (AMD EPYC, 2 cores)", "cpu"),
            ("cuda:0 NVIDIA H200", "cuda:0"),
            ("not measured", "cuda:0"),
        ] {
            measured.clone_into(&mut profile.device);
            assert_eq!(fleet(&profile, 2, 1)[1].device, planned);
        }
    }
}
