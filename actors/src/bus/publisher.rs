//! Publishes the messages of a process in order, in chunks if they exceed the broker's limit.
//!
//! There are two queues, both bounded in bytes. Requests, results and replies go through the data queue; the permits of a
//! request travel with its message until the message has been written to the connection, so a slow broker bounds memory
//! and the ingress refuses requests. Refusals, heartbeats and other small messages go through the control queue, which
//! never waits for the data queue.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use async_nats::client::PublishErrorKind;
use async_nats::{Client, HeaderMap, Subject};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    bus::{Bus, RAISE_MAX_PAYLOAD},
    clock::Clock,
    error::{Code, Fault},
    ids,
    supervision::Supervisor,
    wire::headers,
    wire::{Limits, Message, chunks},
};

/// Part of the broker's `max_payload` reserved for headers, bytes.
pub const HEADROOM: usize = 1024;

/// Permits that a request holds until its message has been written to the connection.
pub type Permits = Vec<OwnedSemaphorePermit>;

/// Bounds of the queues, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// Messages in the data queue.
    pub(crate) data: usize,
    /// Messages in the control queue.
    pub(crate) control: usize,
    /// Data that was handed to the client and may not be written yet.
    pub(crate) unwritten: usize,
}

impl Default for QueueLimits {
    /// Returns limits under which the data queue holds four messages of the largest size.
    fn default() -> Self {
        Self {
            data: 4 * Limits::default().bytes,
            control: 16 << 20,
            unwritten: 8 << 20,
        }
    }
}

/// Size accounted for each message besides its payload, bytes, so that many small messages are not free.
const OVERHEAD: usize = 256;

/// One item of a queue.
enum Outgoing {
    Message(Item),
    Flush(oneshot::Sender<()>),
}

struct Item {
    subject: Subject,
    reply: Option<Subject>,
    headers: Option<HeaderMap>,
    /// End of the budget, on this process's clock, microseconds.
    deadline: Option<u64>,
    payload: Bytes,
    /// Permits shared by the chunks of a message.
    held: Arc<Permits>,
}

/// Queues of outgoing messages. Create it inside an actix system: the publishing task runs there.
pub(crate) struct Publisher {
    max_payload: usize,
    data: mpsc::UnboundedSender<Outgoing>,
    control: mpsc::UnboundedSender<Outgoing>,
    data_bytes: Arc<Semaphore>,
    control_bytes: Arc<Semaphore>,
}

impl Publisher {
    pub(crate) fn new(bus: &Bus, clock: Clock, supervisor: &Supervisor) -> Self {
        Self::with(bus, clock, supervisor, QueueLimits::default())
    }

    pub(crate) fn with(bus: &Bus, clock: Clock, supervisor: &Supervisor, limits: QueueLimits) -> Self {
        let (data, data_receiver) = mpsc::unbounded_channel();
        let (control, control_receiver) = mpsc::unbounded_channel();
        let writer = Writer {
            client: bus.client().clone(),
            clock,
            limit: limits.unwritten,
            unwritten: VecDeque::new(),
            bytes: 0,
        };
        supervisor.spawn("publisher", writer.run(data_receiver, control_receiver));
        Self {
            max_payload: bus.max_payload(),
            data,
            control,
            data_bytes: Arc::new(Semaphore::new(limits.data)),
            control_bytes: Arc::new(Semaphore::new(limits.control)),
        }
    }

    /// Publishes a small message that must not wait for data. If the control queue is full because the broker has not
    /// read for a long time, the message is dropped.
    pub(crate) fn control(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) {
        let Some(permit) = reserve(&self.control_bytes, payload.len()) else {
            return tracing::warn!(%subject, "the queue of control messages is full; a message is dropped");
        };
        // The receiver outlives every actor; a failed send means that the connection is gone.
        let _ = self.control.send(Outgoing::Message(Item {
            subject,
            reply,
            headers,
            deadline: None,
            payload,
            held: Arc::new(vec![permit]),
        }));
    }

    /// Publishes a message to one reader, in chunks if it exceeds the broker's limit. The message holds `permits` until
    /// it has been written. Its budget header is set when it is written; a message whose budget has ended is not sent.
    ///
    /// # Errors
    /// [`Code::Overloaded`] if the queue is full.
    pub(crate) fn send(
        &self,
        subject: &Subject,
        mut reply: Option<Subject>,
        headers: HeaderMap,
        deadline: Option<u64>,
        payload: &Bytes,
        mut permits: Permits,
    ) -> Result<(), Fault> {
        let Some(permit) = reserve(&self.data_bytes, payload.len()) else {
            let message =
                "the queue of outgoing messages is full: the broker reads too slowly; try again later";
            return Err(Fault::new(Code::Overloaded, message));
        };
        permits.push(permit);
        let held = Arc::new(permits);
        let limit = self.payload_limit();
        let publish = |reply, headers, payload| {
            let _ = self.data.send(Outgoing::Message(Item {
                subject: subject.clone(),
                reply,
                headers,
                deadline,
                payload,
                held: Arc::clone(&held),
            }));
        };
        if payload.len() <= limit {
            let headers = Some(headers).filter(|headers| !headers.is_empty());
            publish(reply, headers, payload.clone());
            return Ok(());
        }
        for (chunk, part) in chunks::split(ids::unique(), payload, limit) {
            let mut headers = headers.clone();
            headers::put_chunk(&mut headers, chunk);
            // One "no responders" notice per message is enough.
            publish(reply.take(), Some(headers), part);
        }
        Ok(())
    }

