//! Converts one request of a client to requests of an app.
//!
//! | module | holds |
//! |---|---|
//! | `call` | budget, trace and answer of one request |
//! | `request_ids` | request ids over NATS |
//! | `reply_metadata` | metadata of replies |
//! | `trace` | spans of HTTP requests and of the NATS requests that they become |

pub(crate) mod call;
pub(crate) mod reply_metadata;
pub(crate) mod request_ids;
pub(crate) mod trace;
