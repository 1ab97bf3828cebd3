//! Tests specific to encoder-decoders. `tests` checks that their tokens do not depend on the configuration.

use std::collections::BTreeMap;

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Refused, Shares};

use super::rejection::{copied, replace};
use super::{family, generate, greedy, resident, run};
use crate::decoder::registry;
use crate::generation::*;

const RELU: usize = 4;

#[test]
fn prompts_that_do_not_fit_are_rejected_with_the_numbers() {
    let decoder = family(RELU, 2, 1);
    let mut engine = Engine::new(Cpu, decoder.clone(), None, EngineConfig::resident(&decoder, 32)).unwrap();
    let mut rejected = |prompt: Vec<u32>, answer| engine.submit(1, prompt, greedy(answer)).unwrap_err();
    assert_eq!(
        rejected(vec![1; 25], 1).to_string(),
        "the prompt has 25 tokens and this model's encoder reads 24 at most; shorten it, or set a larger `max_model_len`"
    );
    assert!(matches!(
        rejected(vec![], 1),
        EngineError::Refused(Refused::Empty)
    ));
    assert!(matches!(
        rejected(vec![50], 1),
        EngineError::Token { token: 50, .. }
    ));
    let cache = Refused::Cache {
        tokens: 33,
        blocks: 3,
        capacity: 2,
    };
    assert!(matches!(rejected(vec![1; 23], 10), EngineError::Refused(rejected) if rejected == cache));
    assert!(engine.score(&[1; 25]).is_err() && engine.score(&[]).is_err());
    assert!(engine.is_idle() && engine.blocks() == (2, 2));
    // Prompt and answer take one entry per token; the answer's start token is cached, its last token is not.
    assert_eq!(generate(&mut engine, &[vec![1; 23]], 9).remove(0).len(), 9);
}

#[test]
fn a_request_holds_blocks_for_prompt_and_answer_until_it_ends() {
    let decoder = family(RELU, 2, 1);
    let mut engine = resident(&decoder);
    engine.submit(0, vec![3; 20], greedy(30)).unwrap();
    for answered in 0..30_usize {
        engine.step().unwrap();
        let (free, all) = engine.blocks();
        let last = answered == 29;
        assert_eq!(all - free, if last { 0 } else { (21 + answered).div_ceil(16) });
    }
    assert!(engine.is_idle());
}

#[test]
fn the_encoder_runs_in_prefill_only() {
    let decoder = family(RELU, 3, 2);
    let streamed = |resident_layers| EngineConfig {
        caching: Caching::Kv,
        capacity: Capacity {
            device: BlockCounts::default(),
            host: BlockCounts { act: 0, kv: 100 },
        },
        block_tokens: 4,
        resident_layers,
        buffer: BlockCounts { act: 0, kv: 100 },
        ..EngineConfig::resident(&decoder, 0)
    };
    let mut engine = Engine::new(Cpu, decoder.clone(), None, streamed(3)).unwrap();
    assert_eq!(
        engine.streamed_bytes(),
        0,
        "the decoder's layers are the last ones"
    );
    let steps = |engine: &mut Engine<Cpu>| {
        engine.submit(0, vec![1; 9], greedy(3)).unwrap();
        [(); 3].map(|()| engine.step().unwrap().traffic)
    };
    let [first, second, third] = steps(&mut engine);
    let encoder = first.weights;
    assert!(encoder > 0);
    assert_eq!((second.weights, third.weights), (0, 0));
    let mut engine = Engine::new(Cpu, decoder.clone(), None, streamed(0)).unwrap();
    let [first, second, third] = steps(&mut engine);
    let decoder_bytes = engine.streamed_bytes();
    // After the last layer, the decoder's first layer is loaded for the next pass.
    assert_eq!(first.weights, encoder + decoder_bytes + decoder_bytes / 3);
    assert_eq!((second.weights, third.weights), (decoder_bytes, decoder_bytes));
    // The prompt's entries are stored once and loaded in every step, like those of the answer.
    let token = engine.model_config().kv_width() as u64 * 4 * 3;
    assert_eq!(
        [first.stored, second.stored, third.stored],
        [10 * token, token, token]
    );
    assert_eq!([first.kv, second.kv, third.kv], [0, 10 * token, 11 * token]);
}

