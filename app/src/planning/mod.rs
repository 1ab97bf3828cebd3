//! Plans for an app: cascades, gears, placements and pipelines, from what was measured.

pub mod allocator;
pub mod cascade;
mod error;
pub mod gears;
pub mod initial;
pub mod pipelines;
pub mod placement;
pub mod replan;

use std::path::Path;

use kaskade_policy::profile::Profile;

pub use error::PlanningError;

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
