//! Exact solutions and baselines that the planners are judged by; no command calls them.
//!
//! They lie beside the planners whose internals they use: a planner does not depend on them.
//!
//! | items | for |
//! |---|---|
//! | [`CascadeOutcomes`], [`constrained`] | gears: all plans of a small space, and a random sample of them |
//! | [`plan_gears_by`] | gears: plans by other strategies than Algorithm 1 |
//! | [`Fluid`] | gears: flows instead of requests, an approximation of the simulator |
//! | [`solve_exactly`] | placement: the integer program alone |
//! | [`exact_accuracy`], [`flow_accuracy`] | allocation: optima of accuracy scaling |

pub use crate::allocate::exact_program::{exact_accuracy, flow_accuracy};
pub use crate::gears::reference::exhaustive::{Assigned, CascadeOutcomes, constrained};
pub use crate::gears::reference::fluid::Fluid;
pub use crate::gears::reference::strategy::{Context, Decision, plan_gears_by};
pub use crate::placement::exact_reference::{ExactResult, solve_exactly};
