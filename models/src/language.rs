//! Language models behind the `Model` trait: prompts in, texts with a confidence out, with continuous batching.

mod answer;
mod inputs;
mod partial_answer;
mod partition;
mod prompt;
mod prompt_outputs;
pub mod request;
pub mod response_format;
mod settings;
pub mod tokenization;
pub mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_policy::fnv::fnv1a;
use kaskade_policy::hybrid_cache::Refused;

use crate::checkpoint::{Checkpoint, LoadError, WeightTotals};
use crate::decoder::registry;
use crate::device::{Device, with_ops};
use crate::generation::{Engine, EngineError, Event, Sampling, SamplingOptions};
use crate::ops::Ops;
use crate::runtime::model::{Continuous, Preprocessor, Progress};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::Tensor;
use answer::{AnswerScanner, Parts};
pub use answer::{REASONING, REASONING_TOKENS};
use inputs::bad_input;
use kaskade_policy::plan::Partition;
use partial_answer::PartialAnswer;
use prompt::Prompts;
use request::PROMPT_LOGPROBS;
pub use settings::Generation;
use settings::configure;
use tools::{CallScanner, Tools};

/// Request number of the first request of a batch; smaller numbers belong to [`Continuous::submit`].
const FIRST_OF_BATCHES: u64 = 1 << 63;

/// Default `max_tokens` of a chat (`messages`) if neither request, app nor checkpoint states one. A chat usually ends
/// with an EOS token, unlike a text completion.
pub const MAX_CHAT_TOKENS: usize = 2_048;

/// A language model that generates text from a prompt.
///
/// Required inputs, exactly one: `text` (BYTES `[1]`), `messages` (BYTES `[1]`, a JSON array of `{role, content}`) or
/// `input_ids` (INT64 `[tokens]`).
///
/// Optional inputs, which override the defaults of app and checkpoint: `max_tokens`, `top_k`, `seed`, `top_logprobs`
/// (INT64 `[1]`), `prompt_logprobs` (INT64 `[1]`, no default), `ignore_eos` (BOOL `[1]`), `temperature`, `top_p`,
/// `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty` (FP32 `[1]`) and `stop` (BYTES `[texts]`).
/// The default seed is a hash of the prompt, so that every attempt of a request gives the same answer.
///
/// Outputs: `text` (BYTES `[1]`, with a tokenizer), `tokens` (INT64 `[tokens]`), `probabilities` (FP32 `[tokens]`),
/// `confidence` (FP32 `[1]`: the minimum [`SampledToken::confidence`](crate::generation::SampledToken::confidence) of
/// the tokens, HybridServe §IV-A), `end` (BYTES `[1]`: the finish reason) and [`usage`](crate::USAGE).
/// With `top_logprobs` (0 included) also `token_texts` (BYTES `[tokens]`, with a tokenizer); with `top_logprobs` above
/// 0 also `top_tokens` (INT64), `top_token_texts` (BYTES) and `top_logprobs` (FP32), each `[tokens, top_logprobs]`.
/// With `prompt_logprobs` also the outputs that describe the prompt (`prompt_outputs`).
pub struct LanguageModel<M: Ops> {
    engine: Engine<M>,
    prompts: Arc<Prompts>,
    /// Default sampling options: those of the app, then those of the checkpoint.
    sampling: SamplingOptions,
    answers: BTreeMap<u64, PartialAnswer>,
    /// Request number of the next request of a batch.
    next_of_batch: u64,
}

/// A request of a client.
struct Request {
    /// Token ids of the prompt.
    prompt: Vec<u32>,
    /// Whether the prompt is a chat.
    is_chat: bool,
    tools: Option<Tools>,
    sampling: Sampling,
}

