//! Configuration of a language model: everything that its layers compute. The architectures fill it in.

use super::routing::Routing;
use crate::checkpoint::TokenRules;
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// Configuration of a decoder: everything that its layers compute.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConfig {
    /// Size of a hidden vector.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Attention heads of the layers of [`ModelConfig::local`], if they differ (Gemma 4).
    pub local_heads: Option<Heads>,
    /// Size of the feed-forward layer.
    pub intermediate_size: usize,
    /// Vocabulary size, tokens.
    pub vocabulary: usize,
    /// Maximum tokens of a request; of an encoder-decoder those of its answer. `usize::MAX` with relative positions,
    /// because then only the cache is a limit.
    pub context: usize,
    /// Added to the variance by the norms.
    pub epsilon: f32,
    /// The feed-forward layer's activation, unless a layer has its own.
    pub activation: Activation,
    /// Whether the feed-forward layer is gated.
    pub gated: bool,
    /// How tokens are routed in layers with experts; `None` if all layers are dense.
    pub routing: Option<Routing>,
    /// Whether the feed-forward layer runs beside the attention.
    pub parallel: Parallel,
    /// How queries and keys are normalised.
    pub query_key_norm: QueryKeyNorm,
    /// Largest magnitude of the elements of queries, keys and values before they are rotated (`OLMo`).
    pub clip: Option<f32>,
    /// How queries grow with their position.
    pub query_growth: Option<QueryGrowth>,
    /// Whether attention and feed-forward layer read the hidden vectors without a norm before them (`OLMo` 2).
    pub no_input_norms: bool,
    /// What the norms after attention and feed-forward layer normalise.
    pub output_norms: OutputNorms,
    /// Rotary positions; `None` if positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Attention of the layers that see a window only; `None` if all layers see everything.
    pub local: Option<LocalAttention>,
    /// Whether tokens see later ones, too: up to the distance of a window, where there is one. Such a model does not generate.
    pub both_ways: bool,
    /// Size of the chunks of tokens of which a token sees its own only, in the layers of [`ModelConfig::local`]; `None`: all.
    pub chunk: Option<usize>,
    /// Soft cap of the attention's scores.
    pub score_softcap: Option<f32>,
    /// Factor of the logits; `None` is 1.
    pub logit_scale: Option<f32>,
    /// Soft cap of the logits, after their factor.
    pub logit_softcap: Option<f32>,
    /// Factor of the embeddings as the layers' input; `None` is 1.
    pub embedding_scale: Option<f32>,
    /// Relative positions.
    pub relative_bias: Option<RelativeBias>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Rules for the tokens of an answer.
    pub rules: TokenRules,
}

/// What the norms after attention and feed-forward layer normalise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputNorms {
    /// There are none.
    #[default]
    No,
    /// The outputs, before they are added (Gemma 2, `OLMo` 2).
    Outputs,
    /// The sums (OPT-350M).
    Sums,
}

/// Which elements of queries and keys are normalised together, before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueryKeyNorm {
    /// None.
    #[default]
    No,
    /// Those of each head (Qwen 3, Gemma 3).
    EachHead,
    /// Those of each head, after they are rotated (`HunYuan`).
    RotatedHead,
    /// Those of each head, and those of the values (Gemma 4).
    EachHeadAndValue,
    /// Those of all heads (`OLMo` 2).
    AllHeads,
}

impl QueryKeyNorm {
    /// Returns how many parts of a row are normalised, of `heads` heads, and how many heads each part has.
    pub(crate) fn parts(self, heads: usize) -> [usize; 2] {
        match self {
            Self::No => [0, 0],
            Self::EachHead | Self::RotatedHead | Self::EachHeadAndValue => [heads, 1],
            Self::AllHeads => [1, heads],
        }
    }
}

/// The factor of queries beyond the context of training, `1 + rate * ln(1 + floor(position / context))` (Ministral 3, Llama 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// Rate of the growth.
    pub rate: f32,
    /// Tokens of the context of training.
    pub context: usize,
    /// Position of the first token.
    pub from: usize,
    /// Whether queries also grow in the layers of [`ModelConfig::local`].
    pub is_local: bool,
}

impl QueryGrowth {
    /// Returns the factor at a position.
    pub(crate) fn at(self, position: usize) -> f32 {
        let contexts = (position + self.from) / self.context.max(1);
        1.0 + self.rate * (1.0 + contexts as f32).ln()
    }
}

/// How the feed-forward layer follows the attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parallel {
    /// After it, with a norm before it.
    #[default]
    No,
    /// Beside it, with the same normalised input (GPT-J).
    SharedNorm,
    /// Beside it, with a norm before it (GPT-NeoX).
    OwnNorm,
}

/// Attention of the layers that differ from the others: most see the last tokens only.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalAttention {
    /// Number of last tokens that a token sees, itself included; `None` for all.
    pub window: Option<usize>,
    /// Rotary positions of these layers, if they differ from those of the others (Gemma 3), or if the others have none.
    pub rotary: Option<Rotary>,
}

impl ModelConfig {
    /// Elements of an ACT entry per token and layer.
    pub(crate) fn act_width(&self) -> usize {
        self.width
    }

    /// Most elements of keys and values per token and layer.
    pub fn kv_width(&self) -> usize {
        self.kv_width_of(false).max(self.kv_width_of(true))
    }

    /// Elements of keys and values per token of a layer.
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

    /// Returns the number of last tokens that a layer sees; `None` for all.
    pub(crate) fn window_of(&self, local: bool) -> Option<usize> {
        let own = self.local.as_ref().filter(|_| local);
        own.and_then(|local| local.window)
    }

    /// Returns the size of the chunks that a layer sees; `None` for all.
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

    /// Rotates adjacent elements of heads instead of one of each half.
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
