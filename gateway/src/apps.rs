//! Observation of the apps that a gateway serves.
//!
//! | module | holds |
//! |---|---|
//! | [`overview`], `app_state` | rates, power and queues of a running app; the task that follows an app through its broker |
//! | `observed_signature` | names, types and shapes of an app's inputs and outputs |
//! | `latency` | latency histograms |

pub(crate) mod app_state;
pub(crate) mod latency;
pub(crate) mod observed_signature;
pub mod overview;
