//! Gemma 4 (Gemma Team 2026), text only: Gemma 3 with different heads in global layers, value norms, unscaled scores
//! and a factor of each layer's output. The small models also have per-layer embeddings, and last layers that reuse
//! keys and values of earlier ones.

use std::collections::BTreeMap;

use kaskade_policy::plan::Partition;
use serde_json::Value;

use super::gemma::hidden_activation;
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::decoder::experts::{ExpertLayout, SharedExpert};
use crate::decoder::gated::{self, Layout, NormNames};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::decoder::routing::Routing;
use crate::decoder::weights::{
    Decoder, LinearWeights, LocalAttention, ModelConfig, NormWeights, OutputNorms, PerLayerEmbeddings,
    QueryKeyNorm,
};
use crate::ops::Heads;
use crate::precision::Table;

/// Length of the layer pattern of published models; its last layer is global.
const PERIOD: usize = 6;

pub(in crate::decoder) fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    refuse_unsupported(config)?;
    let (local, local_layers) = windows(config)?;
    let sources = sources(config, &local_layers)?;
    let count = sources.len();
    let per_layer_width = per_layer_width(config)?;
    if partition != Partition::WHOLE && !splits(config)? {
        return Err(LoadError::NotPartitioned {
            architecture: "Gemma4ForCausalLM",
            of: partition.of,
        });
    }
    let mut model_config = model_config(config, local, &local_layers)?;
    let inner = model_config.intermediate_size;
    let experts = experts(config, inner)?;
    if let Some(experts) = &experts {
        model_config.routing = Some(Routing::by_key(config, "top_k_experts", experts.count, true)?);
    }
    let is_wide = config.optional("use_double_wide_mlp")?.unwrap_or(false);
    let inner_of = |(index, source): (usize, &usize)| {
        if is_wide && index != *source {
            2 * inner
        } else {
            inner
        }
    };
    let base = Layout::with_biases(config)?;
    let layout = Layout {
        norm_names: NormNames {
            feed_forward: "pre_feedforward_layernorm",
            ..base.norm_names
        },
        keys_are_values: config.optional("attention_k_eq_v")?.unwrap_or(false),
        inner_sizes: sources.iter().enumerate().map(inner_of).collect(),
        per_layer_width,
        experts,
        output_scale: Some("layer_scalar"),
        kv_sources: sources,
        local_layers,
        feed_forward_bias: false,
        ..base
    };
    drop_reused(checkpoint, &layout.kv_sources);
    let mut decoder = gated::read(checkpoint, partition, model_config, &layout)?;
    if let Some(width) = per_layer_width {
        let rows = checkpoint.config.size("vocab_size_per_layer_input")?;
        decoder.per_layer_embeddings = Some(per_layer_embeddings(
            &mut checkpoint.weights,
            decoder.model_config.width,
            (rows, rows),
            (width * count, width),
        )?);
    }
    Ok(decoder)
}

/// Returns the experts that run in parallel with each feed-forward of size `inner`, if there are any.
fn experts(config: &Config, inner: usize) -> Result<Option<ExpertLayout>, LoadError> {
    if !config.optional("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(ExpertLayout {
        block: "",
        router: "router.proj",
        shared: Some(SharedExpert {
            block: Some("mlp"),
            inner,
            bias: false,
            gate: None,
        }),
        is_parallel: true,
        ..ExpertLayout::everywhere(config, "moe_intermediate_size")?
    }))
}

fn refuse_unsupported(config: &Config) -> Result<(), LoadError> {
    let key = "use_bidirectional_attention";
    match config.optional::<Value>(key)? {
        Some(Value::String(kind)) if kind == "all" => {
            Err(config.invalid_value(key, "attention to later tokens is not supported"))
        }
        _ => Ok(()),
    }
}

/// Returns the sliding window, and whether each layer has it.
fn windows(config: &Config) -> Result<(Option<LocalAttention>, Vec<bool>), LoadError> {
    let count = config.size("num_hidden_layers")?;
    let (local, mut local_layers) = gated::windows(config, |index| !(index + 1).is_multiple_of(PERIOD))?;
    if let Some(last) = local_layers.last_mut() {
        *last = false;
    }
    local_layers.resize(count, false);
    Ok((local, local_layers))
}

/// Returns the width of the per-layer embeddings, if there are any.
fn per_layer_width(config: &Config) -> Result<Option<usize>, LoadError> {
    let width = config.optional::<usize>("hidden_size_per_layer_input")?;
    Ok(width.filter(|width| *width > 0))
}

/// Returns whether each layer depends only on the hidden states of the previous one, so that partitions can run the
/// layers.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::decoder) fn splits(config: &Config) -> Result<bool, LoadError> {
    let (_, local_layers) = windows(config)?;
    let sources = sources(config, &local_layers)?;
    let reuses_kv = sources.iter().enumerate().any(|(index, source)| index != *source);
    Ok(!reuses_kv && per_layer_width(config)?.is_none())
}

