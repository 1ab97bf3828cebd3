//! Refusals under overload. Their text is constant, so they are encoded only once.

use std::sync::{Arc, LazyLock};

use async_nats::HeaderMap;
use bytes::Bytes;
use kaskade_policy::ledger;

use crate::{
    error::{Code, Fault},
    wire::headers,
    wire::{self, ContentType},
};

/// A refusal encoded in both formats.
pub(super) struct Refusal {
    fault: Arc<Fault>,
    messagepack: (HeaderMap, Bytes),
    json: (HeaderMap, Bytes),
}

impl Refusal {
    fn new(code: Code, message: &str) -> Self {
        let fault = Fault::new(code, message);
        let encoded = |content_type| {
            let headers = headers::for_fault(content_type, &fault);
            (headers, wire::encode_fault(content_type, &fault))
        };
        Self {
            messagepack: encoded(ContentType::MessagePack),
            json: encoded(ContentType::Json),
            fault: Arc::new(fault),
        }
    }

    pub(super) fn fault(&self) -> &Arc<Fault> {
        &self.fault
    }

    /// Returns the headers and the body in a format.
    pub(super) fn encoded(&self, content_type: ContentType) -> (HeaderMap, Bytes) {
        let (headers, body) = match content_type {
            ContentType::MessagePack => &self.messagepack,
            ContentType::Json => &self.json,
        };
        (headers.clone(), body.clone())
    }
}

/// Refusal while all permits of the ingress are in use.
pub(super) static TOO_MANY_REQUESTS: LazyLock<Refusal> = LazyLock::new(|| {
    let message = "the ingress is at its limit of requests in flight; try again later";
    Refusal::new(Code::Overloaded, message)
});

/// Refusal while the inputs in flight reach [`super::IngressConfig::max_in_flight_bytes`].
pub(super) static TOO_MANY_BYTES: LazyLock<Refusal> = LazyLock::new(|| {
    let message =
        "the inputs in flight reach the limit of the ingress (`max_in_flight_bytes`); try again later";
    Refusal::new(Code::Overloaded, message)
});

/// Refusal while the admission policy admits no more requests.
pub(super) static TOO_MANY_WAIT: LazyLock<Refusal> = LazyLock::new(|| {
    let message = "too many requests wait to answer within the budget; try again later, or add replicas";
    Refusal::new(Code::Overloaded, message)
});

/// Returns the fault of a request that the ledger does not admit.
pub(super) fn not_admitted(refusal: ledger::Refusal) -> Fault {
    let code = match refusal {
        ledger::Refusal::Full { .. } => Code::Overloaded,
        ledger::Refusal::NoBudget => Code::Expired,
    };
    Fault::new(code, refusal.to_string())
}

/// Refusal of an ingress that has ended, and its node with it.
pub(super) static ENDED: LazyLock<Refusal> = LazyLock::new(|| {
    let message = "this ingress has failed and ends; send the request again";
    Refusal::new(Code::Draining, message)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_budget_has_expired_and_one_too_many_finds_no_capacity() {
        assert_eq!(not_admitted(ledger::Refusal::NoBudget).code, Code::Expired);
        let full = ledger::Refusal::Full { limit: 3 };
        assert_eq!(not_admitted(full).code, Code::Overloaded);
    }

    #[test]
    fn a_constant_refusal_is_what_encoding_it_anew_gives() {
        for refusal in [&TOO_MANY_REQUESTS, &TOO_MANY_BYTES, &TOO_MANY_WAIT, &ENDED] {
            for content_type in [ContentType::MessagePack, ContentType::Json] {
                let (headers, body) = refusal.encoded(content_type);
                assert_eq!(headers, headers::for_fault(content_type, refusal.fault()));
                assert_eq!(headers::fault(Some(&headers)).as_ref(), Some(&**refusal.fault()));
                let read = wire::decode_reply(content_type, &body);
                assert_eq!(read.unwrap_err(), **refusal.fault());
            }
        }
    }
}
