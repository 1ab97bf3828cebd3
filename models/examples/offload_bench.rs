//! The hybrid cache beside its two ends over a throttled link: `cargo run --release -p kaskade-models --example offload_bench`.
//!
//! A model of an OPT's shape with random weights decodes for a batch of long contexts, its weights streamed and most of its cache in
//! the host's memory. At every link speed the hybrid's mixture is planned anew from costs sampled there, and then the engines take
//! steps in turn, so that the noise of a shared machine falls on all alike. Medians of the steps are printed, how they compare,
//! and how near the policy's predictions were.

#![allow(clippy::print_stdout, reason = "a program that prints figures")]

use std::error::Error;

use clap::Parser;
use kaskade_models::engine::config::{block_bytes, split_for};
use kaskade_models::engine::math::{Activation, Heads};
use kaskade_models::engine::{
    Caching, Decoder, Engine, EngineConfig, Host, Load, Measured, Report, Sampling, Spec,
};
use kaskade_plans::hybrid_cache::{Kind, Memory, Mix, Split};

#[derive(Parser)]
struct Arguments {
    /// Width of the model; a head has 64 of it.
    #[arg(long, default_value_t = 768)]
    width: usize,
    /// Its layers.
    #[arg(long, default_value_t = 6)]
    layers: usize,
    /// Requests that decode together.
    #[arg(long, default_value_t = 48)]
    requests: usize,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 352)]
    prompt: usize,
    /// Requests of a mini-batch.
    #[arg(long, default_value_t = 12)]
    mini_batch: usize,
    /// Device memory for blocks, as a share of what all keys and values take.
    #[arg(long, default_value_t = 0.45)]
    device: f64,
    /// Whether weights stay on the device.
    #[arg(long)]
    resident: bool,
    /// Steps of each engine at each speed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Link speeds, MB/s; if absent, multiples of the speed at which loading all keys and values takes as long as computing them.
    #[arg(long, value_delimiter = ',')]
    link: Vec<f64>,
}

/// Tokens that a step adds, over all speeds at most.
const GROWTH: usize = 128;
const BLOCK: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let spec = spec(&arguments);
    let decoder = Decoder::random(spec.clone(), arguments.layers, 1);
    let bytes = |kind| block_bytes(&spec, arguments.layers, BLOCK, kind);
    let blocks = arguments.requests * (arguments.prompt + GROWTH).div_ceil(BLOCK);
    let memory = Memory {
        host_bytes: u64::MAX / 2,
        weight_bytes: 0,
        device_bytes: ((arguments.requests * arguments.prompt / BLOCK) as f64
            * bytes(Kind::Kv) as f64
            * arguments.device) as u64,
        kv_block_bytes: bytes(Kind::Kv),
        act_block_bytes: bytes(Kind::Act),
    };
    let bench = Bench {
        arguments,
        decoder,
        memory,
        blocks,
    };
    bench.run()
}

fn spec(arguments: &Arguments) -> Spec {
    let heads = arguments.width / 64;
    Spec {
        width: arguments.width,
        heads: Heads {
            queries: heads,
            keys: heads,
            extent: 64,
            scale: 0.125,
        },
        inner: 4 * arguments.width,
        vocabulary: 8192,
        context: 2048,
        epsilon: 1e-5,
        activation: Activation::Relu,
        gated: false,
        parallel: false,
        rotary: None,
        ends: Vec::new(),
    }
}

struct Bench {
    arguments: Arguments,
    decoder: Decoder,
    memory: Memory,
    /// Blocks that there must be for all requests.
    blocks: usize,
}

/// What an engine was measured at, at one speed.
struct Figures {
    wall_s: f64,
    busy: f64,
    predicted_s: f64,
    bytes_off: f64,
}

impl Bench {
    fn run(&self) -> Result<(), Box<dyn Error>> {
        let idle = self.engine(Caching::Kv, None)?;
        let mut tokens = self.arguments.prompt;
        let free = idle.measure(&self.load(tokens))?;
        println!(
            "T_kv_gen R^2 {:.4}; forward {:.1} ms + {:.1} us per block",
            free.costs.kv_gen.r2,
            free.costs.forward.intercept * 1e3,
            free.costs.forward.slope * 1e6
        );
        let now = self.arguments.requests * self.arguments.prompt / BLOCK;
        let kv = now as f64 * self.memory.kv_block_bytes as f64 / self.arguments.layers as f64;
        let level = kv / free.costs.kv_gen.at(now as f64);
        let speeds = if self.arguments.link.is_empty() {
            [0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 2.0, 8.0]
                .iter()
                .map(|factor| factor * level)
                .collect()
        } else {
            self.arguments
                .link
                .iter()
                .map(|speed| speed * 1e6)
                .collect::<Vec<_>>()
        };
        let mut ends = [
            self.filled(Caching::Kv, &free, tokens)?,
            self.filled(Caching::Act, &free, tokens)?,
        ];
        println!(
            "| link | ACT share | hybrid | KV only | ACT only | over KV | over ACT | over the better | predicted / measured | bytes | computing: hybrid, KV, ACT |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for speed in speeds {
            idle.throttle(Some(speed));
            let measured = idle.measure(&self.load(tokens))?;
            // Its contexts are as long as those of the others have become.
            let mut hybrid = self.filled(Caching::Hybrid, &measured, tokens)?;
            self.compare(speed, &measured, &mut hybrid, &mut ends, tokens)?;
            tokens += self.arguments.rounds + 1;
        }
        Ok(())
    }

    fn load(&self, tokens: usize) -> Load {
        Load {
            requests: self.arguments.requests,
            mini_batch: self.arguments.mini_batch,
            tokens,
        }
    }

