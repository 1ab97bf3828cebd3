//! Submission and cancellation of requests.

use kaskade_policy::hybrid_cache::{Refused, Scheduler};

use super::detokenizer::Detokenizer;
use super::engine::{Engine, held_context, limits, space};
use super::error::EngineError;
use super::sampling::{Sampler, Sampling, SamplingError};
use super::sequence::Sequence;
use crate::generation::sampling::beam_search::BeamSearch;
use crate::ops::Ops;

impl<M: Ops> Engine<M> {
    /// Submits a request.
    ///
    /// # Errors
    /// [`EngineError`] for a request that can never run: too long, too large for the cache, unknown tokens, invalid
    /// sampling parameters, an invalid grammar, or a number in use.
    pub fn submit(&mut self, request: u64, prompt: Vec<u32>, sampling: Sampling) -> Result<(), EngineError> {
        sampling.check()?;
        if !sampling.stop.is_empty() && self.tokenizer.is_none() {
            return Err(EngineError::NoTokenizer);
        }
        self.check_tokens(&prompt)?;
        self.check_biases(&sampling)?;
        if self.sequences.contains_key(&request) {
            return Err(Refused::Twice { request }.into());
        }
        let (tokens, source) = self.initial_tokens(prompt)?;
        let context = self.decoder.model_config.context;
        if source > 0 && sampling.max_tokens > context {
            return Err(Refused::Context {
                prompt: 0,
                answer: sampling.max_tokens,
                context,
            }
            .into());
        }
        let constraint = sampling.grammar.as_deref().map(|grammar| {
            let tokenizer = self.tokenizer.as_ref().ok_or(EngineError::NoTokenizer)?;
            let constraint = self.grammars.constraint(tokenizer, grammar);
            constraint.map_err(EngineError::Grammar)
        });
        let constraint = constraint.transpose()?;
        // The answer has an additional start token, but its last token is not cached.
        let answer = sampling.max_tokens - usize::from(source > 0);
        self.scheduler
            .submit_beams(request, sampling.beam.beams, tokens.len(), answer, &self.space)?;
        if sampling.beam.beams > 1 {
            let search = BeamSearch::new(sampling.beam, sampling.max_tokens, request);
            self.searches.insert(request, search);
        }
        let mut detokenizer = Detokenizer::new(sampling.shown_tokens.clone());
        if let Some(tokenizer) = self
            .tokenizer
            .as_ref()
            .filter(|_| source == 0 && !sampling.begins_text)
        {
            detokenizer = detokenizer.behind(&tokens, tokenizer);
        }
        let sequence = Sequence {
            request,
            prompt: tokens.len(),
            tokens,
            source,
            is_cached: false,
            state: None,
            sampler: Sampler::new(sampling.seed),
            answer: detokenizer,
            sampling,
            constraint,
        };
        self.sequences.insert(request, sequence);
        Ok(())
    }

    /// Cancels a request; the next step reports its end. Returns whether the request exists.
    pub fn cancel(&mut self, request: u64) -> bool {
        let here = self.sequences.contains_key(&request);
        if here {
            self.cancelled.insert(request);
        }
        here
    }

    /// Returns the initial tokens of a request for this prompt, and the number of them that an encoder reads.
    pub(super) fn initial_tokens(&self, mut prompt: Vec<u32>) -> Result<(Vec<u32>, usize), EngineError> {
        let Some(encoder) = &self.encoder else {
            return Ok((prompt, 0));
        };
        let (source, limit) = (prompt.len(), encoder.context);
        if source == 0 {
            return Err(Refused::Empty.into());
        }
        if source > limit {
            return Err(EngineError::Prompt {
                tokens: source,
                limit,
                hint: if encoder.reads_any_length {
                    ", or set a larger `max_model_len`"
                } else {
                    ""
                },
            });
        }
        prompt.push(encoder.start_token);
        Ok((prompt, source))
    }

    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let last = self.decoder.model_config.vocabulary.saturating_sub(1);
        match tokens.iter().find(|token| **token as usize > last) {
            Some(token) => Err(EngineError::Token { token: *token, last }),
            None => Ok(()),
        }
    }

    fn check_biases(&self, sampling: &Sampling) -> Result<(), SamplingError> {
        let last = self.decoder.model_config.vocabulary.saturating_sub(1);
        let mut biased = sampling.logit_bias.iter().map(|(token, _)| *token);
        match biased.find(|token| *token as usize > last) {
            Some(token) => Err(SamplingError::BiasedToken { token, last }),
            None => Ok(()),
        }
    }

    /// Drops all requests at once, without events. Also restores a valid state after a panic in a step.
    pub(crate) fn abort_all(&mut self) {
        let context = held_context(&self.decoder.model_config, self.encoder.as_ref());
        self.scheduler = Scheduler::new(limits(context, &self.config));
        self.space = space(&self.config);
        self.prefetched = None;
        self.sequences.clear();
        self.searches.clear();
        self.cancelled.clear();
    }

    pub(super) fn end(&mut self, request: u64) {
        self.scheduler.end(request, &mut self.space);
        if self.searches.remove(&request).is_some() {
            self.drop_beams(request);
        }
        self.sequences.remove(&request);
        self.cancelled.remove(&request);
    }
}
