//! Language models behind the `Model` trait: texts in, texts with a confidence out, with continuous batching.

mod slice;

use std::collections::BTreeMap;

use tokenizers::Tokenizer;

use crate::checkpoint::{Checkpoint, LoadError, WeightTotals};
use crate::decoder::registry;
use crate::device::{Device, with_ops};
use crate::generation::{
    Caching, Decoder, Engine, EngineConfig, EngineError, Event, FinishReason, MemoryLimits, SampledToken,
    Sampling, detokenizer,
};
use crate::ops::Ops;
use crate::runtime::model::{Continuous, Progress};
use crate::runtime::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::slice::Slice;
use crate::runtime::tensor::{Datatype, Tensor};

/// Maximum stop texts per request.
const MAX_STOP_TEXTS: usize = 16;

/// Maximum length of a request that memory is reserved for, tokens.
const MAX_CONTEXT_TOKENS: usize = 1 << 20;

/// Maximum text of a request, bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Settings of a language model.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Defaults for requests that do not set their own.
    pub sampling: Sampling,
    /// Maximum running requests; others wait.
    pub requests: usize,
    /// Memory of the cache, bytes; at least one request with the full context.
    pub cache_bytes: u64,
    /// Memory budget on the device, bytes; `None`: the whole model is resident. Layers that do not fit are streamed,
    /// and the cache is then in host memory.
    pub device_bytes: Option<u64>,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            sampling: Sampling::default(),
            requests: 32,
            cache_bytes: 256 << 20,
            device_bytes: None,
        }
    }
}

/// A language model.
///
/// Inputs: `text` (BYTES `[1]`) or `input_ids` (INT64 `[tokens]`); optional, to override the app's defaults:
/// `max_tokens`, `top_k`, `seed` (INT64 `[1]`), `temperature`, `top_p` (FP32 `[1]`) and `stop` (BYTES `[texts]`).
/// Outputs: `text` (BYTES `[1]`, with a tokenizer), `tokens` (INT64 `[tokens]`), `probabilities` (FP32 `[tokens]`),
/// `confidence` (FP32 `[1]`: the smallest [`SampledToken::confidence`](crate::generation::SampledToken::confidence) of
/// the tokens, HybridServe §IV-A) and `end` (BYTES `[1]`: the finish reason).
pub struct LanguageModel<M: Ops> {
    engine: Engine<M>,
    sampling: Sampling,
    answers: BTreeMap<u64, PartialAnswer>,
}

/// The answer of a request in flight.
#[derive(Debug, Clone, Default)]
struct PartialAnswer {
    text: String,
    tokens: Vec<i64>,
    probabilities: Vec<f32>,
    confidence: f32,
}

/// Loads a language model, or a slice of its layers, onto a device. Returns its weight totals too.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor; [`LoadError::NotServed`] if the device has too
/// little memory.
pub(crate) fn load(
    checkpoint: Checkpoint,
    device: &Device,
    part: Slice,
    generation: &Generation,
) -> Result<(Box<dyn Model>, WeightTotals), LoadError> {
    if part != Slice::WHOLE {
        return slice::load(checkpoint, device, part);
    }
    with_ops!(device, ops => {
        let (model, totals) = LanguageModel::new(ops, checkpoint, generation)?;
        Ok((Box::new(model), totals))
    })
}

impl<M: Ops + Clone> LanguageModel<M> {
    /// Loads a language model from a checkpoint; returns its weight totals too.
    ///
    /// # Errors
    /// [`LoadError`], naming the file and within it the key or tensor; [`LoadError::NotServed`] if the device has too
    /// little memory.
    pub fn new(
        ops: M,
        mut checkpoint: Checkpoint,
        generation: &Generation,
    ) -> Result<(Self, WeightTotals), LoadError> {
        let name = checkpoint.name.clone();
        let tokenizer = checkpoint.tokenizer.take();
        let tokenizer = tokenizer.as_ref().map(detokenizer::tokenizer).transpose()?;
        let (decoder, totals) = registry::read_with_totals(checkpoint)?;
        let rejected = |error: EngineError| LoadError::NotServed {
            name: name.clone(),
            reason: error.to_string(),
        };
        let config = configure(ops.clone(), &decoder, generation).map_err(rejected)?;
        let engine = Engine::new(ops, decoder, tokenizer, config).map_err(|error| rejected(error.into()))?;
        let model = Self {
            engine,
            sampling: generation.sampling.clone(),
            answers: BTreeMap::new(),
        };
        Ok((model, totals))
    }
}

impl<M: Ops> LanguageModel<M> {
    /// The app's defaults with the overrides of the request.
    fn sampling(&self, inputs: &Inputs) -> Result<Sampling, ModelError> {
        let mut sampling = self.sampling.clone();
        for input in inputs {
            match input.name.as_str() {
                "max_tokens" => sampling.max_tokens = non_negative(input)?,
                "top_k" => sampling.top_k = non_negative(input)?,
                "seed" => sampling.seed = scalar(input, &input.to_i64()?)? as u64,
                "temperature" => sampling.temperature = scalar(input, &input.to_f32()?)?,
                "top_p" => sampling.top_p = scalar(input, &input.to_f32()?)?,
                "stop" => sampling.stop = input.to_texts()?.into_iter().map(ToOwned::to_owned).collect(),
                _ => {}
            }
        }
        Ok(sampling)
    }

