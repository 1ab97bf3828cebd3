//! Measures prefill and decode steps of a GPT-2 with 124 million random weights; used by `scripts/bench-models.py` and
//! `scripts/decode-torch.py`, or alone, with a weight type (`f32` by default):
//! `echo '{"batch": 1, "prompt": 32, "tokens": 64}' | cargo bench -p kaskade-models --bench decode -- q8_0`.
//! Also prints the bytes of weights that a step reads. For comparison, `{"read": true}` measures the read bandwidth of
//! memory with all threads.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::hint::black_box;
use std::io::BufRead;
use std::time::Instant;

use kaskade_models::generation::{Cpu, Decoder, Engine, EngineConfig, ModelConfig, Sampling};
use kaskade_models::ops::{Activation, Heads};
use kaskade_models::{Cores, WeightType};
use rayon::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default)]
struct Question {
    batch: u64,
    prompt: usize,
    tokens: usize,
    /// Measures memory bandwidth instead.
    read: bool,
}

impl Default for Question {
    fn default() -> Self {
        Self {
            batch: 1,
            prompt: 32,
            tokens: 64,
            read: false,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let model_config = ModelConfig {
        width: 768,
        heads: Heads {
            queries: 12,
            keys: 12,
            head_dim: 64,
            scale: 0.125,
        },
        intermediate_size: 3072,
        vocabulary: 50_257,
        context: 1024,
        epsilon: 1e-5,
        activation: Activation::GeluTanh,
        ..ModelConfig::default()
    };
    let mut kind = std::env::args().filter_map(|argument| argument.parse::<WeightType>().ok());
    let decoder = Decoder::random(model_config, 12, 1).stored_as(kind.next_back().unwrap_or_default());
    let config = EngineConfig::resident(&decoder, 16 * 1024);
    let mut engine = Engine::new(Cpu, decoder, None, config)?;
    let bytes = engine.device_memory().resident;
    let cores = Cores::start(None)?;
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        if question.read {
            println!("{}", serde_json::json!({ "bytes_per_s": read_speed() }));
            continue;
        }
        // Runs on the thread pool, as a service does; otherwise each operation would wake up its threads.
        let measured = cores.compute(|| measure(&mut engine, &question).map_err(|error| error.to_string()));
        let (step_s, prompt_s) = measured?;
        println!(
            "{}",
            serde_json::json!({ "step_s": step_s, "prompt_s": prompt_s, "step_bytes": bytes })
        );
    }
    Ok(())
}

/// Returns the memory bandwidth of all threads together, bytes per second: the best of five sums over 0.5 GB.
fn read_speed() -> f64 {
    let words = vec![1_u64; 1 << 26];
    let part = words.len() / rayon::current_num_threads().max(1) / 8;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let began = Instant::now();
        let sum: u64 = words
            .par_chunks(part)
            .map(|part| part.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)))
            .sum();
        best = best.min(began.elapsed().as_secs_f64());
        black_box(sum);
    }
    size_of_val(words.as_slice()) as f64 / best
}

/// Returns the seconds per decode step, and those of prefill.
fn measure(engine: &mut Engine<Cpu>, question: &Question) -> Result<(f64, f64), Box<dyn Error>> {
    for request in 0..question.batch {
        let prompt = (0..question.prompt as u32).map(|token| (token * 7 + request as u32) % 50_257);
        let sampling = Sampling {
            max_tokens: question.tokens + 1,
            ..Sampling::default()
        };
        engine.submit(request, prompt.collect(), sampling)?;
    }
    let (mut seconds, mut steps, mut prompts) = (0.0, 0, 0.0);
    while !engine.is_idle() {
        let report = engine.step()?;
        if report.prefilled == 0 {
            seconds += report.wall_s;
            steps += 1;
        } else {
            prompts += report.wall_s;
        }
    }
    Ok((seconds / f64::from(steps.max(1)), prompts))
}
