//! Plans an engine's configuration from memory limits.

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, CostError, Kind, Memory, Planned, Shares};

use super::config::{Caching, EngineConfig};
use super::config::{block_bytes, split_for};
use super::cost_sampling::Workload;
use super::engine::Engine;
use super::error::EngineError;
use crate::decoder::weights::{Decoder, Encoder, PerLayerEmbeddings, TokenInputs};
use crate::ops::Ops;
use crate::precision::Table;

/// Limits for an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryLimits {
    /// Form of the cache.
    pub caching: Caching,
    /// Memory budget on the device, bytes; `None`: the whole model is resident.
    pub device_bytes: Option<u64>,
    /// Bandwidth of the link in each direction, bytes per second; `None`: unthrottled.
    pub link: Option<f64>,
    /// Maximum running requests.
    pub requests: usize,
    /// Maximum tokens of all running requests, prompts and answers together.
    pub tokens: usize,
    /// Maximum size of a cache in host memory, bytes; it may hold fewer tokens than `tokens`. `None`: enough for
    /// `tokens` in any mixture.
    pub cache_bytes: Option<u64>,
}

/// A planned configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// The configuration.
    pub config: EngineConfig,
    /// Why costs could not be measured, if the model is too small to measure.
    pub unmeasured: Option<CostError>,
}

impl EngineConfig {
    /// Plans a configuration. Without a budget, everything is on the device. With a budget, as many layers are
    /// resident as fit next to the buffers, and the cache is in host memory with the best mixture for the measured
    /// costs (§4.3). `ops` is used only for measuring.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if the head and the buffers exceed the budget; errors of measuring.
    pub fn plan<M: Ops>(
        ops: M,
        decoder: &Decoder,
        memory_limits: &MemoryLimits,
    ) -> Result<MemoryPlan, EngineError> {
        let whole = Self {
            requests: memory_limits.requests.max(1),
            ..Self::resident(decoder, memory_limits.tokens)
        };
        let Some(budget) = memory_limits.device_bytes else {
            return Ok(MemoryPlan {
                config: whole,
                unmeasured: None,
            });
        };
        let blocks = memory_limits.tokens.div_ceil(whole.block_tokens);
        let either = BlockCounts {
            act: blocks,
            kv: blocks,
        };
        let mut config = Self {
            caching: memory_limits.caching,
            resident_layers: 0,
            buffer: either,
            device_bytes: Some(budget),
            capacity: Capacity::default(),
            link: memory_limits.link,
            ..whole
        };
        // Resident layers may use the memory that is left when all layers are streamed.
        let probe = Engine::new(ops, largest_layers(decoder), None, config.clone())?;
        let left = budget.saturating_sub(probe.device_memory().total());
        let resident = usize::try_from(left / probe.largest_layer_bytes().max(1)).unwrap_or(usize::MAX);
        // An encoder's layers are not larger than those of its decoder.
        config.resident_layers = resident.min(decoder.depth());
        config.capacity.host = either;
        let (act, unmeasured) = match memory_limits.caching {
            Caching::Hybrid => mixture(&mut config, &probe, decoder.attention_layers(), memory_limits)?,
            Caching::Act => (1.0, None),
            Caching::Kv | Caching::Tokens => (0.0, None),
        };
        config.shares = Shares::device_first(act);
        if let Some(bytes) = memory_limits.cache_bytes {
            let layers = decoder.attention_layers();
            let each = |kind| block_bytes(&decoder.model_config, layers, config.block_tokens, kind);
            config.capacity.host = blocks_within(bytes, blocks, act, each(Kind::Act), each(Kind::Kv));
        }
        Ok(MemoryPlan { config, unmeasured })
    }
}

/// Returns `blocks` blocks, or as many as fit in `bytes`, of which the fraction `act` are ACT blocks.
fn blocks_within(bytes: u64, blocks: usize, act: f64, act_bytes: u64, kv_bytes: u64) -> BlockCounts {
    let held = |bytes: u64, each: u64| {
        let held = bytes.checked_div(each);
        held.map_or(usize::MAX, |held| usize::try_from(held).unwrap_or(usize::MAX))
    };
    let mean = act * act_bytes as f64 + (1.0 - act) * kv_bytes as f64;
    let blocks = blocks.min(held(bytes, mean.ceil() as u64));
    let acts = ((blocks as f64 * act).round() as usize).min(held(bytes, act_bytes));
    let left = bytes.saturating_sub((acts as u64).saturating_mul(act_bytes));
    BlockCounts {
        act: acts,
        kv: (blocks - acts.min(blocks)).min(held(left, kv_bytes)),
    }
}

