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
        Proof::Optimal => "optimal: no placement has less transfer time".to_owned(),
        Proof::Gap { gap, lower_s } => format!(
            "optimality gap {} (lower bound {} per period)",
            units::percent(gap),
            units::seconds(lower_s)
        ),
        Proof::NoBound => "no lower bound is known, so the optimality gap is unknown".to_owned(),
    }
}
