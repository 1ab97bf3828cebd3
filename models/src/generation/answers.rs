//! Answers of a step: samples the next token of every request, decodes its text, and decides whether the answer is
//! finished.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::{Engine, Event, FinishReason, StepReport};
use super::error::EngineError;
use super::forward_pass::MiniBatch;
use super::sampling::SampledToken;
use super::sequence::text_so_far;
use crate::generation::sampling::grammar::Constraint;
use crate::generation::sampling::penalties::top_logprobs;
use crate::ops::{Ops, Span};

impl<M: Ops> Engine<M> {
    /// Samples one token for every request of a step from its last row of logits, and advances the beam searches.
    pub(super) fn answer(
        &mut self,
        batches: &mut [MiniBatch<M>],
        report: &mut StepReport,
    ) -> Result<(), EngineError> {
        let (mut sequences, mut last_rows) = (Vec::new(), Vec::new());
        for batch in &*batches {
            let mut next = 0;
            for entry in &batch.entries {
                next += entry.new;
                sequences.push(entry.request);
                last_rows.push(Span {
                    matrix: &batch.x,
                    from: next.saturating_sub(1),
                    count: 1,
                });
            }
        }
        let rows = self.logits(&self.ops.gather(&last_rows, self.decoder.model_config.width))?;
        let mut prompts = self.prompt_logprobs(batches)?;
        self.keep_states(batches);
        let mut searched: BTreeMap<u64, BTreeMap<u64, Vec<f32>>> = BTreeMap::new();
        for (sequence, logits) in sequences.into_iter().zip(rows) {
            let request = self.sequences.get(&sequence).map(|sequence| sequence.request);
            match request.filter(|request| self.searches.contains_key(request)) {
                Some(request) => {
                    searched.entry(request).or_default().insert(sequence, logits);
                }
                None => report.events.extend(self.extend(sequence, &logits)),
            }
        }
        let mut preempted = BTreeSet::new();
        for (request, rows) in searched {
            if !preempted.contains(&request) {
                let events = self.continue_search(request, &rows, &mut preempted)?;
                report.events.extend(events);
            }
        }
        report.preempted += preempted.len();
        for event in &mut report.events {
            if let Some(prompt) = prompts.remove(&event.request) {
                event.prompt = prompt;
            }
        }
        Ok(())
    }

    /// Samples the next token of a request.
    fn extend(&mut self, request: u64, logits: &[f32]) -> Option<Event> {
        let sequence = self.sequences.get_mut(&request)?;
        sequence.is_cached = true;
        let allowed = match sequence.constraint.as_mut().map(Constraint::allowed).transpose() {
            Ok(allowed) => allowed,
            Err(reason) => return Some(self.leave_grammar(request, &reason)),
        };
        let model_config = &self.decoder.model_config;
        let text = text_so_far(
            &sequence.tokens,
            sequence.source,
            sequence.prompt,
            &model_config.eos_token_ids,
        );
        let sampled = sequence.sampler.sample(
            logits,
            &sequence.sampling,
            &model_config.rules,
            &text,
            allowed.as_ref(),
        );
        let Some(sampled) = sampled else {
            self.end(request);
            return Some(Event::ended(request, FinishReason::NotFinite));
        };
        let top_logprobs = top_logprobs(logits, sequence.sampling.top_logprobs);
        let event = self.accept(request, sampled, top_logprobs)?;
        match event.finish_reason {
            Some(_) => self.end(request),
            None => self.scheduler.extend(request),
        }
        Some(event)
    }

    /// Appends a token to a request's answer.
    pub(super) fn accept(
        &mut self,
        request: u64,
        sampled: SampledToken,
        top_logprobs: Vec<(u32, f32)>,
    ) -> Option<Event> {
        let sequence = self.sequences.get_mut(&request)?;
        let token = sampled.token;
        let (mut text, mut finish_reason) = (String::new(), None);
        let is_eos = self.decoder.model_config.eos_token_ids.contains(&token)
            && (!sequence.sampling.ignore_eos || sequence.constraint.is_some());
        let constraint = sequence.constraint.as_mut().filter(|_| !is_eos);
        let complete = match constraint.map(|constraint| constraint.push(token)).transpose() {
            Ok(complete) => complete.unwrap_or(false),
            Err(reason) => return Some(self.leave_grammar(request, &reason)),
        };
        sequence.tokens.push(token);
        let length = sequence.tokens.len() - sequence.prompt;
        if is_eos {
            finish_reason = Some(FinishReason::Token);
        } else if let Some(tokenizer) = &self.tokenizer {
            let stop = if length > sequence.sampling.min_tokens {
                sequence.sampling.stop.as_slice()
            } else {
                &[]
            };
            let (certain, stopped) = sequence.answer.push(token, tokenizer, stop);
            text = certain;
            finish_reason = stopped.then_some(FinishReason::Stop);
        }
        if complete {
            finish_reason.get_or_insert(FinishReason::Token);
        }
        if finish_reason.is_none() && length >= sequence.sampling.max_tokens {
            finish_reason = Some(FinishReason::Length);
        }
        if finish_reason.is_some_and(|finish_reason| finish_reason != FinishReason::Stop)
            && let Some(tokenizer) = &self.tokenizer
        {
            text.push_str(&sequence.answer.finish(tokenizer));
        }
        Some(Event {
            request,
            sampled: Some(sampled),
            text,
            top_logprobs,
            prompt: Vec::new(),
            finish_reason,
        })
    }

    /// Ends a request whose grammar failed, and returns the final event.
    fn leave_grammar(&mut self, request: u64, reason: &str) -> Event {
        tracing::warn!(reason, "a grammar could not be followed");
        let sequence = self.sequences.get(&request);
        if let Some(grammar) = sequence.and_then(|sequence| sequence.sampling.grammar.as_deref()) {
            self.grammars.forget(grammar);
        }
        self.end(request);
        Event::ended(request, FinishReason::Grammar)
    }
}
