//! The cache of keys, values and activations on the device and in host memory, and the transfers between them.
//!
//! | module | holds |
//! |---|---|
//! | `block_cache` | storage of blocks |
//! | `cached_context` | the cached tokens of a mini-batch |
//! | `transfer` | the transfer thread |
//! | `link` | the link to the device, which can be throttled on the CPU |

pub(crate) mod block_cache;
pub(crate) mod cached_context;
pub(crate) mod link;
pub(crate) mod transfer;
