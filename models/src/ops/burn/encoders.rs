//! Encoder self-attention with burn.

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::EncoderAttention;
use super::indices::indices;

/// Score added to token pairs outside the window; finite, as on the CPU.
const HIDDEN: f32 = -1e30;

/// Computes self-attention of all sequences in one call, padded to the longest.
pub(super) fn attend_sequences(
    projected: &Tensor<2>,
    sequences: &[&[bool]],
    form: &EncoderAttention<'_, Tensor<2>>,
    device: &Device,
) -> Tensor<2> {
    let heads = form.heads;
    let [rows, columns] = projected.dims();
    let width = columns / 3;
    let longest = sequences.iter().map(|mask| mask.len()).max().unwrap_or_default();
    let batch = sequences.len();
    let uniform = rows == batch * longest;
    let padded = if uniform {
        projected.clone()
    } else {
        projected
            .clone()
            .select(0, indices(padded_rows(sequences, longest), device))
    };
    // [3, batch, heads, sequence, width / heads] is the layout that attention needs, so that it copies none of the
    // three again.
    let parts = padded
        .reshape([batch, longest, 3, heads, width / heads])
        .permute([2, 0, 3, 1, 4]);
    let part = |index: usize| parts.clone().slice_dim(0, index..index + 1).squeeze_dim::<4>(0);
    let hidden = hidden_keys(sequences, longest, heads, device);
    let options = AttentionModuleOptions {
        scale: Some(f64::from(form.scale)),
        ..AttentionModuleOptions::default()
    };
    let bias = added_scores(form, &part(0), &part(1), device);
    let kinds = form.kinds.as_ref().map(|kinds| {
        let values = if uniform {
            kinds.values.clone()
        } else {
            kinds
                .values
                .clone()
                .select(0, indices(padded_rows(sequences, longest), device))
        };
        scores_of_kinds(values, kinds.kinds, [batch, heads, longest], device)
    });
    let bias = match (bias, kinds) {
        (Some(bias), Some(kinds)) => Some(bias + kinds),
        (bias, kinds) => bias.or(kinds),
    };
    let attended = attention(part(0), part(1), part(2), hidden, bias, options)
        .swap_dims(1, 2)
        .reshape([batch * longest, width]);
    if uniform {
        return attended;
    }
    let own = sequences.iter().enumerate().flat_map(|(index, mask)| {
        let first = index * longest;
        first..first + mask.len()
    });
    attended.select(0, indices(own.collect(), device))
}

/// Returns the scores that depend on the distance of tokens, `[batch, heads, queries, keys]`; `None` if there are
/// none.
fn added_scores(
    form: &EncoderAttention<'_, Tensor<2>>,
    queries: &Tensor<4>,
    keys: &Tensor<4>,
    device: &Device,
) -> Option<Tensor<4>> {
    let [batch, heads, tokens, head_dim] = queries.dims();
    let shape = [batch, heads, tokens, tokens];
    let pairs = || (0..tokens).flat_map(|first| (0..tokens).map(move |second| (first, second)));
    let mut sum: Option<Tensor<4>> = None;
    let mut add = |scores: Tensor<4>| {
        sum = Some(match sum.take() {
            Some(sum) => sum + scores,
            None => scores,
        });
    };
    if let Some(table) = form.position_bias {
        let [_, width] = table.dims();
        let center = width / 2;
        let places = pairs().map(|(query, key)| (center + key).saturating_sub(query).min(2 * center));
        let chosen: Tensor<2> = table.clone().select(1, indices(places.collect(), device));
        add(chosen.reshape([1, heads, tokens, tokens]).expand(shape));
    }
    if let Some(pairs) = &form.pairs {
        let rows = pairs.kinds.iter();
        let rows = rows.flat_map(|kind| (0..heads).map(move |head| kind * heads + head));
        let chosen: Tensor<2> = pairs.values.clone().select(0, indices(rows.collect(), device));
        add(chosen.reshape(shape));
    }
    if let Some(window) = form.window {
        // Without leading tokens, all sequences have the same mask.
        let masks = if form.leading.is_some() { batch } else { 1 };
        let of_sequence = |sequence: usize| {
            let leading = form.leading_of(sequence);
            let is_hidden = move |query: usize, key: usize| query.abs_diff(key) > window && key >= leading;
            pairs().map(move |(query, key)| if is_hidden(query, key) { HIDDEN } else { 0.0 })
        };
        let hidden: Vec<f32> = (0..masks).flat_map(of_sequence).collect();
        let hidden = TensorData::new(hidden, [masks, 1, tokens, tokens]);
        let hidden: Tensor<4> = Tensor::from_data(hidden, device);
        add(hidden.expand(shape));
    }
    if let Some(distances) = form.distances {
        let products = |tokens: &Tensor<4>, vectors: &Tensor<2>| {
            let [count, _] = vectors.dims();
            let vectors = vectors
                .clone()
                .reshape([count, heads, head_dim])
                .permute([1, 2, 0]);
            let vectors = vectors
                .reshape([1, heads, head_dim, count])
                .expand([batch, heads, head_dim, count]);
            tokens.clone().matmul(vectors).mul_scalar(form.scale)
        };
        let places = |row: &dyn Fn(usize, usize) -> usize| -> Tensor<4, Int> {
            let rows = pairs().map(|(first, second)| row(first, second)).collect();
            indices(rows, device)
                .reshape([1, 1, tokens, tokens])
                .expand(shape)
        };
        if let Some(vectors) = &distances.keys {
            let rows = places(&|query, key| distances.rows.row(query, key));
            add(products(queries, vectors).gather(3, rows));
        }
        if let Some(vectors) = &distances.queries {
            let rows = places(&|key, query| distances.rows.row(query, key));
            add(products(keys, vectors).gather(3, rows).swap_dims(2, 3));
        }
    }
    sum
}

