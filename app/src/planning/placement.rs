//! Formats placements of a cascade: text and charts.
//!
//! | module | holds |
//! |---|---|
//! | [`partitions`] | the number of partitions into which a checkpoint can be split |
//! | [`text`] | a placement as tables |
//! | [`picture`] | a placement as a chart |

pub mod partitions;
pub mod picture;
pub mod text;

use kaskade_planners::placement::{Placement, Proof};

use crate::report::units;

/// Describes the proven quality of a placement.
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
