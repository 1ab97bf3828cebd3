//! Tests of recurrent states in the engine: lifetime, memory, and independence of answers from the configuration.

use super::{family, generate, greedy, resident, run};
use crate::generation::*;

/// Number of a family with recurrent layers.
const RECURRENT: usize = 13;

fn prompts() -> Vec<Vec<u32>> {
    vec![vec![3, 1, 4, 1, 5, 9, 2, 6], vec![7], vec![2, 7, 1, 8, 2]]
}

#[test]
fn lost_states_are_computed_again() {
    let decoder = family(RECURRENT, 3, 5);
    let expected = generate(&mut resident(&decoder), &prompts(), 12);
    let mut engine = resident(&decoder);
    for (request, prompt) in (0..).zip(prompts()) {
        engine.submit(request, prompt, greedy(12)).unwrap();
    }
    let mut answers = vec![Vec::new(); 3];
    for step in 0..12 {
        // Simulates the state after a failed step, for one request or for all.
        for (request, sequence) in &mut engine.sequences {
            if step == 7 || (step == 4 && *request == 1) {
                assert!(sequence.state.take().is_some());
            }
        }
        for event in engine.step().unwrap().events {
            let answer = &mut answers[usize::try_from(event.request).unwrap()];
            answer.extend(event.sampled.map(|sampled| sampled.token));
        }
    }
    assert!(engine.is_idle());
    assert_eq!(answers, expected);
}

#[test]
fn states_are_kept_while_a_request_runs_only() {
    let decoder = family(RECURRENT, 3, 5);
    let mut engine = resident(&decoder);
    for (request, prompt) in (0..).zip(prompts()) {
        engine.submit(request, prompt, greedy(4)).unwrap();
    }
    let held = |engine: &Engine<Cpu>| {
        engine
            .sequences
            .values()
            .filter(|one| one.state.is_some())
            .count()
    };
    assert_eq!(held(&engine), 0);
    engine.step().unwrap();
    assert_eq!(held(&engine), 3);
    engine.cancel(1);
    engine.step().unwrap();
    assert_eq!(held(&engine), 2);
    run(&mut engine);
    assert_eq!(held(&engine), 0);
}

/// Checks that the cache of tokens keeps no states.
#[test]
fn without_a_cache_there_are_no_states() {
    let decoder = family(RECURRENT, 3, 5);
    let config = EngineConfig {
        caching: Caching::Tokens,
        ..EngineConfig::resident(&decoder, 1024)
    };
    let mut engine = Engine::new(Cpu, decoder.clone(), None, config).unwrap();
    engine.submit(0, vec![1, 2, 3], greedy(3)).unwrap();
    engine.step().unwrap();
    assert!(engine.sequences.values().all(|one| one.state.is_none()));
}

#[test]
fn layers_without_attention_have_no_blocks() {
    let decoder = family(RECURRENT, 3, 5);
    let engine = resident(&decoder);
    let block = config::block_bytes(
        &decoder.model_config,
        1,
        16,
        kaskade_policy::hybrid_cache::Kind::Kv,
    );
    assert_eq!(decoder.attention_layers(), 1);
    assert_eq!(engine.device_memory().cache, 64 * block);
    assert_eq!(decoder.state_bytes(), 2 * 2 * 20 * 4);
}

/// Checks that a prompt in one step and its tokens one by one give the same logits.
#[test]
fn prompts_and_single_tokens_advance_states_alike() {
    let decoder = family(RECURRENT, 3, 5);
    let mut engine = resident(&decoder);
    let prompt: Vec<u32> = (0..20).map(|token| token * 7 % 50).collect();
    let answer = generate(&mut engine, std::slice::from_ref(&prompt), 20).remove(0);
    let text: Vec<u32> = prompt.iter().chain(&answer).copied().collect();
    let logits = engine.score(&text).unwrap();
    for (row, token) in logits.iter().skip(prompt.len() - 1).zip(&answer) {
        assert_eq!(sampling::greedy(row).map(|sampled| sampled.token), Some(*token));
    }
}
