//! The codec of the service: prost's, with a cap on the fields of a message.
//!
//! Two bytes on the wire may become a tensor without name and shape, which takes a hundred times as much memory. Fields are
//! therefore counted before a message is decoded.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Most fields of a message, counting each element of a repeated one.
pub const MAX_FIELDS: usize = 1_024;

/// Prost's codec with at most [`MAX_FIELDS`] fields per received message.
#[derive(Debug, Clone, Copy)]
pub struct CappedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CappedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for CappedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CappedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        CappedDecoder(PhantomData)
    }
}

/// Decoder of a [`CappedCodec`].
#[derive(Debug, Clone, Copy)]
pub struct CappedDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for CappedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        decode(message).map(Some).map_err(Status::invalid_argument)
    }
}

/// Decodes a message of at most [`MAX_FIELDS`] fields. Its byte fields share the memory of `message`.
///
/// # Errors
/// What is wrong with it, for people.
pub fn decode<U: Message + Default>(message: Bytes) -> Result<U, String> {
    let count = fields(message.clone()).map_err(|error| format!("the message cannot be read: {error}"))?;
    if count > MAX_FIELDS {
        return Err(format!(
            "the message has {count} fields; at most {MAX_FIELDS} are read"
        ));
    }
    U::decode(message).map_err(|error| format!("the message cannot be read: {error}"))
}

/// Counts the fields of a message.
fn fields(mut message: Bytes) -> Result<usize, prost::DecodeError> {
    let mut count = 0;
    while message.has_remaining() {
        let (tag, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default())?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::ModelInferRequest;
    use crate::proto::model_infer_request::InferInputTensor;

    #[test]
    fn messages_of_many_fields_are_refused_before_they_are_decoded() {
        let of = |inputs: usize| ModelInferRequest {
            inputs: vec![InferInputTensor::default(); inputs],
            ..ModelInferRequest::default()
        };
        let fine = of(MAX_FIELDS);
        assert_eq!(decode::<ModelInferRequest>(fine.encode_to_vec().into()), Ok(fine));
        let refused = decode::<ModelInferRequest>(of(MAX_FIELDS + 1).encode_to_vec().into());
        assert!(refused.unwrap_err().contains("1025 fields"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<ModelInferRequest>(bytes.into());
        }

        #[test]
        fn a_message_is_read_as_it_was_written(
            name in ".{0,8}",
            shape in prop::collection::vec(any::<i64>(), 0..4),
            raw in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let message = ModelInferRequest {
                model_name: name.clone(),
                inputs: vec![InferInputTensor { name, shape, ..InferInputTensor::default() }],
                raw_input_contents: vec![raw.into()],
                ..ModelInferRequest::default()
            };
            prop_assert_eq!(decode::<ModelInferRequest>(message.encode_to_vec().into()), Ok(message));
        }
    }
}
