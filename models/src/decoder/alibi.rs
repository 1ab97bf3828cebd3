//! Attention with linear biases (ALiBi, Press et al. 2022): scores decrease with the distance, by a slope per head.

use crate::ops::RelativeBias;

/// Returns the position bias of heads with these slopes, for texts of at most `context` tokens.
pub(super) fn alibi(slopes: &[f32], context: usize) -> RelativeBias {
    let rows = slopes.iter().flat_map(|slope| {
        let earlier = (0..=context).rev().map(move |distance| -slope * distance as f32);
        // Later tokens are masked, so their bias is irrelevant.
        earlier.chain(std::iter::repeat_n(0.0, context))
    });
    RelativeBias {
        max_distance: context,
        values: rows.collect(),
    }
}

/// Returns the slopes of BLOOM: a geometric sequence; if the number of heads is not a power of two, followed by every
/// second element of a sequence twice as long.
pub(crate) fn bloom_slopes(heads: usize) -> Vec<f32> {
    let power = 1 << heads.max(1).ilog2();
    let sequence = |count: usize| {
        let base = 2_f64.powf(-8.0 / count as f64);
        (1..=count).map(move |index| base.powf(index as f64) as f32)
    };
    let others = sequence(2 * power).step_by(2);
    sequence(power).chain(others).take(heads).collect()
}

/// Returns the slopes of MPT: a geometric sequence; if the number of heads is not a power of two, every second element
/// of a sequence for the next one, then the others.
pub(super) fn mpt_slopes(heads: usize, steepest: f64) -> Vec<f32> {
    let count = heads.max(1).next_power_of_two();
    let slope = |index: usize| 2_f64.powf(-steepest * index as f64 / count as f64) as f32;
    if count == heads {
        return (1..=count).map(slope).collect();
    }
    let second = (2..=count).step_by(2);
    second
        .chain((1..=count).step_by(2))
        .take(heads)
        .map(slope)
        .collect()
}
