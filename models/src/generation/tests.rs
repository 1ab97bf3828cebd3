//! Compares the engine with transformers, and its configurations with each other.

mod beam;
#[cfg(feature = "burn")]
mod burn;
mod encoder;
mod failure;
mod gguf;
mod learning;
mod recurrent;
mod rejection;
mod weight_types;

use std::collections::{BTreeMap, BTreeSet};

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Refused, Shares};
use proptest::prelude::*;

use self::learning::planned;
use super::detokenizer;
use super::*;
use crate::decoder::registry;
use crate::decoder::weights::{
    LocalAttention, NormWeights, OutputNorms, Parallel, QueryKeyNorm, QueryScaling, TokenInputs,
};
use crate::ops::Ops;
use crate::ops::{Activation, Heads, RelativeBias, Rotary};
use crate::precision::Table;

pub(super) fn model_config(rotary: bool, gated: bool, keys: usize) -> ModelConfig {
    let heads = Heads {
        queries: 4,
        keys,
        head_dim: 6,
        scale: 0.4,
    };
    ModelConfig {
        width: 20,
        heads,
        intermediate_size: 36,
        vocabulary: 50,
        context: 64,
        epsilon: 1e-5,
        activation: if gated { Activation::Silu } else { Activation::Relu },
        gated,
        parallel: if rotary && !gated {
            Parallel::SharedNorm
        } else {
            Parallel::No
        },
        rotary: rotary.then(|| Rotary {
            frequencies: vec![1.0, 0.1],
            neighbours: !gated,
            scale: 1.0,
        }),
        eos_token_ids: vec![0],
        ..ModelConfig::default()
    }
}

/// Builds a random model by number: four decoders, two encoder-decoders, and six more decoders, after GPT-NeoX, Qwen 3
/// with a window, Gemma with the features of both versions, `OLMo` 2 with positions in every second layer, BLOOM, and
/// one with latent attention, sinks, clamped and scaled queries, norms after the rotation and post-norms; last an
/// encoder-decoder after BART, and four decoders with recurrent layers.
pub(super) fn family(number: usize, layers: usize, seed: u64) -> Decoder {
    let [rotary, gated] = [
        !matches!(number, 0 | 4 | 12),
        matches!(number, 1 | 3 | 5 | 7 | 8 | 9 | 11),
    ];
    let mut model_config = model_config(
        rotary,
        gated,
        [4, 2, 4, 1, 4, 4, 4, 2, 1, 2, 4, 2, 4][number % 13],
    );
    match number {
        0..4 => return Decoder::random(model_config, layers, seed),
        13.. => return recurrent(model_config, number - 13, layers, seed),
        6 => {
            model_config.parallel = Parallel::OwnNorm;
            return Decoder::random(model_config, layers, seed);
        }
        7 | 8 => {
            model_config.query_key_norm = QueryKeyNorm::EachHead;
            // Shorter than prompts and answers.
            model_config.local = Some(LocalAttention {
                window: Some(7),
                rotary: None,
            });
            if number == 8 {
                let own = model_config.rotary.clone().map(|rotary| Rotary {
                    frequencies: vec![0.5, 0.3],
                    scale: 1.2,
                    ..rotary
                });
                model_config.local = Some(LocalAttention {
                    window: Some(5),
                    rotary: own,
                });
                model_config.output_norms = OutputNorms::Outputs;
                model_config.score_softcap = Some(2.0);
                model_config.logit_softcap = Some(3.0);
                model_config.embedding_scale = Some(4.0);
            }
            return Decoder::random(model_config, layers, seed);
        }
        9 => {
            model_config.query_key_norm = QueryKeyNorm::AllHeads;
            (model_config.no_input_norms, model_config.output_norms) = (true, OutputNorms::Outputs);
            let rotary = model_config.rotary.take();
            model_config.local = Some(LocalAttention { window: None, rotary });
            // Without rotary positions in other layers, random models would have learned positions.
            let mut decoder = Decoder::random(model_config, layers, seed);
            decoder.positions = None;
            return decoder;
        }
        10 => {
            model_config.rotary = None;
            model_config.parallel = Parallel::No;
            model_config.logit_scale = Some(0.5);
            model_config.relative_bias = Some(RelativeBias {
                max_distance: 64,
                values: (0..4 * 129).map(|place| (place % 129) as f32 / 20.0).collect(),
            });
            let mut decoder = Decoder::random(model_config, layers, seed);
            decoder.embedding_norm = Some(NormWeights {
                gamma: vec![1.5; 20],
                beta: Some(vec![0.2; 20]),
            });
            return decoder;
        }
        11 => {
            model_config.query_key_norm = QueryKeyNorm::RotatedHead;
            model_config.clip = Some(0.8);
            model_config.query_scaling = Some(QueryScaling {
                rate: 0.3,
                context: 6,
                from: 0,
                is_local: true,
            });
            (model_config.no_input_norms, model_config.output_norms) = (true, OutputNorms::Sums);
            return Decoder::random(model_config, layers, seed).with_random_latents(seed + 1);
        }
        12 => {
            (model_config.no_input_norms, model_config.output_norms) = (true, OutputNorms::Sums);
            model_config.embedding_scale = Some(3.0);
            let decoder = Decoder::random(model_config, layers, seed);
            let mut decoder = decoder.with_random_encoder(2, 24, seed + 1);
            if let Some(encoder) = &mut decoder.encoder {
                encoder.relative_bias = None;
                encoder.inputs = learned_positions();
            }
            return decoder;
        }
        _ => {}
    }
    model_config.rotary = None;
    model_config.parallel = Parallel::No;
    // Shorter than the answers, so that both the table and its limit are used.
    model_config.relative_bias = Some(RelativeBias {
        max_distance: 5,
        values: (0..4 * 11).map(|place| (place * 7 % 13) as f32 / 5.0).collect(),
    });
    Decoder::random(model_config, layers, seed).with_random_encoder(2, 24, seed + 1)
}

