use std::arch::x86_64::{__m256i, __m512i};

use pulp::x86::{V3, V4};
use pulp::{cast, f32x8, f32x16, i32x8, i32x16};

use super::{Instructions, LINE, PANEL, scales, words};

impl Instructions for V4 {
    const COLUMNS: usize = 16;
    type Pairs = __m512i;
    type Sums = i32x16;
    type Floats = f32x16;

    #[inline(always)]
    fn pairs(self, pair: u32) -> __m512i {
        cast(self.splat_u32x16(pair))
    }

    #[inline(always)]
    fn sums(self, value: i32) -> i32x16 {
        self.splat_i32x16(value)
    }

    #[inline(always)]
    fn floats(self, value: f32) -> f32x16 {
        self.splat_f32x16(value)
    }

    #[inline(always)]
    fn scales(self, line: &[u32; LINE], index: usize) -> f32x16 {
        cast(self.avx512f._mm512_cvtph_ps(cast(words::<8>(line, index))))
    }

    #[inline(always)]
    fn q8_0(self, line: &[u32; LINE], index: usize) -> __m512i {
        self.avx512bw._mm512_cvtepi8_epi16(cast(words::<8>(line, index)))
    }

    #[inline(always)]
    fn q4_0(self, line: &[u32; LINE], index: usize) -> [__m512i; 2] {
        let bytes = self.avx512bw._mm512_cvtepu8_epi16(cast(words::<8>(line, index)));
        let low = self
            .avx512f
            ._mm512_and_si512(bytes, cast(self.splat_u32x16(0x000f_000f)));
        [low, self.avx512bw._mm512_srli_epi16::<4>(bytes)]
    }

    #[inline(always)]
    fn add_products(self, sums: i32x16, a: __m512i, b: __m512i) -> i32x16 {
        self.wrapping_add_i32x16(sums, cast(self.avx512bw._mm512_madd_epi16(a, b)))
    }

    #[inline(always)]
    fn add_scaled(self, totals: f32x16, sums: i32x16, columns: f32x16, row: f32) -> f32x16 {
        let scales = self.mul_f32x16(columns, self.splat_f32x16(row));
        self.mul_add_f32x16(self.convert_i32x16_to_f32x16(sums), scales, totals)
    }

    #[inline(always)]
    fn store(self, totals: f32x16, out: &mut [f32; PANEL], index: usize) {
        let (parts, _) = out.as_chunks_mut::<16>();
        if let Some(part) = parts.get_mut(index) {
            *part = cast(totals);
        }
    }
}

impl Instructions for V3 {
    const COLUMNS: usize = 8;
    type Pairs = __m256i;
    type Sums = i32x8;
    type Floats = f32x8;

    #[inline(always)]
    fn pairs(self, pair: u32) -> __m256i {
        cast(self.splat_u32x8(pair))
    }

    #[inline(always)]
    fn sums(self, value: i32) -> i32x8 {
        self.splat_i32x8(value)
    }

    #[inline(always)]
    fn floats(self, value: f32) -> f32x8 {
        self.splat_f32x8(value)
    }

    #[inline(always)]
    fn scales(self, line: &[u32; LINE], index: usize) -> f32x8 {
        cast(scales::<8, 4>(line, index))
    }

    #[inline(always)]
    fn q8_0(self, line: &[u32; LINE], index: usize) -> __m256i {
        self.avx2._mm256_cvtepi8_epi16(cast(words::<4>(line, index)))
    }

    #[inline(always)]
    fn q4_0(self, line: &[u32; LINE], index: usize) -> [__m256i; 2] {
        let bytes = self.avx2._mm256_cvtepu8_epi16(cast(words::<4>(line, index)));
        let low = self
            .avx2
            ._mm256_and_si256(bytes, cast(self.splat_u32x8(0x000f_000f)));
        [low, self.avx2._mm256_srli_epi16::<4>(bytes)]
    }

    #[inline(always)]
    fn add_products(self, sums: i32x8, a: __m256i, b: __m256i) -> i32x8 {
        self.wrapping_add_i32x8(sums, cast(self.avx2._mm256_madd_epi16(a, b)))
    }

    #[inline(always)]
    fn add_scaled(self, totals: f32x8, sums: i32x8, columns: f32x8, row: f32) -> f32x8 {
        let scales = self.mul_f32x8(columns, self.splat_f32x8(row));
        let sums = cast(self.avx._mm256_cvtepi32_ps(cast(sums)));
        self.mul_add_f32x8(sums, scales, totals)
    }

    #[inline(always)]
    fn store(self, totals: f32x8, out: &mut [f32; PANEL], index: usize) {
        let (parts, _) = out.as_chunks_mut::<8>();
        if let Some(part) = parts.get_mut(index) {
            *part = cast(totals);
        }
    }
}