    fn take(&mut self, event: &Event) -> Option<Progress> {
        let answer = self.answers.get_mut(&event.request)?;
        answer.add(&event.text, event.sampled.as_ref());
        let mut part = Outputs::new();
        if let Some(sampled) = event.sampled {
            part.extend(Tensor::from_texts("text", &[&event.text]).ok());
            part.extend(Tensor::from_i64("tokens", &[1], &[i64::from(sampled.token)]).ok());
        }
        let pieces = u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX);
        let end = event.finish_reason.map(|end| {
            let answer = self.answers.remove(&event.request).unwrap_or_default();
            answer.outputs(end, self.engine.tokenizer().is_some())
        });
        Some(Progress {
            number: event.request,
            pieces,
            part,
            end,
        })
    }

    /// Fails all requests after a failure of the device.
    fn fail_all(&mut self, error: &EngineError) -> Vec<Progress> {
        let failed = std::mem::take(&mut self.answers)
            .into_iter()
            .map(|(number, answer)| {
                self.engine.cancel(number);
                Progress {
                    number,
                    pieces: u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX),
                    part: Outputs::new(),
                    end: Some(Err(failed(error))),
                }
            });
        failed.collect()
    }
}

impl PartialAnswer {
    /// Adds new text and a token.
    fn add(&mut self, text: &str, sampled: Option<&SampledToken>) {
        self.text.push_str(text);
        let Some(sampled) = sampled else { return };
        self.confidence = if self.tokens.is_empty() {
            sampled.confidence
        } else {
            self.confidence.min(sampled.confidence)
        };
        self.tokens.push(i64::from(sampled.token));
        self.probabilities.push(sampled.probability);
    }

    fn outputs(self, end: FinishReason, texts: bool) -> Result<Outputs, ModelError> {
        let why = match end {
            FinishReason::Token => "token",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => {
                return Err(ModelError::Failed {
                    reason: "the request was cancelled".into(),
                });
            }
            FinishReason::NotFinite => {
                return Err(ModelError::BadOutput {
                    reason: "logits are not finite, so there is no next token".into(),
                });
            }
        };
        let count = [self.tokens.len()];
        let mut outputs = Vec::new();
        if texts {
            outputs.push(Tensor::from_texts("text", &[&self.text])?);
        }
        outputs.push(Tensor::from_i64("tokens", &count, &self.tokens)?);
        outputs.push(Tensor::from_f32("probabilities", &count, &self.probabilities)?);
        outputs.push(Tensor::from_f32("confidence", &[1], &[self.confidence])?);
        outputs.push(Tensor::from_texts("end", &[why])?);
        Ok(outputs)
    }
}

impl<M: Ops> Continuous for LanguageModel<M> {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        self.signature().check(inputs)?;
        let prompt = prompt_tokens(inputs, self.engine.tokenizer())?;
        let sampling = self.sampling(inputs)?;
        self.engine
            .submit(number, prompt, sampling)
            .map_err(|error| match error {
                EngineError::Refused(_) | EngineError::Prompt { .. } | EngineError::Token { .. } => {
                    bad_input(
                        inputs.first().map_or("text", |input| input.name.as_str()),
                        error.to_string(),
                    )
                }
                EngineError::Sampling(_) => bad_input("max_tokens", error.to_string()),
                EngineError::NoTokenizer => bad_input("stop", error.to_string()),
                other => failed(&other),
            })?;
        self.answers.insert(number, PartialAnswer::default());
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        self.answers.remove(&number);
        self.engine.cancel(number);
    }

    fn step(&mut self) -> Vec<Progress> {
        match self.engine.step() {
            Ok(report) => report
                .events
                .into_iter()
                .filter_map(|event| self.take(&event))
                .collect(),
            Err(error) => self.fail_all(&error),
        }
    }
}

