//! Tensor names in llama.cpp and in Hugging Face checkpoints, and the transformations of llama.cpp's converter.

/// Transformation that llama.cpp's converter applied to a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    No,
    /// Query rows are permuted so that rows of a rotary pair are adjacent.
    Queries,
    /// Key rows are permuted so that rows of a rotary pair are adjacent.
    Keys,
    /// 1 was added to every weight.
    PlusOne,
    /// The matrix was transposed; `Weights::take_input_major` expects this.
    Transposed,
    /// Rows are grouped as all queries, all keys, all values instead of per head (BLOOM).
    ByPart,
    /// Rows are grouped as all queries, all keys, all values instead of per KV group (Falcon).
    ByKind,
    /// The tensors of all heads were stacked (`StableLM`); `{}` in the name is the head.
    Heads,
    /// The tensors of all experts were stacked; `{}` in the name is the expert.
    Experts,
    /// A matrix with one row was stored as a vector.
    OneRow,
    /// Query, key and value were fused into one matrix; the name is that of the module with all three.
    Fused,
}

/// Mapping of a module: its name in the file, its name in the checkpoint, and the transformation.
pub(super) type Module = (&'static str, &'static str, Change);

/// Names of the tensors of an architecture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// Modules outside layers.
    pub(super) outer: &'static [Module],
    /// Prefix of the layers in the checkpoint, before the layer number.
    pub(super) layers: &'static str,
    /// Modules of a layer, in groups.
    pub(super) inner: &'static [&'static [Module]],
}

/// Result of a name look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Name in the checkpoint; contains `{}` if the tensor in the file stacks several.
    pub(super) name: String,
    pub(super) change: Change,
}

impl Names {
    /// Looks up a tensor of the file; `None` if the architecture has none of this name.
    pub(super) fn find(&self, name: &str) -> Option<Found> {
        let (module, end) = name.rsplit_once('.')?;
        if !matches!(end, "weight" | "bias") {
            return None;
        }
        let (prefix, module, modules) = match module.strip_prefix("blk.") {
            Some(rest) => {
                let (layer, module) = rest.split_once('.')?;
                layer.parse::<u32>().ok()?;
                (format!("{}{layer}.", self.layers), module, self.inner.concat())
            }
            None => (String::new(), module, self.outer.to_vec()),
        };
        let plain = modules.iter().find(|(ours, ..)| *ours == module);
        if let Some((_, theirs, change)) = plain {
            return Some(Found {
                name: format!("{prefix}{theirs}.{end}"),
                change: *change,
            });
        }
        // Older files have one tensor per expert.
        let (ours, expert) = module.rsplit_once('.')?;
        expert.parse::<u32>().ok()?;
        let fused = format!("{ours}_exps");
        let (_, theirs, _) = modules
            .iter()
            .find(|(ours, _, change)| *ours == fused && *change == Change::Experts)?;
        Some(Found {
            name: format!("{prefix}{}.{end}", theirs.replace("{}", expert)),
            change: Change::No,
        })
    }
}

/// Embedding, final norm and head, as in Llama.
pub(super) const OUTER: &[Module] = &[
    ("token_embd", "model.embed_tokens", Change::No),
    ("output_norm", "model.norm", Change::No),
    ("output", "lm_head", Change::No),
];
/// Like [`OUTER`], for Gemma.
pub(super) const OUTER_OF_GEMMA: &[Module] = &[
    ("token_embd", "model.embed_tokens", Change::No),
    ("output_norm", "model.norm", Change::PlusOne),
    ("output", "lm_head", Change::No),
];
/// Like [`OUTER`], for Phi.
pub(super) const OUTER_OF_PHI: &[Module] = &[
    ("token_embd", "model.embed_tokens", Change::No),
    ("output_norm", "model.final_layernorm", Change::No),
    ("output", "lm_head", Change::No),
];
/// Like [`OUTER`], for GPT-2.
pub(super) const OUTER_OF_GPT2: &[Module] = &[
    ("token_embd", "transformer.wte", Change::No),
    ("position_embd", "transformer.wpe", Change::No),
    ("output_norm", "transformer.ln_f", Change::No),
    ("output", "lm_head", Change::No),
];
/// Like [`OUTER`], for BLOOM and Falcon.
pub(super) const OUTER_OF_BLOOM: &[Module] = &[
    ("token_embd", "transformer.word_embeddings", Change::No),
    (
        "token_embd_norm",
        "transformer.word_embeddings_layernorm",
        Change::No,
    ),
    ("output_norm", "transformer.ln_f", Change::No),
    ("output", "lm_head", Change::No),
];

/// Norms before attention and feed-forward.
pub(super) const NORMS: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::No),
    ("ffn_norm", "post_attention_layernorm", Change::No),
];
/// Norms before and after attention and feed-forward of Gemma.
pub(super) const NORMS_OF_GEMMA: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::PlusOne),
    ("ffn_norm", "post_attention_layernorm", Change::PlusOne),
];
/// Like [`NORMS_OF_GEMMA`], from version 2 on.
pub(super) const NORMS_OF_GEMMA_2: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::PlusOne),
    ("post_attention_norm", "post_attention_layernorm", Change::PlusOne),
    ("ffn_norm", "pre_feedforward_layernorm", Change::PlusOne),
    ("post_ffw_norm", "post_feedforward_layernorm", Change::PlusOne),
    ("attn_q_norm", "self_attn.q_norm", Change::PlusOne),
    ("attn_k_norm", "self_attn.k_norm", Change::PlusOne),
];
/// Norms after attention and feed-forward (`OLMo` 2).
pub(super) const OUTPUT_NORMS: &[Module] = &[
    ("post_attention_norm", "post_attention_layernorm", Change::No),
    ("post_ffw_norm", "post_feedforward_layernorm", Change::No),
];
/// Norms of queries and keys.
pub(super) const HEAD_NORMS: &[Module] = &[
    ("attn_q_norm", "self_attn.q_norm", Change::No),
    ("attn_k_norm", "self_attn.k_norm", Change::No),
];
/// Like [`HEAD_NORMS`], one norm per head.
pub(super) const NORMS_OF_HEADS: &[Module] = &[
    ("attn_q_norm", "self_attn.q_layernorm.norms.{}", Change::Heads),
    ("attn_k_norm", "self_attn.k_layernorm.norms.{}", Change::Heads),
];

