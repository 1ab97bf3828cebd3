//! Decodes blocks of 256 weights: GGML's `Q2_K` to `Q6_K`, `Q8_K` and `IQ4_XS`. Sub-blocks of 16 or 32 weights have
//! scales, some also minima, of few bits; a block has the factors of both.

use super::blocks::{half, halves, uneven};

/// Number of weights per block.
const BLOCK: usize = 256;

/// Fills a block with `factor * value - minimum`; `factors` returns both for a sub-block of `part` weights.
fn filled(
    mut values: impl Iterator<Item = f32>,
    part: usize,
    factors: impl Fn(usize) -> [f32; 2],
) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    for (index, slots) in out.chunks_mut(part.max(1)).enumerate() {
        let [factor, least] = factors(index);
        for (slot, value) in slots.iter_mut().zip(&mut values) {
            *slot = factor * value - least;
        }
    }
    out
}

/// Returns an entry; 0 if the index is out of range, which does not occur.
fn at<T: Copy + Default>(values: &[T], index: usize) -> T {
    values.get(index).copied().unwrap_or_default()
}

/// Returns 2-bit codes: for every 32 bytes the lowest two bits of each, then the next two.
fn pairs_of_bits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes
        .chunks(32)
        .flat_map(|chunk| (0..4).flat_map(move |pair| chunk.iter().map(move |byte| (byte >> (2 * pair)) & 3)))
}

/// Decodes `Q2_K`: `scale * code - minimum` per sub-block of 16, with 2-bit codes.
pub(super) fn q2_k(block: &[u8; 84]) -> [f32; BLOCK] {
    let [parts @ .., d0, d1, m0, m1] = block;
    let (scales, codes) = parts.split_at(16);
    let (factor, least) = (half(*d0, *d1), half(*m0, *m1));
    filled(pairs_of_bits(codes).map(f32::from), 16, |part| {
        let scale = at(scales, part);
        [factor * f32::from(scale & 15), least * f32::from(scale >> 4)]
    })
}

/// Decodes `Q3_K`: `scale * code` per sub-block of 16, with 3-bit codes; a code is 4 lower if its mask bit is not set.
pub(super) fn q3_k(block: &[u8; 110]) -> [f32; BLOCK] {
    let [parts @ .., d0, d1] = block;
    let factor = half(*d0, *d1);
    let (mask, rest) = parts.split_at(32);
    let (codes, packed) = rest.split_at(64);
    let (low, high) = packed.split_at(8);
    let signed = pairs_of_bits(codes).enumerate().map(|(index, code)| {
        let is_kept = (at(mask, index % 32) >> (index / 32)) & 1 == 1;
        f32::from(code) - if is_kept { 0.0 } else { 4.0 }
    });
    filled(signed, 16, |part| {
        let low = at(low, part % 8) >> (4 * (part / 8));
        let high = at(high, part % 4) >> (2 * (part / 4));
        let scale = (low & 15) | ((high & 3) << 4);
        [factor * (f32::from(scale) - 32.0), 0.0]
    })
}

/// Returns scale and minimum of the eight sub-blocks of `Q4_K` and `Q5_K`, 6 bits each.
fn scales_and_minima(packed: &[u8; 12]) -> [(u8, u8); 8] {
    let [first @ .., _, _, _, _] = packed;
    let [_, _, _, _, _, _, _, _, upper @ ..] = packed;
    let (scales, minima) = first.split_at(4);
    let mut out = [(0, 0); 8];
    for (part, slot) in out.iter_mut().enumerate() {
        let (scale, least, more) = (at(scales, part % 4), at(minima, part % 4), at(upper, part % 4));
        *slot = if part < 4 {
            (scale & 63, least & 63)
        } else {
            (
                (more & 15) | ((scale >> 2) & 0x30),
                (more >> 4) | ((least >> 2) & 0x30),
            )
        };
    }
    out
}

/// Returns 4-bit codes: for every `chunk` bytes the lower halves, then the upper halves.
fn nibbles(bytes: &[u8], chunk: usize) -> impl Iterator<Item = u8> {
    bytes.chunks(chunk).flat_map(halves)
}

/// Returns `scale * code - minimum` per sub-block of 32.
fn scaled(codes: impl Iterator<Item = u8>, factors: [f32; 2], packed: &[u8; 12]) -> [f32; BLOCK] {
    let [factor, least] = factors;
    let parts = scales_and_minima(packed);
    filled(codes.map(f32::from), 32, |part| {
        let (scale, minimum) = at(&parts, part);
        [factor * f32::from(scale), least * f32::from(minimum)]
    })
}

/// Decodes `Q4_K`: `scale * code - minimum` per sub-block of 32, with 4-bit codes.
pub(super) fn q4_k(block: &[u8; 144]) -> [f32; BLOCK] {
    let [d0, d1, m0, m1, rest @ ..] = block;
    let Some((packed, codes)) = rest.split_first_chunk::<12>() else {
        return [0.0; BLOCK];
    };
    scaled(nibbles(codes, 32), [half(*d0, *d1), half(*m0, *m1)], packed)
}

/// Decodes `Q5_K`: `scale * code - minimum` per sub-block of 32, with 5-bit codes.
pub(super) fn q5_k(block: &[u8; 176]) -> [f32; BLOCK] {
    let [d0, d1, m0, m1, rest @ ..] = block;
    let Some((packed, rest)) = rest.split_first_chunk::<12>() else {
        return [0.0; BLOCK];
    };
    let (fifth, codes) = rest.split_at(32);
    let codes = nibbles(codes, 32).enumerate().map(|(index, code)| {
        let bit = (at(fifth, index % 32) >> (index / 32)) & 1;
        code | bit << 4
    });
    scaled(codes, [half(*d0, *d1), half(*m0, *m1)], packed)
}

/// Decodes `Q6_K`: `scale * (code - 32)` per sub-block of 16, with 6-bit codes.
pub(super) fn q6_k(block: &[u8; 210]) -> [f32; BLOCK] {
    let [parts @ .., d0, d1] = block;
    let factor = half(*d0, *d1);
    let (low, rest) = parts.split_at(128);
    let (high, scales) = rest.split_at(64);
    let codes = nibbles(low, 64).zip(pairs_of_bits(high));
    let codes = codes.map(|(low, high)| f32::from(low | high << 4) - 32.0);
    filled(codes, 16, |part| {
        [factor * f32::from(at(scales, part).cast_signed()), 0.0]
    })
}

/// Decodes `Q8_K`: `scale * code`, with 8-bit codes.
pub(super) fn q8_k(block: &[u8; 292]) -> [f32; BLOCK] {
    let [d0, d1, d2, d3, codes @ ..] = block;
    let scale = f32::from_le_bytes([*d0, *d1, *d2, *d3]);
    let codes = codes.iter().map(|code| f32::from(code.cast_signed()));
    filled(codes, BLOCK, |_| [scale, 0.0])
}

/// Decodes `IQ4_XS`: `scale * value` per sub-block of 32, with 16 values that are not evenly spaced.
pub(super) fn iq4_xs(block: &[u8; 136]) -> [f32; BLOCK] {
    let [d0, d1, h0, h1, rest @ ..] = block;
    let (factor, high) = (half(*d0, *d1), u16::from_le_bytes([*h0, *h1]));
    let (low, codes) = rest.split_at(4);
    filled(nibbles(codes, 16).map(uneven), 32, |part| {
        let low = (at(low, part / 2) >> (4 * (part % 2))) & 15;
        let high = ((high >> (2 * part)) & 3) as u8;
        [factor * (f32::from(low | high << 4) - 32.0), 0.0]
    })
}
