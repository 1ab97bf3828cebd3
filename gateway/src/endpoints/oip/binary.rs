//! The binary tensor extension: a JSON header followed by the tensors' bytes.

use bytes::Bytes;

use crate::http::failure::Failure;
use crate::http::header_names::HEADER_LENGTH;

/// Splits a body into its JSON header and the bytes of its binary tensors.
///
/// # Errors
/// `KSK0001` if the header length is not a number or exceeds the body.
pub(super) fn split(body: &Bytes, header: Option<&[u8]>) -> Result<(Bytes, Bytes), Failure> {
    let Some(header) = header else {
        return Ok((body.clone(), Bytes::new()));
    };
    let length = std::str::from_utf8(header)
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok());
    match length {
        Some(length) if length <= body.len() => Ok((body.slice(..length), body.slice(length..))),
        Some(length) => Err(Failure::malformed(format!(
            "{HEADER_LENGTH} is {length}, but the body has {} bytes",
            body.len()
        ))),
        None => Err(Failure::malformed(format!(
            "{HEADER_LENGTH} must be a number of bytes"
        ))),
    }
}

/// Takes the next `size` bytes of `rest`.
///
/// # Errors
/// `KSK0001` if fewer are left.
pub(super) fn take(rest: &mut Bytes, name: &str, size: usize) -> Result<Bytes, Failure> {
    if size > rest.len() {
        let left = rest.len();
        return Err(Failure::malformed(format!(
            "input `{name}` has `binary_data_size` {size}, but only {left} bytes of the body are left"
        )));
    }
    Ok(rest.split_to(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_split_after_its_header() {
        let body = Bytes::from_static(b"{}abc");
        let (json, rest) = split(&body, Some(b"2")).unwrap();
        assert_eq!((json.as_ref(), rest.as_ref()), (&b"{}"[..], &b"abc"[..]));
        assert_eq!(split(&body, None).unwrap().1, Bytes::new());
        for wrong in [&b"6"[..], b"-1", b"two", b""] {
            assert!(split(&body, Some(wrong)).is_err());
        }
        let mut rest = rest;
        assert_eq!(take(&mut rest, "x", 2).unwrap().as_ref(), b"ab");
        assert!(take(&mut rest, "x", 2).is_err());
    }
}
