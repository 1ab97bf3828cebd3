//! The limits of a gateway and of its tenants.
//!
//! | module | holds |
//! |---|---|
//! | `tenant` | keys, and limits per key |
//! | `permits` | permits of requests in progress |
//! | `subrequests` | the parts of a request, which run together as far as its limits allow |
//! | `limited_body` | bodies of requests as they arrive, within the limit of all bodies |

pub(crate) mod limited_body;
pub(crate) mod permits;
pub(crate) mod subrequests;
pub(crate) mod tenant;
