//! The names of actix that this crate uses; no other module imports actix.
//!
//! actix is in passive maintenance, so the crate relies on actors, addresses, recipients and arbiters only.

pub(crate) use actix::dev::{MessageResponse, OneshotSender};
pub(crate) use actix::{
    Actor, Addr, Arbiter, ArbiterHandle, AsyncContext, Context, Handler, Message, MessageResult, Recipient,
    ResponseFuture, SpawnHandle, System, WeakRecipient, spawn,
};
