//! Everything that decides, and nothing that acts: no runtime, no network, no clock, no hidden randomness.
//!
//! The simulator and the actors call the same functions, so that a simulated figure speaks of the code that serves.
//! Times are microseconds from whatever start the caller chose; draws come from the caller's generator.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the plan: placement, gears, wiring, batching |
//! | [`profile`] | the profile: what was measured of every variant |
//! | [`pipeline`] | pipelines: trees of tasks with variants |
//! | [`allocate`] | which variants serve a pipeline, on how many workers: hardware and accuracy scaling |
//! | [`demand`] | what a pipeline is planned for: demand and multiplicative factors, learned while serving |
//! | [`manager`] | allocator and balancer over time: what to plan for, when, and how requests are routed in between |
//! | [`balance`] | which requests of a pipeline go to which workers, the most accurate first |
//! | [`invalid`] | what is wrong with a plan, a profile or a pipeline, and where |
//! | [`confidence`] | confidence scores and their calibration |
//! | [`routing`] | where a result goes next, and which replica gets it |
//! | [`rerouting`] | which late requests of a pipeline are dropped early or sent another way |
//! | [`batching`] | when a replica's queue becomes a batch |
//! | [`turns`] | whose turn it is on a device that runs one batch at a time |
//! | [`vote`] | what an ensemble answers |
//! | [`gather`] | the branches of a pipeline's request, gathered into one reply |
//! | [`ledger`] | the book of accepted requests: one terminal reply each |
//! | [`admission`] | which requests to accept, so that goodput stays level under overload |
//! | [`energy`] | joules, where known |
//! | [`fit`] | straight lines through measurements |
//! | [`lp`] | linear programs, whoever solves them |
//! | [`thresholds`] | the accuracy-energy frontier of a cascade, and its named points |
//! | [`skips`] | variants that do not pay, and connections that skip some |
//! | [`cascade`] | from a profile to a plan |
//! | [`run_time`] | how long a batch will take, learned while serving |
//! | [`liveness`] | who is alive, judged by heartbeats |
//! | [`adoption`] | which plan a process runs, in which gear, and which past ones it keeps |
//! | [`load`] | how much load there is, counted by several ingresses |
//! | [`placement`] | replicas and partitions of a cascade on devices (HybridServe) |
//! | [`gears`] | gear plans: cascades, placement and batching by load |
//! | [`shifting`] | which gear for which load |
//! | [`drift`] | whether the load still is what the plan was made for |
//! | [`trace`] | the load over time: read, made up, scaled |
//! | [`hybrid_cache`] | the cache of a language model: keys and values, or activations; blocks, mini-batches, admission |
//! | [`simulator`] | what a plan does with a load, without serving it |

pub mod admission;
pub mod adoption;
pub mod allocate;
pub mod balance;
pub mod batching;
pub mod cascade;
pub mod confidence;
pub mod demand;
mod difficulty;
pub mod drift;
pub mod energy;
pub mod fit;
pub mod gather;
pub mod gears;
pub mod hybrid_cache;
pub mod invalid;
pub mod ledger;
pub mod liveness;
pub mod load;
pub mod lp;
pub mod manager;
pub mod pipeline;
pub mod placement;
pub mod plan;
pub mod profile;
pub mod reading;
pub mod redelivery;
pub mod rerouting;
pub mod routing;
pub mod run_time;
pub mod shifting;
pub mod simulator;
pub mod skips;
pub mod thresholds;
pub mod trace;
pub mod turns;
pub mod vote;

#[cfg(test)]
mod schema_tests;
