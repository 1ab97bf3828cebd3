//! The limits of a gateway and of its tenants.
//!
//! | module | holds |
//! |---|---|
//! | `tenant` | keys, and limits per key |
//! | `permits` | permits of requests in progress |
//! | `subrequests` | the parts of a request, which run concurrently as far as the limits allow |
//! | `limited_body` | request bodies, limited in total size |

pub(crate) mod limited_body;
pub(crate) mod permits;
pub(crate) mod subrequests;
pub(crate) mod tenant;
