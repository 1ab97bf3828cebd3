//! References and baselines of the gear planner; [`crate::reference`] lists all of the crate.
//!
//! | module | holds |
//! |---|---|
//! | `exhaustive` | all plans of a small space, and a random sample of them |
//! | `strategy` | plans by other strategies than Algorithm 1 |
//! | `fluid` | flows instead of requests: an approximation of the simulator |

pub(crate) mod exhaustive;
pub(crate) mod fluid;
pub(crate) mod strategy;
