//! `kaskade plan cache`: plans the cache of a language model that exceeds the device's memory.

use std::path::PathBuf;

use anyhow::Context as _;
use kaskade_app::config::scalar::ByteSize;
use kaskade_app::load::trace_args::positive;
use kaskade_app::report::table::{Align, table};
use kaskade_app::report::units;
use kaskade_policy::hybrid_cache::{BlockCounts, allocate};
use kaskade_simulator::offload::decoders as stated;
use kaskade_simulator::offload::{
    Arena, Hardware, Load, Machine, Mode, OffloadOutcome, Setup, Shape, Traffic,
};
use serde::Serialize;

use crate::failure::Usage;
use crate::output;

/// Predicts the cache of a language model that exceeds the device's memory.
///
/// The method is HybridServe's (KAIST). Prints the numbers of blocks of keys and values and of activations, their places, the mini-batches and the time of a step, beside
/// a cache of keys and values only and one of activations only. The figures are predicted by simulating the engine's schedule on the
/// given machine, by default the paper's.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Requests in one batch.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    requests: u32,
    /// Tokens of each prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens of each output.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    output_tokens: u32,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    block_tokens: u32,
    #[command(flatten)]
    stated: Stated,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The model; exactly one of the two.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ModelArgs {
    /// Built-in model: opt-6.7b, opt-13b, opt-30b or opt-66b.
    #[arg(long, value_name = "NAME", value_parser = named)]
    model: Option<Shape>,
    /// `config.json` of a Hugging Face directory: OPT, GPT-2, GPT-J or Llama.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The machine.
#[derive(Debug, clap::Args)]
struct Stated {
    /// Memory of the device.
    #[arg(long, value_name = "SIZE", default_value = "24GB")]
    device_memory: ByteSize,
    /// Memory of the host for weights and blocks.
    #[arg(long, value_name = "SIZE", default_value = "882GB")]
    host_memory: ByteSize,
    /// Bandwidth of the link per second and direction.
    #[arg(long, value_name = "SIZE", default_value = "25GB")]
    link_bandwidth: ByteSize,
    /// Bandwidth of the device's memory per second.
    #[arg(long, value_name = "SIZE", default_value = "900GB")]
    memory_bandwidth: ByteSize,
    /// Speed of large matrix products, 10^12 operations per second [default: the paper's device].
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    tflops: Option<f64>,
}

fn named(name: &str) -> Result<Shape, String> {
    stated::opt_named(name).ok_or_else(|| {
        let known = stated::opt_models().map(|shape| shape.name);
        format!("known are {}; others by `--config`", known.join(", "))
    })
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    shape: Shape,
    hardware: Hardware,
    load: Load,
    algorithm_1: Blocks,
    plans: Vec<Planned>,
    assumptions: Vec<String>,
}

/// Blocks by kind.
#[derive(Debug, Clone, Copy, Serialize)]
struct Blocks {
    act: usize,
    kv: usize,
}

impl From<BlockCounts> for Blocks {
    fn from(BlockCounts { act, kv }: BlockCounts) -> Self {
        Self { act, kv }
    }
}

/// Plan and predicted figures of one mode.
#[derive(Debug, Serialize)]
struct Planned {
    mode: Mode,
    requests_at_a_time: usize,
    resident_layers: usize,
    mini_batches: usize,
    /// Blocks on the device in the middle of the output.
    device: Blocks,
    host: Blocks,
    act_share: f64,
    arena: Arena,
    predicted_step_s: f64,
    step_s: f64,
    tokens_per_s: f64,
    busy_share: f64,
    seconds: f64,
    traffic: Traffic,
}

impl Planned {
    fn of(setup: &Setup, outcome: &OffloadOutcome) -> Self {
        let mut traffic = outcome.prefill.traffic;
        traffic += outcome.decode.traffic;
        Self {
            mode: setup.mode,
            requests_at_a_time: setup.limits.requests,
            resident_layers: setup.resident_layers,
            mini_batches: setup.mini_batches(),
            device: setup.split.device.into(),
            host: setup.split.host.into(),
            act_share: setup.split.shares().act,
            arena: setup.arena,
            predicted_step_s: setup.step_s,
            step_s: outcome.step_s(),
            tokens_per_s: outcome.tokens_per_s(),
            busy_share: outcome.busy_share(),
            seconds: outcome.seconds(),
            traffic,
        }
    }

    fn name(&self) -> &'static str {
        match self.mode {
            Mode::Kv => "KV only",
            Mode::Act => "ACT only",
            _ => "hybrid",
        }
    }
}

