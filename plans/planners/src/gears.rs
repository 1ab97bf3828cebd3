//! Gear plans: which cascade serves which load, on which devices, in which batches (CascadeServe §4).
//!
//! | module | holds |
//! |---|---|
//! | [`planner`](plan_gears) | Algorithm 1: the submodules in order, with backtracking on violations |
//! | [`search`](Cascade) | SP1: the cascades to choose from |
//! | `model_costs`, `model_set` | the family by index: run times and sizes; sets of models |
//! | `guaranteed` | the cascades of a plan with a guarantee: those that are certified together |
//! | `workload` | SP2: a cascade for every range of load |
//! | `served` | share of requests that each range's gear serves, given the shifter |
//! | `mapping` | SP3: models onto devices |
//! | `placement_repair` | repairs placements after greedy pruning |
//! | `balance` | load over replicas |
//! | `batching` | SP4: how many requests the first model waits for |
//! | [`evaluate`](Evaluate) | the planner's interface to the simulator |
//! | `evaluation_cache` | results of simulated gears |
//! | `assemble` | builds the plan from decisions |
//! | [`violation`](Violation) | violated constraints, errors and remedies |
//! | [`options`](GearOptions) | options of the planner |
//! | [`reference`](crate::reference) | references and baselines of the planner |

#[cfg(test)]
mod ablation_tests;
mod assemble;
mod balance;
mod batching;
mod evaluate;
mod evaluation_cache;
mod guaranteed;
mod mapping;
mod model_costs;
mod model_set;
mod options;
mod placement_repair;
mod planner;
pub(crate) mod reference;
mod search;
mod served;
mod violation;
mod workload;

pub use crate::device::DeviceSpec;
pub use balance::Group;
pub use batching::BatchingChoice;
pub use evaluate::{Evaluate, GearOutcome, Simulated};
pub use model_costs::Models;
pub use model_set::ModelSet;
pub use options::{Ablation, BatchLimits, CascadeSearch, GearOptions, OptionError, Prior, RangeWeights};
pub use placement_repair::join;
pub use planner::{GearPlan, Unaudited, plan_gears, plan_gears_with};
pub use search::Cascade;
pub use violation::{Effort, GearError, Remedy, Step, Submodule, Violation, ViolationKind};
