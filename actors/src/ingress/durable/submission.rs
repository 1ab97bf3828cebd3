//! One durable request in progress, from its delivery until it is settled.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::actor::{self, Message};
use async_nats::jetstream::{self, AckKind};
use async_nats::{HeaderMap, Subject, header};
use bytes::Bytes;
use kaskade_policy::redelivery::{Disposition, FailureCause};

use super::config::DurableError;
use super::failures::{Counted, micros};
use super::streams::Streams;
use crate::error::{Code, Fault};
use crate::ingress::reservation::RequestReservation;
use crate::subjects;
use crate::wire::headers;
use crate::wire::{self, ContentType};

/// Pause before a retry after the stream refused a result or dead letter.
const PAUSE: Duration = Duration::from_secs(1);

/// A durable request as delivered by the stream.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Submitted {
    pub(crate) message: async_nats::Message,
    pub(crate) submission: Submission,
}

/// A delivery of a durable request. Dropping it unsettled returns it to the stream.
pub(crate) struct Submission {
    streams: Arc<Streams>,
    /// Ack subject of the delivery.
    ack: Subject,
    /// Whether the delivery has been acknowledged.
    is_acknowledged: bool,
    /// Id given by the client, or one made from the sequence number.
    id: String,
    /// Sequence number in the stream.
    number: u64,
    delivered: u32,
    submitted: SystemTime,
    /// Subject to which the client wants the result pushed.
    push: Option<Subject>,
    /// The submitted headers and body, for the dead letter.
    headers: HeaderMap,
    payload: Bytes,
    /// Permits held until the request is settled.
    pub(crate) held: RequestReservation,
}

/// Returns a unique name of a request in its stream. The name includes the time because a stream that is created again
/// restarts its sequence numbers, while results and dead letters of the previous stream are kept.
fn number_and_time(number: u64, submitted: SystemTime) -> String {
    format!("{number}-{}", micros(submitted))
}

impl Submission {
    /// Creates a submission from a consumer's message; `None` for other messages.
    pub(super) fn of(
        streams: &Arc<Streams>,
        message: &jetstream::Message,
        held: RequestReservation,
    ) -> Option<Self> {
        let info = message.info().ok()?;
        let headers = message.headers.clone().unwrap_or_default();
        let named = headers::request_id(&headers).ok().flatten();
        let (number, submitted) = (info.stream_sequence, info.published.into());
        let id = named.map_or_else(
            || format!("submitted-{}", number_and_time(number, submitted)),
            ToOwned::to_owned,
        );
        let reply = message.reply.clone()?;
        streams.track(info.stream_sequence, reply.clone());
        Some(Self {
            streams: Arc::clone(streams),
            ack: reply,
            is_acknowledged: false,
            id,
            number,
            delivered: u32::try_from(info.delivered).unwrap_or(u32::MAX),
            submitted,
            push: headers::push(&headers).filter(|subject| subjects::is_reply_allowed(subject)),
            payload: message.payload.clone(),
            headers,
            held,
        })
    }

    /// Sets the id from the body if the headers have none.
    pub(crate) fn set_id(&mut self, id: &str) {
        id.clone_into(&mut self.id);
    }

    /// Returns whether the request was delivered before. A process that could not acknowledge it may then have settled
    /// it.
    pub(super) fn is_redelivery(&self) -> bool {
        self.delivered > 1
    }

    /// If the result is already stored, sends it to the client and acknowledges the request. Returns whether it was.
    pub(super) async fn ack_if_settled(&mut self) -> bool {
        let stored = self.push_stored().await;
        if stored {
            self.settle();
        }
        stored
    }

    /// Sends the stored result to the client, if there is one. Returns whether there is.
    async fn push_stored(&mut self) -> bool {
        let Some(stored) = self.streams.result(&self.id).await else {
            return false;
        };
        let headers = headers::without_nats(&stored.headers.unwrap_or_default());
        self.push(headers, stored.payload);
        true
    }

    /// Settles the request with a result.
    pub(crate) fn answer(self, content_type: ContentType, payload: Bytes) {
        actor::spawn(self.finish(headers::for_body(content_type), payload));
    }

    /// Settles the request with a fault, or returns it to the stream for a retry, as [`kaskade_policy::redelivery`]
    /// decides.
    pub(crate) fn fail(self, content_type: ContentType, fault: Fault) {
        actor::spawn(self.end(content_type, fault));
    }

