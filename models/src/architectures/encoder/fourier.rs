//! Token mixing by Fourier transforms (Lee-Thorp et al. 2021, "`FNet`", section 3.1): the real part of the transform
//! over the elements of a token and over the tokens of its sequence.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ops::{Ops, Span};
use crate::precision::WeightType;

/// Number of sequence lengths whose transforms are cached; all blocks of a pass use the same ones.
const MAX_LENGTHS: usize = 16;

/// Fourier transforms on a device.
pub(in crate::architectures) struct Fourier<O: Ops> {
    /// Transform over the elements of a token: real parts, then imaginary parts.
    elements: O::Linear,
    width: usize,
    /// Transforms over the tokens of a sequence, by sequence length.
    lengths: Mutex<BTreeMap<usize, Arc<O::Linear>>>,
}

impl<O: Ops> Fourier<O> {
    /// Creates the transforms for tokens of this size.
    pub(in crate::architectures) fn new(ops: &O, width: usize) -> Self {
        let (cosines, sines) = waves(width);
        let row = |input: usize| {
            let of = |wave: &[f32]| -> Vec<f32> {
                let places = (0..width).map(|output| input * output % width.max(1));
                places
                    .map(|place| wave.get(place).copied().unwrap_or_default())
                    .collect()
            };
            [of(&cosines), of(&sines).iter().map(|sine| -sine).collect()].concat()
        };
        let weight = (0..width).flat_map(row).collect();
        let prepared = ops.prepare(weight, width, 2 * width, WeightType::F32);
        Self {
            elements: ops.linear(prepared, Vec::new(), width, 2 * width),
            width,
            lengths: Mutex::default(),
        }
    }

    /// Computes the real part of the transform of each sequence, and adds the rows. Includes masked tokens, as
    /// transformers does.
    pub(in crate::architectures) fn add_to(
        &self,
        ops: &O,
        x: &O::Matrix,
        sequences: &[&[bool]],
    ) -> O::Matrix {
        let width = self.width;
        let transformed = ops.multiply(x, &self.elements);
        let mut first = 0;
        let mixed = sequences.iter().map(|mask| {
            let own = Span {
                matrix: &transformed,
                from: first,
                count: mask.len(),
            };
            first += mask.len();
            self.over_tokens(ops, own)
        });
        let mixed: Vec<O::Matrix> = mixed.collect();
        let spans = mixed.iter().zip(sequences).map(|(matrix, mask)| Span {
            matrix,
            from: 0,
            count: mask.len(),
        });
        let mut sum = ops.gather(&spans.collect::<Vec<_>>(), width);
        ops.add(&mut sum, x);
        sum
    }

    /// Computes the real part of the transform over the tokens of a sequence: its real parts times cosines plus its
    /// imaginary parts times sines. Elements become rows, so that a linear layer computes it.
    fn over_tokens(&self, ops: &O, sequence: Span<'_, O::Matrix>) -> O::Matrix {
        let (tokens, width) = (sequence.count, self.width);
        let parts = ops.with_width(ops.gather(&[sequence], 2 * width), 1);
        let columns = (0..width).flat_map(|column| (0..2 * tokens).map(move |row| row * width + column));
        let by_element = ops.select(&parts, &columns.collect::<Vec<_>>());
        let by_element = ops.with_width(by_element, 2 * tokens);
        let layer = self.of_length(ops, tokens);
        let by_element = ops.with_width(ops.multiply(&by_element, &layer), 1);
        let rows = (0..tokens).flat_map(|token| (0..width).map(move |column| column * tokens + token));
        ops.with_width(ops.select(&by_element, &rows.collect::<Vec<_>>()), width)
    }

    /// Returns the layer that transforms this number of tokens: from the real and imaginary parts of the tokens to
    /// real parts.
    fn of_length(&self, ops: &O, tokens: usize) -> Arc<O::Linear> {
        let mut lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = lengths.get(&tokens) {
            return layer.clone();
        }
        let (cosines, sines) = waves(tokens);
        let row = |input: usize| {
            let (token, wave) = (input / 2, if input.is_multiple_of(2) { &cosines } else { &sines });
            let places = (0..tokens).map(move |output| token * output % tokens);
            places.map(|place| wave.get(place).copied().unwrap_or_default())
        };
        let weight: Vec<f32> = (0..2 * tokens).flat_map(row).collect();
        let prepared = ops.prepare(weight, 2 * tokens, tokens, WeightType::F32);
        let layer = Arc::new(ops.linear(prepared, Vec::new(), 2 * tokens, tokens));
        if lengths.len() == MAX_LENGTHS {
            lengths.clear();
        }
        lengths.insert(tokens, layer.clone());
        layer
    }
}

/// Returns the cosines and sines of `count` equally spaced angles of a full turn.
fn waves(count: usize) -> (Vec<f32>, Vec<f32>) {
    let angles = (0..count).map(|part| TAU * part as f64 / count as f64);
    angles
        .map(|angle| (angle.cos() as f32, angle.sin() as f32))
        .unzip()
}