/// Returns, for each layer, the layer whose keys and values it uses: itself, or the last layer of its type before the
/// shared ones (`num_kv_shared_layers`).
pub(in crate::decoder) fn sources(config: &Config, local: &[bool]) -> Result<Vec<usize>, LoadError> {
    let key = "num_kv_shared_layers";
    let shared = config.optional::<usize>(key)?.unwrap_or(0);
    let first = local.len().saturating_sub(shared);
    let last_of = |kind: bool| {
        let own = local.iter().take(first);
        own.enumerate()
            .rev()
            .find(|(_, own)| **own == kind)
            .map(|(index, _)| index)
    };
    let sources = local.iter().enumerate().map(|(index, kind)| {
        if index < first {
            Some(index)
        } else {
            last_of(*kind)
        }
    });
    sources.collect::<Option<Vec<usize>>>().ok_or_else(|| {
        config.invalid_value(key, "a layer of every type must compute its own keys and values")
    })
}

fn model_config(
    config: &Config,
    local: Option<LocalAttention>,
    local_layers: &[bool],
) -> Result<ModelConfig, LoadError> {
    let keys = |layer_type| RotaryKeys {
        layer_type: Some(layer_type),
        ..RotaryKeys::default()
    };
    let near = Heads {
        scale: 1.0,
        ..gated::heads(config, config.size("hidden_size")?)?
    };
    let far = global_heads(config, near, local_layers)?;
    let near_positions = rotary(config, near.head_dim, keys("sliding_attention"))?;
    let far_positions = rotary(config, far.head_dim, keys("full_attention"))?;
    let base = gated::with_positions(config, far, far_positions)?;
    Ok(ModelConfig {
        activation: hidden_activation(config)?,
        local: local.map(|local| LocalAttention {
            rotary: Some(near_positions.rotary),
            ..local
        }),
        local_heads: Some(near),
        query_key_norm: QueryKeyNorm::EachHeadAndValue,
        output_norms: OutputNorms::Outputs,
        logit_softcap: config.optional("final_logit_softcapping")?,
        embedding_scale: Some((base.width as f32).sqrt()),
        ..base
    })
}

/// Head settings of a global layer, as newer files state them per layer.
#[derive(Debug, PartialEq, serde::Deserialize)]
struct LayerHeads {
    head_dim: Option<usize>,
    num_key_value_heads: Option<usize>,
}

/// Returns the heads of global layers.
fn global_heads(config: &Config, near: Heads, local_layers: &[bool]) -> Result<Heads, LoadError> {
    let key = "per_layer_config";
    let by_layer = config.optional::<BTreeMap<usize, LayerHeads>>(key)?;
    let (key, head_dim, keys) = if let Some(by_layer) = by_layer {
        let expected = (0..).zip(local_layers).filter(|(_, local)| !**local);
        let mut pairs = by_layer.values().zip(by_layer.values().skip(1));
        let all_equal = pairs.all(|(one, other)| one == other);
        if !by_layer.keys().copied().eq(expected.map(|(index, _)| index)) || !all_equal {
            let reason = "it must state the same heads for all layers of full_attention, and for no others";
            return Err(config.invalid_value(key, reason));
        }
        let heads = by_layer.into_values().next();
        let (head_dim, keys) =
            heads.map_or((None, None), |heads| (heads.head_dim, heads.num_key_value_heads));
        (key, head_dim.unwrap_or(near.head_dim), keys)
    } else {
        let shared = config.optional("attention_k_eq_v")?.unwrap_or(false);
        let keys = config.optional::<usize>("num_global_key_value_heads")?;
        let head_dim = config.optional::<usize>("global_head_dim")?.unwrap_or(512);
        ("global_head_dim", head_dim, keys.filter(|_| shared))
    };
    let keys = keys.unwrap_or(near.keys);
    if head_dim == 0 || head_dim > near.head_dim * 64 || !head_dim.is_multiple_of(2) {
        return Err(config.invalid_value(key, "heads must have an even number of elements"));
    }
    if keys == 0 || !near.queries.is_multiple_of(keys) {
        let reason = format!("heads of keys must divide the {} heads of queries", near.queries);
        return Err(config.invalid_value(key, reason));
    }
    Ok(Heads {
        keys,
        head_dim,
        ..near
    })
}

/// Drops key and value tensors of layers that reuse those of others.
pub(in crate::decoder) fn drop_reused(checkpoint: &mut Checkpoint, sources: &[usize]) {
    for (index, source) in sources.iter().enumerate() {
        if index != *source {
            let block = format!("layers.{index}.self_attn.");
            checkpoint.weights.ignore(|name| {
                let name = name.strip_prefix("model.").unwrap_or(name);
                let part = name.strip_prefix(&block);
                part.is_some_and(|part| part.starts_with("k_") || part.starts_with("v_"))
            });
        }
    }
}

/// Takes the per-layer embeddings: `rows` rows of `all` elements, `per_layer_width` per layer. The first row is repeated
/// for the remaining tokens of the vocabulary.
pub(in crate::decoder) fn per_layer_embeddings(
    weights: &mut Weights,
    width: usize,
    (rows, vocabulary): (usize, usize),
    (all, per_layer_width): (usize, usize),
) -> Result<PerLayerEmbeddings, LoadError> {
    let mut table = weights.take("model.embed_tokens_per_layer.weight", &[rows, all])?;
    for _ in rows..vocabulary {
        table.extend_from_within(..all);
    }
    Ok(PerLayerEmbeddings {
        width: per_layer_width,
        table: Table::new(table, all),
        table_scale: (per_layer_width as f32).sqrt(),
        projection: LinearWeights::take(weights, "model.per_layer_model_projection", width, all, false)?,
        projection_scale: 1.0 / (width as f32).sqrt(),
        norm: NormWeights::take_rms(weights, "model.per_layer_projection_norm", per_layer_width)?,
    })
}