/// Returns learned positions and a norm for an encoder's inputs.
fn learned_positions() -> TokenInputs {
    let rows = (0..24 * 20).map(|place| (place * 7 % 13) as f32 / 9.0);
    TokenInputs {
        norm: Some(NormWeights {
            gamma: vec![1.5; 20],
            beta: Some(vec![0.2; 20]),
        }),
        positions: Some(Table::new(rows.collect(), 20)),
        embedding: None,
    }
}

fn recurrent(model_config: ModelConfig, kind: usize, layers: usize, seed: u64) -> Decoder {
    Decoder::random(model_config, layers, seed).with_random_recurrences(kind, seed + 1)
}

pub(super) fn greedy(max_tokens: usize) -> Sampling {
    Sampling {
        max_tokens,
        ignore_eos: true,
        ..Sampling::default()
    }
}

/// Runs all requests to the end; returns the answers by request.
pub(super) fn run<M: Ops>(engine: &mut Engine<M>) -> BTreeMap<u64, Vec<u32>> {
    let mut answers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut steps = 0;
    while !engine.is_idle() {
        for event in engine.step().unwrap().events {
            let answer = answers.entry(event.request).or_default();
            answer.extend(event.sampled.map(|sampled| sampled.token));
        }
        steps += 1;
        assert!(steps < 5_000, "requests never end");
    }
    let (free, all) = engine.blocks();
    assert_eq!(free, all, "blocks leak");
    answers
}

pub(super) fn generate<M: Ops>(
    engine: &mut Engine<M>,
    prompts: &[Vec<u32>],
    max_tokens: usize,
) -> Vec<Vec<u32>> {
    for (request, prompt) in (0..).zip(prompts) {
        engine
            .submit(request, prompt.clone(), greedy(max_tokens))
            .unwrap();
    }
    run(engine).into_values().collect()
}

pub(super) fn resident(decoder: &Decoder) -> Engine<Cpu> {
    Engine::new(Cpu, decoder.clone(), None, EngineConfig::resident(decoder, 1024)).unwrap()
}

#[test]
fn logits_and_tokens_match_transformers() {
    for &name in fixtures::DECODERS {
        let decoder = registry::read_decoder(fixtures::checkpoint(name)).unwrap();
        let mut engine = resident(&decoder);
        let cases = fixtures::cases(name);
        let mut largest: f32 = 0.0;
        for case in &cases {
            let logits = fixtures::score(&mut engine, case);
            let sampled = logits.iter().map(|row| row.iter().step_by(7));
            for (actual, expected) in sampled.zip(&case.sampled_logits) {
                let differences = actual
                    .zip(expected)
                    .map(|(actual, expected)| (actual - expected).abs());
                largest = differences.fold(largest, f32::max);
            }
            let last = logits.last().unwrap().iter().zip(&case.last_logits);
            largest = last
                .map(|(actual, expected)| (actual - expected).abs())
                .fold(largest, f32::max);
        }
        println!("{name}: logits differ by {largest:e} at most");
        assert!(largest < 1e-4, "{name}: logits differ by {largest}");
        let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt.clone()).collect();
        for (answer, case) in generate(&mut engine, &prompts, 64).iter().zip(&cases) {
            assert_eq!(answer, &case.tokens, "{name}");
        }
    }
}