/// Loads a language model, or a partition of its layers, onto a device. Also returns the weight totals.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor; [`LoadError::NotServed`] if the device has too
/// little memory.
pub(crate) fn load(
    checkpoint: Checkpoint,
    device: &Device,
    part: Partition,
    generation: &Generation,
) -> Result<(Box<dyn Model>, WeightTotals), LoadError> {
    if part != Partition::WHOLE {
        return partition::load(checkpoint, device, part);
    }
    with_ops!(device, ops => {
        let (model, totals) = LanguageModel::new(ops, checkpoint, generation)?;
        Ok((Box::new(model), totals))
    })
}

impl<M: Ops + Clone> LanguageModel<M> {
    /// Loads a language model from a checkpoint. Also returns the weight totals.
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
        let prompts = Prompts::take(&mut checkpoint)?;
        let mut stated = SamplingOptions::from(&checkpoint.generation);
        let max_length = checkpoint.generation.max_length;
        let (mut decoder, totals) = registry::read_with_totals(checkpoint)?;
        let has_end = prompts.add_eos(&mut decoder.model_config);
        if prompts.tokenizer.is_none() {
            stated.stop = None;
        }
        if decoder.encoder.is_some() {
            // `max_length` counts the decoder start token.
            let max_tokens = max_length.map(|length| length.saturating_sub(1).max(1));
            stated.max_tokens = stated.max_tokens.or(max_tokens);
        }
        let rejected = |reason: String| LoadError::NotServed {
            name: name.clone(),
            reason,
        };
        let sampling = generation.sampling.or(&stated);
        if !has_end && sampling.stop.is_none() {
            tracing::warn!(
                checkpoint = name,
                "no EOS token is configured; generation ends at `max_tokens`. State `eos_token_id` in generation_config.json, or `stop`"
            );
        }
        let checked = sampling.clone().sampling(0).check();
        checked.map_err(|error| rejected(error.to_string()))?;
        let beams = sampling.num_beams.unwrap_or(1);
        if beams > generation.max_num_seqs {
            return Err(rejected(format!(
                "a beam search of {beams} beams takes the place of {beams} requests, and `max_num_seqs` is {}; raise it, or set `num_beams = 1`",
                generation.max_num_seqs
            )));
        }
        let config = configure(ops.clone(), &mut decoder, generation).map_err(rejected)?;
        let engine = Engine::new(ops, decoder, prompts.tokenizer.clone(), config);
        let model = Self {
            engine: engine.map_err(|error| rejected(error.to_string()))?,
            prompts: Arc::new(prompts),
            sampling,
            answers: BTreeMap::new(),
            next_of_batch: FIRST_OF_BATCHES,
        };
        Ok((model, totals))
    }
}

impl<M: Ops> LanguageModel<M> {
    /// Returns the sampling options of a request for a prompt: its own, else the defaults. A default `max_tokens` is
    /// lowered to what the context leaves; a stated `max_tokens` is not.
    fn sampling(
        &self,
        inputs: &Inputs,
        prompt: &[u32],
        tools: Option<&Tools>,
        is_chat: bool,
    ) -> Result<Sampling, ModelError> {
        let mut own = request::sampling_options(inputs)?;
        own.grammar = self.prompts.grammar(tools, own.grammar.take())?;
        let beams_stated = own.num_beams.is_some();
        let has_stops = own.stop.is_some();
        let is_constrained = own.grammar.is_some();
        let stated = own.max_tokens.is_some();
        let seed = request::default_seed(inputs)?.unwrap_or_else(|| seed_of(prompt));
        let temperature = request::default_temperature(inputs)?;
        let mut sampling = own.with_defaults(&self.sampling, temperature).sampling(seed);
        if tools.is_some() && !is_constrained {
            // The app's default format does not allow tool calls.
            sampling.grammar = None;
        }
        if !beams_stated {
            sampling.limit_default_beams();
        }
        // A constrained answer ends by itself, and may contain the app's stop texts.
        if sampling.grammar.is_some() && !has_stops {
            sampling.stop.clear();
        }
        sampling.shown_tokens = self.prompts.marks(tools, is_chat);
        sampling.begins_text = is_chat;
        if !stated {
            if is_chat && self.sampling.max_tokens.is_none() {
                sampling.max_tokens = MAX_CHAT_TOKENS;
            }
            let left = self.engine.longest_answer(prompt.len(), sampling.beam.beams);
            sampling.max_tokens = sampling.max_tokens.min(left.max(1));
        }
        Ok(sampling)
    }

