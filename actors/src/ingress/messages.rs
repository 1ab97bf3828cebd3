//! Messages that an ingress handles, except results.

use std::sync::Arc;

use super::reply_target::LocalClient;
use super::reservation::RequestReservation;
use crate::actor::Message;
use crate::wire::{InferRequest, RequestOptions};

/// A request received from the bus.
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

/// A client in this process has dropped a request with this id.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Dropped {
    pub(super) id: String,
}

/// The broker reports that the subject of this dispatch has no subscriber.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Undeliverable {
    pub(super) id: u64,
    pub(super) attempt: u32,
    pub(super) dispatch: u32,
}

/// A client cancels the requests with this id.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Cancel {
    pub(super) id: String,
}

/// The failure detector reports these replicas as lost.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LostReplicas(pub Vec<String>);

/// These replicas have left in good order, after sending all their results.
#[derive(Message)]
#[rtype(result = "()")]
pub struct DepartedReplicas(pub Vec<String>);

/// The connection was lost and is up again. Messages in transit may be lost.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reconnected;

/// A connection of the process, perhaps that of another shard, was lost and is up again. A request that stages forward
/// by themselves may have been in transit on it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ProcessReconnected;

/// The grace time is over: answers all requests in flight with a `Draining` fault.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FailInFlight;