/// Returns a copy with only the largest layer, and the largest layer with attention, to measure their costs. Layers
/// are alike, or some have experts, and a full copy would double the host memory.
fn largest_layers(decoder: &Decoder) -> Decoder {
    let kind = decoder.weight_type;
    let largest = decoder.layers.iter().max_by_key(|layer| layer.bytes(kind));
    let cached = decoder.layers.iter().filter(|layer| layer.has_attention());
    let cached = cached.max_by_key(|layer| layer.bytes(kind));
    let cached = cached.filter(|_| largest.is_some_and(|layer| !layer.has_attention()));
    Decoder {
        model_config: decoder.model_config.clone(),
        embedding: if decoder.head.shared {
            decoder.embedding.clone()
        } else {
            Table::default()
        },
        weight_type: decoder.weight_type,
        embedding_norm: None,
        positions: None,
        layers: largest.into_iter().chain(cached).cloned().collect(),
        final_norm: decoder.final_norm.clone(),
        head_layer: decoder.head_layer.clone(),
        head: decoder.head.clone(),
        per_layer_embeddings: decoder
            .per_layer_embeddings
            .as_ref()
            .map(|layers| PerLayerEmbeddings {
                table: Table::default(),
                projection: layers.projection.clone(),
                norm: layers.norm.clone(),
                ..*layers
            }),
        streams: decoder.streams.clone(),
        encoder: decoder.encoder.as_ref().map(|encoder| Encoder {
            layers: Vec::new(),
            inputs: TokenInputs::default(),
            relative_bias: encoder.relative_bias.clone(),
            final_norm: encoder.final_norm.clone(),
            ..*encoder
        }),
    }
}