    /// Encodes a message and checks that its size is within the reader's codec limits.
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
            "{} has {size} bytes; the broker accepts {} in one message, and at most {} are decoded; send less, or {RAISE_MAX_PAYLOAD}",
            M::NAME,
            self.payload_limit(),
            Limits::default().bytes,
        );
        Fault::new(Code::TooLarge, message)
    }

    /// Resolves once everything published so far has reached the broker.
    pub(crate) async fn flush(&self) {
        for queue in [&self.data, &self.control] {
            let (flushed, done) = oneshot::channel();
            if queue.send(Outgoing::Flush(flushed)).is_ok() {
                let _ = done.await;
            }
        }
    }
}

/// Reserves room for a message; `None` if there is not enough.
fn reserve(bytes: &Arc<Semaphore>, payload: usize) -> Option<OwnedSemaphorePermit> {
    let size = u32::try_from(payload.saturating_add(OVERHEAD)).ok()?;
    Arc::clone(bytes).try_acquire_many_owned(size).ok()
}

/// Hands messages to the client, and releases their permits once a flush proves that they were written.
struct Writer {
    client: Client,
    clock: Clock,
    /// Limit of the bytes handed over but not known to be written; at the limit no more data is handed over.
    limit: usize,
    unwritten: VecDeque<(usize, Arc<Permits>)>,
    bytes: usize,
}

type Flushing = Pin<Box<dyn Future<Output = usize>>>;

impl Writer {
    /// Publishes in order until every dispatcher is dropped, then flushes.
    async fn run(
        mut self,
        mut data: mpsc::UnboundedReceiver<Outgoing>,
        mut control: mpsc::UnboundedReceiver<Outgoing>,
    ) {
        let mut flushing: Option<Flushing> = None;
        let (mut data_open, mut control_open) = (true, true);
        while data_open || control_open {
            if flushing.is_none()
                && !self.unwritten.is_empty()
                && (data.is_empty() || self.bytes >= self.limit)
            {
                flushing = Some(self.begin_flush());
            }
            tokio::select! {
                biased;
                written = async { match &mut flushing {
                    Some(flushing) => flushing.await,
                    None => std::future::pending().await,
                } } => {
                    flushing = None;
                    self.release(written);
                }
                next = control.recv(), if control_open => match next {
                    Some(next) => self.write(next, false).await,
                    None => control_open = false,
                },
                next = data.recv(), if data_open && self.bytes < self.limit => match next {
                    Some(next) => self.write(next, true).await,
                    None => data_open = false,
                },
            }
        }
        let _ = self.client.flush().await;
    }

    /// Starts a flush of all messages handed over so far. The future returns their number.
    fn begin_flush(&self) -> Flushing {
        let (client, messages) = (self.client.clone(), self.unwritten.len());
        Box::pin(async move {
            if let Err(error) = client.flush().await {
                tracing::debug!(%error, "flushing the connection failed");
                // On a closed connection every flush fails immediately.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            messages
        })
    }

    fn release(&mut self, messages: usize) {
        for (bytes, _) in self.unwritten.drain(..messages.min(self.unwritten.len())) {
            self.bytes -= bytes;
        }
    }

    async fn write(&mut self, next: Outgoing, is_data: bool) {
        let Item {
            subject,
            reply,
            headers,
            deadline,
            payload,
            held,
        } = match next {
            Outgoing::Message(item) => item,
            Outgoing::Flush(flushed) => {
                let _ = self.client.flush().await;
                let _ = flushed.send(());
                return;
            }
        };
        let headers = match deadline.map(|deadline| deadline.saturating_sub(self.clock.now())) {
            None => headers,
            Some(0) => return tracing::debug!(%subject, "a message expired before it was sent"),
            Some(left) => {
                let mut headers = headers.unwrap_or_default();
                headers::put_budget(&mut headers, Duration::from_micros(left));
                Some(headers)
            }
        };
        // Control messages are small, and few enough for the client's queue.
        let size = if is_data { payload.len() + OVERHEAD } else { 0 };
        let published = match (reply, headers) {
            (None, None) => self.client.publish(subject, payload).await,
            (None, Some(headers)) => self.client.publish_with_headers(subject, headers, payload).await,
            (Some(reply), None) => self.client.publish_with_reply(subject, reply, payload).await,
            (Some(reply), Some(headers)) => {
                self.client
                    .publish_with_reply_and_headers(subject, reply, headers, payload)
                    .await
            }
        };
        match published {
            Ok(()) => {
                self.bytes += size;
                self.unwritten.push_back((size, held));
            }
            // The connection of a drained node accepts no more messages.
            Err(error) if error.kind() == PublishErrorKind::Send => {
                tracing::debug!(%error, "a message found the connection closed");
            }
            Err(error) => tracing::warn!(%error, "publishing a message failed"),
        }
    }
}

#[cfg(test)]
mod tests;
