//! Placements from a profile and a cascade: text and pictures.
//!
//! | module | holds |
//! |---|---|
//! | [`partitions`] | into how many partitions a checkpoint can be cut |
//! | [`text`] | a placement as tables |
//! | [`picture`] | a placement as a drawing |

pub mod partitions;
pub mod picture;
pub mod text;

use kaskade_planners::placement::{Placement, Proof};

use crate::report::units;

/// Returns the known quality of a placement as text.
pub fn proof(placed: &Placement) -> String {
    match placed.proof {
        Proof::Optimal => "optimal: no placement of any combination moves less".to_owned(),
        Proof::Gap { gap, .. } => format!(
            "gap {}: it is known that none moves less than {} of this",
            units::percent(gap),
            units::percent(1.0 - gap)
        ),
        Proof::NoBound => "no bound: nothing is known of how little could be moved".to_owned(),
    }
}
