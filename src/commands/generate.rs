//! `kaskade generate`: continues texts with a language model in this process.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
#[cfg(feature = "cuda")]
use kaskade::models::device::Device;
use kaskade::models::device::{self, DeviceChoice};
use kaskade::models::generation::{
    Caching, Cpu, Decoder, Engine, EngineConfig, FinishReason, MemoryLimits, Sampling, SamplingOptions,
    StepReport, Tokenizer, read_decoder, tokenizer_of,
};
use kaskade::models::ops::Ops;
#[cfg(feature = "cuda")]
use kaskade::models::ops::burn::Burn;
use kaskade::models::power::PowerConfig;
use kaskade::models::{Checkpoint, WeightType};
use kaskade_app::config::scalar::ByteSize;
use kaskade_app::measure::meter::Meter;
use kaskade_app::report::progress::{say, with_progress_line};
use kaskade_app::report::units;
use serde::Serialize;

use crate::failure::Usage;
use crate::output;

/// Tokens per block of the cache.
const BLOCK: usize = 16;

/// Interval at which sampled energy sources are read.
const TICK: Duration = Duration::from_millis(100);

/// Continues texts with a language model from a Hugging Face directory or a GGUF file.
///
/// Architectures: all supported language models. Other settings of the checkpoint's `generation_config.json`, such as `num_beams` and
/// `repetition_penalty`, apply as when it is served. All texts run in one batch. With `--device-memory`, the model may exceed the memory
/// of the device. A single text is printed as it is generated.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Hugging Face directory of a language model, or a GGUF file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Text to continue; may be repeated. `-` reads one from standard input.
    #[arg(long, value_name = "TEXT", required = true)]
    text: Vec<String>,
    /// Device: `cpu`, `cuda` or `cuda:1`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    /// Type of its weights: `f32`, `bf16`, `f16`, on the CPU also `q8_0` or `q4_0` [default: as stored].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<WeightType>,
    #[command(flatten)]
    decoding: Decoding,
    #[command(flatten)]
    offload: Offload,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Choice of tokens, and the end of an answer.
#[derive(Debug, clap::Args)]
struct Decoding {
    /// Maximum number of tokens to generate, whatever `generation_config.json` states.
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// Temperature: 0 always takes the most probable token, higher values are more random [default: that of `generation_config.json`, else 1
    /// with `--top-k` or `--top-p`, else 0].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Sample from this number of most probable tokens; 0 means all [default: that of `generation_config.json`, else 0].
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most probable tokens that together have this probability [default: that of `generation_config.json`, else 1].
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Seed of the sampling; each further text has the next one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Text that ends an answer and is not part of it; may be repeated [default: `stop_strings` of `generation_config.json`].
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

/// Offloading to host memory.
#[derive(Debug, clap::Args)]
struct Offload {
    /// Memory of the device that the model may use; other layers are streamed from host memory, where the cache is [default: unlimited].
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,
    /// Contents of the cache.
    #[arg(long, value_enum, default_value = "hybrid")]
    cache: Cache,
    /// Simulated bandwidth of the link per second and direction, on the CPU [default: that of memory].
    #[arg(long, value_name = "SIZE", requires = "device_memory")]
    link_bandwidth: Option<ByteSize>,
}

/// Contents of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Cache {
    /// Keys and values of some tokens, activations of others, by the speed of link and device.
    Hybrid,
    /// Keys and values.
    Kv,
    /// Activations.
    Act,
    /// Only the tokens: every step computes everything again.
    Tokens,
}

impl From<Cache> for Caching {
    fn from(cache: Cache) -> Self {
        match cache {
            Cache::Hybrid => Self::Hybrid,
            Cache::Kv => Self::Kv,
            Cache::Act => Self::Act,
            Cache::Tokens => Self::Tokens,
        }
    }
}

