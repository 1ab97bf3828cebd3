//! Layouts of f32, bf16 and f16 rows in the words of a packed matrix, and their conversion to f32.

use pulp::Simd;

use super::packed::PANEL;

/// Layout of rows in the words of a panel.
pub(super) trait Layout {
    /// Number of rows in a line of [`PANEL`] words, 1 or 2.
    const ROWS: usize;

    /// Returns the rows in words; the second is unused if a line holds one row.
    fn rows<S: Simd>(simd: S, words: S::u32s) -> [S::f32s; 2];
}

/// One row of f32.
pub(super) struct Single;

impl Layout for Single {
    const ROWS: usize = 1;

    #[inline(always)]
    fn rows<S: Simd>(simd: S, words: S::u32s) -> [S::f32s; 2] {
        [simd.transmute_f32s_u32s(words); 2]
    }
}

/// Two rows of bf16, the upper halves of f32.
pub(super) struct Bf16;

impl Layout for Bf16 {
    const ROWS: usize = 2;

    #[inline(always)]
    fn rows<S: Simd>(simd: S, words: S::u32s) -> [S::f32s; 2] {
        let low = simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16));
        let high = simd.and_u32s(words, simd.splat_u32s(0xffff_0000));
        [simd.transmute_f32s_u32s(low), simd.transmute_f32s_u32s(high)]
    }
}

/// Two rows of f16.
pub(super) struct F16;

impl Layout for F16 {
    const ROWS: usize = 2;

    #[inline(always)]
    fn rows<S: Simd>(simd: S, words: S::u32s) -> [S::f32s; 2] {
        let low = simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(16));
        let high = simd.and_u32s(words, simd.splat_u32s(0xffff_0000));
        [f16_to_f32(simd, low), f16_to_f32(simd, high)]
    }
}

/// Converts f16 values in the upper halves of words whose lower halves are zero.
#[inline(always)]
fn f16_to_f32<S: Simd>(simd: S, bits: S::u32s) -> S::f32s {
    /// Difference of the exponent biases, at the position of an f32's exponent.
    const REBIAS: u32 = (127 - 15) << 23;
    /// Minimum normal f16, 2^-14, as bits of an f32.
    const NORMAL: u32 = (127 - 14) << 23;
    let sign = simd.and_u32s(bits, simd.splat_u32s(0x8000_0000));
    let magnitude = simd.and_u32s(bits, simd.splat_u32s(0x7fff_0000));
    let magnitude = simd.wrapping_dyn_shr_u32s(magnitude, simd.splat_u32s(3));
    let normal = simd.add_u32s(magnitude, simd.splat_u32s(REBIAS));
    // Avoids subnormal f32, which some processors handle a hundred times slower.
    let least = simd.splat_u32s(NORMAL);
    let subnormal = simd.transmute_f32s_u32s(simd.or_u32s(magnitude, least));
    let subnormal = simd.sub_f32s(subnormal, simd.transmute_f32s_u32s(least));
    let is_subnormal = simd.less_than_u32s(magnitude, simd.splat_u32s(1 << 23));
    let value = simd.select_u32s(is_subnormal, simd.transmute_u32s_f32s(subnormal), normal);
    simd.transmute_f32s_u32s(simd.or_u32s(value, sign))
}

/// Converts the rows in words to f32, row by row.
#[inline(always)]
pub(super) fn convert<S: Simd, L: Layout>(simd: S, words: &[u32], out: &mut [f32]) {
    let (lines, _) = words.as_chunks::<PANEL>();
    for (line, rows) in lines.iter().zip(out.chunks_mut(L::ROWS * PANEL)) {
        let (first, second) = rows.split_at_mut(PANEL.min(rows.len()));
        let (words, _) = S::as_simd_u32s(line);
        for (index, target) in [first, second].into_iter().enumerate() {
            let (target, _) = S::as_mut_simd_f32s(target);
            for (slot, words) in target.iter_mut().zip(words) {
                let [first, second] = L::rows(simd, *words);
                *slot = if index == 0 { first } else { second };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;
    use crate::precision::WeightType;

    #[test]
    fn kernels_convert_every_finite_f16_and_bf16_exactly() {
        struct Convert<'a>(&'a [u32], &'a mut [f32], WeightType);
        impl WithSimd for Convert<'_> {
            type Output = ();
            fn with_simd<S: Simd>(self, simd: S) {
                match self.2 {
                    WeightType::Bf16 => convert::<S, Bf16>(simd, self.0, self.1),
                    _ => convert::<S, F16>(simd, self.0, self.1),
                }
            }
        }
        for first in (0..=u16::MAX).step_by(PANEL) {
            let rows: Vec<u16> = (0..2 * PANEL as u16)
                .map(|index| first.wrapping_add(index))
                .collect();
            let (low, high) = rows.split_at(PANEL);
            let words: Vec<u32> = low
                .iter()
                .zip(high)
                .map(|(low, high)| u32::from(*low) | u32::from(*high) << 16)
                .collect();
            for kind in [WeightType::Bf16, WeightType::F16] {
                let mut out = vec![0.0; 2 * PANEL];
                Arch::new().dispatch(Convert(&words, &mut out, kind));
                for (bits, actual) in rows.iter().zip(&out) {
                    let expected = match kind {
                        WeightType::Bf16 => half::bf16::from_bits(*bits).to_f32(),
                        _ => half::f16::from_bits(*bits).to_f32(),
                    };
                    if expected.is_finite() {
                        assert_eq!(actual.to_bits(), expected.to_bits(), "{kind}: {bits:#x}");
                    }
                }
            }
        }
    }
}
