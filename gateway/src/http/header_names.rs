//! Names of headers that are frequently read or written. A name given as text would be checked and converted at each
//! use.

use axum::http::HeaderName;

pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) static TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) static BUDGET: HeaderName = HeaderName::from_static("x-kaskade-budget-ms");

/// Headers with the timeout of OpenAI's clients, seconds.
pub(crate) static TIMEOUTS: [HeaderName; 2] = [
    HeaderName::from_static("x-stainless-read-timeout"),
    HeaderName::from_static("x-stainless-timeout"),
];

/// Header with the length of the JSON part of a body with binary tensors, bytes.
pub(crate) static HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

pub(crate) static KASKADE_REQUEST_ID: HeaderName = HeaderName::from_static("x-kaskade-request-id");
pub(crate) static VARIANT: HeaderName = HeaderName::from_static("x-kaskade-variant");
pub(crate) static STAGE: HeaderName = HeaderName::from_static("x-kaskade-stage");
pub(crate) static HOPS: HeaderName = HeaderName::from_static("x-kaskade-hops");
pub(crate) static CONFIDENCE: HeaderName = HeaderName::from_static("x-kaskade-confidence");
pub(crate) static DEGRADED: HeaderName = HeaderName::from_static("x-kaskade-degraded");
pub(crate) static JOULES: HeaderName = HeaderName::from_static("x-kaskade-joules");
pub(crate) static JOULES_SOURCE: HeaderName = HeaderName::from_static("x-kaskade-joules-source");
pub(crate) static COST: HeaderName = HeaderName::from_static("x-kaskade-cost");
pub(crate) static COST_SOURCE: HeaderName = HeaderName::from_static("x-kaskade-cost-source");
