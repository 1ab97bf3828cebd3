//! Decodes WebP, GIF and BMP files; of an animation, only the first frame.

use std::io::Cursor;
use std::num::NonZeroU64;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::{ImageError, MAX_SIDE, Pixels, check_size, exif};

/// Maximum memory of a decoder, bytes: 32 Mi pixels with alpha channel, twice.
const MEMORY: usize = 1 << 28;

fn damaged(format: &'static str, reason: impl Into<String>) -> ImageError {
    ImageError::Damaged {
        format,
        reason: reason.into(),
    }
}

/// Decodes a WebP file.
///
/// # Errors
/// [`ImageError`] if it is damaged or too large.
pub(super) fn webp(bytes: &[u8]) -> Result<(Pixels, u8), ImageError> {
    let damaged = |error: image_webp::DecodingError| damaged("WebP", error.to_string());
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    decoder.set_memory_limit(MEMORY);
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    let size = decoder
        .output_buffer_size()
        .ok_or(ImageError::TooLarge { width, height })?;
    let mut data = vec![0; size];
    decoder.read_image(&mut data).map_err(damaged)?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    // Unreadable metadata does not make the image unreadable.
    let orientation = decoder.exif_metadata().ok().flatten();
    let orientation = orientation.map_or(1, |found| exif::orientation(&found));
    Ok((pixels(width, height, channels, data, "WebP")?, orientation))
}

/// Decodes the first frame of a GIF file. Pixels outside the frame have the background colour, and are transparent if
/// the frame has transparent pixels.
///
/// # Errors
/// [`ImageError`] if it is damaged or too large.
pub(super) fn gif(bytes: &[u8]) -> Result<(Pixels, u8), ImageError> {
    let failed = |error: gif::DecodingError| damaged("GIF", error.to_string());
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::RGBA);
    options.check_frame_consistency(true);
    let memory = NonZeroU64::new(MEMORY as u64).unwrap_or(NonZeroU64::MAX);
    options.set_memory_limit(gif::MemoryLimit::Bytes(memory));
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(failed)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    check_size(width, height)?;
    let background = decoder.bg_color().and_then(|colour| {
        let rest = decoder.global_palette()?.get(3 * colour..)?;
        rest.first_chunk::<3>().copied()
    });
    let frame = decoder.read_next_frame().map_err(failed)?;
    let frame = frame.ok_or_else(|| damaged("GIF", "it has no frame"))?;
    let is_transparent = frame.transparent.is_some();
    let [left, top, across, down] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    if [left, top] == [0, 0] && [across, down] == [width, height] {
        return Ok((pixels(width, height, 4, frame.buffer.to_vec(), "GIF")?, 1));
    }
    let [red, green, blue] = background.unwrap_or_default();
    let opacity = if is_transparent { 0 } else { u8::MAX };
    let mut canvas = [red, green, blue, opacity].repeat(width * height);
    let rows = canvas.chunks_exact_mut(4 * width.max(1)).skip(top).take(down);
    for (row, own) in rows.zip(frame.buffer.chunks_exact(4 * across.max(1))) {
        for (to, from) in row.iter_mut().skip(4 * left).zip(own) {
            *to = *from;
        }
    }
    Ok((pixels(width, height, 4, canvas, "GIF")?, 1))
}

/// Decodes a BMP file. The fourth byte of a pixel is alpha only if the header says so, as in PIL.
///
/// # Errors
/// [`ImageError`] if it is damaged or too large.
pub(super) fn bmp(bytes: &[u8]) -> Result<(Pixels, u8), ImageError> {
    let failed = |error: zune_bmp::BmpDecoderErrors| damaged("BMP", format!("{error:?}"));
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .set_strict_mode(true);
    let mut decoder = zune_bmp::BmpDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().ok_or(ImageError::Empty)?;
    check_size(width, height)?;
    let data = decoder.decode().map_err(failed)?;
    match decoder.colorspace() {
        Some(ColorSpace::RGB) => Ok((pixels(width, height, 3, data, "BMP")?, 1)),
        Some(ColorSpace::RGBA) if has_opacity(bytes) => Ok((pixels(width, height, 4, data, "BMP")?, 1)),
        Some(ColorSpace::RGBA) => Ok((pixels(width, height, 3, without_alpha(&data), "BMP")?, 1)),
        other => Err(ImageError::Colours {
            colours: other.map_or_else(|| "unknown".to_owned(), |colours| format!("{colours:?}")),
        }),
    }
}

/// Returns whether the header of a BMP file has a mask for the alpha channel.
fn has_opacity(bytes: &[u8]) -> bool {
    /// Compression type with a bit mask per channel.
    const BIT_FIELDS: u32 = 3;
    let u32_at = |at: usize| {
        let bytes = bytes.get(at..at + 4)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let is_long = u32_at(14).is_some_and(|header| header >= 56);
    is_long && u32_at(30) == Some(BIT_FIELDS) && u32_at(66).is_some_and(|mask| mask != 0)
}

fn without_alpha(data: &[u8]) -> Vec<u8> {
    let (pixels, _) = data.as_chunks::<4>();
    pixels.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect()
}

fn pixels(
    width: usize,
    height: usize,
    channels: usize,
    data: Vec<u8>,
    format: &'static str,
) -> Result<Pixels, ImageError> {
    if data.len() != width * height * channels {
        return Err(damaged(format, format!("it has {} bytes of pixels", data.len())));
    }
    Ok(Pixels {
        width,
        height,
        channels,
        data,
    })
}
