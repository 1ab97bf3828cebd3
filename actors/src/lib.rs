//! Everything that runs: the bus, the wire messages, and one file per actor.
//!
//! | module | holds |
//! |---|---|
//! | [`broker`] | the NATS server that Kaskade brings, on the loopback |
//! | [`bus`] | the connection to a broker, whichever it is |
//! | [`discovery`] | the ingress as a NATS service |
//! | [`store`] | the plan store, in memory or in JetStream |
//! | [`subjects`] | the grammar of every subject; nothing formats or parses one elsewhere |
//! | [`fault`] | what a request or a command can fail with, classified once |
//! | [`wire`] | the messages and their codec |
//! | [`headers`] | the headers that travel beside a message |
//! | [`ids`] | identifiers unlike each other |
//! | [`shutdown`] | when to stop |

pub mod broker;
pub mod bus;
pub mod discovery;
pub mod fault;
pub mod headers;
pub mod ids;
pub mod shutdown;
pub mod store;
pub mod subjects;
pub mod wire;

pub use fault::{Code, Fault};
pub use subjects::App;
