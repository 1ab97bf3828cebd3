//! Convolutions that read their inputs from the images, stored by channel, instead of copying every window.
//!
//! The pixels of one channel in one row lie beside each other, so a group of neighbouring windows reads the inputs that one row of weights
//! multiplies in order. With a stride of `s`, a row holds its pixels by their place modulo `s`: those that neighbouring windows read lie
//! beside each other again.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::ops::Convolution;
use crate::ops::cpu_layers::PackedLinear;
use crate::ops::gemm::{accumulate, store, weights, with_size};
use crate::ops::layout::Single;
use crate::ops::packed::{PANEL, Panels};
use crate::precision::WeightType;

/// Pixels that are stored together.
const BLOCK: usize = 8;
/// Images of at most this many values are stored by one thread: waking another one takes longer.
const SMALL: usize = 1 << 16;

/// Images by channel, with their padding: `[images, rows, channels, stride, line]`.
pub(super) struct Planes<'a> {
    convolution: &'a Convolution,
    /// Pixels of a channel in a row whose places are equal modulo the stride.
    line: usize,
    values: Vec<f32>,
}

impl<'a> Planes<'a> {
    /// Stores images `[batch * height * width, channels]` by channel; `None` if that does not pay: windows do not overlap, or the weights
    /// are not f32.
    pub(super) fn new(images: &[f32], convolution: &'a Convolution, linear: &PackedLinear) -> Option<Self> {
        let Convolution {
            height,
            width,
            channels,
            kernel,
            stride,
            border: [above, before, below, after],
        } = *convolution;
        if kernel <= stride || linear.weight.panels().kind() != WeightType::F32 {
            return None;
        }
        let line = (before + width + after).div_ceil(stride);
        let (each, rows) = (channels * stride * line, above + height + below);
        let image = height * width * channels;
        let count = images.len().checked_div(image)?;
        let mut values = vec![0.0; count * rows * each];
        let store = |(place, out): (usize, &mut [f32])| {
            let (index, row) = (place / rows, (place % rows).checked_sub(above));
            if let Some(row) = row.filter(|row| *row < height) {
                let first = index * image + row * width * channels;
                let pixels = images.get(first..first + width * channels);
                store_row(out, pixels.unwrap_or_default(), convolution, line);
            }
        };
        if values.len() <= SMALL {
            values.chunks_mut(each).enumerate().for_each(store);
        } else {
            values.par_chunks_mut(each).enumerate().for_each(store);
        }
        Some(Self {
            convolution,
            line,
            values,
        })
    }

    /// Multiplies the windows from `first` on by a layer and adds its bias, on this thread; `out` is `[windows, outputs]`.
    pub(super) fn multiply_into(&self, out: &mut [f32], first: usize, linear: &PackedLinear) {
        Arch::new().dispatch(Product {
            planes: self,
            first,
            inputs: linear.inputs,
            outputs: linear.outputs,
            packed: linear.weight.panels(),
            bias: &linear.bias,
            out,
        });
    }

    /// Returns the values from the first input of a window on that its row `down` and column `across` has; those of the next channel
    /// follow after [`Planes::channel`] values.
    #[inline(always)]
    fn inputs(&self, window: Window, down: usize, across: usize) -> &[f32] {
        let Convolution {
            height,
            channels,
            stride,
            border: [above, _, below, _],
            ..
        } = *self.convolution;
        let row = window.image * (above + height + below) + window.row * stride + down;
        let place = (row * channels * stride + across % stride) * self.line + window.column + across / stride;
        self.values.get(place..).unwrap_or_default()
    }

    /// Number of values from a pixel to the same one of the next channel.
    fn channel(&self) -> usize {
        self.convolution.stride * self.line
    }
}