/// Returns the scores for query-key pairs of different kinds, `[batch, heads, queries, keys]`; `values` has a row per
/// token of the padded sequences.
fn scores_of_kinds(
    values: Tensor<2>,
    kinds: &[&[i64]],
    [batch, heads, longest]: [usize; 3],
    device: &Device,
) -> Tensor<4> {
    let differ = kinds.iter().flat_map(|kinds| {
        let pairs = (0..longest).flat_map(|query| (0..longest).map(move |key| (query, key)));
        pairs.map(|(query, key)| {
            if kinds.get(query) == kinds.get(key) {
                0.0
            } else {
                1.0
            }
        })
    });
    let differ: Vec<f32> = differ.collect();
    let differ: Tensor<4> = Tensor::from_data(TensorData::new(differ, [batch, 1, longest, longest]), device);
    let values = values
        .reshape([batch, longest, heads])
        .swap_dims(1, 2)
        .reshape([batch, heads, longest, 1]);
    let shape = [batch, heads, longest, longest];
    values.expand(shape) * differ.expand(shape)
}

/// Returns the row of every token of the padded sequences. Padding repeats the sequence's own first row: the mask
/// hides padding, but NaN or infinity from another sequence would remain when multiplied by zero.
fn padded_rows(sequences: &[&[bool]], longest: usize) -> Vec<usize> {
    let (mut next, mut rows) = (0, Vec::with_capacity(sequences.len() * longest));
    for (index, mask) in sequences.iter().enumerate() {
        rows.extend(next..next + mask.len());
        rows.resize((index + 1) * longest, next);
        next += mask.len();
    }
    rows
}

/// Returns the attention mask, true for masked keys, `[batch, heads, queries, keys]`; `None` if no key is masked.
fn hidden_keys(
    sequences: &[&[bool]],
    longest: usize,
    heads: usize,
    device: &Device,
) -> Option<Tensor<4, Bool>> {
    let visible = |mask: &&[bool]| mask.len() == longest && mask.iter().all(|visible| *visible);
    if sequences.iter().all(visible) {
        return None;
    }
    let hidden: Vec<bool> = sequences
        .iter()
        .flat_map(|mask| (0..longest).map(move |token| !mask.get(token).copied().unwrap_or_default()))
        .collect();
    let shape = [sequences.len(), 1, 1, longest];
    let hidden: Tensor<4, Bool> = Tensor::from_data(TensorData::new(hidden, shape), device);
    Some(hidden.expand([sequences.len(), heads, longest, longest]))
}

#[cfg(test)]
mod tests {
    use super::super::super::cpu::Cpu;
    use super::super::super::{DistanceRows, DistanceScores, Ops, PairScores, SegmentScores};
    use super::super::Burn;
    use super::*;

