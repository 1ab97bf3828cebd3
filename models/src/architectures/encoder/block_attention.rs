//! Attention of an encoder block: query, key and value projections, attention, and output projection.

use std::sync::Arc;

use super::dynamic_convolution::DynamicConvolution;
use super::global_attention::GlobalAttention;
use super::grid_rotary::GridRotary;
use super::relative_attention::Relative;
use super::residual::{Added, HeadNorms};
use super::{Bias, BlockConfig, BlockNames, Distances, EncoderConfig, Mixing, SplitBiases};
use crate::architectures::layers::Layers;
use crate::architectures::weight_layout::WeightLayout;
use crate::checkpoint::LoadError;
use crate::ops::{DistanceScores, EncoderAttention, Ops, PairScores, Rotary, SegmentScores};

/// The attention of a block.
pub(in crate::architectures) struct BlockAttention<O: Ops> {
    heads: usize,
    scale: f32,
    window: Option<usize>,
    rotary: Option<Rotary>,
    grid: Option<Arc<GridRotary>>,
    global: Option<GlobalAttention<O>>,
    position_bias: Option<O::Matrix>,
    distances: Option<DistanceScores<O::Matrix>>,
    /// Layer from the projections of a token to its scores with tokens of another kind.
    kinds: Option<O::Linear>,
    /// Dynamic convolution, whose results follow those of the heads.
    convolution: Option<DynamicConvolution<O>>,
    projections: O::Linear,
    output: O::Linear,
    /// Treatment of the output before the residual addition.
    added: Added<O>,
    head_norms: Option<HeadNorms<O>>,
}

impl EncoderConfig {
    /// Takes the attention of a block.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take_attention<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        config: &BlockConfig,
        names: &BlockNames,
        distances: Option<&Distances<O>>,
    ) -> Result<BlockAttention<O>, LoadError> {
        let (width, attention_width) = (self.width, self.attention_width);
        let at = |name: &str| format!("{}.{name}", config.prefix);
        let distances = distances
            .map(|distances| self.take_distances(layers, distances, names, &at))
            .transpose()?;
        // Distances add scores, so the sum is scaled to the same variance (He et al. 2021, section 3.1).
        let summands = distances.as_ref().map_or(1, |scores| {
            1 + usize::from(scores.keys.is_some()) + usize::from(scores.queries.is_some())
        });
        let scale = self
            .attention_scale
            .unwrap_or_else(|| 1.0 / ((attention_width / self.heads * summands) as f32).sqrt());
        let global = config.global.map(|names| {
            let names = names.map(|name| format!("{}.{name}", config.prefix));
            GlobalAttention::take(layers, names, width, self.heads)
        });
        let position_bias = config.position_bias.as_ref();
        let position_bias = position_bias.map(|bias| bias.take(layers, self.heads, &at));
        let [factors, norm] = [names.scales, names.output_norms].map(|names| names.map(|[own, _]| at(own)));
        let added = Added::take(layers, [factors, norm], width, |layers, name| {
            self.norm(layers, name)
        })?;
        let mut attention = BlockAttention {
            heads: self.heads,
            scale,
            window: config.window,
            rotary: config.rotary.clone(),
            grid: config.grid.clone(),
            global: global.transpose()?,
            position_bias: position_bias.transpose()?,
            distances,
            kinds: None,
            convolution: None,
            projections: self.take_projections(layers, names, &at)?,
            output: layers.linear_from_host(
                &at(names.output),
                self.weight_layouts.output,
                [self.mixed_width(), width],
                self.output_bias,
            )?,
            added,
            head_norms: match names.head_norms {
                Some(names) => {
                    let sizes = [self.heads, attention_width / self.heads];
                    let numbers = (self.norm_offset, self.epsilon);
                    Some(HeadNorms::take(layers, names.map(at), sizes, numbers)?)
                }
                None => None,
            },
        };
        match (self.mixing, &attention.distances) {
            (Mixing::Convolutions { kernel }, _) => {
                let sizes = [width, self.heads, attention_width / self.heads];
                attention.convolution = Some(DynamicConvolution::take(layers, &at, sizes, kernel)?);
            }
            (Mixing::Relative, Some(distances)) => {
                let relative = Relative::take(layers, &at, [self.heads, attention_width], scale, distances)?;
                attention.position_bias = Some(relative.position_bias);
                attention.kinds = Some(relative.kinds);
            }
            _ => {}
        }
        Ok(attention)
    }

    /// Returns the input width of the output projection.
    fn mixed_width(&self) -> usize {
        match self.mixing {
            Mixing::Convolutions { .. } => 2 * self.attention_width,
            _ => self.attention_width,
        }
    }

    fn take_projections<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        names: &BlockNames,
        at: &impl Fn(&str) -> String,
    ) -> Result<O::Linear, LoadError> {
        let (width, attention_width) = (self.width, self.attention_width);
        let prefixes: Vec<String> = names.projections.iter().map(|part| at(part)).collect();
        let each = 3 * attention_width / prefixes.len().max(1);
        let biased: Vec<bool> = (0..prefixes.len())
            .map(|part| self.projection_bias && (part != 1 || self.key_bias))
            .collect();
        match names.split_biases {
            Some(SplitBiases { names, by_head }) => {
                let groups = if by_head { self.heads } else { 1 };
                layers.with_split_biases(&prefixes.concat(), &names.map(at), width, groups)
            }
            None if self.mixing == Mixing::Relative => {
                let mut bias = Relative::query_bias(layers, at, [self.heads, attention_width])?;
                bias.resize(3 * attention_width, 0.0);
                let parts = prefixes.iter().zip(self.weight_layouts.projections);
                let parts = parts.map(|(name, layout)| layers.take_weight(name, layout, width, each));
                let parts: Vec<Vec<f32>> = parts.collect::<Result<_, _>>()?;
                Ok(layers.side_by_side(parts, bias, width, each))
            }
            None if self.key_value_heads < self.heads => {
                let heads = [self.heads, self.key_value_heads];
                layers.grouped(&prefixes, [width, attention_width], heads, &biased)
            }
            None => layers.concatenated_of(
                &prefixes,
                &self.weight_layouts.projections,
                [width, each],
                &biased,
            ),
        }
    }

    /// Projects the distance embeddings with layers of a block. These may be the block's own projections, so they are
    /// copied.
    fn take_distances<O: Ops>(
        &self,
        layers: &mut Layers<'_, O>,
        distances: &Distances<O>,
        names: &BlockNames,
        at: &impl Fn(&str) -> String,
    ) -> Result<DistanceScores<O::Matrix>, LoadError> {
        let sizes = [self.width, self.attention_width];
        let stored = match self.mixing {
            Mixing::Relative => WeightLayout::OutputHeads(self.heads),
            _ => WeightLayout::Whole,
        };
        let mut project = |name: Option<&str>, biased: bool| -> Result<Option<O::Matrix>, LoadError> {
            let Some(name) = name else { return Ok(None) };
            let layer = if names.projections.contains(&name) {
                layers.shared_linear(&at(name), self.width, self.width)?
            } else {
                layers.linear_from_host(&at(name), stored, sizes, biased)?
            };
            Ok(Some(layers.ops.multiply(&distances.vectors, &layer)))
        };
        Ok(DistanceScores {
            keys: project(distances.keys, distances.key_bias)?,
            queries: project(distances.queries, true)?,
            rows: distances.rows.clone(),
        })
    }
}