/// Stores a row of pixels, `[width, channels]`, by channel.
fn store_row(out: &mut [f32], pixels: &[f32], convolution: &Convolution, line: usize) {
    let Convolution {
        channels,
        stride,
        border: [_, before, ..],
        ..
    } = *convolution;
    for phase in 0..stride.min(pixels.len() / channels.max(1)) {
        // Pixel `phase` and every `stride`-th after it.
        let (column, place) = ((before + phase) % stride, (before + phase) / stride);
        let mut rows = pixels.chunks_exact(channels).skip(phase).step_by(stride);
        let mut place = column * line + place;
        loop {
            let mut block = [&[][..]; BLOCK];
            let mut count = 0;
            for (slot, row) in block.iter_mut().zip(rows.by_ref()) {
                *slot = row;
                count += 1;
            }
            match count {
                0 => break,
                BLOCK => {
                    for (channel, out) in out.chunks_exact_mut(stride * line).enumerate() {
                        let values = block.map(|row| row.get(channel).copied().unwrap_or_default());
                        if let Some(out) = out.get_mut(place..place + BLOCK) {
                            out.copy_from_slice(&values);
                        }
                    }
                }
                _ => {
                    for (channel, out) in out.chunks_exact_mut(stride * line).enumerate() {
                        let out = out.get_mut(place..place + count).unwrap_or_default();
                        for (out, row) in out.iter_mut().zip(block) {
                            *out = row.get(channel).copied().unwrap_or_default();
                        }
                    }
                }
            }
            place += count;
        }
    }
}

/// The place of a window.
#[derive(Clone, Copy)]
struct Window {
    image: usize,
    row: usize,
    column: usize,
}

/// A product of some windows with a matrix.
struct Product<'a> {
    planes: &'a Planes<'a>,
    /// Number of the first window, counted by rows over all images.
    first: usize,
    inputs: usize,
    outputs: usize,
    packed: Panels<'a>,
    bias: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.windows::<S, 2, 12>(simd),
            8 => self.windows::<S, 2, 6>(simd),
            4 => self.windows::<S, 4, 6>(simd),
            _ => self.windows::<S, PANEL, 1>(simd),
        }
    }
}

impl Product<'_> {
    /// Returns groups of at most `max` neighbouring windows of one row: the first one, and their number.
    fn groups(&self, max: usize) -> Vec<(Window, usize)> {
        let [down, across] = self.planes.convolution.result();
        let mut groups = Vec::new();
        let (mut next, end) = (self.first, self.first + self.out.len() / self.outputs.max(1));
        while next < end {
            let column = next % across;
            let left = (across - column).min(end - next);
            // Equal groups: the sums of a small one wait for each other.
            let size = left.div_ceil(left.div_ceil(max));
            let window = Window {
                image: next / (down * across),
                row: next / across % down,
                column,
            };
            groups.push((window, size));
            next += size;
        }
        groups
    }

    #[inline(always)]
    fn windows<S: Simd, const VECTORS: usize, const MAX: usize>(self, simd: S) {
        let groups = self.groups(MAX);
        for index in 0..self.outputs.div_ceil(PANEL) {
            let words = self.packed.skip(index, self.inputs).first(self.inputs);
            let (lines, _) = words.as_chunks::<PANEL>();
            for from in (0..PANEL).step_by(VECTORS * S::F32_LANES) {
                let first = index * PANEL + from;
                if first >= self.outputs {
                    break;
                }
                let mut row = 0;
                for (window, size) in &groups {
                    with_size!(*size, MAX, SIZE => {
                        let sums = self.sums::<S, VECTORS, SIZE>(simd, lines, from, *window);
                        let bias = self.bias.get(first..).unwrap_or_default();
                        let out = self.out.get_mut(row * self.outputs..).unwrap_or_default();
                        store(simd, &sums, out, self.outputs, first, bias);
                    });
                    row += size;
                }
            }
        }
    }

    /// Returns the products of `SIZE` windows with the columns of a panel from `from` on.
    #[inline(always)]
    fn sums<S: Simd, const VECTORS: usize, const SIZE: usize>(
        &self,
        simd: S,
        lines: &[[u32; PANEL]],
        from: usize,
        window: Window,
    ) -> [[S::f32s; VECTORS]; SIZE] {
        let Convolution { kernel, channels, .. } = *self.planes.convolution;
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; SIZE];
        let mut taps = lines.chunks_exact(channels);
        for down in 0..kernel {
            for across in 0..kernel {
                let inputs = self.planes.inputs(window, down, across);
                let lines = taps.next().unwrap_or_default();
                for (inputs, line) in inputs.chunks(self.planes.channel()).zip(lines) {
                    if let Some(inputs) = inputs.first_chunk::<SIZE>() {
                        let [weights, _] = weights::<S, Single, VECTORS>(simd, line, from);
                        accumulate(simd, &mut sums, inputs, &weights);
                    }
                }
            }
        }
        sums
    }
}
