//! Actors that serve an app over NATS: the wire format, dispatch, ingress, replicas, control loops and clients.
//!
//! | folder or file | holds |
//! |---|---|
//! | [`ids`], [`clock`], [`shutdown`] | unique identifiers, the actors' clock, graceful shutdown |
//! | `actor` | the names of actix that the crate uses |
//! | [`supervision`] | ends a node whose core tasks do not all run |
//! | [`subjects`] | the grammar of every subject; no other module formats or parses one |
//! | [`error`] | typed errors with stable codes |
//! | [`wire`] | messages, headers, chunks and their codec |
//! | [`bus`] | the connection to the broker, and the queue of outgoing messages |
//! | [`metrics`] | every metric: its name, unit and counter |
//! | [`plan`] | the plan store, and the plan versions that a process knows |
//! | `audit_counts` | counts of audits and stage results, by cascade of the certified list |
//! | [`dispatch`] | local or remote delivery: dispatcher, deliveries, exits, fan-out, subscriptions, trace spans |
//! | [`ingress`] | admission, requests in flight, replies, durable requests |
//! | [`stage`] | the worker, batchers, generators, device leases |
//! | [`control`] | gear shifts, planning, failure detection |
//! | [`ops`] | health, HTTP probes, energy meter, service discovery, permissions |
//! | [`client`] | the client of an app |
//! | [`node`] | the actors of a process, assembled; `Service`, `attach` and `attach_stage` for applications |
//!
//! A folder never imports one below it in this table. The embedded broker is the crate `kaskade_broker`.

mod actor;
mod audit_counts;
pub mod bus;
pub mod client;
pub mod clock;
pub mod control;
pub mod dispatch;
pub mod error;
pub mod ids;
pub mod ingress;
pub mod metrics;
pub mod node;
pub mod ops;
pub mod plan;
pub mod shutdown;
pub mod stage;
pub mod subjects;
pub mod supervision;
pub mod wire;

pub use client::Client;
pub use dispatch::delivery::Delivery;
pub use error::{Code, Fault};
pub use node::attach::AttachConfig;
pub use node::service::Service;
pub use node::stage::{AttachedStage, Stage, StageInput, StageOutput, attach_stage};
pub use node::{Node, NodeConfig, NodeError};
pub use subjects::App;
