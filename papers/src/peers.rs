//! The systems that the papers measure against.
//!
//! | module | holds |
//! |---|---|
//! | [`gears`] | `DynBa`, MS+ and the ablations of CascadeServe |
//! | [`cocktail`] | Cocktail+ |
//! | [`pipelines`] | allocators of pipelines: Loki, `InferLine` or Proteus |
//! | [`proteus`] | Proteus |

pub mod cocktail;
pub mod gears;
pub mod pipelines;
pub mod proteus;
