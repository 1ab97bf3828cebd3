//! Gear plans: which cascade serves which load, on which devices, in which batches (CascadeServe §4).
//!
//! | module | holds |
//! |---|---|
//! | [`planner`](plan_gears) | Algorithm 1: the submodules in turn, and faults back up the line |
//! | [`search`](Cascade) | SP1: the cascades to choose from |
//! | `workload` | SP2: a cascade for every range of load |
//! | `served` | how much each range's gear serves, the shifter being what it is |
//! | `mapping` | SP3: models onto devices |
//! | `rearrange` | what greedy pruning got wrong |
//! | `balance` | load over replicas |
//! | `batching` | SP4: how many requests the first model waits for |
//! | [`evaluate`](Evaluate) | the simulator as the planner sees it |
//! | `bench` | what was simulated, and is not simulated again |
//! | `assemble` | from decisions to a plan |
//! | [`peers`], [`cocktail`] | DynBa, MS+, Cocktail+ and the ablations |
//! | [`exhaustive`], [`random`](mod@random) | all plans of a small space, and some: what the planner is judged by |
//! | [`fault`](Fault) | what goes wrong, where, and what would help |
//! | [`options`](GearOptions) | what a plan is made for |

#[cfg(test)]
mod ablation_tests;
mod assemble;
mod balance;
mod batching;
mod bench;
pub mod cocktail;
mod evaluate;
pub mod exhaustive;
mod fault;
#[cfg(test)]
mod fluid;
mod mapping;
mod models;
mod options;
pub mod peers;
mod planner;
pub mod random;
mod rearrange;
mod search;
mod served;
mod set;
mod workload;

pub use crate::device::DeviceSpec;
pub use evaluate::{Evaluate, Outcome, Simulated};
pub use fault::{Effort, Fault, FaultKind, GearError, Remedy, Step, Submodule};
pub use options::{Ablation, BatchLimits, CascadeSearch, GearOptions, LONGEST_CASCADE, OptionError, Prior};
pub use planner::{GearPlan, plan_gears, plan_gears_with};
pub use search::Cascade;
