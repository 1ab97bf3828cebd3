//! Destination and format of a reply.

use async_nats::Subject;
use tokio::sync::{mpsc, oneshot};

use super::durable::Submission;
use super::reservation::RequestReservation;
use crate::error::Fault;
use crate::wire::{ContentType, InferReply};

/// Destination and format of a reply, with the client's request id.
pub(super) struct ReplyTarget {
    pub(super) destination: Destination,
    pub(super) content_type: ContentType,
    pub(super) id: Option<String>,
    /// Whether parts of a streamed answer have been sent.
    pub(super) has_parts: bool,
}

/// Recipient of a reply, with the permits that the request holds until then.
pub(super) enum Destination {
    /// A client's inbox; `None` without a usable reply subject.
    Inbox {
        inbox: Option<Subject>,
        held: RequestReservation,
    },
    /// The stream of durable requests.
    Stream(Box<Submission>),
    /// A client in this process.
    Local(LocalClient),
}

impl Destination {
    /// Returns whether it is a client in this process.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// Returns whether it is a client in this process that no longer waits.
    pub(super) fn is_dropped(&self) -> bool {
        matches!(self, Self::Local(client) if client.reply.is_closed())
    }
}

/// Channel for the parts of a streamed answer. Parts are boxed because a channel reserves room for 32 of them in every
/// stream.
pub(crate) type Parts = mpsc::UnboundedSender<Box<InferReply>>;

/// Destination of the reply to a client in this process.
pub(super) struct LocalClient {
    pub(super) reply: oneshot::Sender<Result<InferReply, Fault>>,
    /// Receives the parts of a streamed answer, all of them before the reply.
    pub(super) parts: Option<Parts>,
    pub(super) held: RequestReservation,
}

impl LocalClient {
    /// Answers with a fault. Sending fails if the client no longer waits.
    pub(super) fn refuse(self, fault: &Fault) {
        drop(self.held);
        let _ = self.reply.send(Err(fault.clone()));
    }
}