    fn compare(
        &self,
        speed: f64,
        measured: &Measured,
        hybrid: &mut Engine<Host>,
        ends: &mut [Engine<Host>; 2],
        tokens: usize,
    ) -> Result<(), Box<dyn Error>> {
        let [kv, act] = ends;
        let mut steps: [Vec<Report>; 3] = Default::default();
        let share = hybrid.config().shares.act;
        let engines = [hybrid, kv, act];
        for engine in &engines {
            engine.throttle(Some(speed));
        }
        let weights = engines
            .iter()
            .map(|engine| engine.streamed_bytes())
            .max()
            .unwrap_or_default();
        let mut engines = engines;
        // The first step loads the first layer's weights without anything to hide it behind.
        for round in 0..=self.arguments.rounds {
            for (engine, steps) in engines.iter_mut().zip(&mut steps) {
                let report = engine.step()?;
                if round > 0 {
                    steps.push(report);
                }
            }
        }
        let kinds = [Caching::Hybrid, Caching::Kv, Caching::Act];
        // In the middle of the steps that count; the token that each computes is not in the cache.
        let tokens = tokens + self.arguments.rounds / 2 + 1;
        let figures = kinds.iter().zip(&steps).map(|(caching, steps)| {
            let split = self.split(*caching, measured, tokens)?;
            self.figures(&split, weights, measured, steps)
        });
        let figures = figures.collect::<Option<Vec<_>>>().ok_or("no mixture fits")?;
        let [hybrid, kv, act] = figures.as_slice() else {
            return Err("three engines were measured".into());
        };
        let worst = |of: fn(&Figures) -> f64| figures.iter().map(of).fold(0.0, f64::max);
        println!(
            "| {:.0} MB/s | {:.2} | {:.2} s | {:.2} s | {:.2} s | {:.2}x | {:.2}x | {:.2}x | {:.2}, {:.2}, {:.2} | {:.1} % off | {:.0}, {:.0}, {:.0} % |",
            speed / 1e6,
            share,
            hybrid.wall_s,
            kv.wall_s,
            act.wall_s,
            kv.wall_s / hybrid.wall_s,
            act.wall_s / hybrid.wall_s,
            kv.wall_s.min(act.wall_s) / hybrid.wall_s,
            hybrid.predicted_s / hybrid.wall_s,
            kv.predicted_s / kv.wall_s,
            act.predicted_s / act.wall_s,
            worst(|figures| figures.bytes_off) * 100.0,
            hybrid.busy * 100.0,
            kv.busy * 100.0,
            act.busy * 100.0,
        );
        Ok(())
    }

    fn figures(&self, split: &Split, weights: u64, measured: &Measured, steps: &[Report]) -> Option<Figures> {
        let median = |of: &dyn Fn(&Report) -> f64| {
            let mut values: Vec<f64> = steps.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let (kv, act) = (
            self.memory.kv_block_bytes as f64,
            self.memory.act_block_bytes as f64,
        );
        // A streamed model once, and the host's blocks.
        let predicted = weights as f64 + split.host.kv as f64 * kv + split.host.act as f64 * act;
        let carried = median(&|report| report.traffic.loaded() as f64)?;
        let wall_s = median(&|report| report.wall_s)?;
        Some(Figures {
            wall_s,
            busy: median(&|report| report.compute_s / report.wall_s)?,
            predicted_s: measured.step_s(split, self.arguments.layers),
            bytes_off: (predicted / carried - 1.0).abs(),
        })
    }

    /// The split for contexts of so many tokens.
    fn split(&self, caching: Caching, measured: &Measured, tokens: usize) -> Option<Split> {
        let in_use = (self.arguments.requests * tokens).div_ceil(BLOCK);
        split_for(caching, in_use, &self.memory, &measured.costs)
    }

    fn engine(
        &self,
        caching: Caching,
        plan: Option<(&Measured, usize)>,
    ) -> Result<Engine<Host>, Box<dyn Error>> {
        let bound = self.arguments.mini_batch * (self.arguments.prompt + GROWTH).div_ceil(BLOCK);
        let mut config = EngineConfig {
            caching,
            block_tokens: BLOCK,
            resident_layers: if self.arguments.resident {
                self.arguments.layers
            } else {
                0
            },
            buffer: Mix {
                act: bound,
                kv: bound,
            },
            mini_batch_requests: self.arguments.mini_batch,
            prefill_tokens: usize::MAX,
            requests: self.arguments.requests,
            costs: plan.map(|(measured, _)| measured.costs),
            ..EngineConfig::resident(&self.decoder, 0)
        };
        if let Some((measured, tokens)) = plan {
            let split = self.split(caching, measured, tokens).ok_or("no mixture fits")?;
            config.adopt(&split, self.blocks);
        }
        Ok(Engine::new(Host, self.decoder.clone(), None, config)?)
    }

    /// An engine whose requests have their prompts behind them.
    fn filled(
        &self,
        caching: Caching,
        measured: &Measured,
        tokens: usize,
    ) -> Result<Engine<Host>, Box<dyn Error>> {
        let mut engine = self.engine(caching, Some((measured, tokens)))?;
        for request in 0..self.arguments.requests as u64 {
            let prompt = (0..tokens as u32).map(|token| (token * 31 + request as u32) % 8192);
            let sampling = Sampling {
                max_tokens: GROWTH,
                ..Sampling::default()
            };
            engine.submit(request, prompt.collect(), sampling)?;
        }
        while engine.counts().0 > 0 {
            engine.step()?;
        }
        Ok(engine)
    }
}
