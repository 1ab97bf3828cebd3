//! The Open Inference Protocol v2 over gRPC. One call is one request over HTTP/2: a message with a prefix of five bytes, and
//! an answer of the same form with the status in its trailers (grpc, `PROTOCOL-HTTP2.md`).

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::{Method, Response};
use kaskade_models::{Datatype, Inputs, Tensor};
use kaskade_oip::SERVICE;
use kaskade_oip::proto::model_infer_request::InferInputTensor;
use kaskade_oip::proto::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    ModelReadyResponse,
};
use kaskade_oip::{codec, status, tensors};
use prost::Message;

use super::{Metadata, Port, Wire, answer, malformed, not_ready, without_batch};
use crate::error::{CallError, MAX_MESSAGE};
use crate::http::{Http, MAX_ANSWER, retry_after};
use crate::prepared::{Answer, Prepared};

/// Type of the bodies.
pub(crate) const TYPE: &str = "application/grpc";

/// What gRPC's libraries say of a message above the server's limit.
const TOO_LARGE: &str = "larger than max";

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

fn method(name: &str) -> String {
    format!("{SERVICE}/{name}")
}

/// Headers of a call. Without `te: trailers`, a proxy may drop the status.
fn headers() -> Vec<(HeaderName, String)> {
    vec![(hyper::header::TE, "trailers".to_owned())]
}

/// Asks a server about a model.
pub(super) async fn fetch(http: &Http, model: &str, version: Option<&str>) -> Result<Metadata, CallError> {
    let asked = ModelMetadataRequest {
        name: model.to_owned(),
        version: version.unwrap_or_default().to_owned(),
    };
    let metadata: ModelMetadataResponse = ask(http, "ModelMetadata", &asked).await?;
    let inputs = metadata.inputs.into_iter().map(|input| {
        Datatype::from_name(&input.datatype).map_err(malformed)?;
        Ok(Port {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
        })
    });
    Ok(Metadata {
        inputs: inputs.collect::<Result<_, CallError>>()?,
        wire: Wire::Grpc {
            model: model.to_owned(),
            version: version.unwrap_or_default().to_owned(),
        },
    })
}

/// Asks a server whether a model is ready.
pub(super) async fn ask_whether_ready(
    http: &Http,
    model: &str,
    version: Option<&str>,
) -> Result<(), CallError> {
    let asked = ModelReadyRequest {
        name: model.to_owned(),
        version: version.unwrap_or_default().to_owned(),
    };
    let answer: ModelReadyResponse = ask(http, "ModelReady", &asked).await?;
    if answer.ready { Ok(()) } else { Err(not_ready()) }
}

/// Calls a method with a message, and reads its answer.
async fn ask<T: Message + Default>(http: &Http, name: &str, message: &impl Message) -> Result<T, CallError> {
    let (path, headers) = (method(name), headers());
    let answer = http
        .send(Method::POST, &path, TYPE, &headers, framed(message))
        .await?;
    codec::decode(read(http, answer).await?).map_err(malformed)
}