/// Plans and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let shape = shape(&args.model)?;
    let hardware = hardware(&args.stated);
    let load = Load {
        requests: args.requests as usize,
        prompt: args.prompt_tokens as usize,
        answer: args.output_tokens as usize,
        block_tokens: args.block_tokens as usize,
    };
    let machine = Machine {
        hardware: &hardware,
        shape: &shape,
    };
    let mut plans = Vec::new();
    for mode in [Mode::Hybrid, Mode::Kv, Mode::Act] {
        let setup = machine.setup(&load, mode)?;
        plans.push(Planned::of(&setup, &machine.run(&setup, &load)?));
    }
    let full = machine.setup(&load, Mode::Algorithm1)?;
    let assumptions = stated::assumptions(&hardware);
    let found = Report {
        algorithm_1: allocate(&full.memory, full.memory.device_acts(), &full.costs)
            .host()
            .into(),
        plans,
        load,
        assumptions: assumptions
            .into_iter()
            .map(|assumption| assumption.what)
            .collect(),
        shape,
        hardware,
    };
    if args.json {
        return output::print_json(&found);
    }
    output::print(&as_text(&found))
}

fn shape(model: &ModelArgs) -> anyhow::Result<Shape> {
    let Some(path) = &model.config else {
        let missing = || Usage::new("name a model by `--model` or `--config`").into();
        return model.model.clone().ok_or_else(missing);
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let folder = path.parent().and_then(|folder| folder.file_name());
    let name = folder.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    Shape::published(&name, &text).with_context(|| path.display().to_string())
}

/// Returns the paper's machine with the given differences.
fn hardware(stated: &Stated) -> Hardware {
    let paper = stated::rtx_4090();
    let wanted = Hardware {
        flops: stated.tflops.map_or(paper.flops, |tflops| tflops * 1e12),
        memory_bytes_per_s: stated.memory_bandwidth.bytes() as f64,
        device_bytes: stated.device_memory.bytes(),
        host_bytes: stated.host_memory.bytes(),
        link_bytes_per_s: stated.link_bandwidth.bytes() as f64,
        ..paper.clone()
    };
    if wanted == paper {
        return paper;
    }
    Hardware {
        name: "stated on the command line".to_owned(),
        ..wanted
    }
}

fn as_text(found: &Report) -> String {
    let Report {
        shape,
        load,
        hardware,
        ..
    } = found;
    let head = format!(
        "{}: {} of {}, {:.1} GB of weights; {}, prompts of {} and outputs of {}\n{}",
        shape.name,
        units::count_of(shape.layers, "layer", "layers"),
        shape.width,
        (shape.parameters() * shape.element_bytes as u64) as f64 / 1e9,
        units::count_of(load.requests, "request", "requests"),
        load.prompt,
        units::count_of(load.answer, "token", "tokens"),
        hardware.name,
    );
    let rows = found.plans.iter().map(|plan| {
        [
            plan.name().to_owned(),
            pair(plan.device),
            pair(plan.host),
            ratio(plan.act_share),
            plan.requests_at_a_time.to_string(),
            plan.mini_batches.to_string(),
            plan.resident_layers.to_string(),
            units::seconds(plan.step_s),
            format!("{:.2}", plan.tokens_per_s),
            units::percent(plan.busy_share),
        ]
    });
    let plans = table(
        [
            ("cache", Align::Left),
            ("device ACT, KV", Align::Right),
            ("host ACT, KV", Align::Right),
            ("ACT:KV", Align::Right),
            ("at a time", Align::Right),
            ("mini-batches", Align::Right),
            ("resident layers", Align::Right),
            ("step", Align::Right),
            ("tokens/s", Align::Right),
            ("busy", Align::Right),
        ],
        rows,
    );
    let algorithm = format!(
        "Algorithm 1, for a full host: {} ACT and {} KV blocks there",
        units::count(found.algorithm_1.act as u64),
        units::count(found.algorithm_1.kv as u64)
    );
    let device = found.plans.first().map(|plan| in_words(&plan.arena));
    format!("{head}\n{plans}\n{}\n{algorithm}", device.unwrap_or_default())
}

fn in_words(arena: &Arena) -> String {
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    format!(
        "device memory of the hybrid: cache {}, resident weights {}, weight buffers {}, block buffers {}, activations of prompts {}",
        gigabytes(arena.cache),
        gigabytes(arena.resident),
        gigabytes(arena.weights),
        gigabytes(arena.blocks),
        gigabytes(arena.working)
    )
}

fn pair(blocks: Blocks) -> String {
    format!(
        "{}, {}",
        units::count(blocks.act as u64),
        units::count(blocks.kv as u64)
    )
}

/// Renders ACT blocks per KV block.
fn ratio(act_share: f64) -> String {
    if act_share >= 1.0 {
        return "1:0".to_owned();
    }
    format!("{:.2}:1", act_share / (1.0 - act_share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_read_as_the_papers_do() {
        assert_eq!(
            [0.0, 0.5, 0.75, 1.0].map(ratio),
            ["0.00:1", "1.00:1", "3.00:1", "1:0"]
        );
    }

    #[test]
    fn an_unknown_model_is_refused_with_the_known_ones() {
        assert!(named("OPT-30B").is_ok());
        assert!(named("opt-175b").unwrap_err().contains("opt-66b"));
    }
}