/// A configuration of the engine.
#[derive(Debug, Clone)]
struct Way {
    caching: Caching,
    shares: Shares,
    block_tokens: usize,
    device: BlockCounts,
    resident_layers: usize,
    mini_batches: bool,
    buffer: BlockCounts,
    mini_batch_requests: usize,
    mini_batch_tokens: usize,
    requests: usize,
    roomy: bool,
    /// Whether costs are given, wrong enough that steps change the mixture.
    learns: bool,
}

fn ways() -> impl Strategy<Value = Way> {
    let caching = prop_oneof![
        3 => Just(Caching::Hybrid),
        1 => Just(Caching::Kv),
        1 => Just(Caching::Act),
        1 => Just(Caching::Tokens),
    ];
    let mix = |most: usize| (0..most, 0..most).prop_map(|(act, kv)| BlockCounts { act, kv });
    let shape = (
        caching,
        (0.0..=1.0, 0.0..=1.0, 0.0..=1.0),
        1..9_usize,
        mix(12),
        0..6_usize,
    );
    let batches = (
        prop::bool::weighted(0.8),
        mix(20),
        1..6_usize,
        1..40_usize,
        1..6_usize,
        any::<bool>(),
        any::<bool>(),
    );
    (shape, batches).prop_map(
        |((caching, shares, block_tokens, device, resident_layers), batches)| {
            let (mini_batches, buffer, mini_batch_requests, mini_batch_tokens, requests, roomy, learns) =
                batches;
            Way {
                caching,
                shares: Shares {
                    act: shares.0,
                    act_on_device: shares.1,
                    kv_on_device: shares.2,
                },
                block_tokens,
                device,
                resident_layers,
                mini_batches,
                buffer,
                mini_batch_requests,
                mini_batch_tokens,
                requests,
                roomy,
                learns,
            }
        },
    )
}

fn engine_of(decoder: &Decoder, way: &Way) -> Engine<Cpu> {
    // Either enough blocks for a single request, so that requests are preempted, or plenty.
    let blocks = 40_usize.div_ceil(way.block_tokens) + if way.roomy { 200 } else { 2 };
    let config = EngineConfig {
        caching: way.caching,
        shares: way.shares,
        block_tokens: way.block_tokens,
        capacity: Capacity {
            device: way.device,
            host: BlockCounts {
                act: blocks,
                kv: blocks,
            },
        },
        resident_layers: way.resident_layers,
        buffer: if way.mini_batches {
            way.buffer
        } else {
            BlockCounts { act: 200, kv: 200 }
        },
        mini_batches: way.mini_batches,
        mini_batch_requests: way.mini_batch_requests,
        mini_batch_tokens: way.mini_batch_tokens,
        prefill_tokens: 2 * way.mini_batch_tokens,
        requests: way.requests,
        planned: way.learns.then(|| planned(4, 1e-3, 1e-3)),
        ..EngineConfig::resident(decoder, 0)
    };
    Engine::new(Cpu, decoder.clone(), None, config).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(144))]

    /// Checks that answers do not depend on caching, streaming, packing, preemption and other requests.
    #[test]
    fn every_way_of_running_gives_the_same_tokens(
        way in ways(),
        prompts in prop::collection::vec(prop::collection::vec(0..50_u32, 1..20), 1..7),
        number in 0..17_usize,
        answer in 1..20_usize,
    ) {
        let decoder = family(number, 3, 5);
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| generate(&mut resident(&decoder), std::slice::from_ref(prompt), answer).remove(0))
            .collect();
        let together = generate(&mut engine_of(&decoder, &way), &prompts, answer);
        prop_assert_eq!(alone, together);
    }

    /// Checks that a cancelled request gets its last event in the next step and leaves nothing behind.
    #[test]
    fn cancelled_requests_end_within_a_step(
        way in ways(),
        cancelled in prop::collection::vec((0..6_u64, 0..12_usize), 0..6),
        encoder in any::<bool>(),
    ) {
        let decoder = family(if encoder { 4 } else { 0 }, 3, 6);
        let mut engine = engine_of(&decoder, &way);
        for request in 0..6_u64 {
            engine.submit(request, vec![3; 1 + request as usize * 3], greedy(12)).unwrap();
        }
        let mut ended = BTreeSet::new();
        for step in 0.. {
            if engine.is_idle() { break; }
            prop_assert!(step < 2_000);
            let due: Vec<u64> = cancelled.iter().filter(|(_, at)| *at == step).map(|(request, _)| *request).collect();
            let here: BTreeSet<u64> = due.into_iter().filter(|request| engine.cancel(*request)).collect();
            for event in engine.step().unwrap().events {
                prop_assert!(!ended.contains(&event.request), "an event after the last");
                prop_assert_eq!(here.contains(&event.request), event.finish_reason == Some(FinishReason::Cancelled));
                if event.finish_reason.is_some() { ended.insert(event.request); }
            }
            prop_assert!(here.is_subset(&ended));
        }
        prop_assert_eq!(ended.len(), 6);
        let (free, all) = engine.blocks();
        prop_assert_eq!(free, all);
    }
}

