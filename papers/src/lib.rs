//! The papers' headline comparisons, run again (DESIGN §5c): claims beside what was found here.
//!
//! | module | holds |
//! |---|---|
//! | [`cascadeserve`], [`hybridserve`], [`hybridcache`], [`loki`] | one paper each |
//! | [`args`] | flags that several systems share |
//! | [`stated`] | profiles, pipelines, workloads and decoders in the shape of the papers', every figure stated |
//! | [`reproduction`] | what a reproduction ends with: claims, assumptions, files |

mod abreast;
pub mod args;
pub mod cascadeserve;
pub mod hybridcache;
pub mod hybridserve;
pub mod loki;
pub mod pipeline;
pub mod reproduction;
pub mod stated;
