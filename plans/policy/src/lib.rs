//! Policies of serving, as functions and state machines that the actors and the simulator both call.
//!
//! No runtime, no network, no clock, no hidden randomness. Times are microseconds from a start that the caller chose; random draws are
//! arguments or come from the caller's generator. This crate does not plan: planners depend on it, and a change in a planner does
//! not rebuild the serving crates.
//!
//! # Plans and profiles
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the plan: placement, gears, wiring, batching |
//! | [`partition`] | a contiguous range of a model's layers |
//! | [`profile`] | the profile: the measurements of every variant |
//! | [`pipeline`] | pipelines: trees of tasks with variants |
//! | [`invalid`] | errors of a plan, a profile or a pipeline, with the offending field |
//!
//! # One result: confidence, route, answer
//!
//! | module | holds |
//! |---|---|
//! | [`confidence`] | confidence scores and their calibration |
//! | [`routing`] | the next stage of a result, and the replica that gets it |
//! | [`rerouting`] | which late requests of a pipeline are dropped early or rerouted |
//! | [`slack`] | how long the rest of a path takes after each stage, for dropping by slack |
//! | [`vote`] | the answer of an ensemble |
//! | [`fan_in`] | the branches of a pipeline's request, gathered into one reply |
//! | [`fnv`] | a hash for seeds and names |
//! | [`text_metrics`] | metrics that compare a text with its references |
//!
//! # Batches and devices
//!
//! | module | holds |
//! |---|---|
//! | [`batching`] | when a replica's queue becomes a batch |
//! | [`run_time`] | how long a batch will take, learned while serving |
//! | [`device_queue`] | the queue for a device that runs one batch at a time |
//! | [`linear_fit`] | straight lines through measurements |
//! | [`energy`] | energy in joules, if known |
//! | [`hybrid_cache`] | the cache of a language model: keys and values, or activations; blocks, mini-batches, admission |
//!
//! # One request: admission to reply
//!
//! | module | holds |
//! |---|---|
//! | [`admission`] | which requests to accept, so that goodput stays level under overload |
//! | [`ledger`] | accepted requests: one terminal reply each |
//! | [`redelivery`] | whether a durable request that failed is retried or given up |
//! | [`stream_offset`] | position of a reader in a stream of partial answers |
//! | [`client_retry`] | when a client sends a request again |
//! | [`retry_budget`] | bounds resends to a share of recent admissions |
//!
//! # Adoption of plans, and which processes live
//!
//! | module | holds |
//! |---|---|
//! | [`adoption`] | the plan and gear that a process runs, and the past plans that it keeps |
//! | [`epochs`] | epochs of stored plans: which one a writer takes, and when a process restores its plan |
//! | [`rollout`] | which ingresses admit requests under a new plan |
//! | [`load_retry`] | when a worker loads a replica again that could not be loaded |
//! | [`liveness`] | which processes are alive, judged by heartbeats |
//! | [`lasting`] | conditions that count once they last |
//! | [`reachability`] | which replicas a process may send to |
//! | [`sharding`] | how many threads move the messages of a process |
//!
//! # Load, and what follows from it
//!
//! | module | holds |
//! |---|---|
//! | [`arrivals`] | total load, counted by several ingresses |
//! | [`demand`] | measurements reported to planners: peaks of the load, run times |
//! | [`shifting`] | the gear for a measured load |
//! | [`load_drift`] | whether the load still is what the plan was made for |
//! | [`certificate_monitor`] | whether the inputs still are what the plan's certificates were proven on |
//!
//! # Models behind endpoints
//!
//! | module | holds |
//! |---|---|
//! | [`remote`] | models behind endpoints: circuit breaker, retries, prices |

pub mod admission;
pub mod adoption;
pub mod arrivals;
pub mod batching;
pub mod certificate_monitor;
pub mod client_retry;
pub mod confidence;
pub mod demand;
pub mod device_queue;
pub mod energy;
pub mod epochs;
pub mod fan_in;
pub mod fnv;
pub mod hybrid_cache;
pub mod invalid;
pub mod lasting;
pub mod ledger;
pub mod linear_fit;
pub mod liveness;
pub mod load_drift;
pub mod load_retry;
pub mod partition;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod reachability;
pub mod redelivery;
pub mod remote;
pub mod rerouting;
pub mod retry_budget;
pub mod rollout;
pub mod routing;
pub mod run_time;
pub mod sharding;
pub mod shifting;
pub mod slack;
pub mod stream_offset;
pub mod text_metrics;
pub mod vote;

#[cfg(test)]
mod schema_tests;