/// Generated texts, and their cost.
#[derive(Debug, Serialize)]
struct Generated {
    answers: Vec<Answer>,
    /// Tokens of all prompts.
    prompt_tokens: usize,
    /// Tokens of all answers.
    tokens: usize,
    /// Time until every answer has its first token, seconds.
    first_token_s: f64,
    /// Mean time between two tokens of an answer, seconds.
    between_tokens_s: Option<f64>,
    /// Tokens per second, prompts not counted.
    tokens_per_s: f64,
    /// Bytes over the link to the device.
    loaded_bytes: u64,
    /// Share of blocks that hold activations.
    act_share: f64,
    /// Joules per token of the answers; `None` if no energy source can be read.
    joules_per_token: Option<f64>,
    energy_source: String,
}

/// One continuation.
#[derive(Debug, Clone, Default, Serialize)]
struct Answer {
    prompt: String,
    text: String,
    tokens: Vec<u32>,
    /// Lowest probability of its tokens: the confidence of the whole answer.
    least_probability: Option<f32>,
    /// Reason of its end, by the names of OpenAI's API: `stop`, `length`; or `cancelled`, `error`.
    finish_reason: &'static str,
    /// The same in words.
    #[serde(skip)]
    end: &'static str,
}

/// Generates and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let prompts = prompts(&args.text)?;
    let mut checkpoint = Checkpoint::open(&args.model).with_context(|| args.model.display().to_string())?;
    if args.device == DeviceChoice::Cpu {
        checkpoint.weights.request(args.dtype);
    } else if let Err(dtype) = checkpoint.weights.request_unquantised(args.dtype) {
        return Err(Usage::new(format!(
            "`--dtype {dtype}` needs the device `cpu`; choose f32, bf16 or f16"
        ))
        .into());
    }
    let stated = SamplingOptions::from(&checkpoint.generation);
    let beams = args.decoding.sampling(&stated, 0).beam.beams.max(1);
    let tokenizer = tokenizer_of(&mut checkpoint);
    // An unsupported architecture is reported before a missing tokenizer.
    let decoder = read_decoder(checkpoint)?;
    let tokenizer = tokenizer?;
    let encoded = prompts
        .iter()
        .map(|prompt| {
            let encoded = tokenizer
                .encode(prompt.as_str(), true)
                .map_err(anyhow::Error::msg)?;
            Ok(encoded.get_ids().to_vec())
        })
        .collect::<anyhow::Result<Vec<Vec<u32>>>>()?;
    let tokens: usize = encoded
        .iter()
        .map(|tokens| beams * (tokens.len() + args.decoding.max_tokens).next_multiple_of(BLOCK))
        .sum();
    let ready = Ready {
        args,
        stated,
        beams,
        decoder,
        tokenizer,
        encoded,
        prompts: &prompts,
        tokens,
        live: prompts.len() == 1 && !args.json,
    };
    let live = ready.live;
    let device = device::open(args.device)?;
    let mut meter = Meter::open(args.device, &PowerConfig::default())?;
    let generated = match device {
        #[cfg(feature = "cuda")]
        Device::Burn(device) => ready.generate(Burn::new(device), &mut meter),
        _ => ready.generate(Cpu, &mut meter),
    }?;
    if args.json {
        return output::print_json(&generated);
    }
    if !live {
        for answer in &generated.answers {
            output::print(&format!("{}\u{2502}{}\n", answer.prompt, answer.text))?;
        }
    }
    say(&as_text(&generated));
    Ok(())
}

/// A model in host memory, and what it continues.
struct Ready<'a> {
    args: &'a Args,
    /// Options that the checkpoint states.
    stated: SamplingOptions,
    /// Beams of each text.
    beams: usize,
    decoder: Decoder,
    tokenizer: Tokenizer,
    /// Tokens of the texts.
    encoded: Vec<Vec<u32>>,
    prompts: &'a [String],
    /// Tokens of the texts and of the longest answers, in each beam.
    tokens: usize,
    /// Whether text is printed as it is generated.
    live: bool,
}

