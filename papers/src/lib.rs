//! The papers' headline comparisons: each paper's claims beside the results of this code.
//!
//! | module | holds |
//! |---|---|
//! | [`cascadeserve`], [`hybridserve`], [`hybridcache`], [`loki`] | one paper each |
//! | [`peers`] | the systems that the papers measure against |
//! | [`pipeline`] | writes a pipeline of the Loki paper as a file |
//! | [`args`] | flags that several systems share |
//! | `charts` | groups of bars, grids, and figures of a simulated run over time |
//! | `parallel` | independent pieces of work on all cores |
//! | [`reproduction`] | the result of a reproduction: claims, assumptions, files |

pub mod args;
pub mod cascadeserve;
mod charts;
pub mod hybridcache;
pub mod hybridserve;
pub mod loki;
mod parallel;
pub mod peers;
pub mod pipeline;
pub mod reproduction;
