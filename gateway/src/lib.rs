//! HTTP gateway of Kaskade: the Open Inference Protocol v2, OpenAI's API, the endpoints of text-embeddings-inference, and
//! a dashboard. The gateway is a client of the app: over NATS, or directly through an ingress of the same process. Several may
//! serve one app behind a balancer.
//!
//! A module never imports one below it in this table.
//!
//! | module | holds |
//! |---|---|
//! | `answer_kind`, `metric_names` | what the answers of an app are; names of the metrics |
//! | `accept` | connections as the system gives them |
//! | [`tls`] | connections with TLS |
//! | [`config`] | [`Limits`] of a gateway and [`AppOptions`] of an app that it serves |
//! | `http` | paths, headers, bodies, and errors in the form of each API |
//! | `limits` | tenants, permits of requests in progress, bodies within a limit |
//! | `apps` | what a gateway observes of an app: its [`overview`] and its signature |
//! | `state`, `tokenizer` | what all requests share; the tokenizer of an app |
//! | `requests` | one request of a client, as a request to the app |
//! | `endpoints` | what is served under which path |
//! | `middleware` | request ids, keys, limits, compression and the log line of every request |
//! | `connections` | connections: HTTP/1.1 and HTTP/2, and those that send nothing |
//! | [`server`] | [`Gateway`]: the listener, its routes, and the graceful shutdown |

mod accept;
mod answer_kind;
mod apps;
pub mod config;
mod connections;
mod endpoints;
mod http;
mod limits;
mod metric_names;
mod middleware;
mod requests;
pub mod server;
mod state;
pub mod tls;
mod tokenizer;

pub use answer_kind::AnswerKind;
pub use apps::overview;
pub use config::{AppOptions, Limits, Streaming, TokenizerPath};
pub use server::{Gateway, GatewayError};
pub use tls::{TlsError, TlsFiles};
