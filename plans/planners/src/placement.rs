//! Placement: from a cascade to replicas and partitions on devices (HybridServe §V).
//!
//! A cascade determines how many of the requests reach each model. The planner turns this into a deployment: models that exceed a device's
//! memory are partitioned, models that many requests reach are replicated, and all instances are placed so that no device is overloaded and
//! requests travel as little as can be.
//!
//! What is planned for is a period in which `b` requests come, `b` over the load long. Model `i` gets `rho_i b` of them, each of its
//! `R_i` copies its part, in one batch; what that batch takes of a device ([`Curves`]) is the model's `u`, `w` and `T`:
//!
//! - `u`: kernel time of the batch over the period, an `S_i`-th of it for each of `S_i` partitions (eq. 4: at most 1 in sum);
//! - `w`: active memory of the batch, likewise (eq. 3: at most the device's in sum);
//! - `T`: time to move what goes from instance to instance, by the channel between their devices (eq. 2: as little as can be).
//!
//! Partitions are chained instances without a router between: each copy's partitions send to each other and to no other copy's. Traffic
//! between models is shared evenly by the copies on either side. `(R_i S_i)` is proportional to `rho_i l_i`, rounded to whole
//! copies; every such combination that carries the load and fits is examined, unless there are too many, which the outcome states
//! ([`Proof`]).
//!
//! | module | holds |
//! |---|---|
//! | [`planner`](plan_placement), `search` | Algorithm 3: the combinations in order, and the best placement of the best of them |
//! | `inputs` | inputs of the search |
//! | [`curves`](Curves) | `u`, `w`, `l` and `T` by batch size: lines beside their samples |
//! | [`flow`](Flow) | `rho_i`, and the shares of requests between models |
//! | `shapes`, `candidates` | the combinations of `R` and `S`, and those that fit in total |
//! | `max_throughput` | the highest load that devices carry, and the combination that carries it |
//! | `problem` | one combination as instances, devices and transfer costs |
//! | `channel` | transfer times between devices |
//! | `bound` | lower bounds of every placement |
//! | `layout`, `greedy`, `anneal` | a mutable placement, the initial one, and simulated annealing |
//! | `program` | the integer program |
//! | `solve` | a placement of one combination: exact if it is small |
//! | `exact_reference` | the integer program alone, as a [reference](crate::reference) for the search |
//! | `emit` | builds the plan from a placement |
//! | `outcome` | the outcome of a placement |
//! | [`options`](PlacementOptions), [`error`](PlacementError) | options and errors |

mod anneal;
mod bound;
mod candidates;
mod channel;
mod curves;
mod emit;
mod error;
pub(crate) mod exact_reference;
#[cfg(test)]
mod exhaustive;
mod flow;
mod greedy;
mod inputs;
mod layout;
mod max_throughput;
mod options;
mod outcome;
mod planner;
mod problem;
mod program;
mod search;
mod shapes;
mod solve;

pub use channel::{Channel, Channels, Route, TransferSample};
pub use curves::{CurveFit, Curves};
pub use error::{Figure, PlacementError};
pub use flow::{Flow, FlowEdge, flow};
pub use options::{Assumptions, Fleet, PlacementObjective, PlacementOptions, SearchLimits};
pub use outcome::{DeviceLoad, PlacedModel, Placement, Proof, Shapes};
pub use planner::plan_placement;
