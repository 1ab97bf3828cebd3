//! Compares the hybrid cache with KV blocks only and ACT blocks only over a throttled link:
//! `cargo bench -p kaskade-models --bench offload`.
//!
//! An OPT with random weights decodes a batch of long contexts, with streamed weights and most of the cache in host
//! memory. At every link speed, costs are sampled, corrected by a few steps, and used to plan the mixtures; then the
//! engines run steps alternately, so that other load on the machine affects all of them. Prints medians of the steps,
//! their ratios, and the accuracy of the policy's predictions before every step.
//!
//! `--device cuda` runs on a GPU over its real link (`scripts/offload-cuda.sh`), with the sizes of a published OPT and within
//! a memory budget.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;

use clap::Parser;
use kaskade_models::DeviceChoice;
use kaskade_models::generation::config::{block_bytes, split_for};
use kaskade_models::generation::{
    Caching, Cpu, Decoder, Engine, EngineConfig, MeasuredCosts, ModelConfig, Sampling, StepReport, Workload,
};
use kaskade_models::ops::{Activation, Heads, Ops};
#[cfg(feature = "burn")]
use kaskade_models::{Device, ops::burn::Burn};
use kaskade_policy::hybrid_cache::{
    BlockCounts, Capacity, Costs, Kind, Memory, Planned, Shares, Split, split_at,
};

#[derive(Parser)]
struct Arguments {
    /// Device: `cpu`, or `cuda` in a build with that feature.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// Sizes of a published model, instead of `--width`, `--head` and `--layers`.
    #[arg(long, value_enum)]
    shape: Option<Shape>,
    /// Width of the model.
    #[arg(long, default_value_t = 512)]
    width: usize,
    /// Size of a head.
    #[arg(long, default_value_t = 64)]
    head: usize,
    /// Number of layers; of a published model the maximum, if host memory is too small for all. A step's time is proportional.
    #[arg(long)]
    layers: Option<usize>,
    /// Requests that decode together.
    #[arg(long, default_value_t = 64)]
    requests: usize,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 376)]
    prompt: usize,
    /// Requests of a mini-batch.
    #[arg(long, default_value_t = 16)]
    mini_batch: usize,
    /// Device memory for blocks, as a share of the size of all keys and values.
    #[arg(long, default_value_t = 0.45, conflicts_with = "device_memory")]
    blocks: f64,
    /// Memory budget on the device, GB: blocks use what weights and buffers leave.
    #[arg(long)]
    device_memory: Option<f64>,
    /// Whether weights stay on the device.
    #[arg(long)]
    resident: bool,
    /// Steps of each engine at each link speed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Link speeds, MB/s; by default a GPU's real link, and on the CPU a sweep around the speed at which loading all keys and
    /// values takes as long as computing them.
    #[arg(long, value_delimiter = ',')]
    link: Vec<f64>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Published OPTs (Zhang et al. 2022, table 1).
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shape {
    #[value(name = "opt-6.7b")]
    Opt6B7,
    #[value(name = "opt-13b")]
    Opt13B,
    #[value(name = "opt-30b")]
    Opt30B,
}

impl Shape {
    /// Width, head size, and number of layers.
    fn extents(self) -> (usize, usize, usize) {
        match self {
            Self::Opt6B7 => (4096, 128, 32),
            Self::Opt13B => (5120, 128, 40),
            Self::Opt30B => (7168, 128, 48),
        }
    }
}

const BLOCK: usize = 16;
/// Link speeds, as multiples of the speed at which loading all keys and values takes as long as computing them.
const SPEEDS: [f64; 9] = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0, 2.0, 8.0];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = Arguments::parse();
    if let Some(shape) = arguments.shape {
        let (width, head, layers) = shape.extents();
        (arguments.width, arguments.head) = (width, head);
        arguments.layers = Some(arguments.layers.unwrap_or(layers).min(layers));
    }
    match kaskade_models::device::open(arguments.device)? {
        #[cfg(feature = "burn")]
        Device::Burn(device) => Bench::new(Burn::new(device), arguments).run(),
        _ => Bench::new(Cpu, arguments).run(),
    }
}