#[test]
fn invalid_requests_are_rejected_and_leave_nothing() {
    let decoder = Decoder::random(model_config(false, false, 4), 2, 1);
    let mut engine = Engine::new(Cpu, decoder.clone(), None, EngineConfig::resident(&decoder, 32)).unwrap();
    let mut rejected = |prompt: Vec<u32>, sampling: Sampling| engine.submit(1, prompt, sampling).unwrap_err();
    assert!(matches!(
        rejected(vec![1; 60], greedy(10)),
        EngineError::Refused(Refused::Context { context: 64, .. })
    ));
    assert!(matches!(
        rejected(vec![1; 30], greedy(10)),
        EngineError::Refused(Refused::Cache {
            blocks: 3,
            capacity: 2,
            ..
        })
    ));
    assert!(matches!(
        rejected(vec![], greedy(1)),
        EngineError::Refused(Refused::Empty)
    ));
    assert_eq!(
        rejected(vec![1, 50], greedy(1)).to_string(),
        "token 50 is not in this model's vocabulary, 0..=49"
    );
    let biased = Sampling {
        logit_bias: vec![(49, 1.0), (50, 1.0)],
        ..greedy(1)
    };
    assert_eq!(
        rejected(vec![1], biased).to_string(),
        "token 50 is not in this model's vocabulary, 0..=49"
    );
    assert!(matches!(rejected(vec![1], greedy(0)), EngineError::Sampling(_)));
    let stopping = Sampling {
        stop: vec!["END".into()],
        ..greedy(1)
    };
    assert!(matches!(rejected(vec![1], stopping), EngineError::NoTokenizer));
    assert!(engine.is_idle() && !engine.cancel(1));
    assert_eq!(engine.step().unwrap(), StepReport::default());
    assert!(engine.score(&[1; 65]).is_err());
}

#[test]
fn a_budget_that_is_too_small_is_rejected_with_the_numbers() {
    let decoder = Decoder::random(model_config(false, false, 4), 4, 1);
    let config = |resident_layers, device_bytes| EngineConfig {
        resident_layers,
        device_bytes: Some(device_bytes),
        ..EngineConfig::resident(&decoder, 32)
    };
    let build = |config| Engine::new(Cpu, decoder.clone(), None, config);
    let whole = build(config(4, u64::MAX)).unwrap().device_memory();
    assert!(build(config(4, whole.total())).is_ok());
    let rejected = build(config(4, whole.total() - 1)).err().unwrap();
    assert_eq!(
        (rejected.required, rejected.budget),
        (whole.total(), whole.total() - 1)
    );
    let streamed = build(config(0, whole.total() - 1)).unwrap();
    assert!(streamed.device_memory().total() < whole.total() && streamed.streamed_bytes() > 0);
}

#[test]
fn weights_are_loaded_once_per_step() {
    let decoder = Decoder::random(model_config(false, false, 4), 3, 2);
    let config = EngineConfig {
        caching: Caching::Kv,
        capacity: Capacity {
            device: BlockCounts::default(),
            host: BlockCounts { act: 0, kv: 100 },
        },
        block_tokens: 4,
        resident_layers: 1,
        buffer: BlockCounts { act: 0, kv: 6 },
        ..EngineConfig::resident(&decoder, 0)
    };
    let mut engine = Engine::new(Cpu, decoder, None, config).unwrap();
    for request in 0..4 {
        engine.submit(request, vec![1; 9], greedy(5)).unwrap();
    }
    let first = engine.step().unwrap();
    assert_eq!((first.prefilled, first.traffic.kv), (4, 0));
    let token = engine.model_config().kv_width() as u64 * 4;
    assert_eq!(first.traffic.stored, 3 * 4 * 9 * token);
    let second = engine.step().unwrap();
    assert_eq!((second.prefilled, second.mini_batches), (0, 2));
    assert_eq!(second.traffic.weights, engine.streamed_bytes());
    assert_eq!(second.traffic.kv, 3 * 4 * 9 * token);
    assert_eq!((second.traffic.act, second.traffic.stored), (0, 3 * 4 * token));
}