    /// Reads a request. Its prompt may be longer than the model allows.
    ///
    /// # Errors
    /// [`ModelError`], naming the invalid input.
    fn read(&self, inputs: &Inputs) -> Result<Request, ModelError> {
        let mut signature = self.signature();
        let longest = self.engine.longest_prompt();
        signature.inputs.extend(prompt::prepared_inputs(longest));
        signature.check(inputs).map_err(|error| match error {
            ModelError::TooLong { .. } => prompt::too_long(prompt::count_of_ids(inputs), longest),
            other => other,
        })?;
        let prompt = self.prompts.tokens(inputs)?;
        let is_chat = prompt::is_chat(inputs);
        let tools = Tools::read(inputs)?;
        let sampling = self.sampling(inputs, &prompt, tools.as_ref(), is_chat)?;
        if sampling.prompt_logprobs.is_some() && !self.engine.continues_prompt() {
            let reason = "an encoder reads the prompt at once, so its tokens have no probabilities";
            return Err(bad_input(PROMPT_LOGPROBS, reason));
        }
        Ok(Request {
            prompt,
            is_chat,
            tools,
            sampling,
        })
    }

    /// Returns the scanner that separates the parts of an answer. An answer under a grammar has no reasoning.
    fn scanner(
        &self,
        prompt: &[u32],
        sampling: &Sampling,
        tools: Option<&Tools>,
        is_chat: bool,
    ) -> AnswerScanner {
        let syntax = self
            .prompts
            .reasoning
            .filter(|_| is_chat && sampling.grammar.is_none());
        let reasoning = syntax.map(|syntax| (syntax, syntax.is_open_after(&self.prompts.end_of(prompt))));
        let calls =
            tools.map(|tools| CallScanner::new(self.prompts.syntax(), tools, sampling.grammar.is_some()));
        AnswerScanner::new(reasoning, calls, tools)
    }

    /// Adds the events of a step to the answer of their request; all events must belong to the same request.
    fn take(&mut self, events: &[Event]) -> Option<Progress> {
        let number = events.first()?.request;
        let tokenizer = self.prompts.tokenizer.as_ref();
        let answer = self.answers.get_mut(&number)?;
        let before = answer.tokens.len();
        let mut new = Parts::default();
        for event in events {
            new.append(&answer.add(event));
        }
        let mut part = Outputs::new();
        if answer.tokens.len() > before {
            part.extend(Tensor::from_texts("text", &[&new.text]).ok());
            if !new.reasoning.is_empty() {
                part.extend(Tensor::from_texts(REASONING, &[&new.reasoning]).ok());
            }
            if answer.token_texts {
                let outputs = answer.token_outputs(before, tokenizer);
                part.extend(outputs.into_iter().flatten());
            } else {
                let tokens = answer.tokens.get(before..).unwrap_or_default();
                part.extend(Tensor::from_i64("tokens", &[tokens.len()], tokens).ok());
            }
        }
        let pieces = u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX);
        let reason = events.last().and_then(|event| event.finish_reason);
        let end = reason.map(|reason| {
            let answer = self.answers.remove(&number).unwrap_or_default();
            answer.outputs(reason, tokenizer)
        });
        Some(Progress {
            number,
            pieces,
            part,
            end,
        })
    }

    /// Fails all requests in flight after a device error.
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

