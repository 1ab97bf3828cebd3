//! Re-exports of actix; no other module imports it.
//!
//! actix is in passive maintenance, so the crate relies on actors, addresses, recipients and arbiters only.

pub(crate) use actix::dev::{MessageResponse, OneshotSender};
pub(crate) use actix::{
    Actor, Addr, Arbiter, ArbiterHandle, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    ResponseFuture, SpawnHandle, System, WeakRecipient, spawn,
};