impl<O: Ops> BlockAttention<O> {
    /// Computes the attention of the rows, after the norm if there is one, and adds the rows.
    pub(in crate::architectures) fn add_to(
        &self,
        ops: &O,
        x: &O::Matrix,
        norm: Option<&O::Norm>,
        sequences: &[&[bool]],
        bias: Option<&Bias<'_, O::Matrix>>,
    ) -> O::Matrix {
        let mut projected = match norm {
            Some(norm) => ops.multiply_normalised(x, norm, &self.projections),
            None => ops.multiply(x, &self.projections),
        };
        if let Some(norms) = &self.head_norms {
            norms.apply(ops, &mut projected, self.heads);
        }
        if let Some(rotary) = &self.rotary {
            let positions: Vec<usize> = sequences.iter().flat_map(|mask| 0..mask.len()).collect();
            // Queries and keys are the first two thirds of a row.
            ops.rotate(
                &mut projected,
                2 * self.heads,
                2 * rotary.frequencies.len(),
                rotary,
                &positions,
            );
        }
        if let Some(grid) = &self.grid {
            grid.rotate(ops, &mut projected, 2 * self.heads, sequences.len());
        }
        let same = vec![0; sequences.len()];
        let by_kind = self.kinds.as_ref().map(|layer| ops.multiply(&projected, layer));
        let leading = self.global.as_ref().map(|_| leading_tokens(sequences, bias));
        let attention = EncoderAttention {
            heads: self.heads,
            scale: self.scale,
            window: self.window,
            leading: leading.as_deref(),
            position_bias: match bias {
                Some(Bias::Distances(table)) => Some(*table),
                _ => self.position_bias.as_ref(),
            },
            distances: self.distances.as_ref(),
            pairs: match bias {
                Some(Bias::Pairs(values, tokens)) => Some(PairScores {
                    values: *values,
                    kinds: &same,
                    tokens: *tokens,
                }),
                _ => None,
            },
            kinds: match (bias, &by_kind) {
                (Some(Bias::Kinds(kinds)), Some(values)) => Some(SegmentScores { values, kinds }),
                _ => None,
            },
        };
        let mut attended = ops.attend_sequences(&projected, sequences, &attention);
        if let Some(global) = &self.global {
            let leading = leading.as_deref().unwrap_or_default();
            global.replace(ops, x, sequences, leading, &mut attended);
        }
        if let Some(convolution) = &self.convolution {
            attended = convolution.beside(ops, x, projected, &attended, sequences);
        }
        if self.added.is_unchanged() {
            return ops.multiply_and_add(&attended, &self.output, x);
        }
        self.added.to(ops, x, ops.multiply(&attended, &self.output))
    }
}

/// Returns the number of leading tokens per sequence with global attention: those of the question, which have kind 1,
/// else one.
fn leading_tokens<X>(sequences: &[&[bool]], bias: Option<&Bias<'_, X>>) -> Vec<usize> {
    match bias {
        Some(Bias::Kinds(kinds)) => {
            let counts = kinds
                .iter()
                .map(|kinds| kinds.iter().take_while(|kind| **kind == 1));
            counts.map(Iterator::count).collect()
        }
        _ => vec![1; sequences.len()],
    }
}