    /// Numbers of leading tokens that all tokens attend to, per sequence.
    const LEADING: &[usize] = &[1, 2, 1];

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|index| (index * 7919 % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    fn close(one: &[f32], other: &[f32]) -> bool {
        one.len() == other.len()
            && one
                .iter()
                .zip(other)
                .all(|(one, other)| (one - other).abs() < 1e-4)
    }

    /// Computes attention with three heads in several forms: plain, with a window, position bias, distances, a window
    /// and leading tokens, and kinds.
    fn related<O: Ops>(
        ops: &O,
        width: usize,
        form: usize,
        values: &[f32],
        sequences: &[&[bool]],
    ) -> Vec<f32> {
        let bias = ops.upload(numbers(3 * 7), 7);
        let distances = DistanceScores {
            rows: DistanceRows::new(8, |distance| (distance.clamp(-3, 3) + 3).unsigned_abs()),
            keys: Some(ops.upload(numbers(7 * width), width)),
            queries: Some(ops.upload(numbers(8 * width).split_off(width), width)),
        };
        let mut attention = EncoderAttention::plain(3, width / 3);
        match form {
            1 => attention.window = Some(2),
            4 => (attention.window, attention.leading) = (Some(1), Some(LEADING)),
            2 => attention.position_bias = Some(&bias),
            3 => attention.distances = Some(&distances),
            _ => {}
        }
        let by_kind = ops.upload(numbers(values.len() / width), 3);
        let kinds: Vec<Vec<i64>> = sequences
            .iter()
            .map(|mask| (0..mask.len()).map(|token| i64::from(token % 5 > 1)).collect())
            .collect();
        let kinds: Vec<&[i64]> = kinds.iter().map(Vec::as_slice).collect();
        if form == 5 {
            attention.kinds = Some(SegmentScores {
                values: &by_kind,
                kinds: &kinds,
            });
        }
        let projected = ops.upload(values.to_vec(), 3 * width);
        let attended = ops.attend_sequences(&projected, sequences, &attention);
        ops.values(&attended).unwrap().into_owned()
    }

    #[test]
    fn scores_of_pairs_match_the_kernels() {
        fn attended<O: Ops>(ops: &O) -> Vec<f32> {
            let (masks, projected) = ([[true; 5]; 3], ops.upload(numbers(15 * 36), 36));
            let sequences: Vec<&[bool]> = masks.iter().map(|mask| &mask[..]).collect();
            let values = ops.upload(numbers(2 * 3 * 25), 25);
            let mut attention = EncoderAttention::plain(3, 4);
            attention.pairs = Some(PairScores {
                values: &values,
                kinds: &[0, 1, 0],
                tokens: 5,
            });
            let attended = ops.attend_sequences(&projected, &sequences, &attention);
            ops.values(&attended).unwrap().into_owned()
        }
        let burn = Burn::new(Device::flex());
        assert!(close(&attended(&burn), &attended(&Cpu)));
    }

    #[test]
    fn a_sequence_that_is_not_finite_changes_no_other() {
        let burn = Burn::new(Device::flex());
        let projected = burn.upload([vec![f32::NAN; 12], numbers(36)].concat(), 12);
        let sequences: [&[bool]; 2] = [&[true; 3], &[true]];
        let attended = burn.attend_sequences(&projected, &sequences, &EncoderAttention::plain(1, 4));
        let values = burn.values(&attended).unwrap();
        assert!(values[..4].iter().all(|value| value.is_nan()), "{values:?}");
        assert!(values[12..].iter().all(|value| value.is_finite()), "{values:?}");
    }

    #[test]
    fn attention_matches_the_kernels() {
        let burn = Burn::new(Device::flex());
        let width = 24;
        for masks in [
            vec![vec![true; 5]; 2],
            vec![vec![true; 4], vec![true, false, true], vec![true; 9]],
        ] {
            let tokens: usize = masks.iter().map(Vec::len).sum();
            let values = numbers(tokens * 3 * width);
            let sequences: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
            for form in 0..6 {
                let on_cpu = related(&Cpu, width, form, &values, &sequences);
                let on_burn = related(&burn, width, form, &values, &sequences);
                assert!(close(&on_burn, &on_cpu), "{form}");
            }
        }
    }
}
