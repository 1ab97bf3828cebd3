//! A step of the engine: scheduling, then the forward pass in mini-batches.

use std::time::Instant;

use kaskade_policy::hybrid_cache::{
    Block, Capacity, Costs, Demand, Place, Prediction, Refused, StepTimes, Traffic, in_order, pack,
};
use kaskade_policy::linear_fit::LinearFit;

use super::config::Caching;
use super::engine::{Engine, Event, FinishReason, StepReport};
use super::error::EngineError;
use super::forward_pass::{ForwardPass, MiniBatch};
use crate::generation::cache::block_cache::slices;
use crate::generation::cache::cached_context::BatchEntry;
use crate::generation::layers::recurrent::RecurrentState;
use crate::ops::{Ops, OpsError};

impl<M: Ops> Engine<M> {
    /// Runs one step; does nothing without requests.
    ///
    /// # Errors
    /// [`EngineError`] if the device fails or the transfer thread ends. The requests are kept, and the step can be
    /// repeated.
    pub fn step(&mut self) -> Result<StepReport, EngineError> {
        let began = Instant::now();
        let mut report = StepReport::default();
        for request in std::mem::take(&mut self.cancelled) {
            self.end(request);
            report.events.push(Event::ended(request, FinishReason::Cancelled));
        }
        let step = self.scheduler.step(&mut self.space);
        report.prefilled = step.prefill.len();
        report.preempted = step.preempted.len();
        for request in &step.preempted {
            self.preempted(*request);
        }
        let prefill = !step.prefill.is_empty();
        let requests = if prefill { step.prefill } else { step.decode };
        let entries = requests
            .into_iter()
            .filter_map(|request| self.entry_of(request, prefill))
            .collect();
        let mut batches = self.mini_batches(entries)?;
        report.mini_batches = batches.len();
        self.take_states(&mut batches);
        if !batches.is_empty() {
            let prediction = self.predict(&batches);
            report.predicted_s = prediction.map(|prediction| prediction.step_s);
            let [to_device, _] = &self.links;
            let busy_before_s = to_device.busy_s();
            let waited = self.run_layers(&mut batches, &mut report.traffic)?;
            self.answer(&mut batches, &mut report)?;
            let [to_device, back] = &self.links;
            let drained = Instant::now();
            back.drain();
            report.wall_s = began.elapsed().as_secs_f64();
            report.compute_s = report.wall_s - waited - drained.elapsed().as_secs_f64();
            report.load_s = to_device.busy_s() - busy_before_s;
            if let Some(prediction) = prediction {
                self.learn(&prediction, &report);
            }
        }
        Ok(report)
    }

    /// Returns the policy's prediction for a decode step; `None` for a prefill step.
    fn predict(&self, batches: &[MiniBatch<M>]) -> Option<Prediction> {
        let policy = self.policy.as_ref()?;
        let entries = || batches.iter().flat_map(|batch| &batch.entries);
        if entries().any(|entry| entry.cached == 0) {
            return None;
        }
        let blocks = Capacity::of(entries().flat_map(blocks));
        Some(policy.predict(blocks, self.layers(), batches.len()))
    }

    /// Updates the policy with the result of a step, and adopts its new mixture. Without mini-batches, requests were
    /// admitted by the planned mixture, so it stays.
    fn learn(&mut self, prediction: &Prediction, report: &StepReport) {
        let took = StepTimes {
            compute_s: report.compute_s,
            load_s: report.load_s,
        };
        let shares = self
            .policy
            .as_mut()
            .and_then(|policy| policy.learn(prediction, took));
        if let Some(shares) =
            shares.filter(|_| self.config.caching == Caching::Hybrid && self.config.mini_batches)
        {
            self.config.shares = shares;
            self.space.keep(shares);
        }
    }

    /// Returns the logits of every token of a text, one row of vocabulary size each. Caches nothing, and does not
    /// affect running requests. An encoder-decoder reads the text as a prompt and returns one row, for the first token
    /// of its answer.
    ///
    /// # Errors
    /// [`EngineError`] for unknown tokens, for more tokens than the context, or if the device fails.
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, EngineError> {
        if self.encoder.is_some() {
            return self.score_answer(tokens, &[]);
        }
        self.check_tokens(tokens)?;
        self.rows(tokens, 0)
    }

    /// Returns the logits of every token of an answer to a prompt, then those of the next token.
    ///
    /// # Errors
    /// The errors of [`Engine::score`], and [`Refused::Empty`] for an empty prompt.
    pub(crate) fn score_answer(
        &mut self,
        prompt: &[u32],
        answer: &[u32],
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        self.check_tokens(prompt)?;
        self.check_tokens(answer)?;
        let (mut tokens, source) = self.initial_tokens(prompt.to_vec())?;
        // The logits of a token belong to the token before it.
        let first = (tokens.len() - source).checked_sub(1).ok_or(Refused::Empty)?;
        tokens.extend(answer);
        Ok(self.rows(&tokens, source)?.split_off(first))
    }

