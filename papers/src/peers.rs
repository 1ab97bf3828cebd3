//! The systems that the papers measure against.
//!
//! | module | holds |
//! |---|---|
//! | [`gears`] | `DynBa`, MS+ and the ablations of CascadeServe |
//! | [`cocktail`] | Cocktail+ |
//! | [`pipelines`] | who allocates a pipeline: Loki, `InferLine` or Proteus |
//! | [`proteus`] | Proteus |

pub mod cocktail;
pub mod gears;
pub mod pipelines;
pub mod proteus;
