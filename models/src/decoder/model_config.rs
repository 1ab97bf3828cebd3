//! Configuration of a language model: everything that its layers compute. The architectures fill it in.

use super::experts::Routing;
use crate::checkpoint::TokenRules;
use crate::ops::{Activation, Heads, RelativeBias, Rotary};

/// Configuration of a decoder: everything that its layers compute.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each names one independent property"
)]
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConfig {
    /// Size of a hidden vector.
    pub width: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Size of the feed-forward layer.
    pub intermediate_size: usize,
    /// Vocabulary size, tokens.
    pub vocabulary: usize,
    /// Maximum tokens of a request; of an encoder-decoder those of its answer. `usize::MAX` with relative positions,
    /// because then only the cache is a limit.
    pub context: usize,
    /// Added to the variance by the norms.
    pub epsilon: f32,
    /// The feed-forward layer's activation.
    pub activation: Activation,
    /// Whether the feed-forward layer is gated.
    pub gated: bool,
    /// How tokens are routed in layers with experts; `None` if all layers are dense.
    pub routing: Option<Routing>,
    /// Whether the feed-forward layer runs beside the attention.
    pub parallel: Parallel,
    /// How queries and keys are normalised.
    pub query_key_norm: QueryKeyNorm,
    /// Whether attention and feed-forward layer read the hidden vectors without a norm before them (`OLMo` 2).
    pub no_input_norms: bool,
    /// Whether the outputs of attention and feed-forward layer are normalised before they are added (Gemma, `OLMo` 2).
    pub output_norms: bool,
    /// Whether the norms of a layer normalise the hidden vectors after attention, cross-attention and feed-forward layer
    /// instead of their inputs (BART). The norm of the last feed-forward layer is then the model's final norm.
    pub norms_after: bool,
    /// Rotary positions; `None` if positions are learned or relative.
    pub rotary: Option<Rotary>,
    /// Attention of the layers that see a window only; `None` if all layers see everything.
    pub local: Option<LocalAttention>,
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

/// Which elements of queries and keys are normalised together, before they are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueryKeyNorm {
    /// None.
    #[default]
    No,
    /// Those of each head (Qwen 3, Gemma 3).
    EachHead,
    /// Those of all heads (`OLMo` 2).
    AllHeads,
}

impl QueryKeyNorm {
    /// Returns how many parts of a row are normalised, of `heads` heads, and how many heads each part has.
    pub(crate) fn parts(self, heads: usize) -> [usize; 2] {
        match self {
            Self::No => [0, 0],
            Self::EachHead => [heads, 1],
            Self::AllHeads => [1, heads],
        }
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

    /// Elements of keys and values per token and layer.
    pub fn kv_width(&self) -> usize {
        2 * self.heads.key_width()
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

    pub(super) fn has_learned_positions(&self) -> bool {
        self.rotary.is_none() && self.relative_bias.is_none()
    }
}
