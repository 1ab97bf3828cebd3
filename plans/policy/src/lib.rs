//! Policies of serving, as functions and state machines that the actors and the simulator both call.
//!
//! No runtime, no network, no clock, no hidden randomness. Times are microseconds from a start that the caller chose; random draws are
//! arguments or come from the caller's generator. This crate does not plan: planners depend on it, and a change in a planner does
//! not rebuild the serving crates.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the plan: placement, gears, wiring, batching |
//! | [`partition`] | a contiguous slice of a model's layers |
//! | [`profile`] | the profile: what was measured of every variant |
//! | [`pipeline`] | pipelines: trees of tasks with variants |
//! | [`invalid`] | what is wrong with a plan, a profile or a pipeline, and where |
//! | [`invalid`] | errors of a plan, a profile or a pipeline, with the offending field |
//! | [`routing`] | where a result goes next, and which replica gets it |
//! | [`routing`] | the next stage of a result, and the replica that gets it |
//! | [`rerouting`] | which late requests of a pipeline are dropped early or rerouted |
//! | [`run_time`] | how long a batch will take, learned while serving |
//! | [`device_queue`] | the queue for a device that runs one batch at a time |
//! | [`vote`] | what an ensemble answers |
//! | [`gather`] | the branches of a pipeline's request, gathered into one reply |
//! | [`ledger`] | accepted requests: one terminal reply each |
//! | [`redelivery`] | what becomes of a kept request that failed |
//! | [`stream_offset`] | how far a stream of partial answers has been read |
//! | [`admission`] | which requests to accept, so that goodput stays level under overload |
//! | [`adoption`] | which plan a process runs, in which gear, and which past ones it keeps |
//! | [`liveness`] | which processes are alive, judged by heartbeats |
//! | [`arrivals`] | the load, counted by several ingresses |
//! | [`demand`] | measurements reported to planners: peaks of the load, run times |
//! | [`shifting`] | which gear for which load |
//! | [`drift`] | whether the load still is what the plan was made for |
//! | [`energy`] | joules, where known |
//! | [`fit`] | straight lines through measurements |
//! | [`hybrid_cache`] | the cache of a language model: keys and values, or activations; blocks, mini-batches, admission |

pub mod admission;
pub mod adoption;
pub mod arrivals;
pub mod batching;
pub mod confidence;
pub mod demand;
pub mod device_queue;
pub mod drift;
pub mod energy;
pub mod fit;
pub mod gather;
pub mod hybrid_cache;
pub mod invalid;
pub mod ledger;
pub mod liveness;
pub mod partition;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod redelivery;
pub mod rerouting;
pub mod routing;
pub mod run_time;
pub mod shifting;
pub mod stream_offset;
pub mod vote;

#[cfg(test)]
mod schema_tests;
