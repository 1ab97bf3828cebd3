//! The terminal reply.

use super::{Client, Ingress, Kept};
use crate::{
    exchange::{Exchange, HEADROOM},
    fault::{Code, Fault},
    headers,
    metrics::Metrics,
    wire::{self, ContentType, Done, DoneResult, InferReply},
};

impl Ingress {
    /// Publishes the result, `degraded` where not everybody was heard who should have been; what cannot be published becomes a
    /// fault, so that the client is answered in any case.
    pub(super) fn reply_with(&self, kept: Kept, done: Done, degraded: bool) {
        let DoneResult::Outputs {
            outputs, confidence, ..
        } = done.result
        else {
            return;
        };
        let variant = kept
            .adopted
            .stage(kept.gear, &done.stage)
            .map(|stage| stage.variant.clone());
        let reply = InferReply {
            id: kept.client.id.clone(),
            outputs,
            stage: done.stage,
            variant: variant.unwrap_or_default(),
            confidence,
            hops: done.hops,
            degraded,
        };
        let payload = match wire::encode_reply(kept.client.content_type, &reply).map_err(Fault::from) {
            Ok(payload) => payload,
            Err(fault) => return self.refuse(kept.client, &fault),
        };
        let limit = self.max_payload.saturating_sub(HEADROOM);
        if payload.len() > limit {
            let message = format!(
                "the reply takes {} bytes, this broker carries {limit}",
                payload.len()
            );
            return self.refuse(kept.client, &Fault::new(Code::TooLarge, message));
        }
        self.metrics
            .answered(self.exchange.clock().now().saturating_sub(kept.accepted));
        if let Some(inbox) = kept.client.inbox {
            let headers = match kept.client.content_type {
                // The default needs no header, and most replies are of it.
                ContentType::MessagePack => None,
                ContentType::Json => Some(headers::for_body(ContentType::Json)),
            };
            self.exchange.publish(inbox, None, headers, payload);
        }
    }

    pub(super) fn refuse(&self, client: Client, fault: &Fault) {
        refuse(&self.exchange, &self.metrics, client, fault);
    }
}

/// Answers with a typed fault, in the headers of a NATS service (ADR-32) and in the body.
pub(super) fn refuse(exchange: &Exchange, metrics: &Metrics, client: Client, fault: &Fault) {
    metrics.fault(fault);
    if let Some(inbox) = client.inbox {
        let payload = wire::encode_fault(client.content_type, fault);
        let headers = headers::for_fault(client.content_type, fault);
        exchange.publish(inbox, None, Some(headers), payload);
    }
}
