//! Decodes blocks of 32 weights: GGML's `Q4_1`, `Q5_0`, `Q5_1` and `IQ4_NL`. Weight `i` is in the lower half of byte
//! `i`, weight `i + 16` in the upper half.

use half::f16;

/// Number of weights per block.
const BLOCK: usize = 32;

/// Values of the codes of `IQ4_NL` and `IQ4_XS`, which are not evenly spaced.
pub(super) const UNEVEN: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Returns the value of a code of `IQ4_NL` and `IQ4_XS`.
pub(super) fn uneven(code: u8) -> f32 {
    UNEVEN.get(usize::from(code & 15)).copied().map_or(0.0, f32::from)
}

/// Reads an f16.
pub(super) fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// Returns the codes of `2 N` weights: the lower halves of the bytes, then the upper halves.
pub(super) fn halves(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let low = bytes.iter().map(|pair| pair & 15);
    low.chain(bytes.iter().map(|pair| pair >> 4))
}

/// Fills a block by applying a function to the codes.
fn filled(codes: impl Iterator<Item = u8>, value: impl Fn(u8) -> f32) -> [f32; BLOCK] {
    let mut out = [0.0; BLOCK];
    for (slot, code) in out.iter_mut().zip(codes) {
        *slot = value(code);
    }
    out
}

/// Adds the fifth bit to each code.
fn fifth(codes: impl Iterator<Item = u8>, bits: [u8; 4]) -> impl Iterator<Item = u8> {
    let bits = u32::from_le_bytes(bits);
    let places = 0_u32..;
    codes
        .zip(places)
        .map(move |(code, place)| code | (((bits >> place) & 1) as u8) << 4)
}

/// Decodes `Q4_1`: `scale * code + minimum`.
pub(super) fn q4_1(block: &[u8; 20]) -> [f32; BLOCK] {
    let [d0, d1, m0, m1, codes @ ..] = block;
    let (scale, least) = (half(*d0, *d1), half(*m0, *m1));
    filled(halves(codes), |code| f32::from(code) * scale + least)
}

/// Decodes `Q5_0`: `scale * (code - 16)`.
pub(super) fn q5_0(block: &[u8; 22]) -> [f32; BLOCK] {
    let [d0, d1, h0, h1, h2, h3, codes @ ..] = block;
    let scale = half(*d0, *d1);
    let codes = fifth(halves(codes), [*h0, *h1, *h2, *h3]);
    filled(codes, |code| (f32::from(code) - 16.0) * scale)
}

/// Decodes `Q5_1`: `scale * code + minimum`, with 5-bit codes.
pub(super) fn q5_1(block: &[u8; 24]) -> [f32; BLOCK] {
    let [d0, d1, m0, m1, h0, h1, h2, h3, codes @ ..] = block;
    let (scale, least) = (half(*d0, *d1), half(*m0, *m1));
    let codes = fifth(halves(codes), [*h0, *h1, *h2, *h3]);
    filled(codes, |code| f32::from(code) * scale + least)
}

/// Decodes `IQ4_NL`: `scale * value`, with 16 values that are not evenly spaced.
pub(super) fn iq4_nl(block: &[u8; 18]) -> [f32; BLOCK] {
    let [d0, d1, codes @ ..] = block;
    let scale = half(*d0, *d1);
    filled(halves(codes), |code| uneven(code) * scale)
}