impl Ready<'_> {
    fn generate<M: Ops + Clone>(self, ops: M, meter: &mut Meter) -> anyhow::Result<Generated> {
        let config = configure(
            self.args,
            ops.clone(),
            &self.decoder,
            self.prompts.len() * self.beams,
            self.tokens,
        )?;
        let mut engine = Engine::new(ops, self.decoder, Some(self.tokenizer), config)?;
        let prompt_tokens = self.encoded.iter().map(Vec::len).sum();
        for ((number, tokens), prompt) in (0..).zip(self.encoded).zip(self.prompts) {
            engine
                .submit(number, tokens, self.args.decoding.sampling(&self.stated, number))
                .with_context(|| format!("text {}: {:?}", number + 1, shortened(prompt)))?;
        }
        generate(&mut engine, self.prompts, prompt_tokens, self.live, meter)
    }
}

impl Decoding {
    /// Returns the sampling of a text: what is given here, else what the checkpoint states.
    fn sampling(&self, stated: &SamplingOptions, number: u64) -> Sampling {
        let own = SamplingOptions {
            max_tokens: Some(self.max_tokens),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            stop: (!self.stop.is_empty()).then(|| self.stop.clone()),
            ..SamplingOptions::default()
        };
        let seed = self.seed.wrapping_add(number);
        let mut sampling = own.with_defaults(stated, None).sampling(seed);
        sampling.limit_default_beams();
        sampling
    }
}

fn prompts(given: &[String]) -> anyhow::Result<Vec<String>> {
    let read = |prompt: &String| match prompt.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("standard input cannot be read"),
        text => Ok(text.to_owned()),
    };
    let prompts = given.iter().map(read).collect::<anyhow::Result<Vec<String>>>()?;
    ensure!(
        prompts.iter().all(|prompt| !prompt.is_empty()),
        "a text is empty; give at least a space"
    );
    Ok(prompts)
}

fn shortened(prompt: &str) -> String {
    prompt.chars().take(40).collect()
}

/// Plans the engine: everything on the device without a bound; with one, the layers that fit, and a cache by measured speeds.
fn configure<M: Ops>(
    args: &Args,
    ops: M,
    decoder: &Decoder,
    requests: usize,
    tokens: usize,
) -> anyhow::Result<EngineConfig> {
    ensure!(
        args.offload.device_memory.is_some() || matches!(args.offload.cache, Cache::Hybrid | Cache::Kv),
        Usage::new(
            "without `--device-memory` everything is on the device, and only keys and values are cached; give `--device-memory`"
        )
    );
    let bounds = MemoryLimits {
        caching: args.offload.cache.into(),
        device_bytes: args.offload.device_memory.map(ByteSize::bytes),
        link: args.offload.link_bandwidth.map(|link| link.bytes() as f64),
        requests,
        tokens,
        cache_bytes: None,
    };
    let fitted = with_progress_line("measuring the device and the link to it", false, || {
        EngineConfig::plan(ops, decoder, &bounds)
    })?;
    let encoder = decoder.encoder.as_ref().map_or(0, |encoder| encoder.layers.len());
    let (layers, resident) = (encoder + decoder.layers.len(), fitted.config.resident_layers);
    if resident < layers {
        say(&format!(
            "{resident} of {layers} layers stay on the device; each step transfers the others"
        ));
    }
    if let Some(error) = fitted.unmeasured {
        say(&format!(
            "half of the cache is activations, because the best share was not measured: {error}"
        ));
    }
    Ok(fitted.config)
}