impl<M: Ops> Model for LanguageModel<M> {
    fn signature(&self) -> Signature {
        let texts = self.engine.tokenizer().is_some();
        let one = |name, datatype| InputSpec::optional(name, datatype, vec![Extent::Exactly(1)]);
        let mut inputs = text_inputs(self.engine.longest_prompt(), texts);
        inputs.extend([
            one("max_tokens", Datatype::I64),
            one("temperature", Datatype::F32),
            one("top_k", Datatype::I64),
            one("top_p", Datatype::F32),
            one("seed", Datatype::I64),
        ]);
        if texts {
            let stop = vec![Extent::UpTo(MAX_STOP_TEXTS)];
            inputs.push(InputSpec::optional("stop", Datatype::Bytes, stop));
        }
        Signature { inputs }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut results: Vec<Option<Result<Outputs, ModelError>>> = Vec::with_capacity(batch.len());
        for (number, inputs) in (0..).zip(batch) {
            results.push(self.submit(number, inputs).err().map(Err));
        }
        while !self.answers.is_empty() {
            for Progress { number, end, .. } in self.step() {
                if let Some(place) = usize::try_from(number)
                    .ok()
                    .and_then(|number| results.get_mut(number))
                {
                    *place = end.or(place.take());
                }
            }
        }
        let missing = || {
            Err(ModelError::Failed {
                reason: "the engine dropped the request without an answer".into(),
            })
        };
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(missing))
            .collect()
    }

    fn continuous(&mut self) -> Option<&mut dyn Continuous> {
        Some(self)
    }
}

/// Sizes the cache by its memory; at least one request with the full context.
fn configure<M: Ops>(
    ops: M,
    decoder: &Decoder,
    generation: &Generation,
) -> Result<EngineConfig, EngineError> {
    let resident = EngineConfig::resident(decoder, 0);
    let block = resident.block_tokens;
    let block_bytes = crate::generation::config::block_bytes(
        &decoder.model_config,
        decoder.layers.len(),
        block,
        kaskade_policy::hybrid_cache::Kind::Kv,
    );
    let blocks = usize::try_from(generation.cache_bytes / block_bytes.max(1)).unwrap_or(usize::MAX);
    let requests = generation.requests.max(1);
    // The cache holds the encoder's prompt followed by the answer.
    let answer = decoder
        .encoder
        .as_ref()
        .map_or(0, |_| generation.sampling.max_tokens);
    let context = decoder
        .longest_prompt()
        .saturating_add(answer)
        .min(MAX_CONTEXT_TOKENS)
        .next_multiple_of(block);
    let tokens = blocks
        .saturating_mul(block)
        .min(requests.saturating_mul(context))
        .max(context);
    let memory_limits = MemoryLimits {
        caching: Caching::Hybrid,
        device_bytes: generation.device_bytes,
        link: None,
        requests,
        tokens,
    };
    Ok(EngineConfig::plan(ops, decoder, &memory_limits)?.config)
}

/// Returns the tokens of a request's `text` or `input_ids`.
fn prompt_tokens(inputs: &Inputs, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, ModelError> {
    let input = |name: &str| inputs.iter().find(|input| input.name == name);
    match (input("text"), input("input_ids")) {
        (Some(text), None) => tokenize(text, tokenizer),
        (None, Some(ids)) => ids
            .to_i64()?
            .into_iter()
            .map(|id| u32::try_from(id).map_err(|_| bad_input("input_ids", format!("{id} is not a token"))))
            .collect(),
        (Some(_), Some(_)) => Err(bad_input(
            "input_ids",
            "it is given together with `text`; send only one",
        )),
        (None, None) => Err(bad_input(
            "text",
            "`text` and `input_ids` are missing; send one of them",
        )),
    }
}

/// The inputs for a prompt: `text` if there is a tokenizer, and `input_ids`.
fn text_inputs(context: usize, texts: bool) -> Vec<InputSpec> {
    let ids = vec![Extent::UpTo(context)];
    if texts {
        let text = InputSpec::optional("text", Datatype::Bytes, vec![Extent::Exactly(1)]);
        vec![text, InputSpec::optional("input_ids", Datatype::I64, ids)]
    } else {
        vec![InputSpec::required("input_ids", Datatype::I64, ids)]
    }
}

fn tokenize(text: &Tensor, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, ModelError> {
    if text.data.len() > MAX_TEXT_BYTES {
        return Err(bad_input(
            &text.name,
            format!("it is longer than {MAX_TEXT_BYTES} bytes"),
        ));
    }
    let Some(tokenizer) = tokenizer else {
        return Err(bad_input(&text.name, "this checkpoint has no tokenizer.json"));
    };
    let only = text.to_texts()?.into_iter().next().unwrap_or_default();
    let encoding = tokenizer
        .encode(only, true)
        .map_err(|error| bad_input(&text.name, format!("the tokenizer failed: {error}")))?;
    if encoding.get_ids().is_empty() {
        return Err(bad_input(&text.name, "it has no tokens; send at least one word"));
    }
    Ok(encoding.get_ids().to_vec())
}

fn scalar<T: Copy>(input: &Tensor, values: &[T]) -> Result<T, ModelError> {
    values
        .first()
        .copied()
        .ok_or_else(|| bad_input(&input.name, "it is empty"))
}

fn non_negative(input: &Tensor) -> Result<usize, ModelError> {
    let value = scalar(input, &input.to_i64()?)?;
    usize::try_from(value).map_err(|_| bad_input(&input.name, format!("{value} is negative")))
}

fn bad_input(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason: reason.into(),
    }
}

fn failed(error: &EngineError) -> ModelError {
    ModelError::Failed {
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
