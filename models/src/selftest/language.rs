//! Checks and times the language model engine: decoders against expected outputs, with resident and streamed weights,
//! and decoding speed by batch size.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Shares};
use serde::{Deserialize, Serialize};

use super::options::{NOT_REACHED, SelftestExtent, SelftestOptions};
use super::parity::bound;
use super::section::{Section, guarded};
use crate::checkpoint::Checkpoint;
use crate::decoder::registry::read_decoder;
use crate::device::{Device, DeviceChoice, with_ops};
use crate::generation::{Caching, Decoder, Engine, EngineConfig, ModelConfig, Sampling};
use crate::ops::{Activation, Heads, Ops, Rotary};
use crate::precision::WeightType;

/// Length of a timed prompt, tokens.
const PROMPT: usize = 128;
/// Maximum number of tokens that a timed batch decodes per request.
const MAX_TOKENS: usize = 256;
/// Warm-up steps after the prompt, not timed, in which a GPU compiles and tunes kernels.
const WARM_STEPS: usize = 8;

/// Results of the language model engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LanguageReport {
    /// Results per decoder.
    pub rows: Vec<DecoderRow>,
    /// Decoding speed.
    pub decoding: Vec<DecodingPoint>,
}

/// Comparison of a decoder with expected outputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecoderRow {
    /// Name of the checkpoint.
    pub name: &'static str,
    /// Number of compared prompts.
    pub cases: usize,
    /// Maximum absolute difference of a logit of the last token; `None` without a comparison.
    pub max_abs_diff: Option<f64>,
    /// Maximum allowed difference.
    pub bound: f64,
    /// Number of answers whose tokens under greedy search equal the expected ones, with all layers resident.
    pub equal_answers: usize,
    /// The same number with all layers streamed from host memory, and half of the cache as activations.
    pub equal_streamed: usize,
    /// Whether the logits are within the bound and, on a CPU, all answers equal.
    pub passed: bool,
    /// Reason if there was no comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Decoding speed of a network with random weights at one batch size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodingPoint {
    /// Name of the network.
    pub network: &'static str,
    /// Requests per batch.
    pub batch: usize,
    /// The measurement.
    pub measured: Section<Decoded>,
}

/// Measurement of a decoding batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Decoded {
    /// Duration of the step that prefills the prompts of 128 tokens, seconds; the first such step on the device.
    pub prompt_s: f64,
    /// Number of timed decode steps.
    pub steps: usize,
    /// Median duration of a decode step, seconds.
    pub step_s: f64,
    /// Throughput over all requests, tokens per second.
    pub tokens_per_s: f64,
    /// Bandwidth at which a step reads weights, bytes per second.
    pub weight_bytes_per_s: f64,
}

impl LanguageReport {
    /// Returns whether all comparisons passed and no measurement failed.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.passed) && self.decoding.iter().all(|point| !point.measured.failed())
    }
}

/// Checkpoint of a decoder with expected outputs (`models/fixtures/make_generative_fixtures.py`).
struct DecoderFixture {
    name: &'static str,
    config: &'static [u8],
    weights: &'static [u8],
    expected: &'static [u8],
}

macro_rules! decoders {
    ($($folder:literal),+ $(,)?) => {
        [$(DecoderFixture {
            name: $folder,
            config: include_bytes!(concat!("../../fixtures/", $folder, "/config.json")),
            weights: include_bytes!(concat!("../../fixtures/", $folder, "/model.safetensors")),
            expected: include_bytes!(concat!("../../fixtures/", $folder, "/expected.json")),
        }),+]
    };
}

/// One decoder per kind of layer: learned, rotary and ALiBi positions, sliding window and logit soft-capping, experts,
/// attention sinks, latent attention, an encoder-decoder, short convolutions, state space models, delta rules,
/// parallel attention and state space layers, and per-layer inputs.
static DECODERS: [DecoderFixture; 13] = decoders![
    "gpt2",
    "llama2",
    "gptj",
    "gemma2",
    "bloom",
    "mixtral",
    "gpt-oss",
    "deepseek-v2",
    "t5",
    "lfm2",
    "mamba2",
    "qwen3-next",
    "gemma4-small",
];

