//! Attention of a decoder's new tokens to cached ones with burn: all requests of a batch together, padded to the
//! longest.

use std::sync::Arc;

use burn::tensor::activation::{softmax, tanh};
use burn::tensor::{Bool, Int, Tensor, TensorData};

use super::indices::signed;
#[cfg(feature = "gpu")]
use super::kernels::{self, AttentionExtent};
use super::layout::{Extents, Layout};
use super::{AttentionSpans, Burn, Heads, ScoreRules, rows};

impl Burn {
    /// Computes attention of several requests in one call; `None` if too much of it would be padding.
    pub(super) fn attend_together(
        &self,
        queries: &Tensor<2>,
        requests: &[AttentionSpans<'_, Tensor<2>>],
        heads: &Heads,
        rules: ScoreRules<'_, Tensor<2>>,
    ) -> Option<Tensor<2>> {
        let (extents, matrices) = Extents::of(requests, &rules);
        if !extents.fits_together() {
            return None;
        }
        let batch = requests.len();
        let [new, tokens] = extents.longest();
        let layout = self
            .uploads
            .layout(&extents, || extents.layout(matrices.len(), &self.device));
        let Heads {
            queries: count,
            keys,
            head_dim,
            scale,
        } = *heads;
        let shared = count / keys.max(1);
        let lines = padded_lines(&matrices, &layout);
        let [_, width] = lines.dims();
        #[cfg(feature = "gpu")]
        if self.kernels.is_some()
            && rules.softcap.is_none()
            && rules.position_bias.is_none()
            && rules.sinks.is_none()
        {
            let extent = AttentionExtent {
                padded: [batch, new, tokens],
                heads: [count, keys],
                head_dim,
                scale,
            };
            if extent.has_kernel() {
                let queries = match &layout.queries {
                    Some(rows) => queries.clone().select(0, rows.clone()),
                    None => queries.clone(),
                };
                let attended =
                    kernels::attended(queries, lines, layout.ranges(&extents, &self.device), extent);
                return Some(own_rows(attended, &layout));
            }
        }
        let half = |from: usize| -> Tensor<4> {
            let columns = lines.clone().slice([0..batch * tokens, from..from + width / 2]);
            columns
                .reshape([batch, tokens, keys, head_dim])
                .permute([0, 2, 1, 3])
        };
        let queries = match &layout.queries {
            Some(rows) => queries.clone().select(0, rows.clone()),
            None => queries.clone(),
        };
        let queries: Tensor<5> = queries
            .slice([0..batch * new, 0..count * head_dim])
            .reshape([batch, new, keys, shared, head_dim])
            .permute([0, 2, 3, 1, 4]);
        let queries: Tensor<4> = queries.reshape([batch, keys, shared * new, head_dim]);
        let shape = [batch, keys, shared, new, tokens];
        let joined = [batch, keys, shared * new, tokens];
        let mut scores = queries.matmul(half(0).swap_dims(2, 3)) * scale;
        if let Some(cap) = rules.softcap {
            scores = tanh(scores / cap) * cap;
        }
        if let Some((table, columns)) = rules.position_bias.zip(layout.distances.clone()) {
            let gained: Tensor<5> = table
                .clone()
                .select(1, columns)
                .reshape([keys, shared, batch, new, tokens])
                .permute([2, 0, 1, 3, 4]);
            scores = scores + gained.reshape(joined);
        }
        if let Some(hidden) = layout.hidden(&extents, &self.device) {
            let hidden: Tensor<4, Bool> = hidden.clone().expand(shape).reshape(joined);
            scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
        }
        let probabilities = if let Some(sinks) = rules.sinks {
            let sinks: Tensor<5> = sinks.clone().reshape([1, keys, shared, 1, 1]);
            let sinks: Tensor<4> =
                sinks
                    .expand([batch, keys, shared, new, 1])
                    .reshape([batch, keys, shared * new, 1]);
            let all = Tensor::cat(vec![scores, sinks], 3);
            softmax(all, 3).slice([0..batch, 0..keys, 0..shared * new, 0..tokens])
        } else {
            softmax(scores, 3)
        };
        let attended: Tensor<5> = probabilities
            .matmul(half(width / 2))
            .reshape([batch, keys, shared, new, head_dim])
            .permute([0, 3, 1, 2, 4]);
        let attended: Tensor<2> = attended.reshape([batch * new, count * head_dim]);
        Some(own_rows(attended, &layout))
    }

    /// Returns the position bias for the scores of `new` queries from position `first` on: `[heads, new * tokens]`,
    /// from the table `[heads, 2 * max_distance + 1]`. Computes distances on the device, to avoid uploading a matrix
    /// of this size.
    fn position_bias(&self, table: &Tensor<2>, first: usize, new: usize, tokens: usize) -> Tensor<2> {
        let [_, width] = table.dims();
        let max_distance = signed(width / 2);
        let range = |from: usize, count: usize| -> Tensor<1, Int> {
            Tensor::arange(signed(from)..signed(from + count), &self.device)
        };
        let keys: Tensor<2, Int> = range(0, tokens).reshape([1, tokens]);
        let queries: Tensor<2, Int> = range(first, new).reshape([new, 1]);
        let distances = keys.expand([new, tokens]) - queries.expand([new, tokens]);
        let places: Tensor<1, Int> =
            (distances.clamp(-max_distance, max_distance) + max_distance).reshape([new * tokens]);
        table.clone().select(1, places)
    }

    /// Computes attention of one request.
    pub(super) fn attend_one(
        &self,
        queries: Tensor<2>,
        request: &AttentionSpans<'_, Tensor<2>>,
        heads: &Heads,
        rules: ScoreRules<'_, Tensor<2>>,
    ) -> Tensor<2> {
        let Heads {
            queries: count,
            keys,
            head_dim,
            scale,
        } = *heads;
        let new = request.queries;
        let spans: Vec<Tensor<2>> = request.cached.iter().chain(&request.new_kv).map(rows).collect();
        let lines = Tensor::cat(spans, 0);
        let [tokens, width] = lines.dims();
        let half = |from: usize| -> Tensor<4> {
            let columns = lines.clone().slice([0..tokens, from..from + width / 2]);
            columns.reshape([tokens, keys, 1, head_dim]).permute([1, 2, 0, 3])
        };
        // Query heads that share keys are adjacent, so the product broadcasts the keys.
        let shared = count / keys.max(1);
        let queries = queries
            .reshape([new, keys, shared, head_dim])
            .permute([1, 2, 0, 3]);
        let mut scores = queries.matmul(half(0).swap_dims(2, 3)) * scale;
        if let Some(cap) = rules.softcap {
            scores = tanh(scores / cap) * cap;
        }
        if let Some(table) = rules.position_bias {
            let first = request.new_kv.map_or(0, |_| tokens - new);
            let gained = self.position_bias(table, first, new, tokens);
            scores = scores + gained.reshape([keys, shared, new, tokens]);
        }
        let sees_part = rules.first_visible(tokens.saturating_sub(1)) > 0;
        let is_causal = request.new_kv.is_some();
        if is_causal && (new > 1 || sees_part) || rules.window.is_some() {
            let visible = |row: usize| {
                if is_causal {
                    let position = tokens - new + row;
                    rules.first_visible(position)..position + 1
                } else {
                    rules.visible_around(row, tokens)
                }
            };
            let hidden: Vec<bool> = (0..new)
                .map(visible)
                .flat_map(|visible| (0..tokens).map(move |key| !visible.contains(&key)))
                .collect();
            let hidden: Tensor<4, Bool> =
                Tensor::from_data(TensorData::new(hidden, [1, 1, new, tokens]), &self.device);
            scores = scores.mask_fill(hidden.expand([keys, shared, new, tokens]), f32::NEG_INFINITY);
        }
        let probabilities = if let Some(sinks) = rules.sinks {
            let sinks: Tensor<4> = sinks.clone().reshape([keys, shared, 1, 1]);
            let all = Tensor::cat(vec![scores, sinks.expand([keys, shared, new, 1])], 3);
            softmax(all, 3).slice([0..keys, 0..shared, 0..new, 0..tokens])
        } else {
            softmax(scores, 3)
        };
        let attended = probabilities.matmul(half(width / 2));
        attended.permute([2, 0, 1, 3]).reshape([new, count * head_dim])
    }
}

/// Removes padded queries.
fn own_rows(attended: Tensor<2>, layout: &Layout) -> Tensor<2> {
    match &layout.own {
        Some(rows) => attended.select(0, rows.clone()),
        None => attended,
    }
}

/// Gathers the keys and values of all tokens, `[batch * tokens, width]`.
fn padded_lines(matrices: &[&Tensor<2>], layout: &Arc<Layout>) -> Tensor<2> {
    let read = matrices.iter().zip(&layout.rows);
    let mut read: Vec<Tensor<2>> = read
        .map(|(matrix, rows)| (*matrix).clone().select(0, rows.clone()))
        .collect();
    let all = match read.len() {
        1 => read.remove(0),
        _ => Tensor::cat(read, 0),
    };
    match &layout.padded {
        Some(places) => all.select(0, places.clone()),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::cpu::Cpu;
    use burn::tensor::Device;

    use super::super::super::{Ops, Span};
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index + seed) * 7919 % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    /// Computes attention of four requests over two pools and a matrix of new tokens; `queries` are the numbers per
    /// request.
    fn attended<O: Ops>(ops: &O, queries: [usize; 4], form: usize) -> Vec<f32> {
        let heads = Heads {
            queries: 6,
            keys: 2,
            head_dim: 4,
            scale: 0.5,
        };
        let width = 16;
        let pools = [1, 2].map(|seed| ops.upload(numbers(40 * width, seed), width));
        let all: usize = queries.iter().sum();
        let new = ops.upload(numbers(all * width, 3), width);
        let input = ops.upload(numbers(all * 24, 4), 24);
        let table = ops.upload(numbers(6 * 7, 5), 7);
        let sinks = ops.upload(numbers(6, 6), 1);
        let cached: [&[(usize, usize, usize)]; 4] = [
            &[(0, 8, 8), (1, 0, 3)],
            &[(0, 24, 8), (0, 0, 8), (0, 16, 1)],
            &[],
            &[(1, 30, 2), (0, 5, 2)],
        ];
        let mut from = 0;
        let requests: Vec<AttentionSpans<'_, O::Matrix>> = cached
            .iter()
            .zip(queries)
            .map(|(cached, queries)| {
                from += queries;
                let span = |(pool, from, count): &(usize, usize, usize)| Span {
                    matrix: &pools[*pool],
                    from: *from,
                    count: *count,
                };
                let mut spans: Vec<_> = cached.iter().map(span).collect();
                let own = Span {
                    matrix: &new,
                    from: from - queries,
                    count: queries,
                };
                if form > 5 {
                    spans.push(own);
                }
                AttentionSpans {
                    queries,
                    cached: spans,
                    new_kv: (form < 6).then_some(own),
                }
            })
            .collect();
        let mut rules = ScoreRules::default();
        match form {
            1 | 7 => rules.window = Some(3),
            2 => rules.chunk = Some(4),
            3 => rules.softcap = Some(0.7),
            4 => rules.sinks = Some(&sinks),
            5 | 6 => rules.position_bias = Some(&table),
            _ => {}
        }
        let attended = ops.attend(&input, &requests, &heads, rules);
        ops.values(&attended).unwrap().into_owned()
    }

    #[test]
    fn a_request_that_is_not_finite_changes_no_other() {
        let burn = Burn::new(Device::flex());
        let heads = Heads {
            queries: 1,
            keys: 1,
            head_dim: 2,
            scale: 1.0,
        };
        let kv = burn.upload([vec![f32::NAN; 4], numbers(12, 1)].concat(), 4);
        let input = burn.upload(numbers(4, 2), 2);
        let request = |from, count| AttentionSpans {
            queries: 1,
            cached: vec![Span {
                matrix: &kv,
                from,
                count,
            }],
            new_kv: None,
        };
        // The second request is shorter, so it is padded.
        for requests in [[request(0, 2), request(2, 1)], [request(0, 1), request(1, 1)]] {
            let attended = burn.attend(&input, &requests, &heads, ScoreRules::default());
            let values = burn.values(&attended).unwrap();
            assert!(values[..2].iter().all(|value| value.is_nan()), "{values:?}");
            assert!(values[2..].iter().all(|value| value.is_finite()), "{values:?}");
        }
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn requests_match_on_wgpu() {
        let burn = Burn::new(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice));
        for queries in [[1, 1, 1, 1], [3, 1, 5, 2], [20, 2, 2, 2]] {
            for form in 0..8 {
                let (ours, expected) = (attended(&burn, queries, form), attended(&Cpu, queries, form));
                let pairs = ours.iter().zip(&expected);
                let largest = pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
                assert!(
                    ours.len() == expected.len() && largest < 1e-4,
                    "{queries:?}, form {form}: {largest}"
                );
            }
        }
    }

    #[test]
    fn requests_together_match_the_kernels() {
        let burn = Burn::new(Device::flex());
        for queries in [[1, 1, 1, 1], [3, 1, 5, 2], [2, 2, 2, 2]] {
            for form in 0..8 {
                let (ours, expected) = (attended(&burn, queries, form), attended(&Cpu, queries, form));
                assert_eq!(ours.len(), expected.len());
                let close = ours
                    .iter()
                    .zip(&expected)
                    .all(|(one, other)| (one - other).abs() < 1e-5);
                assert!(close, "{queries:?}, form {form}");
            }
        }
    }
}
