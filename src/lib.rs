//! Kaskade serves a family of models, from tiny to giant, as if it were one model.
//!
//! This crate is the command line (`kaskade`), and the facade for people who plug their own actors in:
//!
//! | module | holds |
//! |---|---|
//! | [`actors`] | the bus, the wire messages, one file per actor |
//! | [`models`] | tensors, the [`Model`] trait, the families that burn runs |
//! | [`policy`] | the decisions of serving: plans, profiles, confidence, routing |
//! | [`planners`] | from profiles to plans: thresholds, placement, gears, pipelines |
//! | [`simulator`] | what a plan does with a load, without serving it |
//! | [`app`] | applications as a library: measuring, planning, serving, load |
//! | [`config`] | the TOML file of an app |
//!
//! The shortest way in is a [`Model`]: one method that answers a batch. `examples/custom_actor` shows it on the bus.

pub use kaskade_actors as actors;
pub use kaskade_app as app;
pub use kaskade_app::config;
pub use kaskade_models as models;
pub use kaskade_planners as planners;
pub use kaskade_policy as policy;
pub use kaskade_simulator as simulator;

pub use kaskade_app::config::App;
pub use kaskade_models::{Inputs, Model, ModelError, Outputs, Signature, Tensor};
pub use kaskade_policy::plan::Plan;