    async fn end(mut self, content_type: ContentType, fault: Fault) {
        let disposition = match fault.code {
            // The client settled it; nothing to investigate.
            Code::Cancelled => None,
            // Another ingress can take it immediately.
            Code::Draining => Some(Disposition::Again { after_us: 0 }),
            code => Some(self.judge(blame(code)).await),
        };
        match disposition {
            Some(Disposition::Again { after_us }) => {
                self.streams.metrics.redelivered();
                tracing::debug!(id = self.id, %fault, after_us, "returned a durable request for a retry");
                return self.hand_back(Duration::from_micros(after_us));
            }
            Some(Disposition::Dead) => {
                // Another delivery with the same id was answered; nothing to investigate.
                if self.ack_if_settled().await {
                    return;
                }
                if let Err(error) = self.dead_letter(&fault).await {
                    tracing::warn!(id = self.id, %error, "storing a dead letter failed; retrying");
                    return self.hand_back(PAUSE);
                }
            }
            None => {}
        }
        self.streams.metrics.fault(&fault);
        let payload = wire::encode_fault(content_type, &fault);
        self.finish(headers::for_fault(content_type, &fault), payload)
            .await;
    }

    async fn judge(&self, blame: FailureCause) -> Disposition {
        // Compares the stream's clock with this process's. The age only decides how long retries continue, and is never
        // negative.
        let age = SystemTime::now()
            .duration_since(self.submitted)
            .unwrap_or_default();
        let age_us = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let rules = &self.streams.config.redelivery;
        let request = Counted {
            number: self.number,
            submitted: self.submitted,
        };
        let failures = self.streams.failures.record(request, blame).await;
        rules.after_failure(self.number, blame, failures, self.delivered, age_us)
    }

    /// Stores the result, pushes it to the client and acknowledges the request, in this order: if a step is lost, the
    /// request is redelivered. If the id already has a result, that result is pushed.
    async fn finish(mut self, headers: HeaderMap, payload: Bytes) {
        match self
            .streams
            .store_result(&self.id, headers.clone(), payload.clone())
            .await
        {
            Ok(first) => {
                if first {
                    self.streams.metrics.result_stored();
                    self.push(headers, payload);
                } else {
                    self.push_stored().await;
                }
                self.settle();
            }
            Err(error) => {
                tracing::warn!(id = self.id, %error, "storing a result failed; retrying its request");
                self.hand_back(PAUSE);
            }
        }
    }

    fn push(&mut self, mut headers: HeaderMap, payload: Bytes) {
        if let Some(subject) = self.push.take()
            && headers::put_request_id(&mut headers, &self.id).is_ok()
        {
            self.streams
                .dispatcher
                .publish(subject, None, Some(headers), payload);
        }
    }

    /// Stores the submitted request as a dead letter, with the reason and the number of deliveries.
    async fn dead_letter(&self, fault: &Fault) -> Result<(), DurableError> {
        let mut headers = headers::for_dead_letter(&self.headers, fault, self.delivered);
        // Deduplication id: a request that becomes a dead letter twice, because the first acknowledgement was lost, is
        // stored once.
        headers.insert(
            header::NATS_MESSAGE_ID,
            number_and_time(self.number, self.submitted),
        );
        let fits = self
            .streams
            .bus
            .check_size(Some(&headers), self.payload.len())
            .is_ok();
        // If the added headers make the message too large, omit the body.
        let payload = if fits { self.payload.clone() } else { Bytes::new() };
        self.streams.dead_letter(&self.id, headers, payload).await?;
        self.streams.metrics.dead_lettered();
        tracing::warn!(id = self.id, deliveries = self.delivered, %fault, "a durable request became a dead letter");
        Ok(())
    }

    fn settle(&mut self) {
        self.streams.failures.forget(self.number);
        self.ack(AckKind::Ack);
    }

    fn hand_back(mut self, after: Duration) {
        self.ack(AckKind::Nak(Some(after).filter(|after| !after.is_zero())));
    }

    /// Sends an acknowledgement to the stream. A lost one is harmless: the request is redelivered, its result is found,
    /// and it is acknowledged again.
    fn ack(&mut self, kind: AckKind) {
        if !std::mem::replace(&mut self.is_acknowledged, true) {
            let ack = self.ack.clone();
            self.streams.dispatcher.publish(ack, None, None, kind.into());
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        self.streams.untrack(self.number, &self.ack);
        self.ack(AckKind::Nak(None));
    }
}

/// Classifies who caused the failure.
fn blame(code: Code) -> FailureCause {
    match code {
        Code::Malformed | Code::TooLarge | Code::InvalidInput | Code::TooLong | Code::Cancelled => {
            FailureCause::Sender
        }
        Code::ModelFailed | Code::BadOutput | Code::Internal | Code::ReplicasLost => FailureCause::Request,
        Code::UnknownApp
        | Code::Expired
        | Code::Overloaded
        | Code::Unavailable
        | Code::Draining
        | Code::NotCalibrated
        | Code::BrokerUnavailable
        | Code::BrokerTooOld
        | Code::NeedsJetStream
        | Code::PlanRefused
        | Code::StaleEpoch
        | Code::Dropped
        | Code::NotDurable
        | Code::NoReply
        | Code::Unreadable
        | Code::EndpointUnavailable
        | Code::EndpointRefused
        | Code::NotPermitted => FailureCause::Service,
    }
}
