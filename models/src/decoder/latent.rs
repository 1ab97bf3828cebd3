//! Multi-head latent attention (MLA, `DeepSeek`-AI 2024): keys and values are computed from a latent vector.
//!
//! Keys and values of each token are expanded, so that cache and attention are those of any other decoder. Key and
//! value heads are padded with zeros to the same size. The rotated elements of a key, which all heads share, follow
//! the latent vector; the projection copies them to the front of every head.

use super::weights::{LatentWeights, LinearWeights, ModelConfig, NormWeights};
use crate::checkpoint::{LoadError, Weights};

/// Sizes of latent vectors and of the parts of a head.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatentLayout {
    /// Size of the latent vector of queries; `None` without one.
    pub(super) query_rank: Option<usize>,
    /// Size of the latent vector of keys and values.
    pub(super) key_value_rank: usize,
    /// Rotated elements per head.
    pub(super) rotated: usize,
    /// Other elements per query or key head.
    pub(super) plain: usize,
    /// Elements per value head.
    pub(super) values: usize,
}

/// Projections of latent attention.
pub(super) struct LatentWeightsOf {
    pub(super) query_latent: Option<LatentWeights>,
    pub(super) query: LinearWeights,
    pub(super) key_value_latent: LatentWeights,
    pub(super) key_value: LinearWeights,
    pub(super) output: LinearWeights,
}

impl LatentLayout {
    /// Returns the padded size of a key or value head.
    pub(super) fn head_dim(&self) -> usize {
        (self.rotated + self.plain).max(self.values)
    }

    /// Takes the projections of the module `name`.
    ///
    /// # Errors
    /// Same as [`Weights::take`].
    pub(super) fn take(
        &self,
        weights: &mut Weights,
        name: &str,
        model_config: &ModelConfig,
        bias: bool,
    ) -> Result<LatentWeightsOf, LoadError> {
        let (width, heads) = (model_config.width, model_config.heads.queries);
        let at = |part: &str| format!("{name}.{part}");
        let mut latent = |projection: &str, norm: &str, outputs: usize, rank: usize| {
            Ok::<_, LoadError>(LatentWeights {
                projection: LinearWeights::take(weights, &at(projection), width, outputs, bias)?,
                norm: NormWeights::take_rms(weights, &at(norm), rank)?,
            })
        };
        let query_rank = self.query_rank;
        let query_latent = query_rank.map(|rank| latent("q_a_proj", "q_a_layernorm", rank, rank));
        let query_latent = query_latent.transpose()?;
        let rank = self.key_value_rank;
        let key_value_latent = latent("kv_a_proj_with_mqa", "kv_a_layernorm", rank + self.rotated, rank)?;
        let query = match query_rank {
            Some(rank) => ("q_b_proj", rank),
            None => ("q_proj", width),
        };
        let queries = heads * (self.plain + self.rotated);
        let query = LinearWeights::take(weights, &at(query.0), query.1, queries, false)?;
        let expanded = heads * (self.plain + self.values);
        let key_value = LinearWeights::take(weights, &at("kv_b_proj"), rank, expanded, false)?;
        let output = LinearWeights::take(weights, &at("o_proj"), heads * self.values, width, bias)?;
        Ok(LatentWeightsOf {
            query_latent,
            query: self.query(&query),
            key_value_latent,
            key_value: self.key_value(&key_value, heads),
            output: self.output(output, heads),
        })
    }

    /// Moves the rotated elements to the front of every query head.
    fn query(&self, stored: &LinearWeights) -> LinearWeights {
        let each = self.plain + self.rotated;
        let row = |row: &[f32]| -> Vec<f32> {
            let heads = row.chunks(each.max(1)).flat_map(|head| {
                let (plain, rotated) = head.split_at(self.plain.min(head.len()));
                self.padded(rotated.iter().chain(plain).copied())
            });
            heads.collect()
        };
        let rows = stored.weight.chunks(stored.outputs.max(1));
        LinearWeights::input_major(rows.flat_map(row).collect(), Vec::new(), stored.inputs)
    }

    /// Returns the projection from the latent vector and the rotated elements to the keys and values of all heads.
    fn key_value(&self, stored: &LinearWeights, heads: usize) -> LinearWeights {
        let each = self.plain + self.values;
        let zeros = || std::iter::repeat_n(0.0, self.rotated);
        let latent = stored.weight.chunks(stored.outputs.max(1)).flat_map(|row| {
            let parts = || {
                row.chunks(each.max(1))
                    .map(|head| head.split_at(self.plain.min(head.len())))
            };
            let keys = parts().flat_map(|(key, _)| self.padded(zeros().chain(key.iter().copied())));
            let values = parts().flat_map(|(_, value)| self.padded(value.iter().copied()));
            keys.chain(values).collect::<Vec<f32>>()
        });
        let width = heads * self.head_dim();
        let copied = (0..self.rotated).flat_map(|element| {
            let head = self.padded(
                zeros()
                    .enumerate()
                    .map(move |(place, _)| f32::from(u8::from(place == element))),
            );
            let keys = head.repeat(heads);
            keys.into_iter().chain(std::iter::repeat_n(0.0, width))
        });
        let inputs = self.key_value_rank + self.rotated;
        LinearWeights::input_major(latent.chain(copied).collect(), Vec::new(), inputs)
    }

    /// Adds the inputs for the zero padding of values.
    fn output(&self, stored: LinearWeights, heads: usize) -> LinearWeights {
        let (width, head_dim) = (stored.outputs, self.head_dim());
        let each = stored.weight.chunks((self.values * width).max(1));
        let weight = each.flat_map(|rows| {
            let zeros = std::iter::repeat_n(0.0, (head_dim - self.values) * width);
            rows.iter().copied().chain(zeros)
        });
        LinearWeights::input_major(weight.collect(), stored.bias, heads * head_dim)
    }

    /// Pads a head with zeros.
    fn padded(&self, head: impl Iterator<Item = f32>) -> Vec<f32> {
        let mut head: Vec<f32> = head.collect();
        head.resize(self.head_dim(), 0.0);
        head
    }
}
