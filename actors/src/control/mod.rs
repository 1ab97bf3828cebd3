//! Control loops: gear shifts, replanning, failure detection.

pub mod failure_detector;
pub mod planner;
pub mod replan_trigger;
pub mod shifter;
