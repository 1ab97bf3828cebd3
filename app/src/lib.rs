//! Applications of Kaskade as a library: configuration, data sets, measuring, planning, serving and load generation.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | the TOML file of an app |
//! | [`init`] | the file of a new app, from checkpoints that exist |
//! | [`family`] | the sources of an app's models, and loading them onto a device |
//! | `changed_answers`, `cost_output` | a model whose answers are changed; adds the output `cost` to local models with a price |
//! | [`data`] | labelled samples |
//! | [`ranker`] | ranking passages with embedders and cross-encoders |
//! | [`measure`] | profiles: costs and answers of variants |
//! | [`planning`] | cascades, gears, placements and pipelines for an app |
//! | [`deploy`] | writing plans to the plan store of a running app |
//! | [`serving`] | an app at its broker, and its clients |
//! | [`load`] | arrivals, and the clients that make them |
//! | [`keys`] | seeds, and the permissions that a nats-server is given |
//! | [`charts`] | charts as SVG |
//! | [`report`] | tables, units, progress |

mod changed_answers;
pub mod charts;
pub mod config;
mod cost_output;
pub mod data;
pub mod deploy;
pub mod family;
pub mod init;
pub mod keys;
pub mod load;
pub mod measure;
pub mod planning;
pub mod ranker;
pub mod report;
pub mod serving;

pub use config::App;
