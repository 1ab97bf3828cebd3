//! Failures as statuses of gRPC, with what a client needs to retry in their metadata.

use kaskade_oip::status::Status as Known;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use axum::body::Body;
use axum::http::{HeaderMap, Response, header};

use crate::http::failure::{Failure, shortened};

/// Returns the status of a failure. Its metadata are the headers that the REST interface has, and `grpc-retry-pushback-ms`,
/// which clients with a retry policy obey: a negative pause forbids them to retry.
pub(crate) fn of(failure: &Failure) -> Status {
    let code = Code::from_i32(Known::of_http(failure.status.as_u16()).number);
    let mut metadata = MetadataMap::new();
    metadata.insert("x-kaskade-fault", MetadataValue::from_static(failure.code));
    let retry = if failure.retryable { "true" } else { "false" };
    metadata.insert("x-should-retry", MetadataValue::from_static(retry));
    if let Some(pause) = failure.pause_ms() {
        metadata.insert("retry-after-ms", MetadataValue::from(pause));
        metadata.insert("grpc-retry-pushback-ms", MetadataValue::from(pause));
    } else {
        metadata.insert("grpc-retry-pushback-ms", MetadataValue::from_static("-1"));
    }
    Status::with_metadata(code, failure.to_string(), metadata)
}

/// Returns whether a request is one of gRPC, by its media type.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Returns the response to a request for a method that no service has.
pub(crate) fn unknown_method(path: &str) -> Response<Body> {
    let (service, health) = (kaskade_oip::SERVICE, kaskade_oip::health::SERVICE);
    let is_of_service = path.split('/').nth(1) == Some(service);
    let rest = if is_of_service {
        "model control, shared memory, tracing and logging of Triton are not served".to_owned()
    } else {
        format!("it serves `{service}` and `{health}`")
    };
    let message = format!("this gateway has no method `{}`; {rest}", shortened(path));
    Status::unimplemented(message).into_http()
}

#[cfg(test)]
mod tests {
    use kaskade_actors::Fault;

    use super::*;

    #[test]
    fn every_failure_has_a_status_and_says_whether_to_retry() {
        for code in kaskade_actors::Code::ALL {
            let failure = Failure::from(Fault::new(*code, "why"));
            let status = of(&failure);
            assert!(!matches!(status.code(), Code::Ok | Code::Unknown), "{code}");
            assert!(status.message().contains(code.id()), "{}", status.message());
            let pause = status.metadata().get("grpc-retry-pushback-ms").unwrap();
            assert_eq!(pause.to_str().unwrap() == "-1", !code.retryable(), "{code}");
        }
        assert_eq!(of(&Failure::unauthorised()).code(), Code::Unauthenticated);
        assert_eq!(of(&Failure::full("many")).code(), Code::ResourceExhausted);
    }
}
