//! Publishes the messages of a process in order, in chunks if they exceed the broker's limit.

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::{
    bus::Bus,
    error::{Code, Fault},
    ids,
    supervision::Supervisor,
    wire::headers,
    wire::{Limits, Message, chunks},
};

/// Bytes of the broker's `max_payload` reserved for headers.
pub const HEADROOM: usize = 1024;

/// One item of the queue.
enum Outgoing {
    Message {
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    },
    Flush(oneshot::Sender<()>),
}

/// Queue of outgoing messages. Create it inside an actix system: the publishing task runs there.
pub(crate) struct Publisher {
    max_payload: usize,
    outgoing: mpsc::UnboundedSender<Outgoing>,
}

impl Publisher {
    pub(crate) fn new(bus: &Bus, supervisor: &Supervisor) -> Self {
        // Unbounded; the number of messages is bounded by the permits under which requests were admitted.
        let (outgoing, receiver) = mpsc::unbounded_channel();
        supervisor.spawn("publisher", publish(bus.client().clone(), receiver));
        Self {
            max_payload: bus.max_payload(),
            outgoing,
        }
    }

    /// Publishes raw bytes.
    pub(crate) fn publish(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) {
        // The receiver outlives every actor; after it, there is no connection to publish on.
        let _ = self.outgoing.send(Outgoing::Message {
            subject,
            reply,
            headers,
            payload,
        });
    }

    /// Publishes a message to one reader, in chunks if the broker does not accept it whole.
    pub(crate) fn send(
        &self,
        subject: &Subject,
        mut reply: Option<Subject>,
        headers: HeaderMap,
        payload: &Bytes,
    ) {
        let limit = self.payload_limit();
        if payload.len() <= limit {
            let headers = Some(headers).filter(|headers| !headers.is_empty());
            return self.publish(subject.clone(), reply, headers, payload.clone());
        }
        for (chunk, part) in chunks::cut(ids::unique(), payload, limit) {
            let mut headers = headers.clone();
            headers::put_chunk(&mut headers, chunk);
            // One "no responders" notice per message is enough.
            self.publish(subject.clone(), reply.take(), Some(headers), part);
        }
    }

    /// Encodes a message, and checks that the reader's codec accepts its size.
    pub(crate) fn encode_checked<M: Message>(&self, message: &M) -> Result<Bytes, Fault> {
        let payload = message.encode()?;
        if payload.len() <= Limits::default().bytes {
            Ok(payload)
        } else {
            Err(self.too_large::<M>(payload.len()))
        }
    }

    /// Largest body that fits one message, bytes; headers count towards the broker's limit.
    pub(crate) fn payload_limit(&self) -> usize {
        self.max_payload.saturating_sub(HEADROOM)
    }

    pub(crate) fn too_large<M: Message>(&self, size: usize) -> Fault {
        let message = format!(
            "{} has {size} bytes; the broker accepts {} in one message, and at most {} are decoded; send less, or raise max_payload in \
             its configuration",
            M::NAME,
            self.payload_limit(),
            Limits::default().bytes,
        );
        Fault::new(Code::TooLarge, message)
    }

    /// Resolves once everything published so far has reached the broker.
    pub(crate) async fn flush(&self) {
        let (flushed, done) = oneshot::channel();
        if self.outgoing.send(Outgoing::Flush(flushed)).is_ok() {
            let _ = done.await;
        }
    }
}

/// Publishes in order until every dispatcher is dropped, then flushes.
async fn publish(client: async_nats::Client, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(next) = outgoing.recv().await {
        let (subject, reply, headers, payload) = match next {
            Outgoing::Message {
                subject,
                reply,
                headers,
                payload,
            } => (subject, reply, headers, payload),
            Outgoing::Flush(flushed) => {
                let _ = client.flush().await;
                let _ = flushed.send(());
                continue;
            }
        };
        let published = match (reply, headers) {
            (None, None) => client.publish(subject, payload).await,
            (None, Some(headers)) => client.publish_with_headers(subject, headers, payload).await,
            (Some(reply), None) => client.publish_with_reply(subject, reply, payload).await,
            (Some(reply), Some(headers)) => {
                client
                    .publish_with_reply_and_headers(subject, reply, headers, payload)
                    .await
            }
        };
        if let Err(error) = published {
            tracing::warn!(%error, "publishing a message failed");
        }
    }
    let _ = client.flush().await;
}