fn model_config(arguments: &Arguments) -> ModelConfig {
    let heads = arguments.width / arguments.head;
    ModelConfig {
        width: arguments.width,
        heads: Heads {
            queries: heads,
            keys: heads,
            head_dim: arguments.head,
            scale: 1.0 / (arguments.head as f32).sqrt(),
        },
        intermediate_size: 4 * arguments.width,
        vocabulary: 8192,
        context: 2048,
        epsilon: 1e-5,
        activation: Activation::Relu,
        ..ModelConfig::default()
    }
}

struct Bench<M> {
    ops: M,
    arguments: Arguments,
    layers: usize,
    decoder: Decoder,
    memory: Memory,
    /// Blocks of all requests.
    blocks: usize,
}

/// Measurements of an engine at one link speed.
struct Figures {
    wall_s: f64,
    /// Bytes transferred in a step.
    loaded: f64,
    busy: f64,
    /// Predicted time divided by measured time: with the corrected costs, and with the sampled costs.
    predicted: f64,
    sampled: f64,
    bytes_off: f64,
}

/// Steps that correct the sampled costs before mixtures are planned.
const TEACHING: usize = 4;

const KINDS: [Caching; 3] = [Caching::Hybrid, Caching::Kv, Caching::Act];

impl<M: Ops + Clone> Bench<M> {
    fn new(ops: M, arguments: Arguments) -> Self {
        let (model_config, layers) = (model_config(&arguments), arguments.layers.unwrap_or(4));
        let bytes = |kind| block_bytes(&model_config, layers, BLOCK, kind);
        let blocks = arguments.requests * (arguments.prompt + arguments.rounds + 2).div_ceil(BLOCK);
        let memory = Memory {
            host_bytes: u64::MAX / 2,
            weight_bytes: 0,
            device_bytes: (blocks as f64 * bytes(Kind::Kv) as f64 * arguments.blocks) as u64,
            kv_block_bytes: bytes(Kind::Kv),
            act_block_bytes: bytes(Kind::Act),
        };
        Self {
            ops,
            decoder: Decoder::random(model_config, layers, 1),
            arguments,
            layers,
            memory,
            blocks,
        }
    }

    /// Device memory left for blocks, if it is limited.
    fn bound(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(gigabytes) = self.arguments.device_memory else {
            return Ok(());
        };
        let budget = (gigabytes * 1e9) as u64;
        let taken = self.engine(Caching::Kv, None)?.device_memory().total();
        self.memory.device_bytes = budget.checked_sub(taken).ok_or_else(|| {
            format!("weights and buffers alone take {taken} bytes of the device's {budget}")
        })?;
        Ok(())
    }

    fn run(mut self) -> Result<(), Box<dyn Error>> {
        self.bound()?;
        let idle = self.engine(Caching::Kv, None)?;
        let load = Workload {
            requests: self.arguments.requests,
            mini_batch: self.arguments.mini_batch,
            tokens: self.arguments.prompt,
        };
        let free = idle.measure(&load)?;
        println!(
            "T_kv_gen {:.1} us per block (R^2 {:.4}); the rest of a layer {:.1} ms + {:.1} us per block; cache {:.0} MB, weights {:.0} MB per layer",
            free.costs.kv_gen.slope * 1e6,
            free.costs.kv_gen.r2,
            free.costs.forward.intercept * 1e3,
            free.costs.forward.slope * 1e6,
            self.layer_bytes() / 1e6,
            idle.streamed_bytes() as f64 / self.layers as f64 / 1e6,
        );
        let level = self.layer_bytes() / free.costs.kv_gen.at(self.blocks as f64);
        let speeds: Vec<Option<f64>> = match self.arguments.link.as_slice() {
            [] if self.arguments.device != DeviceChoice::Cpu => vec![None],
            [] => SPEEDS.iter().map(|factor| Some(factor * level)).collect(),
            given => given.iter().map(|speed| Some(speed * 1e6)).collect(),
        };
        println!(
            "| link | ACT share | hybrid | KV only | ACT only | over KV | over ACT | over the better | predicted / measured | by samples alone | bytes off | computing | tokens/s | carried |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for speed in speeds {
            idle.throttle(speed);
            let measured = idle.measure(&load)?;
            self.compare(speed, &measured)?;
        }
        Ok(())
    }

