//! Decodes data URLs (RFC 2397): JSON has no binary type, so a client may send `data:image/png;base64,...` as text.

use base64::alphabet;
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};

use super::ImageError;

/// Prefix of every data URL; no image file begins with it.
const SCHEME: &[u8] = b"data:";

/// Returns the file in a data URL, or `None` if the bytes are not a data URL.
///
/// # Errors
/// [`ImageError::DataUrl`] if it is not base64.
pub(super) fn decoded(bytes: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    let Some(rest) = bytes.strip_prefix(SCHEME) else {
        return Ok(None);
    };
    let comma = rest.iter().position(|byte| *byte == b',');
    let (kind, text) = comma
        .and_then(|comma| rest.split_at_checked(comma))
        .ok_or(ImageError::DataUrl)?;
    if !kind.ends_with(b";base64") {
        return Err(ImageError::DataUrl);
    }
    base64(text.get(1..).unwrap_or_default())
        .map(Some)
        .ok_or(ImageError::DataUrl)
}

/// Accepts standard base64 with or without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Decodes standard base64, with or without padding; line ends are skipped. `None` if it is not base64.
pub fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let line_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if text.iter().any(line_end) {
        let text: Vec<u8> = text.iter().copied().filter(|byte| !line_end(byte)).collect();
        return LENIENT.decode(text).ok();
    }
    LENIENT.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_are_decoded_and_files_are_left() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9v\r\nYg", "foob"),
            ("Zm9vYh==", "foob"),
        ] {
            let url = format!("data:image/png;base64,{text}");
            assert_eq!(
                decoded(url.as_bytes()),
                Ok(Some(bytes.as_bytes().to_vec())),
                "{text}"
            );
        }
        assert_eq!(decoded(b"\x89PNG"), Ok(None));
        for url in [
            "data:",
            "data:image/png,abc",
            "data:image/png;base64,Z",
            "data:;base64,Zm9v*",
            "data:;base64,Z===",
        ] {
            assert_eq!(decoded(url.as_bytes()), Err(ImageError::DataUrl), "{url}");
        }
    }
}
