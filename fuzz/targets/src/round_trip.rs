//! Messages and bodies of clients that are decoded and encoded again.

use bytes::Bytes;
use kaskade_actors::wire::{
    ContentType, InferRequest, Message, decode_infer, decode_reply, encode_fault, encode_reply,
};

/// A client's body, as a request and as a reply, in both formats.
pub fn body(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    for format in [ContentType::MessagePack, ContentType::Json] {
        if let Ok(request) = decode_infer(format, &body) {
            let bytes = request.encode().expect("a request can be encoded");
            assert!(
                InferRequest::decode(&bytes).is_ok(),
                "a request is lost on its way in"
            );
        }
        answered(format, &body);
    }
    if let Ok(media_type) = std::str::from_utf8(input) {
        let named = ContentType::parse(media_type);
        assert!(named.is_err() || media_type.contains(['j', 'J', 'm', 'M']));
    }
}

/// A reply can be written in the format that it came in, unless JSON has no form for it; a fault always.
fn answered(format: ContentType, body: &Bytes) {
    match decode_reply(format, body) {
        Ok(reply) => {
            let Ok(written) = encode_reply(format, &reply) else {
                return assert_eq!(format, ContentType::Json, "MessagePack has a form for everything");
            };
            let again = decode_reply(format, &written).expect("a reply can be read");
            let rewritten = encode_reply(format, &again).expect("a reply can be written again");
            assert_eq!(rewritten, written, "a round changed a reply");
        }
        Err(fault) => {
            let written = encode_fault(format, &fault);
            assert_eq!(decode_reply(format, &written), Err(fault));
        }
    }
}

/// Compared as bytes: a NaN is not equal to itself.
pub(crate) fn round<M: Message>(bytes: &Bytes) {
    let message = match M::decode(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let written = message.encode().expect("what was decoded can be encoded");
    let again = M::decode(&written).expect("what was encoded can be decoded");
    let rewritten = again.encode().expect("what was decoded can be encoded");
    assert_eq!(rewritten, written, "a round changed a {}", M::NAME);
}
