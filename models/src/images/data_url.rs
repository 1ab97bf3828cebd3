//! Files as data URLs (RFC 2397): JSON has no bytes, so a client may send `data:image/png;base64,...` as text.

use super::ImageError;

/// The beginning of every data URL; no image file begins like this.
const SCHEME: &[u8] = b"data:";

/// Returns the file in a data URL, or `None` if these bytes are none.
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

/// Decodes standard base64, with or without padding; line ends are skipped.
pub fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text
        .iter()
        .rposition(|byte| *byte != b'=')
        .map_or(0, |last| last + 1);
    let (text, padding) = text.split_at_checked(end)?;
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    // Six left-over bits would be a lone character, which encodes no byte.
    (count < 6 && padding.len() <= 2).then_some(out)
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
