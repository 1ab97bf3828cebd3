//! Quantised weight blocks, with the layout and the rounding of GGML's `quantize_row_q8_0_ref` and
//! `quantize_row_q4_0_ref`.
//!
//! Quantising a decoded block again gives the same bytes, so a quantised file can be read as f32 and packed for the
//! kernels without further loss.

use half::f16;

/// Number of weights per block.
pub(crate) const BLOCK: usize = 32;
/// Size of a `Q8_0` block, bytes: the scale, then one byte per weight.
pub(crate) const Q8_0_BYTES: usize = 2 + BLOCK;
/// Size of a `Q4_0` block, bytes: the scale, then two weights per byte.
pub(crate) const Q4_0_BYTES: usize = 2 + BLOCK / 2;

/// Returns the scale of a block, as the bits of an f16, and its quantised weights: `weight = scale * number`.
pub(crate) fn quantise_q8_0(block: &[f32; BLOCK]) -> (u16, [i8; BLOCK]) {
    let largest = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (
        f16::from_f32(scale).to_bits(),
        block.map(|value| nearest(value * inverse) as i8),
    )
}

/// Rounds a small number to the nearest integer, half away from zero. `f32::round` is a function call that is not
/// vectorised.
#[inline]
fn nearest(value: f32) -> i32 {
    let whole = value as i32;
    let rest = value - whole as f32;
    whole
        .wrapping_add(i32::from(rest >= 0.5))
        .wrapping_sub(i32::from(rest <= -0.5))
}

/// Returns the scale of a block, as the bits of an f16, and its quantised weights in 0..16:
/// `weight = scale * (number - 8)`.
///
/// A block decoded from `Q4_0` keeps its weights exactly, even if none of its numbers was 0: other programs choose
/// scales by the importance of weights.
pub(crate) fn quantise_q4_0(block: &[f32; BLOCK]) -> (u16, [u8; BLOCK]) {
    let larger = |most: f32, value: &f32| if value.abs() > most.abs() { *value } else { most };
    let farthest = block.iter().fold(0.0, larger);
    if let Some(exact) = exact_q4_0(block, farthest) {
        return exact;
    }
    // The value farthest from zero gets code 0, which is -8.
    let scale = farthest / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    (
        f16::from_f32(scale).to_bits(),
        block.map(|value| ((value * inverse + 8.5) as u8).min(15)),
    )
}

/// Returns scale and numbers of a block whose weights are exact multiples of an f16 scale; `farthest` is the weight
/// farthest from zero.
fn exact_q4_0(block: &[f32; BLOCK], farthest: f32) -> Option<(u16, [u8; BLOCK])> {
    /// Mantissa bits that are zero in a product of an 11-bit and a 4-bit number.
    const UNUSED: u32 = 0x1ff;
    if farthest == 0.0 || block.iter().any(|value| value.to_bits() & UNUSED != 0) {
        return None;
    }
    let steps = [-8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1];
    steps.into_iter().find_map(|steps: i8| {
        let rounded = f16::from_f32(farthest / f32::from(steps));
        let scale = rounded.to_f32();
        let is_exact = |value: &f32| {
            let number = nearest(value / scale);
            (-8..8).contains(&number) && (number as f32 * scale - value).abs() == 0.0
        };
        let numbers = || block.map(|value| (nearest(value / scale) + 8) as u8);
        block.iter().all(is_exact).then(|| (rounded.to_bits(), numbers()))
    })
}

/// Appends a `Q8_0` block to `out`.
pub(super) fn write_q8_0(block: &[f32; BLOCK], out: &mut Vec<u8>) {
    let (scale, numbers) = quantise_q8_0(block);
    out.extend(scale.to_le_bytes());
    out.extend(numbers.map(i8::cast_unsigned));
}

/// Appends a `Q4_0` block to `out`: weight `i` in the lower half of byte `i`, weight `i + 16` in the upper half.
pub(super) fn write_q4_0(block: &[f32; BLOCK], out: &mut Vec<u8>) {
    let (scale, numbers) = quantise_q4_0(block);
    let (low, high) = numbers.split_at(BLOCK / 2);
    out.extend(scale.to_le_bytes());
    out.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
}

/// Decodes a `Q8_0` block.
pub(super) fn read_q8_0(block: &[u8; Q8_0_BYTES], out: &mut [f32]) {
    let [low, high, numbers @ ..] = block;
    let scale = f16::from_le_bytes([*low, *high]).to_f32();
    for (slot, number) in out.iter_mut().zip(numbers) {
        *slot = f32::from(number.cast_signed()) * scale;
    }
}

/// Decodes a `Q4_0` block.
pub(super) fn read_q4_0(block: &[u8; Q4_0_BYTES], out: &mut [f32]) {
    let [low, high, numbers @ ..] = block;
    let scale = f16::from_le_bytes([*low, *high]).to_f32();
    let numbers = numbers.iter();
    let numbers = numbers
        .clone()
        .map(|pair| pair & 15)
        .chain(numbers.map(|pair| pair >> 4));
    for (slot, number) in out.iter_mut().zip(numbers) {
        *slot = (f32::from(number) - 8.0) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_by_the_standard_library() {
        for step in -130_000..=130_000 {
            let value = step as f32 / 1_000.0;
            for value in [
                value,
                value.next_up(),
                value.next_down(),
                (value * 2.0).round() / 2.0,
            ] {
                assert_eq!(nearest(value), value.round() as i32, "{value}");
            }
        }
        assert_eq!(nearest(0.5_f32.next_down()), 0);
        assert_eq!(nearest(f32::NAN), 0);
    }

    #[test]
    fn a_decoded_block_keeps_its_weights_whatever_its_scale() {
        use rand::{Rng, SeedableRng};
        let rng = &mut rand_chacha::ChaCha8Rng::seed_from_u64(5);
        for most in 1..8 {
            for _ in 0..200 {
                let mut bytes = [0; Q4_0_BYTES];
                let scale = f16::from_f32(rng.random_range(-0.1..0.1));
                let mut number = || rng.random_range(8 - most..=8 + most);
                for pair in &mut bytes[2..] {
                    *pair = number() | number() << 4;
                }
                bytes[..2].copy_from_slice(&scale.to_le_bytes());
                let (mut decoded, mut again, mut encoded) = ([0.0; BLOCK], [0.0; BLOCK], Vec::new());
                read_q4_0(&bytes, &mut decoded);
                write_q4_0(&decoded, &mut encoded);
                read_q4_0(encoded.first_chunk().unwrap(), &mut again);
                assert_eq!(decoded.to_vec(), again.to_vec());
            }
        }
    }
}
