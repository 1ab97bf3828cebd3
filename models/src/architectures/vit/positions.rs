//! Relative position biases of patches, as in `BEiT` (Bao et al. 2022).

use std::sync::Arc;

use super::config::RelativePositions;
use crate::architectures::encoder::BlockConfig;
use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::Ops;

/// Name of a table, relative to an encoder or to the attention of a block.
const TABLE: &str = "relative_position_bias.relative_position_bias_table";

/// Scores of token pairs per block, `[heads, tokens * tokens]`; `None` without them.
type Scores<O> = Vec<Option<Arc<<O as Ops>::Matrix>>>;

/// Takes the scores of the blocks `configs` of the encoder `base`, for a grid of patches after one other token.
///
/// # Errors
/// Same as [`Weights::take`](crate::checkpoint::Weights::take).
pub(in crate::architectures) fn take<O: Ops>(
    layers: &mut Layers<'_, O>,
    relative: RelativePositions,
    base: &str,
    configs: &[BlockConfig],
    grid: [usize; 2],
    heads: usize,
) -> Result<Scores<O>, LoadError> {
    let [down, across] = grid;
    let mut table = |name: String| {
        let rows = (2 * down - 1).saturating_mul(2 * across - 1).saturating_add(3);
        let table = layers.weights.take(&name, &[rows, heads])?;
        Ok::<_, LoadError>(scores(&table, grid, heads))
    };
    let tokens = down * across + 1;
    let shared = if relative.shared {
        Some(table(format!("{base}.{TABLE}"))?)
    } else {
        None
    };
    if !relative.by_block {
        let shared = shared.map(|scores| Arc::new(layers.ops.upload(scores, tokens * tokens)));
        return Ok(vec![shared; configs.len()]);
    }
    let mut taken = Vec::with_capacity(configs.len());
    for config in configs {
        let mut scores = table(format!("{}.attention.attention.{TABLE}", config.prefix))?;
        for (score, shared) in scores.iter_mut().zip(shared.iter().flatten()) {
            *score += shared;
        }
        taken.push(Some(Arc::new(layers.ops.upload(scores, tokens * tokens))));
    }
    Ok(taken)
}

/// Returns the scores `[heads, tokens * tokens]` from the table `[distances + 3, heads]`. The table's last three rows are
/// for the first token with patches, patches with the first token, and the first token with itself.
fn scores(table: &[f32], [down, across]: [usize; 2], heads: usize) -> Vec<f32> {
    let span = 2 * across - 1;
    let (distances, tokens) = ((2 * down - 1) * span, down * across + 1);
    let row = |query: usize, key: usize| match (query.checked_sub(1), key.checked_sub(1)) {
        (Some(query), Some(key)) => {
            let rows = query / across + down - 1 - key / across;
            rows * span + query % across + across - 1 - key % across
        }
        (None, Some(_)) => distances,
        (Some(_), None) => distances + 1,
        (None, None) => distances + 2,
    };
    let mut scores = Vec::with_capacity(heads * tokens * tokens);
    for head in 0..heads {
        for query in 0..tokens {
            let of_keys = (0..tokens).map(|key| table.get(row(query, key) * heads + head));
            scores.extend(of_keys.map(|score| score.copied().unwrap_or_default()));
        }
    }
    scores
}