/// Writes a request; the inputs have been checked.
pub(super) fn prepare(metadata: &Metadata, model: &str, version: &str, inputs: &Inputs) -> Prepared {
    let mut request = ModelInferRequest {
        model_name: model.to_owned(),
        model_version: version.to_owned(),
        ..ModelInferRequest::default()
    };
    for (input, shape) in metadata.chosen(inputs) {
        request.inputs.push(InferInputTensor {
            name: input.name.clone(),
            datatype: input.datatype.name().to_owned(),
            shape: shape
                .iter()
                .map(|size| i64::try_from(*size).unwrap_or(i64::MAX))
                .collect(),
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(input.data.clone());
    }
    Prepared {
        path: method("ModelInfer"),
        content_type: TYPE,
        headers: headers(),
        body: framed(&request),
        head: Some(CONTENT_TYPE),
        streamed: false,
        max_tokens: 0,
        top_logprobs: None,
        free_temperature: false,
    }
}

/// Reads the message of an answer.
pub(super) fn decode(message: &Bytes) -> Result<Answer, CallError> {
    let response: ModelInferResponse = codec::decode(message.clone()).map_err(malformed)?;
    let outputs = tensors::outputs(response.outputs, response.raw_output_contents).map_err(malformed)?;
    let outputs = outputs.into_iter().map(|output| Tensor {
        shape: without_batch(output.shape),
        ..output
    });
    Ok(answer(outputs.collect()))
}

/// Returns a message with its prefix.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}

/// Returns the message of a body with exactly one.
fn unframed(mut body: Bytes) -> Result<Bytes, CallError> {
    if body.len() < PREFIX {
        return Err(malformed("it has no whole message"));
    }
    let (compressed, length) = (body.get_u8(), body.get_u32());
    if compressed != 0 {
        return Err(malformed("it is compressed, which was not asked for"));
    }
    if usize::try_from(length) != Ok(body.len()) {
        return Err(malformed("its length is not that of one message"));
    }
    Ok(body)
}

/// Reads an answer to its end: its status, and its message.
///
/// # Errors
/// [`CallError::Grpc`] for a status other than `OK`; [`CallError::Broken`] without a status.
pub(crate) async fn read(http: &Http, answer: Response<Incoming>) -> Result<Bytes, CallError> {
    let (head, body) = answer.into_parts();
    if let Some(error) = refusal(http, &head.headers) {
        return Err(error);
    }
    let whole = http.collect(body, MAX_ANSWER).await?;
    let trailers = whole.trailers().cloned().unwrap_or_default();
    if let Some(error) = refusal(http, &trailers) {
        return Err(error);
    }
    if !trailers.contains_key("grpc-status") && !head.headers.contains_key("grpc-status") {
        return Err(CallError::Broken {
            reason: "it has no status".to_owned(),
        });
    }
    unframed(whole.to_bytes())
}

/// Returns the error of a status other than `OK`.
fn refusal(http: &Http, headers: &HeaderMap) -> Option<CallError> {
    let number = headers
        .get("grpc-status")?
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok());
    let status = match number {
        Some(0) => return None,
        number => status::Status::of_number(number.unwrap_or(2)),
    };
    let message = headers
        .get("grpc-message")
        .map(hyper::header::HeaderValue::as_bytes);
    let message = percent_decoded(message.unwrap_or_default());
    // A message above the server's limit has the status of a server that is busy.
    let is_too_large = status.name == "RESOURCE_EXHAUSTED" && message.contains(TOO_LARGE);
    let pause = headers.get("grpc-retry-pushback-ms");
    let pause = pause.and_then(|value| value.to_str().ok()?.parse().ok());
    Some(CallError::Grpc {
        status: status.name,
        http: if is_too_large { 413 } else { status.http },
        message: http.redact(&message).chars().take(MAX_MESSAGE).collect(),
        retry_after: pause
            .map(std::time::Duration::from_millis)
            .or_else(|| retry_after(headers)),
    })
}

/// Decodes `%XX`, in which messages of statuses travel.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%');
        let hex = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() {
            after.get(2..).unwrap_or_default()
        } else {
            after
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_exactly_one_message() {
        let asked = ModelMetadataRequest {
            name: "m".to_owned(),
            version: String::new(),
        };
        let frame = framed(&asked);
        let message = unframed(frame.clone()).unwrap();
        assert_eq!(codec::decode::<ModelMetadataRequest>(message), Ok(asked));
        let compressed = [&[1_u8], &frame[1..]].concat();
        let twice = [&frame[..], &frame[..]].concat();
        for wrong in [&frame[..4], &frame[..6], &compressed[..], &twice[..], b""] {
            assert!(unframed(Bytes::copy_from_slice(wrong)).is_err());
        }
    }

    #[test]
    fn statuses_become_errors_that_say_whether_to_retry() {
        let http = Http::new("grpc://127.0.0.1:1", None, None).unwrap();
        let of = |number: &'static str, more: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", number.parse().unwrap());
            for (name, value) in more {
                headers.insert(*name, value.parse().unwrap());
            }
            refusal(&http, &headers)
        };
        assert_eq!(of("0", &[]), None);
        let full = of(
            "8",
            &[
                ("grpc-message", "KSK0006: 100%25 full"),
                ("grpc-retry-pushback-ms", "250"),
            ],
        );
        let full = full.unwrap();
        assert_eq!(full.to_string(), "gRPC RESOURCE_EXHAUSTED: KSK0006: 100% full");
        assert!(full.retryable() && !full.is_endpoint_failure());
        assert_eq!(full.retry_after(), Some(std::time::Duration::from_millis(250)));
        let invalid = of("3", &[("grpc-retry-pushback-ms", "-1")]).unwrap();
        assert!(!invalid.retryable() && !invalid.is_endpoint_failure() && invalid.retry_after().is_none());
        let revoked = of("16", &[]).unwrap();
        assert!(!revoked.retryable() && revoked.is_endpoint_failure());
        let gone = of("14", &[]).unwrap();
        assert!(gone.retryable() && gone.is_endpoint_failure());
        assert!(of("what", &[]).is_some());
        let unknown = of("12", &[]).unwrap();
        assert!(!unknown.retryable(), "no later call finds the method");
        let large = of(
            "8",
            &[(
                "grpc-message",
                "Received message larger than max (5242880 vs. 4194304)",
            )],
        );
        let large = large.unwrap();
        assert!(!large.retryable() && !large.is_endpoint_failure());
        assert!(matches!(
            kaskade_models::ModelError::from(large),
            kaskade_models::ModelError::InvalidRequest { .. }
        ));
        let long = of(
            "3",
            &[(
                "grpc-message",
                "the prompt is longer than the model's context length",
            )],
        );
        assert!(matches!(
            kaskade_models::ModelError::from(long.unwrap()),
            kaskade_models::ModelError::TooLong { .. }
        ));
    }

    #[test]
    fn messages_are_percent_decoded() {
        assert_eq!(percent_decoded("a%20b%E9%9B%AA%zz%2".as_bytes()), "a b雪%zz%2");
    }
}
