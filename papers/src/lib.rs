//! The papers' headline comparisons, run again (DESIGN §5c): claims beside what was found here.
//!
//! | module | holds |
//! |---|---|
//! | [`stated`] | profiles, pipelines and decoders in the shape of the papers', every figure stated |
//! | [`peers`] | the systems that the papers measure against |
//! | [`machine`] | the language model engine's schedule on stated hardware |

pub mod machine;
pub mod peers;
pub mod stated;
