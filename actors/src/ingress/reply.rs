//! The terminal reply.

use super::{Client, Ingress, Kept};
use crate::{
    fault::{Code, Fault},
    headers,
    wire::{self, Done, DoneResult, InferReply},
};

impl Ingress {
    /// Publishes the result; what cannot be published becomes a fault, so that the client is answered in any case.
    pub(super) fn reply_with(&self, kept: Kept, done: Done) {
        let DoneResult::Outputs { outputs, confidence, .. } = done.result else { return };
        let variant = kept.adopted.stage(kept.gear, &done.stage).map(|stage| stage.variant.clone());
        let reply = InferReply {
            id: kept.client.id.clone(),
            outputs,
            stage: done.stage,
            variant: variant.unwrap_or_default(),
            confidence,
            hops: done.hops,
            ..InferReply::default()
        };
        let payload = match wire::encode_reply(kept.client.content_type, &reply) {
            Ok(payload) => payload,
            Err(error) => {
                return self.refuse(kept.client, &Fault { code: Code::Internal, message: error.to_string() });
            }
        };
        if payload.len() > self.max_payload {
            let message =
                format!("the reply takes {} bytes, the broker carries {}", payload.len(), self.max_payload);
            return self.refuse(kept.client, &Fault { code: Code::TooLarge, message });
        }
        self.metrics.answered();
        if let Some(inbox) = kept.client.inbox {
            self.exchange.publish(inbox, None, headers::reply(kept.client.content_type), payload);
        }
    }

    /// Answers with a typed fault, in the headers of a NATS service (ADR-32) and in the body.
    pub(super) fn refuse(&self, client: Client, fault: &Fault) {
        self.metrics.fault(fault.code);
        if let Some(inbox) = client.inbox {
            let payload = wire::encode_fault(client.content_type, client.id.as_deref(), fault);
            self.exchange.publish(inbox, None, Some(headers::fault(fault)), payload);
        }
    }
}
