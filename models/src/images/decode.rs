//! Decodes image files: PNG and JPEG here, other formats by [`formats`].

use std::io::Cursor;

use png::{BitDepth, ColorType, Transformations};
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::{ImageError, MAX_SIDE, Pixels, Transparency, check_size, data_url, exif, formats};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG: &[u8] = b"\xff\xd8\xff";
/// Format name in a WebP file, after the RIFF signature and four bytes of length.
const WEBP: &[u8] = b"WEBP";
const GIF: [&[u8]; 2] = [b"GIF87a", b"GIF89a"];
const BMP: &[u8] = b"BM";

/// Maximum memory of the PNG decoder besides the pixels, bytes: palettes, profiles, one row.
const PNG_LIMIT: usize = 16 << 20;
/// Maximum scans of a progressive JPEG; each scan covers all pixels.
const JPEG_SCANS: usize = 64;

/// Decodes a file or a data URL to an upright image with `channels` channels (1 or 3).
///
/// # Errors
/// [`ImageError`] if the file has no supported format, is damaged, or is too large.
pub(super) fn decode(
    bytes: &[u8],
    channels: usize,
    transparency: Transparency,
) -> Result<Pixels, ImageError> {
    let unpacked = data_url::decoded(bytes)?;
    let bytes = unpacked.as_deref().unwrap_or(bytes);
    let (pixels, orientation) = if bytes.starts_with(PNG) {
        png(bytes)?
    } else if bytes.starts_with(JPEG) {
        jpeg(bytes)?
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..).is_some_and(|rest| rest.starts_with(WEBP)) {
        formats::webp(bytes)?
    } else if GIF.iter().any(|magic| bytes.starts_with(magic)) {
        formats::gif(bytes)?
    } else if bytes.starts_with(BMP) {
        formats::bmp(bytes)?
    } else {
        return Err(ImageError::Format);
    };
    let opaque = opaque(pixels, transparency);
    Ok(exif::upright(in_channels(opaque, channels), orientation))
}

fn png(bytes: &[u8]) -> Result<(Pixels, u8), ImageError> {
    let damaged = |reason: String| ImageError::Damaged {
        format: "PNG",
        reason,
    };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: PNG_LIMIT });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let info = decoder
        .read_header_info()
        .map_err(|error| damaged(error.to_string()))?;
    let (width, height) = (info.width as usize, info.height as usize);
    check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(|error| damaged(error.to_string()))?;
    let orientation = reader
        .info()
        .exif_metadata
        .as_deref()
        .map_or(1, exif::orientation);
    let size = reader
        .output_buffer_size()
        .ok_or(ImageError::TooLarge { width, height })?;
    let mut data = vec![0; size];
    let frame = reader
        .next_frame(&mut data)
        .map_err(|error| damaged(error.to_string()))?;
    data.truncate(frame.buffer_size());
    let colours = || ImageError::Colours {
        colours: format!("{:?} with {:?} bits", frame.color_type, frame.bit_depth),
    };
    if frame.bit_depth != BitDepth::Eight || (frame.width, frame.height) != (width as u32, height as u32) {
        return Err(colours());
    }
    let channels = match frame.color_type {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(colours()),
    };
    Ok((
        Pixels {
            width,
            height,
            channels,
            data,
        },
        orientation,
    ))
}

fn jpeg(bytes: &[u8]) -> Result<(Pixels, u8), ImageError> {
    let damaged = |reason: String| ImageError::Damaged {
        format: "JPEG",
        reason,
    };
    // Strict mode rejects a truncated file; otherwise its missing part would decode to grey.
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .set_strict_mode(true)
        .jpeg_set_max_scans(JPEG_SCANS);
    let cursor = zune_core::bytestream::ZCursor::new(bytes);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(cursor, options);
    decoder
        .decode_headers()
        .map_err(|error| damaged(error.to_string()))?;
    let (width, height) = decoder.dimensions().ok_or(ImageError::Empty)?;
    check_size(width, height)?;
    let (colours, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        // As Adobe's programs do, CMYK values are stored inverted: the decoder multiplies each by black, as PIL does.
        Some(ColorSpace::YCbCr | ColorSpace::RGB | ColorSpace::CMYK | ColorSpace::YCCK) => {
            (ColorSpace::RGB, 3)
        }
        other => {
            return Err(ImageError::Colours {
                colours: other.map_or_else(|| "unknown".to_owned(), |colours| format!("{colours:?}")),
            });
        }
    };
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    let data = decoder.decode().map_err(|error| damaged(error.to_string()))?;
    let orientation = decoder.exif().map_or(1, |exif| exif::orientation(exif));
    if data.len() != width * height * channels {
        return Err(damaged(format!("it has {} bytes of pixels", data.len())));
    }
    Ok((
        Pixels {
            width,
            height,
            channels,
            data,
        },
        orientation,
    ))
}

/// Removes the alpha channel, the last of 2 or 4.
fn opaque(pixels: Pixels, transparency: Transparency) -> Pixels {
    let channels = match pixels.channels {
        2 => 1,
        4 => 3,
        _ => return pixels,
    };
    let mut data = Vec::with_capacity(pixels.data.len() / (channels + 1) * channels);
    for pixel in pixels.data.chunks_exact(channels + 1) {
        if let Some((opacity, colour)) = pixel.split_last() {
            data.extend(colour.iter().map(|value| match transparency {
                Transparency::Dropped => *value,
                Transparency::OnWhite => on_white(*value, *opacity),
            }));
        }
    }
    Pixels {
        channels,
        data,
        ..pixels
    }
}

/// Blends a colour over white, in the integer arithmetic of PIL's `alpha_composite`.
fn on_white(colour: u8, opacity: u8) -> u8 {
    let [colour, opacity, white] = [u32::from(colour), u32::from(opacity), 255];
    let sum = (colour * opacity + white * (255 - opacity) + 0x80) << 7;
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}

/// Converts between grey and RGB; grey is PIL's mode `L` (ITU-R 601-2 luma).
fn in_channels(pixels: Pixels, channels: usize) -> Pixels {
    let data = match (pixels.channels, channels) {
        (1, 3) => pixels.data.iter().flat_map(|grey| [*grey; 3]).collect(),
        (3, 1) => {
            let (rgb, _) = pixels.data.as_chunks::<3>();
            let grey = |[red, green, blue]: &[u8; 3]| {
                let sum = u32::from(*red) * 19_595 + u32::from(*green) * 38_470 + u32::from(*blue) * 7_471;
                ((sum + 0x8000) >> 16) as u8
            };
            rgb.iter().map(grey).collect()
        }
        _ => return pixels,
    };
    Pixels {
        channels,
        data,
        ..pixels
    }
}
