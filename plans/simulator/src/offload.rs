//! The engine's schedule on stated hardware: the time of a load on another machine (HybridServe KAIST §5).
//!
//! It is a simulation, and deterministic. The policies are those that serve: the scheduler admits, the block space keeps the ratio,
//! packing forms mini-batches, the allocation finds the mixture. Only times are modelled, from a machine's stated figures and a
//! decoder's dimensions, and every mode uses the same model. It does not model losses in software beyond that: an
//! engine whose copies or kernels are slower than the stated figures is slower than simulated.
//!
//! | module | holds |
//! |---|---|
//! | [`shape`] | a decoder's dimensions, and what follows from them |
//! | [`decoders`] | published dimensions of OPT decoders, and the machine of the paper |
//! | `published` | dimensions out of a `config.json` |
//! | [`hardware`] | a device and its link, and what work takes there |
//! | [`setup`] | the setup that serves a mode best |
//! | `candidates` | those that are tried |
//! | [`pass`] | the course of one step: link and device side by side |
//! | [`run`] | a whole load |

mod candidates;
pub mod decoders;
pub mod hardware;
pub mod pass;
mod published;
pub mod run;
pub mod setup;
pub mod shape;

use serde::Serialize;

pub use hardware::{Forward, Hardware, Sampled};
pub use kaskade_policy::hybrid_cache::Traffic;
pub use pass::{LayerWork, StepTime, Weights, simulate_step};
pub use published::ConfigError;
pub use run::{OffloadOutcome, RunError};
pub use setup::{Arena, Load, Mode, Setup, SetupError};
pub use shape::{BadShape, Shape};

/// A figure that was assumed, and why it is what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// The assumed figure.
    pub what: String,
    /// Why.
    pub why: String,
}

/// A decoder on a machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// The device, the link and the host.
    pub hardware: &'a Hardware,
    /// The decoder.
    pub shape: &'a Shape,
}

#[cfg(test)]
mod pass_tests;
#[cfg(test)]
mod tests;
