//! WebP, GIF and BMP files as pixels. Of an animation it is the first frame.

use std::io::Cursor;
use std::num::NonZeroU64;

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::{ImageError, MAX_SIDE, Pixels, check_size, exif};

/// Most bytes that a decoder allocates at once: 32 Mi pixels with transparency, and as much again.
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
    if decoder.has_alpha() {
        data = without_alpha(&data);
    }
    // Metadata that cannot be read do not make the image unreadable.
    let orientation = decoder.exif_metadata().ok().flatten();
    let orientation = orientation.map_or(1, |found| exif::orientation(&found));
    Ok((in_rgb(width, height, data, "WebP")?, orientation))
}

/// Decodes the first frame of a GIF file. What it leaves free has the background's colour.
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
    let pixels = without_alpha(&frame.buffer);
    let [left, top, across, down] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    if [left, top] == [0, 0] && [across, down] == [width, height] {
        return Ok((in_rgb(width, height, pixels, "GIF")?, 1));
    }
    let mut canvas = background.unwrap_or_default().repeat(width * height);
    let rows = canvas.chunks_exact_mut(3 * width.max(1)).skip(top).take(down);
    for (row, own) in rows.zip(pixels.chunks_exact(3 * across.max(1))) {
        for (to, from) in row.iter_mut().skip(3 * left).zip(own) {
            *to = *from;
        }
    }
    Ok((in_rgb(width, height, canvas, "GIF")?, 1))
}

/// Decodes a BMP file.
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
        Some(ColorSpace::RGB) => Ok((in_rgb(width, height, data, "BMP")?, 1)),
        Some(ColorSpace::RGBA) => Ok((in_rgb(width, height, without_alpha(&data), "BMP")?, 1)),
        other => Err(ImageError::Colours {
            colours: other.map_or_else(|| "unknown".to_owned(), |colours| format!("{colours:?}")),
        }),
    }
}

fn without_alpha(data: &[u8]) -> Vec<u8> {
    let (pixels, _) = data.as_chunks::<4>();
    pixels.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect()
}

fn in_rgb(width: usize, height: usize, data: Vec<u8>, format: &'static str) -> Result<Pixels, ImageError> {
    if data.len() != width * height * 3 {
        return Err(damaged(format, format!("it has {} bytes of pixels", data.len())));
    }
    Ok(Pixels {
        width,
        height,
        channels: 3,
        data,
    })
}
