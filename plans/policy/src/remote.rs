//! Requests to models behind an endpoint of another party: when to send, when to send again, what they cost.
//!
//! | module | holds |
//! |---|---|
//! | [`agreement`] | confidence by agreement of several samples |
//! | [`breaker`] | the circuit breaker: an endpoint that keeps failing gets no requests for a while |
//! | [`hold`] | the pause that an endpoint asks for, kept by all requests |
//! | [`retry`] | whether a failed call is repeated, and after which pause |
//! | [`price`] | what a request costs in money, and the limit of spending |

pub mod agreement;
pub mod breaker;
pub mod hold;
pub mod price;
pub mod retry;