/// Returns the best fraction of ACT blocks by measured costs; one half if the model is too small to measure.
fn mixture<M: Ops>(
    config: &mut EngineConfig,
    probe: &Engine<M>,
    layers: usize,
    memory_limits: &MemoryLimits,
) -> Result<(f64, Option<CostError>), EngineError> {
    let load = Workload {
        requests: config.requests,
        mini_batch: config.requests,
        tokens: memory_limits.tokens / config.requests,
    };
    let costs = match probe.measure(&load) {
        Ok(measured) => measured.costs,
        Err(EngineError::Costs(error)) => return Ok((0.5, Some(error))),
        Err(error) => return Err(error),
    };
    let bytes = |kind| block_bytes(probe.model_config(), layers, config.block_tokens, kind);
    let memory = Memory {
        host_bytes: u64::MAX / 2,
        weight_bytes: 0,
        device_bytes: 0,
        kv_block_bytes: bytes(Kind::Kv),
        act_block_bytes: bytes(Kind::Act),
    };
    let blocks = memory_limits.tokens.div_ceil(config.block_tokens);
    config.planned = Some(Planned {
        memory,
        blocks,
        costs,
    });
    // A split exists, because host memory is not limited here.
    let act = split_for(Caching::Hybrid, blocks, &memory, &costs).map_or(0.5, |split| split.shares().act);
    Ok((act, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::registry;
    use crate::generation::{Cpu, OutOfMemory, Sampling, fixtures};

    fn decoder() -> Decoder {
        registry::read_decoder(fixtures::checkpoint("gpt2")).unwrap()
    }

    fn memory_limits(device_bytes: Option<u64>) -> MemoryLimits {
        MemoryLimits {
            caching: Caching::Hybrid,
            device_bytes,
            link: Some(1e9),
            requests: 2,
            tokens: 96,
            cache_bytes: None,
        }
    }

    #[test]
    fn blocks_of_both_kinds_are_within_the_bound() {
        for act in [0.0, 0.3, 0.5, 1.0] {
            for (bytes, act_bytes, kv_bytes) in [(1_000, 16, 8), (1_000, 8, 16), (7, 16, 8), (1_000, 7, 9)] {
                let counts = blocks_within(bytes, 100, act, act_bytes, kv_bytes);
                let taken = counts.act as u64 * act_bytes + counts.kv as u64 * kv_bytes;
                assert!(taken <= bytes && counts.total() <= 100, "{act}: {counts:?}");
                let larger = act_bytes.max(kv_bytes);
                let least = usize::try_from(bytes / larger).unwrap().min(100);
                assert!(counts.total() + 1 >= least, "{act}: {counts:?}");
            }
        }
        let all = BlockCounts { act: 0, kv: 9 };
        assert_eq!(blocks_within(0, 9, 0.0, 0, 0), all, "a model without attentions");
    }

    fn generated(config: EngineConfig) -> Vec<u32> {
        let mut engine = Engine::new(Cpu, decoder(), None, config).unwrap();
        let sampling = Sampling {
            max_tokens: 24,
            ..Sampling::default()
        };
        engine.submit(1, vec![3, 1, 4, 1, 5], sampling).unwrap();
        let mut tokens = Vec::new();
        while !engine.is_idle() {
            let choices = engine.step().unwrap().events.into_iter();
            tokens.extend(
                choices
                    .filter_map(|event| event.sampled)
                    .map(|sampled| sampled.token),
            );
        }
        tokens
    }

    #[test]
    fn streaming_gives_the_same_answers_as_residence() {
        let decoder = decoder();
        let fit = |bytes| {
            EngineConfig::plan(Cpu, &decoder, &memory_limits(bytes))
                .unwrap()
                .config
        };
        let free = fit(None);
        assert_eq!(free.resident_layers, decoder.layers.len());
        let ample = fit(Some(1 << 30));
        assert_eq!(ample.resident_layers, decoder.layers.len());
        let streamed = EngineConfig {
            resident_layers: 0,
            ..ample.clone()
        };
        let least = Engine::new(Cpu, decoder.clone(), None, streamed)
            .unwrap()
            .device_memory()
            .total();
        let tight = fit(Some(least));
        assert_eq!(tight.resident_layers, 0);
        let expected = generated(free);
        assert_eq!(expected.len(), 24);
        assert_eq!(generated(ample), expected);
        assert_eq!(generated(tight), expected);
    }

    /// In a mixture of experts, layers may differ in size, and the first ones are dense.
    #[test]
    fn plans_of_layers_that_differ_fit_their_budget() {
        for name in ["qwen3-moe", "qwen2-moe"] {
            let decoder = registry::read_decoder(fixtures::checkpoint(name)).unwrap();
            let engine = |config| Engine::new(Cpu, decoder.clone(), None, config);
            let mut config = EngineConfig::plan(Cpu, &decoder, &memory_limits(Some(1 << 30)))
                .unwrap()
                .config;
            let all = engine(config.clone()).unwrap().device_memory().total();
            config.resident_layers = 0;
            let least = engine(config).unwrap().device_memory().total();
            let step = usize::try_from(least.abs_diff(all) / 8).unwrap().max(1);
            for budget in (least..=all.max(least)).step_by(step) {
                let planned = EngineConfig::plan(Cpu, &decoder, &memory_limits(Some(budget))).unwrap();
                if let Err(error) = engine(planned.config) {
                    panic!("{name}: {error}");
                }
            }
        }
    }

    #[test]
    fn experts_and_streams_are_streamed_like_other_layers() {
        for name in ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "gemma3n"] {
            let decoder = registry::read_decoder(fixtures::checkpoint(name)).unwrap();
            for resident_layers in 0..=decoder.layers.len() {
                let config = EngineConfig {
                    resident_layers,
                    ..EngineConfig::resident(&decoder, 512)
                };
                let mut engine = Engine::new(Cpu, decoder.clone(), None, config).unwrap();
                for case in fixtures::cases(name) {
                    let logits = fixtures::score(&mut engine, &case);
                    let last = logits.last().unwrap().iter().zip(&case.last_logits);
                    let largest = last
                        .map(|(ours, theirs)| (ours - theirs).abs())
                        .fold(0.0, f32::max);
                    assert!(largest < 1e-4, "{name}, {resident_layers} resident: {largest}");
                }
            }
        }
    }

    #[test]
    fn a_budget_below_the_buffers_is_rejected_with_the_numbers() {
        let rejected = EngineConfig::plan(Cpu, &decoder(), &memory_limits(Some(10))).unwrap_err();
        assert!(
            matches!(rejected, EngineError::OutOfMemory(OutOfMemory { budget: 10, required, .. }) if required > 10),
            "{rejected}"
        );
    }
}
