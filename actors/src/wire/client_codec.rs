//! The codec of client messages: MessagePack, or the JSON of the Open Inference Protocol.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::codec::Message;
use super::codec_error::{CodecError, Limits};
use super::{InferReply, InferRequest, scan};
use crate::error::{Code, Fault};

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentType {
    /// MessagePack with field names; the default without a `content-type`.
    #[default]
    MessagePack,
    /// JSON.
    Json,
}

impl ContentType {
    /// Returns the media type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MessagePack => "application/msgpack",
            Self::Json => "application/json",
        }
    }

    /// Parses a media type, ignoring case and parameters.
    ///
    /// # Errors
    /// [`Code::Malformed`] for any type other than MessagePack and JSON.
    pub fn parse(media_type: &str) -> Result<Self, Fault> {
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        let is = |name: &str| essence.eq_ignore_ascii_case(name);
        if is("application/json") || is("text/json") {
            return Ok(Self::Json);
        }
        if is("application/msgpack") || is("application/x-msgpack") || is("application/vnd.msgpack") {
            return Ok(Self::MessagePack);
        }
        let shown = essence.chars().take(64).collect::<String>();
        Err(Fault::new(
            Code::Malformed,
            format!("content-type {shown:?} is not supported; send application/msgpack or application/json"),
        ))
    }
}

/// Decodes a client's request.
///
/// # Errors
/// Any [`CodecError`] but `Unwritable`.
pub fn decode_infer(content_type: ContentType, body: &Bytes) -> Result<InferRequest, CodecError> {
    decode(content_type, body)
}

/// Encodes a reply.
///
/// # Errors
/// [`CodecError::Unwritable`] if the reply has no JSON form: NaN, FP16, or BYTES that are not text.
pub fn encode_reply(content_type: ContentType, reply: &InferReply) -> Result<Bytes, CodecError> {
    match content_type {
        ContentType::MessagePack => reply.encode(),
        ContentType::Json => to_json(
            InferReply::NAME,
            &OipReply {
                model_name: &reply.variant,
                reply,
            },
            4 * reply.size_hint(),
        ),
    }
}

/// Encodes a fault as a body, for clients that do not read the service error headers.
pub fn encode_fault(content_type: ContentType, fault: &Fault) -> Bytes {
    let body = Failure { error: fault };
    // Neither format can fail for a map of two texts; an empty body would still have its headers.
    match content_type {
        ContentType::MessagePack => rmp_serde::to_vec_named(&body).unwrap_or_default().into(),
        ContentType::Json => serde_json::to_vec(&body).unwrap_or_default().into(),
    }
}

/// Decodes a reply, or the fault sent instead.
///
/// # Errors
/// The server's fault, or [`Code::Malformed`] if the body is neither.
pub fn decode_reply(content_type: ContentType, body: &Bytes) -> Result<InferReply, Fault> {
    match decode::<InferReply>(content_type, body) {
        Ok(reply) => Ok(reply),
        Err(error) => Err(match decode::<FailureReceived>(content_type, body) {
            Ok(failure) => failure.error,
            Err(_) => error.into(),
        }),
    }
}

#[derive(Serialize)]
struct Failure<'a> {
    error: &'a Fault,
}

#[derive(Serialize, Deserialize)]
struct FailureReceived {
    error: Fault,
}

impl Message for FailureReceived {
    const NAME: &'static str = "fault";
}

/// A reply as an Open Inference Protocol response, which also names the model.
#[derive(Serialize)]
struct OipReply<'a> {
    model_name: &'a str,
    #[serde(flatten)]
    reply: &'a InferReply,
}

/// Decodes the body of another client message.
pub(super) fn from_body<M: Message>(content_type: ContentType, body: &Bytes) -> Result<M, CodecError> {
    decode(content_type, body)
}

fn decode<M: Message>(content_type: ContentType, body: &Bytes) -> Result<M, CodecError> {
    if body.is_empty() {
        return Err(CodecError::Schema {
            message: M::NAME,
            reason: "the body is empty".to_owned(),
        });
    }
    if content_type == ContentType::MessagePack {
        return M::decode(body).map_err(|error| match error {
            // In MessagePack, the byte of the brace is a number.
            CodecError::Trailing { .. } if body.starts_with(b"{") => CodecError::Schema {
                message: M::NAME,
                reason: "it looks like JSON; send the header `content-type: application/json` with it"
                    .to_owned(),
            },
            other => other,
        });
    }
    scan::json(body, &Limits::default())?;
    serde_json::from_slice(body).map_err(|error| CodecError::Schema {
        message: M::NAME,
        reason: error.to_string(),
    })
}

fn to_json(message: &'static str, value: &impl Serialize, size_hint: usize) -> Result<Bytes, CodecError> {
    let mut buffer = Vec::with_capacity(size_hint);
    serde_json::to_writer(&mut buffer, value).map_err(|error| CodecError::Unwritable {
        message,
        reason: error.to_string(),
    })?;
    Ok(buffer.into())
}