    /// Returns one row of logits per token that the decoder reads.
    fn rows(&mut self, tokens: &[u32], source: usize) -> Result<Vec<Vec<f32>>, EngineError> {
        let (new, context) = (tokens.len() - source, self.decoder.model_config.context);
        if new > context {
            return Err(Refused::Context {
                prompt: new,
                answer: 0,
                context,
            }
            .into());
        }
        let entry = BatchEntry {
            request: u64::MAX,
            source,
            cached: 0,
            new,
            slices: Vec::new(),
        };
        let mut batches = [self.mini_batch(vec![entry], |_| tokens)?];
        self.run_layers(&mut batches, &mut Traffic::default())?;
        let mut rows = Vec::new();
        for batch in &batches {
            rows.extend(self.logits(&batch.x)?);
        }
        Ok(rows)
    }

    fn entry_of(&self, request: u64, prefill: bool) -> Option<BatchEntry> {
        let sequence = self.sequences.get(&request)?;
        let (tokens, source) = (sequence.tokens.len(), sequence.source);
        // States are lost by a preemption or a failed step, and a failed prefill caches nothing.
        let lost = !sequence.is_cached || !self.state_sizes.is_empty() && sequence.state.is_none();
        let cached = if prefill || lost || self.config.caching == Caching::Tokens {
            0
        } else {
            tokens.saturating_sub(1)
        };
        Some(BatchEntry {
            request,
            source,
            cached,
            new: tokens - cached.max(source),
            slices: slices(
                self.space.table(request),
                self.space.block_tokens(),
                source,
                cached,
            ),
        })
    }

    fn mini_batches(&self, entries: Vec<BatchEntry>) -> Result<Vec<MiniBatch<M>>, OpsError> {
        let groups = if !self.config.mini_batches {
            vec![(0..entries.len()).collect()]
        } else if entries.iter().any(|entry| entry.cached > 0) {
            let demands: Vec<Demand> = entries.iter().map(demand).collect();
            let costs = self.costs().unwrap_or_else(default_costs);
            pack(
                &demands,
                self.config.buffer,
                self.config.mini_batch_requests,
                &costs,
            )
        } else {
            let tokens: Vec<usize> = entries.iter().map(|entry| entry.encoded() + entry.new).collect();
            in_order(
                &tokens,
                self.config.mini_batch_tokens,
                self.config.mini_batch_requests,
            )
        };
        let mut entries: Vec<Option<BatchEntry>> = entries.into_iter().map(Some).collect();
        let mut taken = |index: usize| entries.get_mut(index).and_then(Option::take);
        let groups: Vec<Vec<BatchEntry>> = groups
            .into_iter()
            .map(|group: Vec<usize>| group.into_iter().filter_map(&mut taken).collect())
            .collect();
        let groups = groups.into_iter().filter(|group| !group.is_empty());
        let text = |request: u64| {
            let sequence = self.sequences.get(&request);
            sequence.map_or(&[][..], |sequence| &sequence.tokens)
        };
        groups.map(|entries| self.mini_batch(entries, text)).collect()
    }

