//! One request of a client, as a request to the app.
//!
//! | module | holds |
//! |---|---|
//! | `call` | budget, trace and answer of one request |
//! | `request_ids` | the ids over NATS |
//! | `reply_metadata` | how a request was answered |
//! | `trace` | spans of requests and of the requests to the app that they become |

pub(crate) mod call;
pub(crate) mod reply_metadata;
pub(crate) mod request_ids;
pub(crate) mod trace;
