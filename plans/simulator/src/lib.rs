//! A discrete-event simulator of plans, profiles and traces (CascadeServe appendix C).
//!
//! It calls the policies that the actors call: batching, routing, shares and backups, gear choice, resends, admission. It
//! adds a model of the actors' environment: time, devices, the broker, failures. Request number `n` carries validation
//! sample `n mod samples`, and is routed by this sample's recorded confidence.
//!
//! Assumptions:
//! - A batch takes what the profile measured for its size ([`kaskade_policy::linear_fit::batch_latency_s`]); a partition takes its part of
//!   that. Replicas that share a device [concurrently](kaskade_policy::plan::Sharing::Concurrent) do not slow each other down, unless
//!   [`SimConfig::contention`] is set.
//! - A request joins a queue one hop after it was forwarded, and its replica is chosen at that time. All hops
//!   take equally long, or a time that is drawn from the measured quantiles ([`SimConfig::hop_quantiles`]), at the rate of the requests
//!   ([`SimConfig::hop_by_rate`]); one message may overtake another.
//! - Every worker of a plan is a process with an ingress, as `kaskade serve` starts it, and a request enters at each of them with equal
//!   chance. An edge without shares leads to a replica of the sender's worker while that has room
//!   ([`kaskade_policy::routing::local_replica`]), else to any living replica of the stage's variant with equal chance, as the broker's queue
//!   group does.
//! - A replica that fails takes its queue and its batch with it. Until the failure is noticed, the broker refuses what the
//!   shares send there; what was lost is sent again afterwards, from the entry, as [`kaskade_policy::ledger`] allows.
//! - A request uses memory only while it is in flight.
//!
//! A pipeline is a gear whose stages name tasks (Loki). Further assumptions:
//! - A result makes a whole number of requests for each child, whose mean is the plan's multiplicity or whose distribution was
//!   measured ([`SimConfig::copies`]); children are drawn independently of each other.
//! - The replica of the next task is chosen when a result is forwarded, as [`kaskade_policy::rerouting`] needs it; everywhere else when
//!   the hop ends.
//! - Branches end one by one, as [`Report::branches`] counts them. A request is answered if all of its branches are;
//!   otherwise it has the outcome of the branch that was lost first, and it ends with the last one.
//! - Accuracy is that of the paths of the answered branches, not of samples: profiled end to end, or the product of the
//!   stages' accuracies.
//!
//! A [`Controller`] may plan again while requests are in flight ([`Simulator::run_controlled`]) and documents the rules. Loading
//! takes no device time: the copy to the device runs beside the batches.

mod branches;
mod compile;
mod config;
mod contention;
mod control;
mod controller;
mod engine;
mod epochs;
mod events;
mod fan_out;
mod fleet;
mod histogram;
mod hop_times;
mod in_flight;
mod names;
mod observer;
pub mod offload;
mod replan;
mod report;
mod run_tables;
mod run_times;
mod simulator;
mod timeline;
pub mod trace;

pub use config::{Change, IdleDevices, Loading, MeasuredCopies, Power, ReplicaEvent, SimConfig, SimError};
pub use controller::{Controller, Factor, Observation, ReplicaObservation, VariantRuns};
pub use histogram::{LatencyHistogram, LatencySummary};
pub use observer::{Answered, Loss, Lost, Observer, Run, Sink, Tick};
pub use report::{
    BranchReport, DeviceReport, PLANS_KEPT, PathReport, PlanChange, Report, SHIFTS_KEPT, Shift, VariantReport,
};
pub use simulator::Simulator;
pub use timeline::{Bucket, Timeline};

#[cfg(test)]
mod tests;
