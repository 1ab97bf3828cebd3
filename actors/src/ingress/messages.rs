//! The messages that an ingress handles, besides results.

use std::sync::Arc;

use super::reply_target::LocalClient;
use super::reservation::RequestReservation;
use crate::actor::Message;
use crate::wire::{InferRequest, RequestOptions};

/// A request as received.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Inbound {
    pub(super) message: async_nats::Message,
    pub(super) held: RequestReservation,
}

/// A request of a client in this process.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct LocalRequest {
    pub(super) request: Arc<InferRequest>,
    pub(super) options: RequestOptions,
    pub(super) to: LocalClient,
}

/// The client in this process that sent requests of this id has dropped one of them.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Dropped {
    pub(super) id: String,
}

/// The broker reports that no subscriber serves the subject to which this dispatch of a request was sent.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Undeliverable {
    pub(super) id: u64,
    pub(super) attempt: u32,
    pub(super) dispatch: u32,
}

/// A client cancels the requests of this id.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Cancel {
    pub(super) id: String,
}

/// The failure detector has lost these replicas.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LostReplicas(pub Vec<String>);

/// These replicas have left in good order, with all their results sent before.
#[derive(Message)]
#[rtype(result = "()")]
pub struct DepartedReplicas(pub Vec<String>);

/// The connection was lost and is up again: messages in transit may be gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reconnected;

/// A connection of the process was lost and is up again, perhaps that of another shard: a request that moves on by itself may have been
/// on its way over it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ProcessReconnected;

/// Answers all requests in flight with a `Draining` fault: the grace time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FailInFlight;