#[test]
fn answers_end_by_eos_stop_text_and_length() {
    let checkpoint = fixtures::checkpoint("gpt2");
    let tokenizer = detokenizer::tokenizer(checkpoint.tokenizer.as_ref().unwrap()).unwrap();
    let decoder = registry::read_decoder(checkpoint).unwrap();
    let case = fixtures::cases("gpt2").remove(0);
    let answer = tokenizer.decode(&case.tokens, true).unwrap();
    let config = EngineConfig::resident(&decoder, 256);
    let ended = |decoder: &Decoder, sampling: Sampling| {
        let mut engine = Engine::new(Cpu, decoder.clone(), Some(tokenizer.clone()), config.clone()).unwrap();
        engine.submit(7, case.prompt.clone(), sampling).unwrap();
        let (mut text, mut end, mut count) = (String::new(), None, 0);
        while !engine.is_idle() {
            for event in engine.step().unwrap().events {
                text += &event.text;
                end = event.finish_reason;
                count += 1;
            }
        }
        (text, end.unwrap(), count)
    };
    assert_eq!(ended(&decoder, greedy(40)).1, FinishReason::Length);
    let stop = answer.get(4..6).unwrap().to_owned();
    let (text, end, _) = ended(
        &decoder,
        Sampling {
            stop: vec![stop.clone()],
            ..greedy(60)
        },
    );
    assert_eq!(end, FinishReason::Stop);
    assert_eq!(text, answer.split(&stop).next().unwrap());
    let mut ending = decoder.clone();
    ending.model_config.eos_token_ids = vec![case.tokens[5]];
    let first = case
        .tokens
        .iter()
        .position(|token| *token == case.tokens[5])
        .unwrap();
    let sampling = Sampling {
        ignore_eos: false,
        ..greedy(60)
    };
    let (_, end, count) = ended(&ending, sampling);
    assert_eq!((end, count), (FinishReason::Token, first + 1));
}

#[test]
fn samples_depend_on_the_seed_only() {
    let decoder = Decoder::random(model_config(true, true, 2), 2, 9);
    let warm = |seed| Sampling {
        temperature: 3.0,
        seed,
        ..greedy(12)
    };
    let mut alone = resident(&decoder);
    alone.submit(0, vec![5, 6], warm(1)).unwrap();
    let alone = run(&mut alone).remove(&0).unwrap();
    let mut together = resident(&decoder);
    for (request, seed) in [(3, 2), (4, 1), (5, 7)] {
        together.submit(request, vec![5, 6], warm(seed)).unwrap();
    }
    let together = run(&mut together);
    assert_eq!(together[&4], alone);
    assert_ne!(together[&3], alone);
}

#[test]
fn scores_and_steps_keep_streamed_weights_in_order() {
    let decoder = Decoder::random(model_config(false, false, 4), 3, 4);
    let expected = resident(&decoder).score(&[1, 2, 3]).unwrap();
    for resident_layers in 0..4 {
        let config = EngineConfig {
            resident_layers,
            ..EngineConfig::resident(&decoder, 64)
        };
        let mut engine = Engine::new(Cpu, decoder.clone(), None, config).unwrap();
        for _ in 0..3 {
            assert_eq!(engine.score(&[1, 2, 3]).unwrap(), expected);
        }
    }
}

#[test]
fn the_costs_of_a_layer_can_be_measured() {
    let decoder = Decoder::random(model_config(false, false, 4), 2, 3);
    let config = EngineConfig {
        resident_layers: 0,
        link: Some(5e6),
        ..EngineConfig::resident(&decoder, 64)
    };
    let engine = Engine::new(Cpu, decoder, None, config).unwrap();
    let load = Workload {
        requests: 4,
        mini_batch: 2,
        tokens: 256,
    };
    // Other processes may disturb a sample, which gives a typed error, but not every time.
    let measured = (0..50).find_map(|_| engine.measure(&load).ok()).unwrap();
    let block = 16.0 * engine.model_config().kv_width() as f64 * 4.0;
    // A throttled link takes at least its throttled time.
    assert!(measured.costs.load_kv.slope * 5e6 >= 0.9 * block && measured.costs.load_kv.r2 > 0.9);
    assert!(measured.costs.load_weights_s >= engine.streamed_bytes() as f64 / 2.0 / 5e6 * 0.99);
    assert_eq!(measured.mini_batches, 2);
}
