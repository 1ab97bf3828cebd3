//! Everything that runs: the bus, the wire messages, and one file per actor.
//!
//! | module | holds |
//! |---|---|
//! | [`broker`] | the NATS server that Kaskade brings, on the loopback |
//! | [`subjects`] | the grammar of every subject; nothing formats or parses one elsewhere |
//! | [`fault`] | what a request or a command can fail with, classified once |
//! | [`wire`] | the messages and their codec |
//! | [`headers`] | the headers that travel beside a message |

pub mod broker;
pub mod fault;
pub mod headers;
pub mod ids;
pub mod subjects;
pub mod wire;

pub use fault::{Code, Fault};
pub use subjects::App;
