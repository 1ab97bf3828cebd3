//! The messages that an ingress handles, besides requests and results.

use crate::actor::Message;

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
pub struct LeftReplicas(pub Vec<String>);

/// The connection was lost and is up again: messages in transit may be gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reconnected;

/// Answers all requests in flight with a `Draining` fault: the grace time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FailInFlight;
