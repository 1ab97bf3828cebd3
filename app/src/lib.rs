//! Applications of Kaskade as a library: configuration, data sets, measuring, planning, serving and load generation.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | the TOML file of an app |
//! | [`init`] | the app file of a new app, from existing checkpoints |
//! | [`family`] | the sources of an app's models, and loading them onto a device |
//! | `changed_answers`, `cost_output` | wraps a model to modify its answers; adds the output `cost` to models with a price |
//! | [`data`] | labelled samples |
//! | [`ranker`] | ranking passages with embedders and cross-encoders |
//! | [`measure`] | profiles: costs and answers of variants |
//! | [`planning`] | cascades, gears, placements and pipelines for an app |
//! | [`deploy`] | writing plans to the plan store of a running app |
//! | [`serving`] | serving an app, and its clients |
//! | [`load`] | load generation: arrivals and clients |
//! | [`keys`] | seeds, and the permissions in a nats-server's configuration |
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
