//! Encodes and publishes the terminal reply.

use async_nats::HeaderMap;
use bytes::Bytes;
use kaskade_models::Tensor;
use kaskade_policy::fan_in::Branch;

use super::actor::Ingress;
use super::in_flight::InFlight;
use super::refusal::Refusal;
use super::reply_target::{Destination, ReplyTarget};
use super::reservation::RequestReservation;
use crate::{
    bus::publisher::HEADROOM,
    dispatch::dispatcher::Dispatcher,
    dispatch::spans,
    error::{Code, Fault},
    metrics::Metrics,
    wire::headers,
    wire::{self, BranchReply, ContentType, InferReply, MAX_HOPS, StageOutcome, StageReply},
};

impl Ingress {
    /// Publishes the result; `degraded` marks it if a preferred answer is missing. A result that cannot be published is
    /// replaced by a fault, so that the client is answered in any case.
    pub(super) fn reply_with(&self, entry: InFlight, done: StageReply, degraded: bool) {
        let StageOutcome::Outputs {
            outputs, confidence, ..
        } = done.result
        else {
            return;
        };
        let reply = InferReply {
            id: entry.target.id.clone(),
            outputs,
            variant: variant(&entry, &done.stage),
            stage: done.stage,
            confidence,
            hops: done.hops,
            degraded,
            ..InferReply::default()
        };
        self.publish_reply(entry, reply);
    }

    /// Publishes the results of a pipeline's branches. A failed branch carries its own error, a missing branch carries
    /// `missing`. If no final branch has an answer, the first failure becomes the fault of the whole request.
    pub(super) fn reply_with_branches(&self, mut entry: InFlight, missing: Option<&Fault>) {
        let mut branches = std::mem::take(&mut entry.fan_in).into_branches().into_iter();
        let Some((_, Some(root))) = branches.next() else {
            return;
        };
        let mut hops = root.hops.clone();
        let branches: Vec<BranchReply> = branches
            .map(|(branch, done)| {
                hops.extend(done.iter().filter_map(|done| done.hops.last().cloned()));
                branch_reply(&entry, branch, done, missing)
            })
            .collect();
        hops.truncate(MAX_HOPS);
        let failure = branches.iter().find_map(|branch| branch.error.as_ref());
        let none_answered = branches.iter().all(|branch| branch.outputs.is_empty());
        if let Some(fault) = failure.filter(|_| none_answered) {
            let fault = fault.clone();
            self.trace(&entry, Err(&fault));
            return self.refuse(entry.target, &fault);
        }
        let (outputs, confidence) = match root.result {
            StageOutcome::Outputs {
                outputs, confidence, ..
            } => (outputs, confidence),
            StageOutcome::Part { .. } | StageOutcome::Fault(_) => (Vec::new(), None),
        };
        let reply = InferReply {
            id: entry.target.id.clone(),
            outputs,
            variant: variant(&entry, &root.stage),
            stage: root.stage,
            confidence,
            hops,
            degraded: failure.is_some(),
            part: None,
            branches,
        };
        self.publish_reply(entry, reply);
    }

    /// Publishes a part of a streamed answer. Returns false if it could not be sent; the complete answer follows in any case.
    pub(super) fn publish_part(&self, id: u64, stage: String, outputs: Vec<Tensor>, from: u32) -> bool {
        let Some(entry) = self.ledger.get(id) else {
            return false;
        };
        if matches!(
            &entry.target.destination,
            Destination::Stream(_) | Destination::Inbox { inbox: None, .. }
        ) {
            return true;
        }
        let content_type = entry.target.content_type;
        let part = InferReply {
            id: entry.target.id.clone(),
            outputs,
            variant: variant(entry, &stage),
            stage,
            part: Some(from),
            ..InferReply::default()
        };
        match &entry.target.destination {
            Destination::Inbox {
                inbox: Some(inbox), ..
            } => {
                let Ok(payload) = wire::encode_reply(content_type, &part) else {
                    return false;
                };
                // A part that does not fit into the queue is not sent.
                let headers = body_headers(content_type);
                self.dispatcher
                    .reply(inbox, headers, &payload, Vec::new())
                    .is_ok()
            }
            Destination::Local(client) => {
                if let Some(parts) = &client.parts {
                    // Fails if the client has cancelled and no longer reads.
                    let _ = parts.send(Box::new(part));
                }
                true
            }
            Destination::Inbox { inbox: None, .. } | Destination::Stream(_) => true,
        }
    }

