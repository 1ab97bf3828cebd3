//! The codec of the service: prost's, with a cap on the fields of a message and of the tensors in it.
//!
//! Two bytes on the wire may become a tensor without name and shape, which takes a hundred times as much memory, or a text of no
//! bytes, which takes sixteen times as much. Fields are therefore counted before a message is decoded.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Most fields of a message, counting each element of a repeated one.
pub const MAX_FIELDS: usize = 1_024;

/// Most fields of the contents of all tensors of a message: their texts, and their numbers if they are not packed.
pub const MAX_ELEMENTS: usize = 1 << 20;

/// The field of a tensor in a request and in an answer, and of its contents in a tensor.
const NESTED: u32 = 5;

/// Most fields of a message, of all its tensors, and of all their contents.
const LIMITS: [usize; 3] = [MAX_FIELDS, MAX_FIELDS, MAX_ELEMENTS];

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

/// Returns the size of a message on the wire, bytes.
pub fn size(message: &impl Message) -> usize {
    message.encoded_len()
}

/// Decodes a message of at most [`MAX_FIELDS`] fields, whose tensors have at most as many and [`MAX_ELEMENTS`] elements. Its byte
/// fields share the memory of `message`.
///
/// # Errors
/// What is wrong with it, for people.
pub fn decode<U: Message + Default>(message: Bytes) -> Result<U, String> {
    let mut left = LIMITS;
    check(message.clone(), &mut left)?;
    U::decode(message).map_err(|error| format!("the message cannot be read: {error}"))
}

/// Takes the fields of a message, and of those nested in it, from what is left of the limits.
fn check(mut message: Bytes, left: &mut [usize]) -> Result<(), String> {
    let Some((left, nested)) = left.split_first_mut() else {
        return Ok(());
    };
    while message.has_remaining() {
        let before = (!nested.is_empty()).then(|| message.clone());
        let (tag, wire_type) = field(&mut message)
            .map_err(|error: DecodeError| format!("the message cannot be read: {error}"))?;
        *left = left.checked_sub(1).ok_or_else(|| {
            format!("the message has more than {MAX_FIELDS} fields, or its tensors have, or more than {MAX_ELEMENTS} elements")
        })?;
        if let Some(before) = before
            && tag == NESTED
            && wire_type == WireType::LengthDelimited
        {
            let whole = before.len() - message.len();
            check(value(before.slice(..whole)), nested)?;
        }
    }
    Ok(())
}

/// Skips a field. Returns its number and type.
fn field(message: &mut Bytes) -> Result<(u32, WireType), DecodeError> {
    let (tag, wire_type) = decode_key(message)?;
    skip_field(wire_type, tag, message, DecodeContext::default())?;
    Ok((tag, wire_type))
}

/// Returns the value of a field of bytes, whose length was checked.
fn value(mut field: Bytes) -> Bytes {
    let read = decode_key(&mut field).and_then(|_| decode_varint(&mut field));
    drop(read);
    field
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::model_infer_request::InferInputTensor;
    use crate::proto::{InferTensorContents, ModelInferRequest};

    #[test]
    fn messages_of_many_fields_are_refused_before_they_are_decoded() {
        let of = |inputs: usize| ModelInferRequest {
            inputs: vec![InferInputTensor::default(); inputs],
            ..ModelInferRequest::default()
        };
        let fine = of(MAX_FIELDS);
        assert_eq!(decode::<ModelInferRequest>(fine.encode_to_vec().into()), Ok(fine));
        let refused = decode::<ModelInferRequest>(of(MAX_FIELDS + 1).encode_to_vec().into());
        assert!(refused.unwrap_err().contains("more than 1024 fields"));
    }

    /// Two bytes on the wire, a text of no bytes, take 32 in memory.
    #[test]
    fn tensors_of_many_empty_texts_are_refused_before_they_are_decoded() {
        let tensor = |texts: usize| InferInputTensor {
            contents: Some(InferTensorContents {
                bytes_contents: vec![Bytes::new(); texts],
                ..InferTensorContents::default()
            }),
            ..InferInputTensor::default()
        };
        let of = |texts: usize| ModelInferRequest {
            inputs: vec![tensor(texts - 10), tensor(10)],
            ..ModelInferRequest::default()
        };
        let read = |texts: usize| decode::<ModelInferRequest>(of(texts).encode_to_vec().into());
        assert_eq!(read(MAX_ELEMENTS), Ok(of(MAX_ELEMENTS)));
        assert!(read(MAX_ELEMENTS + 1).unwrap_err().contains("elements"));
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
