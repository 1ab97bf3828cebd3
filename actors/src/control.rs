//! Control loops: gear shifts, planning, failure detection.

mod certificates;
pub(crate) mod epoch_gate;
pub(crate) mod failure_detector;
mod heartbeat_filter;
pub(crate) mod heartbeats;
pub(crate) mod ingress_states;
pub mod planner;
pub mod replan_trigger;
pub(crate) mod shifter;
