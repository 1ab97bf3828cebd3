//! Plans for an app: cascades, gears, placements and pipelines, from what was measured.

pub mod allocator;
pub mod cascade;
pub mod gears;
pub mod initial;
pub mod pipelines;
pub mod placement;
pub mod replan;

use std::path::Path;

use anyhow::Context as _;
use kaskade_plans::profile::Profile;

/// Reads a profile.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read_profile(path: &Path) -> anyhow::Result<Profile> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read; `kaskade profile` writes one", path.display()))?;
    Profile::from_json(&text).with_context(|| path.display().to_string())
}