impl<M: Ops> Continuous for LanguageModel<M> {
    fn submit(&mut self, number: u64, inputs: &Inputs) -> Result<(), ModelError> {
        let Request {
            prompt,
            is_chat,
            tools,
            sampling,
        } = self.read(inputs)?;
        let stops = !sampling.stop.is_empty();
        let wanted = prompt
            .first()
            .copied()
            .filter(|_| sampling.prompt_logprobs.is_some());
        let answer = PartialAnswer {
            prompt_tokens: Some(prompt.len()),
            must_call: tools.as_ref().is_some_and(Tools::is_required),
            token_texts: inputs.iter().any(|input| input.name == "top_logprobs"),
            previous: prompt
                .last()
                .copied()
                .filter(|_| self.engine.continues_prompt() && !is_chat),
            scanner: self.scanner(&prompt, &sampling, tools.as_ref(), is_chat),
            prompt: wanted.map(|first| (first, Vec::new())),
            ..PartialAnswer::default()
        };
        self.engine
            .submit(number, prompt, sampling)
            .map_err(|error| match error {
                EngineError::Refused(Refused::Context { .. } | Refused::Cache { .. })
                | EngineError::Prompt { .. } => ModelError::TooLong {
                    reason: error.to_string(),
                },
                EngineError::Refused(Refused::Beams { .. }) => bad_input("num_beams", error.to_string()),
                EngineError::Refused(_) | EngineError::Token { .. } => {
                    bad_input(prompt::name_of(inputs), error.to_string())
                }
                EngineError::Sampling(ref reason) => bad_input(reason.input(), error.to_string()),
                EngineError::NoTokenizer if stops => bad_input("stop", error.to_string()),
                EngineError::NoTokenizer | EngineError::Grammar(_) => {
                    bad_input(answer.format_input(), error.to_string())
                }
                other => failed(&other),
            })?;
        self.answers.insert(number, answer);
        Ok(())
    }

    fn preprocessor(&self) -> Option<Preprocessor> {
        self.prompts.tokenizer.as_ref()?;
        let prompts = Arc::clone(&self.prompts);
        let grammars = self.engine.grammars();
        Some(Arc::new(move |inputs| {
            prompts.compile(&grammars, inputs);
            prompts.read(inputs)
        }))
    }

    fn cancel(&mut self, number: u64) {
        self.answers.remove(&number);
        self.engine.cancel(number);
    }

    fn step(&mut self) -> Vec<Progress> {
        match self.engine.step() {
            Ok(report) => report
                .events
                .chunk_by(|one, next| one.request == next.request)
                .filter_map(|events| self.take(events))
                .collect(),
            Err(error) => self.fail_all(&error),
        }
    }
}

impl<M: Ops> Model for LanguageModel<M> {
    fn signature(&self) -> Signature {
        let mut inputs = self.prompts.inputs(self.engine.longest_prompt());
        inputs.extend(request::sampling_inputs(self.prompts.tokenizer.is_some()));
        inputs.push(request::prompt_logprobs_input());
        inputs.extend(request::beam_inputs());
        Signature { inputs }
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        let tokens = self.read(inputs)?.prompt.len();
        let longest = self.engine.longest_prompt();
        if tokens > longest {
            return Err(prompt::too_long(tokens, longest));
        }
        Ok(())
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        if !self.answers.is_empty() {
            // A panic may have ended the previous batch.
            self.answers.clear();
            self.engine.abort_all();
        }
        let first = self.next_of_batch;
        self.next_of_batch = first.wrapping_add(batch.len() as u64).max(FIRST_OF_BATCHES);
        let mut results: Vec<Option<Result<Outputs, ModelError>>> = Vec::with_capacity(batch.len());
        for (number, inputs) in (first..).zip(batch) {
            results.push(self.submit(number, inputs).err().map(Err));
        }
        while !self.answers.is_empty() {
            for Progress { number, end, .. } in self.step() {
                let place = number
                    .checked_sub(first)
                    .and_then(|place| usize::try_from(place).ok());
                if let Some(place) = place.and_then(|place| results.get_mut(place)) {
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

/// Returns the default seed of a request: a hash of the prompt, equal for every attempt.
fn seed_of(prompt: &[u32]) -> u64 {
    fnv1a(prompt.iter().copied())
}

fn failed(error: &EngineError) -> ModelError {
    ModelError::Failed {
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