    /// Size of keys and values in a layer, bytes.
    fn layer_bytes(&self) -> f64 {
        self.blocks as f64 * self.memory.kv_block_bytes as f64 / self.layers as f64
    }

    fn compare(&self, speed: Option<f64>, measured: &MeasuredCosts) -> Result<(), Box<dyn Error>> {
        let costs = self.taught(speed, &measured.costs)?;
        let mut engines = KINDS
            .iter()
            .map(|caching| self.filled(*caching, speed, &costs))
            .collect::<Result<Vec<_>, _>>()?;
        // Shares of existing blocks; learning may change the shares for new blocks.
        let shares: Vec<Shares> = engines
            .iter()
            .map(|engine| engine.config().effective_shares())
            .collect();
        let mut steps: [Vec<StepReport>; 3] = Default::default();
        // The first step loads the first layer's weights without overlap.
        for round in 0..=self.arguments.rounds {
            // The order rotates, because each engine leaves its data in the CPU caches for the next.
            let turns = (0..KINDS.len()).map(|place| (place + round) % KINDS.len());
            for turn in turns {
                let (Some(engine), Some(steps)) = (engines.get_mut(turn), steps.get_mut(turn)) else {
                    continue;
                };
                let report = engine.step()?;
                if round > 0 {
                    steps.push(report);
                }
            }
        }
        let figures = engines
            .iter()
            .zip(&shares)
            .zip(&steps)
            .map(|((engine, shares), steps)| self.figures(engine, shares, measured, steps));
        let figures = figures
            .collect::<Option<Vec<_>>>()
            .ok_or("no step was measured")?;
        let [hybrid, kv, act] = figures.as_slice() else {
            return Err("three engines were measured".into());
        };
        let share = shares.first().map_or(0.0, |shares| shares.act);
        let worst = figures
            .iter()
            .map(|figures| figures.bytes_off)
            .fold(0.0, f64::max);
        println!(
            "| {} | {share:.2} | {:.3} s | {:.3} s | {:.3} s | {:.2}x | {:.2}x | {:.2}x | {:.2}, {:.2}, {:.2} | {:.2}, {:.2}, {:.2} | {:.1} % | {:.0}, {:.0}, {:.0} % | {:.1}, {:.1}, {:.1} | {:.0}, {:.0}, {:.0} MB/s |",
            speed.map_or_else(
                || "its own".to_owned(),
                |speed| format!("{:.0} MB/s", speed / 1e6)
            ),
            hybrid.wall_s,
            kv.wall_s,
            act.wall_s,
            kv.wall_s / hybrid.wall_s,
            act.wall_s / hybrid.wall_s,
            kv.wall_s.min(act.wall_s) / hybrid.wall_s,
            hybrid.predicted,
            kv.predicted,
            act.predicted,
            hybrid.sampled,
            kv.sampled,
            act.sampled,
            worst * 100.0,
            hybrid.busy * 100.0,
            kv.busy * 100.0,
            act.busy * 100.0,
            self.arguments.requests as f64 / hybrid.wall_s,
            self.arguments.requests as f64 / kv.wall_s,
            self.arguments.requests as f64 / act.wall_s,
            hybrid.loaded / hybrid.wall_s / 1e6,
            kv.loaded / kv.wall_s / 1e6,
            act.loaded / act.wall_s / 1e6,
        );
        Ok(())
    }