/// Names of the compared decoders.
pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
    DECODERS.iter().map(|fixture| fixture.name)
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    answer: Option<Vec<u32>>,
    last_logits: Vec<f32>,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

pub(super) fn measure_all(
    options: &SelftestOptions,
    device: &Device,
    began: Instant,
    progress: &mut dyn FnMut(&str),
) -> LanguageReport {
    let chosen = DECODERS.iter().filter(|fixture| options.compares(fixture.name));
    let rows = chosen.map(|fixture| {
        let compared = if options.is_over(began) {
            Section::Skipped(NOT_REACHED.into())
        } else {
            guarded(|| with_ops!(device, ops => fixture.compare(&ops)))
        };
        let row = fixture.row(options.device, compared);
        progress(&format!("parity of {}: {}", row.name, in_words(&row)));
        row
    });
    let rows = rows.collect();
    let mut decoding = Vec::new();
    let plan = plan(options).into_iter();
    for (network, batches) in plan.filter(|(network, _)| options.times(network.name)) {
        let batches = options.batches(batches);
        if options.is_over(began) {
            let skipped = |_: &usize| Section::Skipped(NOT_REACHED.into());
            decoding.extend(network.points(&batches, batches.iter().map(skipped)));
            continue;
        }
        progress(&format!("decoding with {}", network.name));
        decoding.extend(network.measure(&batches, device, options));
        device.release_memory();
    }
    LanguageReport { rows, decoding }
}

fn in_words(row: &DecoderRow) -> String {
    match (&row.error, row.max_abs_diff) {
        (Some(error), _) => error.clone(),
        (None, difference) => format!(
            "largest difference {:.1e}, {} and streamed {} of {} answers equal",
            difference.unwrap_or(f64::NAN),
            row.equal_answers,
            row.equal_streamed,
            row.cases
        ),
    }
}

impl DecoderFixture {
    fn row(&self, choice: DeviceChoice, compared: Section<AnswerAgreement>) -> DecoderRow {
        let (agreement, error) = match compared {
            Section::Done(agreement) => (Some(agreement), None),
            Section::Failed(reason) | Section::Skipped(reason) => (None, Some(reason)),
        };
        let exact = choice == DeviceChoice::Cpu;
        let bound = bound(
            choice,
            agreement.map_or(0.0, |agreement| agreement.largest_expected),
        );
        DecoderRow {
            name: self.name,
            cases: agreement.map_or(0, |agreement| agreement.cases),
            max_abs_diff: agreement.map(|agreement| agreement.largest),
            bound,
            equal_answers: agreement.map_or(0, |agreement| agreement.resident),
            equal_streamed: agreement.map_or(0, |agreement| agreement.streamed),
            passed: agreement.is_some_and(|agreement| agreement.passed(bound, exact)),
            error,
        }
    }

    fn decoder(&self) -> Result<Decoder, String> {
        let weights = Bytes::from_static(self.weights);
        let checkpoint = Checkpoint::from_bytes(self.name, self.config, weights, None);
        let mut checkpoint = checkpoint.map_err(|error| error.to_string())?;
        // The expected outputs were computed in f32.
        checkpoint.weights.request(Some(WeightType::F32));
        read_decoder(checkpoint).map_err(|error| error.to_string())
    }

    fn compare<M: Ops + Clone>(&self, ops: &M) -> Result<AnswerAgreement, String> {
        let expected: Expected = serde_json::from_slice(self.expected).map_err(|error| error.to_string())?;
        let decoder = self.decoder()?;
        let config = EngineConfig::resident(&decoder, 1024);
        let streamed = streamed(&config);
        let engine = |config| {
            let engine = Engine::new(ops.clone(), decoder.clone(), None, config);
            engine.map_err(|error| error.to_string())
        };
        let mut resident = engine(config)?;
        let mut agreement = AnswerAgreement::default();
        for case in &expected.cases {
            let logits = match &case.answer {
                Some(answer) => resident.score_answer(&case.prompt, answer),
                None => resident.score(&case.prompt),
            };
            let logits = logits.map_err(|error| error.to_string())?;
            let last = logits.last().ok_or("the model returned no logits")?;
            if last.len() != case.last_logits.len() || last.iter().any(|logit| !logit.is_finite()) {
                return Err(
                    "the logits cannot be compared: their number differs, or one is not finite".into(),
                );
            }
            let differences = last
                .iter()
                .zip(&case.last_logits)
                .map(|(actual, expected)| f64::from((actual - expected).abs()));
            agreement.largest = differences.fold(agreement.largest, f64::max);
            let expected = case.last_logits.iter().map(|logit| f64::from(logit.abs()));
            agreement.largest_expected = expected.fold(agreement.largest_expected, f64::max);
        }
        agreement.cases = expected.cases.len();
        agreement.resident = equal_answers(&mut resident, &expected.cases)?;
        agreement.streamed = equal_answers(&mut engine(streamed)?, &expected.cases)?;
        Ok(agreement)
    }
}

