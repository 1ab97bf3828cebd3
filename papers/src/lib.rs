//! The papers' headline comparisons: what each paper claims beside what this code shows.
//!
//! | module | holds |
//! |---|---|
//! | [`cascadeserve`], [`hybridserve`], [`hybridcache`], [`loki`] | one paper each |
//! | [`peers`] | the systems that the papers measure against |
//! | [`pipeline`] | writes a pipeline of the Loki paper as a file |
//! | [`args`] | flags that several systems share |
//! | [`reproduction`] | what a reproduction ends with: claims, assumptions, files |

mod abreast;
pub mod args;
pub mod cascadeserve;
pub mod hybridcache;
pub mod hybridserve;
pub mod loki;
mod over_time;
pub mod peers;
pub mod pipeline;
pub mod reproduction;