/// Attention projections.
pub(super) const ATTENTION: &[Module] = &[
    ("attn_q", "self_attn.q_proj", Change::No),
    ("attn_k", "self_attn.k_proj", Change::No),
    ("attn_v", "self_attn.v_proj", Change::No),
    ("attn_output", "self_attn.o_proj", Change::No),
];
/// Like [`ATTENTION`], for architectures in which llama.cpp rotates adjacent elements.
pub(super) const ADJACENT: &[Module] = &[
    ("attn_q", "self_attn.q_proj", Change::Queries),
    ("attn_k", "self_attn.k_proj", Change::Keys),
    ("attn_v", "self_attn.v_proj", Change::No),
    ("attn_output", "self_attn.o_proj", Change::No),
];

/// Gated feed-forward.
pub(super) const GATED: &[Module] = &[
    ("ffn_gate", "mlp.gate_proj", Change::No),
    ("ffn_up", "mlp.up_proj", Change::No),
    ("ffn_down", "mlp.down_proj", Change::No),
];
/// Experts, as in Qwen.
pub(super) const EXPERTS: &[Module] = &[
    ("ffn_gate_inp", "mlp.gate", Change::No),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj", Change::Experts),
    ("ffn_up_exps", "mlp.experts.{}.up_proj", Change::Experts),
    ("ffn_down_exps", "mlp.experts.{}.down_proj", Change::Experts),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Change::OneRow),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj", Change::No),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj", Change::No),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj", Change::No),
];
/// Like [`EXPERTS`], for Mixtral.
pub(super) const EXPERTS_OF_MIXTRAL: &[Module] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate", Change::No),
    ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1", Change::Experts),
    ("ffn_up_exps", "block_sparse_moe.experts.{}.w3", Change::Experts),
    ("ffn_down_exps", "block_sparse_moe.experts.{}.w2", Change::Experts),
];
/// Fused projections of Phi-3.
pub(super) const FUSED: &[Module] = &[
    ("attn_qkv", "self_attn.qkv_proj", Change::No),
    ("attn_output", "self_attn.o_proj", Change::No),
    ("ffn_up", "mlp.gate_up_proj", Change::No),
    ("ffn_down", "mlp.down_proj", Change::No),
];
/// A layer of Phi-2, with one norm; older files have fused projections.
pub(super) const PHI: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::No),
    ("attn_qkv", "self_attn", Change::Fused),
    ("attn_q", "self_attn.q_proj", Change::No),
    ("attn_k", "self_attn.k_proj", Change::No),
    ("attn_v", "self_attn.v_proj", Change::No),
    ("attn_output", "self_attn.dense", Change::No),
    ("ffn_up", "mlp.fc1", Change::No),
    ("ffn_down", "mlp.fc2", Change::No),
];
/// Feed-forward of `StarCoder2`.
pub(super) const UNGATED: &[Module] = &[
    ("ffn_up", "mlp.c_fc", Change::No),
    ("ffn_down", "mlp.c_proj", Change::No),
];
/// A layer of GPT-2.
pub(super) const GPT2: &[Module] = &[
    ("attn_norm", "ln_1", Change::No),
    ("attn_qkv", "attn.c_attn", Change::Transposed),
    ("attn_output", "attn.c_proj", Change::Transposed),
    ("ffn_norm", "ln_2", Change::No),
    ("ffn_up", "mlp.c_fc", Change::Transposed),
    ("ffn_down", "mlp.c_proj", Change::Transposed),
];
/// A layer of BLOOM.
pub(super) const BLOOM: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::No),
    ("attn_qkv", "self_attention.query_key_value", Change::ByPart),
    ("attn_output", "self_attention.dense", Change::No),
    ("ffn_norm", "post_attention_layernorm", Change::No),
    ("ffn_up", "mlp.dense_h_to_4h", Change::No),
    ("ffn_down", "mlp.dense_4h_to_h", Change::No),
];
/// A layer of Falcon, with one norm.
pub(super) const FALCON: &[Module] = &[
    ("attn_norm", "input_layernorm", Change::No),
    ("attn_qkv", "self_attention.query_key_value", Change::ByKind),
    ("attn_output", "self_attention.dense", Change::No),
    ("ffn_up", "mlp.dense_h_to_4h", Change::No),
    ("ffn_down", "mlp.dense_4h_to_h", Change::No),
];
/// A layer of Falcon with a separate norm for the feed-forward.
pub(super) const FALCON_WITH_NORMS: &[Module] = &[
    ("attn_norm", "ln_mlp", Change::No),
    ("attn_norm_2", "ln_attn", Change::No),
    ("attn_qkv", "self_attention.query_key_value", Change::ByKind),
    ("attn_output", "self_attention.dense", Change::No),
    ("ffn_up", "mlp.dense_h_to_4h", Change::No),
    ("ffn_down", "mlp.dense_4h_to_h", Change::No),
];