#[test]
fn a_preempted_prompt_is_read_again() {
    let decoder = family(RELU, 2, 3);
    for caching in [Caching::Kv, Caching::Act, Caching::Hybrid] {
        let config = EngineConfig {
            caching,
            shares: Shares::device_first(0.5),
            block_tokens: 2,
            capacity: Capacity {
                device: BlockCounts::default(),
                host: BlockCounts { act: 12, kv: 12 },
            },
            ..EngineConfig::resident(&decoder, 0)
        };
        let mut engine = Engine::new(Cpu, decoder.clone(), None, config).unwrap();
        let prompts: Vec<Vec<u32>> = (1..6).map(|token| vec![token; 5]).collect();
        for (request, prompt) in (0..).zip(&prompts) {
            engine.submit(request, prompt.clone(), greedy(12)).unwrap();
        }
        let (mut preempted, mut answers) = (0, BTreeMap::<u64, Vec<u32>>::new());
        while !engine.is_idle() {
            let report = engine.step().unwrap();
            preempted += report.preempted;
            for event in report.events {
                let answer = answers.entry(event.request).or_default();
                answer.extend(event.sampled.map(|sampled| sampled.token));
            }
        }
        assert!(preempted > 0);
        let (free, all) = engine.blocks();
        assert_eq!(free, all);
        let alone = generate(&mut resident(&decoder), &prompts, 12);
        assert_eq!(answers.into_values().collect::<Vec<_>>(), alone);
    }
}

#[test]
fn device_memory_includes_encoder_and_decoder() {
    let decoder = family(RELU, 3, 4);
    let mut plain = decoder.clone();
    plain.encoder = None;
    let mut uncrossed = plain.clone();
    for layer in &mut uncrossed.layers {
        layer.cross = None;
    }
    let build = |decoder: &Decoder, config| Engine::new(Cpu, decoder.clone(), None, config);
    let total = |decoder: &Decoder| {
        let config = EngineConfig::resident(decoder, 32);
        build(decoder, config).unwrap().device_memory().total()
    };
    let whole = total(&decoder);
    assert!(whole > total(&plain) && total(&plain) > total(&uncrossed));
    let bounded = |resident_layers, device_bytes| EngineConfig {
        resident_layers,
        device_bytes: Some(device_bytes),
        ..EngineConfig::resident(&decoder, 32)
    };
    assert!(build(&decoder, bounded(5, whole)).is_ok());
    let rejected = build(&decoder, bounded(5, whole - 1)).err().unwrap();
    assert_eq!((rejected.required, rejected.budget), (whole, whole - 1));
    let fewer = build(&decoder, bounded(1, whole - 1)).unwrap();
    assert!(fewer.device_memory().total() < whole);
    assert_eq!((fewer.layers(), decoder.depth()), (3, 5));
}

#[test]
fn answers_are_scored_after_a_prompt() {
    let mut engine = resident(&family(1, 2, 5));
    let text = engine.score(&[7, 8, 9, 10]).unwrap();
    assert_eq!(engine.score_answer(&[7, 8], &[9, 10]).unwrap(), text[1..]);
    assert!(engine.score_answer(&[], &[9]).is_err());
    let decoder = family(RELU, 2, 5);
    let mut engine = resident(&decoder);
    let rows = engine.score_answer(&[7, 8], &[9, 10]).unwrap();
    assert_eq!((rows.len(), &engine.score(&[7, 8]).unwrap()[..]), (3, &rows[..1]));
    assert_ne!(engine.score_answer(&[8, 7], &[9, 10]).unwrap(), rows);
    // Scores use the same logits as generation.
    engine.submit(0, vec![7, 8], greedy(6)).unwrap();
    let answer = run(&mut engine).remove(&0).unwrap();
    let rows = engine.score_answer(&[7, 8], &answer).unwrap();
    for (row, token) in rows.iter().zip(&answer) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!(row[*token as usize] >= largest);
    }
}

#[test]
fn the_input_of_the_head_is_scaled_as_the_configuration_states() {
    let read = |name: &str, from: &str, to: &str| {
        let dir = copied(name);
        replace(&dir, "config.json", from, to);
        registry::read_decoder(crate::Checkpoint::open(dir.path()).unwrap()).unwrap()
    };
    let published = registry::read_decoder(fixtures::checkpoint("t5-v1_1")).unwrap();
    let newer = "\"scale_decoder_outputs\": false, \"tie_word_embeddings\": true";
    assert!(read("t5-v1_1", "\"tie_word_embeddings\": false", newer) == published);
    let original = registry::read_decoder(fixtures::checkpoint("t5")).unwrap();
    assert!(read("t5", "\"scale_decoder_outputs\": true,", "") == original);
    let unscaled = read(
        "t5",
        "\"scale_decoder_outputs\": true,",
        "\"scale_decoder_outputs\": false,",
    );
    assert_eq!(original.head.weight, unscaled.head.weight);
    let gammas = original.final_norm.gamma.iter().zip(&unscaled.final_norm.gamma);
    for (scaled, unscaled) in gammas {
        assert!((scaled * 24.0_f32.sqrt() - unscaled).abs() < 1e-5);
    }
}

#[test]
fn costs_with_cross_attention_can_be_measured() {
    let decoder = family(RELU, 2, 3);
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
    let measured = (0..50).find_map(|_| engine.measure(&load).ok()).unwrap();
    // Weights of the decoder's layers, which every step streams.
    assert!(measured.costs.load_weights_s >= engine.streamed_bytes() as f64 / 2.0 / 5e6 * 0.99);
}
