//! Everything that decides, and nothing that acts: no runtime, no network, no clock, no hidden randomness.
//!
//! The simulator and the actors call the same functions, so that a simulated figure speaks of the code that serves.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | the plan: placement, gears, wiring, batching |
//! | [`profile`] | the profile: what was measured of every variant |
//! | [`confidence`] | confidence scores and their calibration |
//! | [`liveness`] | who is alive, judged by heartbeats |

pub mod confidence;
pub mod liveness;
pub mod plan;
pub mod profile;
