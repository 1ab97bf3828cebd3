//! Profiles, pipelines and decoders in the shape of the papers', every figure stated and none measured.
//!
//! | module | holds |
//! |---|---|
//! | [`workloads`] | `CascadeServe`'s workloads |
//! | [`families`] | HybridServe's families (Edinburgh) |
//! | [`pipelines`] | Loki's pipelines |
//! | [`artefact`] | Loki's published measurements, read |
//! | [`thinned`] | smaller pipelines of the same shape |
//! | `difficulty` | answers drawn from a model of difficulty |

pub mod artefact;
mod difficulty;
pub mod families;
pub mod pipelines;
pub mod thinned;
pub mod workloads;

pub use kaskade_simulator::offload::Assumption;