    fn publish_reply(&self, entry: InFlight, reply: InferReply) {
        let answered_in = self.dispatcher.clock().now().saturating_sub(entry.accepted);
        if matches!(entry.target.destination, Destination::Local(_)) {
            self.trace(&entry, Ok(&reply));
        }
        if let Destination::Local(client) = entry.target.destination {
            // Count before sending, so that a client that reads the reply finds it counted. Sending fails if the client
            // has gone.
            self.metrics.answered(answered_in);
            drop(client.held);
            let _ = client.reply.send(Ok(reply));
            return;
        }
        let payload = match self.encoded(entry.target.content_type, &reply) {
            Ok(payload) => payload,
            Err(fault) => {
                self.trace(&entry, Err(&fault));
                return self.refuse(entry.target, &fault);
            }
        };
        self.trace(&entry, Ok(&reply));
        let content_type = entry.target.content_type;
        let sent = match entry.target.destination {
            Destination::Inbox {
                inbox: Some(inbox),
                held,
            } => {
                let permits = held.into_permits();
                let headers = body_headers(content_type);
                let sent = self.dispatcher.reply(&inbox, headers, &payload, permits);
                sent.map_err(|fault| (inbox, fault))
            }
            Destination::Inbox { inbox: None, .. } => Ok(()),
            Destination::Stream(submission) => {
                submission.answer(content_type, payload);
                Ok(())
            }
            Destination::Local(_) => return,
        };
        match sent {
            Ok(()) => self.metrics.answered(answered_in),
            Err((inbox, fault)) => {
                let target = ReplyTarget {
                    destination: Destination::Inbox {
                        inbox: Some(inbox),
                        held: RequestReservation::default(),
                    },
                    content_type,
                    id: entry.target.id,
                    has_parts: entry.target.has_parts,
                };
                self.refuse(target, &fault);
            }
        }
    }

    /// Encodes a reply, and checks that the broker accepts its size.
    fn encoded(&self, content_type: ContentType, reply: &InferReply) -> Result<Bytes, Fault> {
        let payload = wire::encode_reply(content_type, reply).map_err(Fault::from)?;
        let (length, limit) = (payload.len(), self.max_payload.saturating_sub(HEADROOM));
        if length > limit {
            let message = format!("the reply has {length} bytes; the broker accepts at most {limit}");
            return Err(Fault::new(Code::TooLarge, message));
        }
        Ok(payload)
    }

    /// Records the span of a request with its outcome.
    pub(super) fn trace(&self, entry: &InFlight, outcome: Result<&InferReply, &Fault>) {
        let request = spans::Request {
            app: self.dispatcher.app().name(),
            trace: entry.trace,
            parent: entry.parent,
            accepted: entry.accepted,
            now: self.dispatcher.clock().now(),
        };
        spans::request(&request, outcome);
    }

    pub(super) fn refuse(&self, target: ReplyTarget, fault: &Fault) {
        refuse(&self.dispatcher, &self.metrics, target, fault);
    }
}

/// Answers with a constant refusal.
pub(super) fn refuse_at_once(
    dispatcher: &Dispatcher,
    metrics: &Metrics,
    target: ReplyTarget,
    refusal: &Refusal,
) {
    let inbox = match target.destination {
        Destination::Inbox { inbox, .. } => inbox,
        Destination::Stream(submission) => {
            return submission.fail(target.content_type, Fault::clone(refusal.fault()));
        }
        Destination::Local(client) => {
            metrics.shared_fault(refusal.fault());
            return client.refuse(refusal.fault());
        }
    };
    metrics.shared_fault(refusal.fault());
    if let Some(inbox) = inbox {
        let (headers, body) = refusal.encoded(target.content_type);
        dispatcher.publish(inbox, None, Some(headers), body);
    }
}

/// Answers with a fault, in the headers of a NATS service (ADR-32) and in the body. A client that has received parts
/// gets the fault after them, unless the queue of outgoing messages is full.
pub(super) fn refuse(dispatcher: &Dispatcher, metrics: &Metrics, target: ReplyTarget, fault: &Fault) {
    let (inbox, held) = match target.destination {
        Destination::Inbox { inbox, held } => (inbox, held),
        // The submission decides whether a durable request is retried.
        Destination::Stream(submission) => return submission.fail(target.content_type, fault.clone()),
        Destination::Local(client) => {
            metrics.fault(fault);
            return client.refuse(fault);
        }
    };
    metrics.fault(fault);
    if let Some(inbox) = inbox {
        let payload = wire::encode_fault(target.content_type, fault);
        let headers = headers::for_fault(target.content_type, fault);
        // The control queue may overtake the parts, and a fault before them would end the stream.
        let is_sent = target.has_parts
            && dispatcher
                .reply(&inbox, Some(headers.clone()), &payload, held.into_permits())
                .is_ok();
        if !is_sent {
            dispatcher.publish(inbox, None, Some(headers), payload);
        }
    }
}

/// Returns the headers of a body; none for MessagePack, the default.
fn body_headers(content_type: ContentType) -> Option<HeaderMap> {
    match content_type {
        ContentType::MessagePack => None,
        ContentType::Json => Some(headers::for_body(ContentType::Json)),
    }
}

/// Returns the variant that a stage runs.
fn variant(entry: &InFlight, stage: &str) -> String {
    let stage = entry.version.stage(entry.gear, stage);
    stage.map_or_else(String::new, |stage| stage.variant.clone())
}

fn branch_reply(
    entry: &InFlight,
    branch: Branch,
    done: Option<StageReply>,
    missing: Option<&Fault>,
) -> BranchReply {
    let Some(done) = done else {
        return BranchReply {
            branch,
            error: missing.cloned(),
            ..BranchReply::default()
        };
    };
    let (outputs, confidence, error) = match done.result {
        StageOutcome::Outputs {
            outputs, confidence, ..
        } => (outputs, confidence, None),
        StageOutcome::Part { .. } => (Vec::new(), None, None),
        StageOutcome::Fault(fault) => (Vec::new(), None, Some(fault)),
    };
    BranchReply {
        branch,
        variant: variant(entry, &done.stage),
        stage: done.stage,
        confidence,
        outputs,
        error,
    }
}