    /// Builds a mini-batch with the embedded tokens of its requests.
    fn mini_batch<'a>(
        &self,
        entries: Vec<BatchEntry>,
        text: impl Fn(u64) -> &'a [u32],
    ) -> Result<MiniBatch<M>, OpsError> {
        let (mut vectors, mut positions, mut source) = (Vec::new(), Vec::new(), Vec::new());
        let mut new_tokens = Vec::new();
        for entry in &entries {
            let (tokens, places) = (text(entry.request), entry.places());
            let first = places.start - entry.source;
            let new = tokens.get(places).unwrap_or_default();
            vectors.extend(self.embed(new, first));
            new_tokens.extend_from_slice(new);
            positions.extend(first..first + new.len());
            let prompt = tokens.get(..entry.encoded()).unwrap_or_default();
            source.extend(self.embed_prompt(prompt));
        }
        let states = entries.iter().map(|entry| match entry.cached {
            0 => RecurrentState::zeros(&self.state_sizes),
            _ => RecurrentState::default(),
        });
        let states = states.collect();
        let loaded = entries.iter().flat_map(|entry| &entry.slices);
        let upload = |vectors| self.ops.upload(vectors, self.decoder.model_config.width);
        let x = upload(vectors);
        let token_inputs = match &self.per_layer_embeddings {
            Some(layers) => layers.inputs(&self.ops, &new_tokens, &x)?,
            None => Vec::new(),
        };
        let streams = match &self.streams {
            Some(projections) => projections.begin(&self.ops, &x, self.decoder.model_config.width)?,
            None => Vec::new(),
        };
        Ok(MiniBatch {
            x,
            streams,
            token_inputs,
            kept: [None, None],
            positions,
            source: (!source.is_empty()).then(|| upload(source)),
            loaded: loaded
                .filter(|slice| slice.block.place == Place::Host)
                .copied()
                .collect(),
            states,
            entries,
        })
    }

    /// Moves the states after the cached tokens to the mini-batches. A failed step loses them, so that they are
    /// recomputed.
    fn take_states(&mut self, batches: &mut [MiniBatch<M>]) {
        for batch in batches {
            for (entry, state) in batch.entries.iter().zip(&mut batch.states) {
                let sequence = self.sequences.get_mut(&entry.request);
                let taken = sequence.and_then(|sequence| sequence.state.take());
                if let Some(taken) = taken.filter(|_| entry.cached > 0) {
                    *state = taken;
                }
            }
        }
    }

    /// Moves the states after the new tokens back to their requests.
    pub(super) fn keep_states(&mut self, batches: &mut [MiniBatch<M>]) {
        if self.state_sizes.is_empty() || self.config.caching == Caching::Tokens {
            return;
        }
        for batch in batches {
            for (entry, state) in batch.entries.iter().zip(batch.states.drain(..)) {
                if let Some(sequence) = self.sequences.get_mut(&entry.request) {
                    sequence.state = Some(state);
                }
            }
        }
    }

    fn embed(&self, tokens: &[u32], first: usize) -> Vec<f32> {
        let embedding = |token: usize, out: &mut [f32]| self.head.read_embedding(&self.ops, token, out);
        self.decoder.embed(tokens, first, embedding)
    }

    /// Embeds the tokens of an encoder's prompt.
    fn embed_prompt(&self, tokens: &[u32]) -> Vec<f32> {
        let embedding = |token: usize, out: &mut [f32]| self.head.read_embedding(&self.ops, token, out);
        self.encoder.as_ref().map_or_else(Vec::new, |encoder| {
            self.decoder.embed_prompt(tokens, &encoder.inputs, embedding)
        })
    }

    /// Runs all layers; returns the time spent waiting for the link, seconds.
    fn run_layers(
        &mut self,
        batches: &mut [MiniBatch<M>],
        traffic: &mut Traffic,
    ) -> Result<f64, EngineError> {
        let pass = ForwardPass {
            ops: &self.ops,
            model_config: &self.decoder.model_config,
            placements: &self.placements,
            encoder: self.encoder.as_ref(),
            position_bias: self.position_bias.as_ref(),
            reuses_kv: self.reuses_kv,
            host: &self.host,
            space: &self.space,
            links: &self.links,
        };
        let result = pass.run(
            &mut self.device,
            self.prefetched.take(),
            batches,
            &mut self.buffers,
        )?;
        if let Some(projections) = &self.streams {
            for batch in batches {
                let streams = std::mem::take(&mut batch.streams);
                let width = self.decoder.model_config.width;
                batch.x = projections.end(&self.ops, &batch.x, &streams, width)?;
            }
        }
        self.prefetched = result.prefetched;
        *traffic = result.traffic;
        Ok(result.waited_s)
    }

    /// Returns the logits of hidden states.
    pub(super) fn logits(&self, x: &M::Matrix) -> Result<Vec<Vec<f32>>, OpsError> {
        let normalised = self.ops.normalise(x, &self.final_norm);
        let logits = self.head.logits(&self.ops, &normalised);
        let values = self.ops.values(&logits)?;
        let rows = values.chunks(self.decoder.model_config.vocabulary.max(1));
        let capped = rows.map(|row| {
            let mut row = row.to_vec();
            self.decoder.model_config.scale_logits(&mut row);
            row
        });
        Ok(capped.collect())
    }
}

/// Returns the blocks that a request reads.
fn blocks(entry: &BatchEntry) -> impl Iterator<Item = Block> {
    // A block shared by prompt and answer has two slices; only one of them starts at its beginning.
    let begins = entry.slices.iter().filter(|slice| slice.from == 0);
    begins.map(|slice| slice.block)
}

/// Returns the packing input for a request.
fn demand(entry: &BatchEntry) -> Demand {
    let blocks = Capacity::of(blocks(entry));
    Demand {
        loaded: blocks.host,
        on_device: blocks.device.act,
    }
}

/// Returns default costs for packing without measured ones: computing and loading take equally long.
fn default_costs() -> Costs {
    let line = LinearFit {
        intercept: 0.0,
        slope: 1.0,
        r2: 1.0,
    };
    Costs {
        load_weights_s: 0.0,
        kv_gen: line,
        load_kv: line,
        load_act: LinearFit { slope: 0.5, ..line },
        forward: LinearFit { slope: 0.0, ..line },
        head_s: 0.0,
    }
}