    fn figures(
        &self,
        engine: &Engine<M>,
        shares: &Shares,
        measured: &MeasuredCosts,
        steps: &[StepReport],
    ) -> Option<Figures> {
        let median = |of: &dyn Fn(&StepReport) -> f64| {
            let mut values: Vec<f64> = steps.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        // Number of cached tokens halfway through the measured steps.
        let tokens = self.arguments.requests * (self.arguments.prompt + self.arguments.rounds / 2 + 1);
        let split = split_by(shares, tokens.div_ceil(BLOCK), &measured.costs);
        let (kv, act) = (self.memory.kv_block_bytes, self.memory.act_block_bytes);
        // Each step loads the streamed weights once, and the blocks in host memory.
        let predicted = engine.streamed_bytes() + split.host.kv as u64 * kv + split.host.act as u64 * act;
        let wall_s = median(&|report| report.wall_s)?;
        let loaded = median(&|report| report.traffic.loaded() as f64)?;
        Some(Figures {
            wall_s,
            loaded,
            busy: median(&|report| report.compute_s / report.wall_s)?,
            predicted: median(&|report| report.predicted_s.unwrap_or(f64::NAN) / report.wall_s)?,
            sampled: measured.step_s(&split, self.layers) / wall_s,
            bytes_off: (predicted as f64 / loaded - 1.0).abs(),
        })
    }

    /// Returns the costs as corrected by the first steps of a hybrid cache planned with the sampled costs.
    fn taught(&self, speed: Option<f64>, sampled: &Costs) -> Result<Costs, Box<dyn Error>> {
        let mut engine = self.filled(Caching::Hybrid, speed, sampled)?;
        for _ in 0..TEACHING {
            engine.step()?;
        }
        Ok(engine.costs().unwrap_or(*sampled))
    }

    fn engine(&self, caching: Caching, costs: Option<&Costs>) -> Result<Engine<M>, Box<dyn Error>> {
        let bound = self.arguments.mini_batch * self.blocks.div_ceil(self.arguments.requests);
        let mut config = EngineConfig {
            caching,
            block_tokens: BLOCK,
            resident_layers: if self.arguments.resident { self.layers } else { 0 },
            buffer: BlockCounts {
                act: bound,
                kv: bound,
            },
            mini_batch_requests: self.arguments.mini_batch,
            prefill_tokens: usize::MAX,
            requests: self.arguments.requests,
            planned: costs.map(|costs| Planned {
                memory: self.memory,
                blocks: self.blocks,
                costs: *costs,
            }),
            ..EngineConfig::resident(&self.decoder, 0)
        };
        if let Some(costs) = costs {
            let split = split_for(caching, self.blocks, &self.memory, costs).ok_or("no mixture fits")?;
            apply_split(&mut config, &split, self.blocks);
        }
        Ok(Engine::new(self.ops.clone(), self.decoder.clone(), None, config)?)
    }

    /// Returns an engine over a link of this speed with prefilled requests.
    fn filled(
        &self,
        caching: Caching,
        speed: Option<f64>,
        costs: &Costs,
    ) -> Result<Engine<M>, Box<dyn Error>> {
        let mut engine = self.engine(caching, Some(costs))?;
        for request in 0..self.arguments.requests as u64 {
            let prompt = (0..self.arguments.prompt as u32).map(|token| (token * 31 + request as u32) % 8192);
            let sampling = Sampling {
                max_tokens: self.arguments.rounds + 8,
                ..Sampling::default()
            };
            engine.submit(request, prompt.collect(), sampling)?;
        }
        while engine.counts().0 > 0 {
            engine.step()?;
        }
        engine.throttle(speed);
        Ok(engine)
    }
}

/// Returns the predicted split of a layer with `blocks` blocks in these shares.
fn split_by(shares: &Shares, blocks: usize, costs: &Costs) -> Split {
    let part = |of: usize, share: f64| ((of as f64 * share).round() as usize).min(of);
    let act = part(blocks, shares.act);
    let kv = blocks - act;
    let device = BlockCounts {
        act: part(act, shares.act_on_device),
        kv: part(kv, shares.kv_on_device),
    };
    let host = BlockCounts {
        act: act - device.act,
        kv: kv - device.kv,
    };
    split_at(device, host, costs)
}

/// Sets the blocks and the share of a split. `spare` additional host blocks of each used kind allow for requests
/// whose blocks do not match the ratio exactly.
fn apply_split(config: &mut EngineConfig, split: &Split, spare: usize) {
    let extra = |count: usize, kind_used: bool| if kind_used { count + spare } else { count };
    config.capacity = Capacity {
        device: split.device,
        host: BlockCounts {
            act: extra(split.host.act, split.shares().act > 0.0),
            kv: extra(split.host.kv, split.shares().act < 1.0),
        },
    };
    config.shares = split.shares();
}
