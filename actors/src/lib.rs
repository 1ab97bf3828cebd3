//! Everything that runs: the bus, the wire messages, and one file per actor.
//!
//! | module | holds |
//! |---|---|
//! | [`broker`] | the NATS server that Kaskade brings, on the loopback |
//! | [`bus`] | the connection to a broker, whichever it is |
//! | [`discovery`] | the ingress as a NATS service |
//! | [`store`] | the plan store, in memory or in JetStream |
//! | [`subjects`] | the grammar of every subject; nothing formats or parses one elsewhere |
//! | [`permissions`] | who may publish and subscribe what, by role |
//! | [`fault`] | what a request or a command can fail with, classified once |
//! | [`wire`] | the messages and their codec |
//! | [`headers`] | the headers that travel beside a message |
//! | [`clock`] | the clock that actors read |
//! | [`meter`] | joules per request |
//! | [`metrics`] | every metric: its name, its unit, its counter |
//! | [`health`] | how a process fares: live, ready, its page of metrics |
//! | [`probes`] | the same over HTTP |
//! | [`planbook`] | the plans a process knows, by epoch, and the gear it is in |
//! | [`dispatcher`] | the switch in front of the bus: mailbox or subject |
//! | [`system`] | the thin module around actix: subjects become mailboxes |
//! | [`delivery`] | a request on loan to whoever serves a stage |
//! | `fork` | how a pipeline's task makes several requests of one |
//! | [`ingress`] | the doors, and the owner of every request |
//! | [`batcher`] | the queue of one replica |
//! | [`device`] | a device whose replicas take turns |
//! | [`router`] | exit, next or skip |
//! | [`worker`] | the host of replicas |
//! | [`watcher`] | who fell silent |
//! | [`shifter`] | which gear the app is in |
//! | [`planner`] | makes another plan when asked |
//! | [`trigger`] | when a planner plans without being asked |
//! | [`node`] | a process's share of an app, assembled |
//! | [`service`] | an app in a few lines |
//! | [`attach`] | joining a running app with an actor of one's own |
//! | [`client`] | asking an app |
//! | [`ids`] | identifiers unlike each other |
//! | [`shutdown`] | when to stop |

mod actor;
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
pub mod wire;

pub use client::Client;
pub use dispatch::delivery::Delivery;
pub use error::{Code, Fault};
pub use node::service::Service;
pub use node::{Node, NodeConfig, NodeError};
pub use subjects::App;
