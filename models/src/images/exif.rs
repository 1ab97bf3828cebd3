//! EXIF orientation: cameras store pixels in the order of the sensor, with the rotation as metadata.

use super::Pixels;

/// Tag of the orientation, in the first image file directory.
const ORIENTATION: u16 = 0x0112;
/// Size of a directory entry, bytes.
const ENTRY: usize = 12;

/// Returns the orientation, 1 to 8, of EXIF data in TIFF form; 1 (upright) if it has none.
pub(super) fn orientation(exif: &[u8]) -> u8 {
    read(exif).filter(|found| (1..=8).contains(found)).unwrap_or(1)
}

fn read(exif: &[u8]) -> Option<u8> {
    // Some decoders keep this prefix of a JPEG marker segment.
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    };
    let u32_at = |at: usize| {
        let bytes: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    };
    let directory = usize::try_from(u32_at(4)?).ok()?;
    let entries = usize::from(u16_at(directory)?);
    let first = directory.checked_add(2)?;
    (0..entries)
        .find_map(|index| {
            let entry = first.checked_add(index * ENTRY)?;
            // The value is a single short, so it is stored in the entry itself.
            (u16_at(entry)? == ORIENTATION).then(|| u16_at(entry + 8))?
        })
        .and_then(|value| u8::try_from(value).ok())
}

/// Rotates and mirrors pixels to the upright orientation, as PIL's `ImageOps.exif_transpose` does.
pub(super) fn upright(pixels: Pixels, orientation: u8) -> Pixels {
    if orientation <= 1 {
        return pixels;
    }
    let swapped = orientation >= 5;
    let (width, height) = if swapped {
        (pixels.height, pixels.width)
    } else {
        (pixels.width, pixels.height)
    };
    let (last_column, last_row) = (pixels.width - 1, pixels.height - 1);
    let mut data = Vec::with_capacity(pixels.data.len());
    for y in 0..height {
        for x in 0..width {
            let (column, row) = match orientation {
                2 => (last_column - x, y),
                3 => (last_column - x, last_row - y),
                4 => (x, last_row - y),
                5 => (y, x),
                6 => (y, last_row - x),
                7 => (last_column - y, last_row - x),
                _ => (last_column - y, x),
            };
            let from = (row * pixels.width + column) * pixels.channels;
            data.extend_from_slice(pixels.data.get(from..from + pixels.channels).unwrap_or_default());
        }
    }
    Pixels {
        width,
        height,
        data,
        ..pixels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds EXIF data with one entry.
    fn exif(little: bool, value: u16) -> Vec<u8> {
        let short = |value: u16| {
            if little {
                value.to_le_bytes()
            } else {
                value.to_be_bytes()
            }
        };
        let long = |value: u32| {
            if little {
                value.to_le_bytes()
            } else {
                value.to_be_bytes()
            }
        };
        let mut bytes = if little {
            b"II*\0".to_vec()
        } else {
            b"MM\0*".to_vec()
        };
        bytes.extend(long(8));
        bytes.extend(short(1));
        bytes.extend(short(ORIENTATION));
        bytes.extend(short(3));
        bytes.extend(long(1));
        bytes.extend(short(value));
        bytes.extend([0; 6]);
        bytes
    }

    #[test]
    fn the_orientation_is_read_in_both_byte_orders() {
        for little in [true, false] {
            for value in 1..=8 {
                assert_eq!(u16::from(orientation(&exif(little, value))), value);
            }
            assert_eq!(orientation(&exif(little, 9)), 1);
            let mut named = b"Exif\0\0".to_vec();
            named.extend(exif(little, 6));
            assert_eq!(orientation(&named), 6);
        }
    }

    #[test]
    fn cut_or_foreign_data_is_upright() {
        let whole = exif(true, 6);
        for length in 0..whole.len() - 8 {
            assert_eq!(orientation(&whole[..length]), 1, "{length}");
        }
        assert_eq!(orientation(&[0xff; 64]), 1);
    }
}
