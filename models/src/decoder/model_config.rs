//! Configuration of a language model: everything that its layers compute. Architectures fill it in.

use super::routing::Routing;
use crate::checkpoint::TokenRules;
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// Configuration of a decoder: everything that its layers compute.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConfig {
    /// Hidden size.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Attention heads of [`ModelConfig::local`] layers, if they differ (Gemma 4).
    pub local_heads: Option<Heads>,
    /// Intermediate size of the feed-forward.
    pub intermediate_size: usize,
    /// Vocabulary size, tokens.
    pub vocabulary: usize,
    /// Maximum tokens of a request; of the answer for an encoder-decoder. `usize::MAX` with relative positions,
    /// because then only the cache is a limit.
    pub context: usize,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// Activation of the feed-forward, unless a layer has its own.
    pub activation: Activation,
    /// Whether the feed-forward is gated.
    pub gated: bool,
    /// Routing of tokens in layers with experts; `None` if all layers are dense.
    pub routing: Option<Routing>,
    /// Whether the feed-forward runs in parallel with attention.
    pub parallel: Parallel,
    /// Query-key norms.
    pub query_key_norm: QueryKeyNorm,
    /// Clamp of queries, keys and values before the rotation (`OLMo`).
    pub clip: Option<f32>,
    /// Scaling of queries with their position.
    pub query_scaling: Option<QueryScaling>,
    /// Whether attention and feed-forward have no norm before them (`OLMo` 2).
    pub no_input_norms: bool,
    /// Norms after attention and feed-forward.
    pub output_norms: OutputNorms,
    /// Rotary positions; `None` if positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Attention of local layers; `None` if all layers are global.
    pub local: Option<LocalAttention>,
    /// Whether attention is bidirectional, within the window if there is one. Such a model does not generate.
    pub bidirectional: bool,
    /// Chunk size of chunked attention in [`ModelConfig::local`] layers, tokens; `None`: no chunks.
    pub chunk: Option<usize>,
    /// Soft cap of attention scores.
    pub score_softcap: Option<f32>,
    /// Factor of the logits; `None` is 1.
    pub logit_scale: Option<f32>,
    /// Soft cap of the logits, applied after their factor.
    pub logit_softcap: Option<f32>,
    /// Factor of the embeddings; `None` is 1.
    pub embedding_scale: Option<f32>,
    /// Relative position bias.
    pub relative_bias: Option<RelativeBias>,
    /// EOS tokens.
    pub eos_token_ids: Vec<u32>,
    /// Token constraints of an answer.
    pub rules: TokenRules,
}

/// Norms after attention and feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputNorms {
    /// No norms.
    #[default]
    No,
    /// On the outputs, before the residual addition (Gemma 2, `OLMo` 2).
    Outputs,
    /// On the residual sums: post-norm (OPT-350M).
    Sums,
}

/// Extent of query-key norms before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueryKeyNorm {
    /// No norms.
    #[default]
    No,
    /// Per head (Qwen 3, Gemma 3).
    EachHead,
    /// Per head, after the rotation (`HunYuan`).
    RotatedHead,
    /// Per head, also for values (Gemma 4).
    EachHeadAndValue,
    /// Over all heads (`OLMo` 2).
    AllHeads,
}

impl QueryKeyNorm {
    /// Returns how many parts of a row are normalised, given `heads` heads, and the number of heads per part.
    pub(crate) fn parts(self, heads: usize) -> [usize; 2] {
        match self {
            Self::No => [0, 0],
            Self::EachHead | Self::RotatedHead | Self::EachHeadAndValue => [heads, 1],
            Self::AllHeads => [1, heads],
        }
    }
}

/// Query scaling beyond the training context, `1 + rate * ln(1 + floor(position / context))` (Ministral 3, Llama 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScaling {
    /// Rate of the scaling.
    pub rate: f32,
    /// Training context, tokens.
    pub context: usize,
    /// Position of the first token.
    pub from: usize,
    /// Whether queries of [`ModelConfig::local`] layers are scaled too.
    pub is_local: bool,
}

impl QueryScaling {
    /// Returns the factor at a position.
    pub(crate) fn at(self, position: usize) -> f32 {
        let contexts = (position + self.from) / self.context.max(1);
        1.0 + self.rate * (1.0 + contexts as f32).ln()
    }
}

/// Order of attention and feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallel {
    /// Sequential, with a norm before the feed-forward.
    #[default]
    No,
    /// Parallel, with the same normalised input (GPT-J).
    SharedNorm,
    /// Parallel, with a separate norm (GPT-NeoX).
    OwnNorm,
}

/// Attention of local layers, which usually have a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalAttention {
    /// Sliding window: number of last tokens that a token attends to, itself included; `None` for all.
    pub window: Option<usize>,
    /// Rotary positions of local layers, if they differ from those of global layers (Gemma 3), or if global layers
    /// have none.
    pub rotary: Option<Rotary>,
}

impl ModelConfig {
    /// Returns the elements of an ACT entry per token and layer.
    pub(crate) fn act_width(&self) -> usize {
        self.width
    }

    /// Returns the maximum elements of keys and values per token and layer.
    pub fn kv_width(&self) -> usize {
        self.kv_width_of(false).max(self.kv_width_of(true))
    }

    /// Returns the elements of keys and values per token of a layer.
    pub(crate) fn kv_width_of(&self, local: bool) -> usize {
        2 * self.heads_of(local).key_width()
    }

    /// Returns the attention heads of a layer.
    pub(crate) fn heads_of(&self, local: bool) -> &Heads {
        let own = self.local_heads.as_ref().filter(|_| local);
        own.unwrap_or(&self.heads)
    }

    /// Returns the rotary positions of a layer.
    pub(crate) fn rotary_of(&self, local: bool) -> Option<&Rotary> {
        let own = self.local.as_ref().filter(|_| local);
        own.and_then(|local| local.rotary.as_ref())
            .or(self.rotary.as_ref())
    }

    /// Returns the sliding window of a layer, tokens; `None` without one.
    pub(crate) fn window_of(&self, local: bool) -> Option<usize> {
        let own = self.local.as_ref().filter(|_| local);
        own.and_then(|local| local.window)
    }

    /// Returns the chunk size of a layer, tokens; `None` without chunks.
    pub(crate) fn chunk_of(&self, local: bool) -> Option<usize> {
        self.chunk.filter(|_| local)
    }

    /// Applies factor and soft cap to logits, in place.
    pub(crate) fn scale_logits(&self, logits: &mut [f32]) {
        if let Some(scale) = self.logit_scale {
            for logit in &mut *logits {
                *logit *= scale;
            }
        }
        if let Some(cap) = self.logit_softcap {
            for logit in logits {
                *logit = cap * (*logit / cap).tanh();
            }
        }
    }

    /// Rotates adjacent elements of heads instead of elements half a head apart.
    pub(super) fn with_adjacent_pairs(mut self) -> Self {
        if let Some(rotary) = &mut self.rotary {
            rotary.neighbours = true;
        }
        self
    }

    pub(super) fn has_learned_positions(&self) -> bool {
        self.rotary.is_none() && self.relative_bias.is_none()
    }
}
