//! The systems that the papers measure against.
//!
//! | module | holds |
//! |---|---|
//! | [`gears`] | `DynBa`, MS+ and the ablations of CascadeServe |
//! | [`cocktail`] | Cocktail+ |

pub mod cocktail;
pub mod gears;