/// Returns a configuration that streams all layers, with the cache in host memory: half KV blocks, half activation
/// blocks.
fn streamed(resident: &EngineConfig) -> EngineConfig {
    let blocks = BlockCounts { act: 128, kv: 128 };
    EngineConfig {
        caching: Caching::Hybrid,
        shares: Shares {
            act: 0.5,
            act_on_device: 0.0,
            kv_on_device: 0.0,
        },
        capacity: Capacity {
            device: BlockCounts::default(),
            host: blocks,
        },
        resident_layers: 0,
        buffer: blocks,
        ..resident.clone()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct AnswerAgreement {
    cases: usize,
    largest: f64,
    largest_expected: f64,
    resident: usize,
    streamed: usize,
}

impl AnswerAgreement {
    fn passed(&self, bound: f64, exact: bool) -> bool {
        let equal = self.resident == self.cases && self.streamed == self.cases;
        self.cases > 0 && self.largest <= bound && (equal || !exact)
    }
}

/// Answers all prompts in one batch by greedy search; returns the number of answers that equal the expected ones.
fn equal_answers<M: Ops>(engine: &mut Engine<M>, cases: &[Case]) -> Result<usize, String> {
    for (request, case) in (0..).zip(cases) {
        let sampling = Sampling {
            max_tokens: case.tokens.len(),
            ignore_eos: true,
            ..Sampling::default()
        };
        let submitted = engine.submit(request, case.prompt.clone(), sampling);
        submitted.map_err(|error| error.to_string())?;
    }
    let mut answers = vec![Vec::new(); cases.len()];
    while !engine.is_idle() {
        for event in engine.step().map_err(|error| error.to_string())?.events {
            let answer = usize::try_from(event.request)
                .ok()
                .and_then(|index| answers.get_mut(index));
            if let Some((answer, sampled)) = answer.zip(event.sampled) {
                answer.push(sampled.token);
            }
        }
    }
    let pairs = answers.iter().zip(cases);
    Ok(pairs.filter(|(answer, case)| **answer == case.tokens).count())
}

/// Dimensions of a timed network with random weights.
#[derive(Debug, Clone)]
struct DecoderShape {
    name: &'static str,
    layers: usize,
    config: ModelConfig,
}

fn plan(options: &SelftestOptions) -> Vec<(DecoderShape, &'static [usize])> {
    match (options.extent, options.device) {
        (SelftestExtent::Quick, _) => vec![(tiny(), &[1, 4])],
        (SelftestExtent::Standard, DeviceChoice::Cpu) => vec![(gpt2(), &[1, 8])],
        (SelftestExtent::Standard, DeviceChoice::Cuda(_)) | (SelftestExtent::Full, _) => {
            vec![(gpt2(), &[1, 8, 32]), (tiny_llama(), &[1, 8, 32])]
        }
    }
}

#[cfg(test)]
pub(super) fn networks(options: &SelftestOptions) -> Vec<&'static str> {
    plan(options).iter().map(|(network, _)| network.name).collect()
}

fn heads(queries: usize, keys: usize) -> Heads {
    Heads {
        queries,
        keys,
        head_dim: 64,
        scale: 0.125,
    }
}

/// A network of two layers, for a quick run.
fn tiny() -> DecoderShape {
    DecoderShape {
        name: "gpt-2-tiny",
        layers: 2,
        config: ModelConfig {
            width: 128,
            heads: heads(2, 2),
            intermediate_size: 512,
            vocabulary: 1024,
            ..gpt2().config
        },
    }
}

/// Dimensions of GPT-2 (124 million weights).
fn gpt2() -> DecoderShape {
    DecoderShape {
        name: "gpt-2",
        layers: 12,
        config: ModelConfig {
            width: 768,
            heads: heads(12, 12),
            intermediate_size: 3072,
            vocabulary: 50_257,
            context: 1024,
            epsilon: 1e-5,
            activation: Activation::GeluTanh,
            ..ModelConfig::default()
        },
    }
}

/// Dimensions of `TinyLlama` (1.1 billion weights).
fn tiny_llama() -> DecoderShape {
    let pairs = 32;
    let frequency = |pair: i16| 10_000_f32.powf(-f32::from(pair) / f32::from(pairs));
    DecoderShape {
        name: "tiny-llama-1.1b",
        layers: 22,
        config: ModelConfig {
            width: 2048,
            heads: heads(32, 4),
            intermediate_size: 5632,
            vocabulary: 32_000,
            context: 2048,
            epsilon: 1e-5,
            activation: Activation::Silu,
            gated: true,
            rotary: Some(Rotary {
                frequencies: (0..pairs).map(frequency).collect(),
                scale: 1.0,
                neighbours: false,
            }),
            ..ModelConfig::default()
        },
    }
}

impl DecoderShape {
    fn measure(&self, batches: &[usize], device: &Device, options: &SelftestOptions) -> Vec<DecodingPoint> {
        let measured = guarded(|| {
            with_ops!(device, ops => {
                let decoder = Decoder::random(self.config.clone(), self.layers, 1).stored_as(options.dtype);
                let most = batches.iter().max().copied().unwrap_or(1);
                let config = EngineConfig::resident(&decoder, most * (PROMPT + MAX_TOKENS + 16));
                let mut engine = Engine::new(ops, decoder, None, config).map_err(|error| error.to_string())?;
                let by_batch = batches.iter().map(|batch| guarded(|| decode(&mut engine, *batch, options.budget)));
                Ok(by_batch.collect::<Vec<_>>())
            })
        });
        let sections = match measured {
            Section::Done(sections) => sections,
            Section::Failed(reason) | Section::Skipped(reason) => {
                vec![Section::Failed(reason); batches.len()]
            }
        };
        self.points(batches, sections)
    }

    fn points(
        &self,
        batches: &[usize],
        measured: impl IntoIterator<Item = Section<Decoded>>,
    ) -> Vec<DecodingPoint> {
        let points = batches.iter().zip(measured);
        points
            .map(|(batch, measured)| DecodingPoint {
                network: self.name,
                batch: *batch,
                measured,
            })
            .collect()
    }
}

/// Times the decode steps of a batch, after warm-up steps.
fn decode<M: Ops>(engine: &mut Engine<M>, batch: usize, budget: Duration) -> Result<Decoded, String> {
    let vocabulary = engine.model_config().vocabulary;
    for request in 0..batch {
        let prompt = (0..PROMPT).map(|place| u32::try_from((place * 7 + request) % vocabulary).unwrap_or(0));
        let sampling = Sampling {
            max_tokens: MAX_TOKENS,
            ignore_eos: true,
            ..Sampling::default()
        };
        let submitted = engine.submit(request as u64, prompt.collect(), sampling);
        submitted.map_err(|error| error.to_string())?;
    }
    let began = Instant::now();
    let (mut prompt_s, mut waiting, mut warm, mut seconds) = (0.0, batch, 0, Vec::new());
    let mut timed_from = began;
    while !engine.is_idle() && (seconds.is_empty() || timed_from.elapsed() < budget) {
        let report = engine.step().map_err(|error| error.to_string())?;
        if waiting > 0 {
            waiting = waiting.saturating_sub(report.prefilled);
            prompt_s += report.wall_s;
        } else if warm < WARM_STEPS {
            warm += 1;
            timed_from = Instant::now();
        } else {
            seconds.push(report.wall_s);
        }
    }
    engine.abort_all();
    seconds.sort_by(f64::total_cmp);
    let step_s = seconds
        .get(seconds.len() / 2)
        .copied()
        .ok_or("no step was timed")?;
    Ok(Decoded {
        prompt_s,
        steps: seconds.len(),
        step_s,
        tokens_per_s: batch as f64 / step_s,
        weight_bytes_per_s: engine.device_memory().resident as f64 / step_s,
    })
}