fn generate<M: Ops>(
    engine: &mut Engine<M>,
    prompts: &[String],
    prompt_tokens: usize,
    live: bool,
    meter: &mut Meter,
) -> anyhow::Result<Generated> {
    let reading = meter.begin();
    let begun = Instant::now();
    let mut touched = begun;
    let mut run = Run::default();
    for (number, prompt) in (0..).zip(prompts) {
        run.answers.entry(number).or_default().prompt.clone_from(prompt);
    }
    while !engine.is_idle() {
        let step = with_progress_line("reading the prompts", run.first.is_some(), || engine.step())?;
        run.take(&step, begun.elapsed());
        if live {
            show(&step)?;
        }
        if touched.elapsed() >= TICK {
            meter.touch();
            touched = Instant::now();
        }
    }
    if live {
        output::print("")?;
    }
    let took = begun.elapsed().as_secs_f64();
    let joules = meter.end(reading).joules;
    let tokens: usize = run.answers.values().map(|answer| answer.tokens.len()).sum();
    ensure!(tokens > 0, "nothing was generated: {}", run.ends());
    let first_token_s = run.first.unwrap_or_default().as_secs_f64();
    let longest = run.answers.values().map(|answer| answer.tokens.len()).max();
    Ok(Generated {
        prompt_tokens,
        tokens,
        first_token_s,
        between_tokens_s: longest
            .filter(|longest| *longest > 1)
            .map(|longest| (took - first_token_s) / (longest - 1) as f64),
        tokens_per_s: tokens as f64 / took,
        loaded_bytes: run.loaded,
        act_share: engine.config().effective_shares().act,
        joules_per_token: joules.map(|joules| joules / tokens as f64),
        energy_source: meter.source().clone(),
        answers: run.answers.into_values().collect(),
    })
}

/// State of a running batch.
#[derive(Debug, Default)]
struct Run {
    answers: BTreeMap<u64, Answer>,
    /// Time until every answer had its first token.
    first: Option<Duration>,
    loaded: u64,
}

impl Run {
    fn take(&mut self, step: &StepReport, now: Duration) {
        self.loaded += step.traffic.loaded();
        for event in &step.events {
            let answer = self.answers.entry(event.request).or_default();
            answer.text.push_str(&event.text);
            if let Some(choice) = event.sampled {
                answer.tokens.push(choice.token);
                let least = answer.least_probability.unwrap_or(1.0);
                answer.least_probability = Some(least.min(choice.probability));
            }
            if let Some(end) = event.finish_reason {
                answer.end = in_words(end);
                answer.finish_reason = by_name(end);
            }
        }
        let begun = self
            .answers
            .values()
            .all(|answer| !answer.tokens.is_empty() || !answer.end.is_empty());
        if begun && self.first.is_none() {
            self.first = Some(now);
        }
    }

    fn ends(&self) -> String {
        let ends = self.answers.values().map(|answer| answer.end);
        ends.collect::<Vec<_>>().join(", ")
    }
}

fn by_name(end: FinishReason) -> &'static str {
    match end {
        FinishReason::Token | FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
        FinishReason::NotFinite | FinishReason::Grammar => "error",
    }
}

fn in_words(end: FinishReason) -> &'static str {
    match end {
        FinishReason::Token => "end token",
        FinishReason::Stop => "stop text",
        FinishReason::Length => "token limit",
        FinishReason::Cancelled => "cancelled",
        FinishReason::NotFinite => "logits not finite",
        FinishReason::Grammar => "grammar too large",
    }
}

/// Prints the new text of a single answer.
fn show(step: &StepReport) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for event in &step.events {
        let written = write!(out, "{}", event.text).and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                bail!("the reader closed standard output")
            }
            other => other.context("standard output cannot be written")?,
        }
    }
    Ok(())
}

fn as_text(generated: &Generated) -> String {
    let ends: Vec<&str> = generated.answers.iter().map(|answer| answer.end).collect();
    let between = generated
        .between_tokens_s
        .map_or_else(|| "-".to_owned(), units::seconds);
    let carried = if generated.loaded_bytes > 0 {
        format!(
            "; {} over the link, {:.0} % of the blocks with activations",
            units::bytes(generated.loaded_bytes),
            100.0 * generated.act_share
        )
    } else {
        String::new()
    };
    format!(
        "{}, {:.1} a second; the first after {}, then one every {between}; {} a token ({}); {}{carried}",
        units::count_of(generated.tokens as u64, "token", "tokens"),
        generated.tokens_per_s,
        units::seconds(generated.first_token_s),
        units::joules(generated.joules_per_token),
        generated.energy_source,
        ends.join(", "),
    )
}
