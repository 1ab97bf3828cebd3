//! Times decoding steps of a GPT-2 with 124 million random weights; used by `scripts/decode-torch.py`, or alone:
//! `echo '{"batch": 1, "prompt": 32, "tokens": 64}' | cargo bench -p kaskade-models --bench decode`.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::io::BufRead;

use kaskade_models::generation::{Cpu, Decoder, Engine, EngineConfig, ModelConfig, Sampling};
use kaskade_models::ops::{Activation, Heads};
use serde::Deserialize;

#[derive(Deserialize)]
struct Question {
    batch: u64,
    prompt: usize,
    tokens: usize,
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
    let decoder = Decoder::random(model_config, 12, 1);
    let config = EngineConfig::resident(&decoder, 16 * 1024);
    let mut engine = Engine::new(Cpu, decoder, None, config)?;
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let step_s = measure(&mut engine, &question)?;
        println!("{}", serde_json::json!({ "step_s": step_s }));
    }
    Ok(())
}

/// Seconds per step, without the prompt.
fn measure(engine: &mut Engine<Cpu>, question: &Question) -> Result<f64, Box<dyn Error>> {
    for request in 0..question.batch {
        let prompt = (0..question.prompt as u32).map(|token| token * 7 + request as u32);
        let sampling = Sampling {
            max_tokens: question.tokens + 1,
            ..Sampling::default()
        };
        engine.submit(request, prompt.collect(), sampling)?;
    }
    let (mut seconds, mut steps) = (0.0, 0);
    while !engine.is_idle() {
        let report = engine.step()?;
        if report.prefilled == 0 {
            seconds += report.wall_s;
            steps += 1;
        }
    }
    Ok(seconds / f64::from(steps.max(1)))
}
