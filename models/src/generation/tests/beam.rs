//! Beam search of the engine.

use serde::Deserialize;

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Shares};

use super::{family, greedy, resident, run};
use crate::checkpoint::EarlyStopping;
use crate::decoder::registry;
use crate::decoder::weights::Decoder;
use crate::generation::sampling::beam_options::BeamOptions;
use crate::generation::{Caching, Engine, EngineConfig, Event, FinishReason, Sampling, fixtures};
use crate::ops::cpu::Cpu;

/// An answer of transformers, from `models/fixtures/make_beam_fixtures.py`.
#[derive(Deserialize)]
struct Case {
    checkpoint: String,
    prompt: Vec<u32>,
    ends: Vec<u32>,
    search: Search,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Search {
    num_beams: usize,
    length_penalty: Option<f32>,
    early_stopping: Option<EarlyStopping>,
    repetition_penalty: Option<f32>,
    no_repeat_ngram_size: Option<usize>,
}

impl Case {
    fn all() -> Vec<Self> {
        let json = std::fs::read(fixtures::folder("beam-search.json")).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            max_tokens: 14,
            repetition_penalty: self.search.repetition_penalty.unwrap_or(1.0),
            beam: BeamOptions {
                beams: self.search.num_beams,
                length_penalty: self.search.length_penalty.unwrap_or(1.0),
                early_stopping: self.search.early_stopping.unwrap_or_default(),
            },
            ..Sampling::default()
        }
    }

    fn decoder(&self) -> Decoder {
        let mut decoder = registry::read_decoder(fixtures::checkpoint(&self.checkpoint)).unwrap();
        decoder.model_config.eos_token_ids.clone_from(&self.ends);
        decoder.model_config.rules = crate::checkpoint::TokenRules {
            distinct_ngram: self.search.no_repeat_ngram_size.unwrap_or(0),
            ..Default::default()
        };
        decoder
    }
}

#[test]
fn answers_are_those_of_transformers() {
    for case in Case::all() {
        let mut engine = resident(&case.decoder());
        engine.submit(0, case.prompt.clone(), case.sampling()).unwrap();
        let answer = run(&mut engine).remove(&0).unwrap();
        assert_eq!(
            answer, case.tokens,
            "{}, {} beams",
            case.checkpoint, case.search.num_beams
        );
    }
}

fn beams(beams: usize, max_tokens: usize) -> Sampling {
    Sampling {
        beam: BeamOptions {
            beams,
            ..BeamOptions::default()
        },
        ..greedy(max_tokens)
    }
}

/// Creates an engine whose cache has this many blocks of two tokens, of each kind and in each location.
fn small(decoder: &Decoder, caching: Caching, device: usize, host: usize) -> Engine<Cpu> {
    let config = EngineConfig {
        caching,
        shares: Shares::device_first(0.5),
        block_tokens: 2,
        capacity: Capacity {
            device: BlockCounts {
                act: device,
                kv: device,
            },
            host: BlockCounts { act: host, kv: host },
        },
        ..EngineConfig::resident(decoder, 0)
    };
    Engine::new(Cpu, decoder.clone(), None, config).unwrap()
}

#[test]
fn requests_that_share_a_small_cache_get_the_answers_that_they_get_alone() {
    // Decoders, one of them with a window, encoder-decoders, and recurrent layers.
    for number in [0, 7, 4, 12, 13] {
        let decoder = family(number, 2, 3);
        let prompts: Vec<Vec<u32>> = (1..6).map(|token| vec![token; 2 + token as usize]).collect();
        let sampling = |request: usize| beams(1 + request % 3, 9);
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .enumerate()
            .map(|(request, prompt)| {
                let mut engine = resident(&decoder);
                engine.submit(0, prompt.clone(), sampling(request)).unwrap();
                run(&mut engine).remove(&0).unwrap()
            })
            .collect();
        let mut preempted = 0;
        for caching in [Caching::Kv, Caching::Act, Caching::Hybrid, Caching::Tokens] {
            for (device, host) in [(0, 14), (7, 7), (14, 0)] {
                let mut engine = small(&decoder, caching, device, host);
                for (request, prompt) in prompts.iter().enumerate() {
                    engine
                        .submit(request as u64, prompt.clone(), sampling(request))
                        .unwrap();
                }
                let mut answers = vec![Vec::new(); prompts.len()];
                while !engine.is_idle() {
                    let report = engine.step().unwrap();
                    preempted += report.preempted;
                    for event in report.events {
                        answers[event.request as usize].extend(event.sampled.map(|sampled| sampled.token));
                    }
                }
                assert_eq!(
                    answers, alone,
                    "family {number}, {caching:?}, {device} and {host} blocks"
                );
                let (free, all) = engine.blocks();
                assert_eq!(free, all, "blocks leak");
                assert!(engine.searches.is_empty() && engine.sequences.is_empty());
            }
        }
        assert!(preempted > 0, "family {number}");
    }
}

#[test]
fn a_cancelled_search_leaves_nothing() {
    let mut engine = resident(&family(0, 2, 3));
    engine.submit(7, vec![1, 2, 3], beams(4, 20)).unwrap();
    for _ in 0..4 {
        // No token is certain before the end.
        assert_eq!(engine.step().unwrap().events, [Event::without_token(7)]);
    }
    assert_eq!(engine.sequences.len(), 4);
    assert!(engine.cancel(7));
    let events = engine.step().unwrap().events;
    assert_eq!(events[0].finish_reason, Some(FinishReason::Cancelled));
    let (free, all) = engine.blocks();
    assert_eq!((free, engine.sequences.len(), engine.searches.len()), (all, 0, 0));
}

#[test]
fn what_a_failed_fork_leaves_is_dropped_when_the_search_begins_again() {
    let decoder = family(0, 2, 3);
    let mut engine = resident(&decoder);
    engine.submit(7, vec![1, 2, 3], beams(4, 20)).unwrap();
    for _ in 0..4 {
        engine.step().unwrap();
    }
    // Simulates a fork by a failed step, which the search does not run yet.
    let fork = engine.sequences[&7].fork();
    let id = engine.next_beam;
    engine.sequences.insert(id, fork);
    engine.scheduler.preempt(7, &mut engine.space);
    engine.preempted(7);
    let answer = run(&mut engine);
    let mut other = resident(&decoder);
    other.submit(7, vec![1, 2, 3], beams(4, 20)).unwrap();
    assert_eq!(answer, run(&mut other));
    let (free, all) = engine.blocks();
    assert!(engine.is_idle() && free == all);
}

#[test]
fn searches_that_cannot_run_are_refused() {
    let decoder = family(0, 2, 3);
    let mut engine = resident(&decoder);
    let refused =
        |engine: &mut Engine<Cpu>, sampling| engine.submit(0, vec![1, 2], sampling).unwrap_err().to_string();
    let warm = Sampling {
        temperature: 0.5,
        ..beams(2, 4)
    };
    assert!(refused(&mut engine, warm).contains("a temperature above 0"));
    assert!(refused(&mut engine, beams(0, 4)).contains("num_beams 0"));
    let config = EngineConfig {
        requests: 3,
        ..EngineConfig::resident(&decoder, 64)
    };
    let mut engine = Engine::new(Cpu, decoder.clone(), None, config).unwrap();
    assert!(
        refused(&mut engine, beams(4, 4)).contains("4 beams takes the place of as many requests, and 3 run")
    );
    let mut engine = small(&decoder, Caching::Kv, 0, 8);
    assert!(refused(&mut engine, beams(4, 10)).contains("cache blocks"));
    engine.submit(0, vec![1, 2], beams(1, 10)).unwrap();
}
