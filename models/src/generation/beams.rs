//! Sequences and cache blocks of beam searches.

use std::collections::{BTreeMap, BTreeSet};

use kaskade_policy::hybrid_cache::BlockCopy;

use super::engine::{Engine, Event, FinishReason};
use super::error::EngineError;
use super::sampling::{describe, log_probs};
use crate::generation::cache::block_cache::copy_block;
use crate::generation::sampling::beam_search::{AnswerToken, Beam, BeamSearch, Continuation};
use crate::generation::sampling::penalties::top_logprobs;
use crate::ops::{Ops, OpsError};

impl<M: Ops> Engine<M> {
    /// Resets a preempted request, which has lost its blocks: its states must be recomputed, and a beam search
    /// restarts.
    pub(super) fn preempted(&mut self, request: u64) {
        if let Some(search) = self.searches.get_mut(&request) {
            search.restart(request);
            self.drop_beams(request);
            if let Some(sequence) = self.sequences.get_mut(&request) {
                sequence.restart();
            }
        } else if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.is_cached = false;
            sequence.state = None;
        }
    }

    /// Drops the sequences of a request's beams, except the request's own sequence.
    pub(super) fn drop_beams(&mut self, request: u64) {
        self.sequences
            .retain(|id, sequence| *id == request || sequence.request != request);
    }

    /// Extends each beam of a search by a token. `rows` are the logits by sequence. Returns the events of the whole
    /// answer if the search ends, else one event without a token. Adds preempted requests to `preempted`.
    pub(super) fn continue_search(
        &mut self,
        request: u64,
        rows: &BTreeMap<u64, Vec<f32>>,
        preempted: &mut BTreeSet<u64>,
    ) -> Result<Vec<Event>, EngineError> {
        let Some(search) = self.searches.get(&request) else {
            return Ok(Vec::new());
        };
        for beam in &search.running {
            if let Some(sequence) = self.sequences.get_mut(&beam.id) {
                sequence.is_cached = true;
            }
        }
        let beams = search.running.iter().map(|beam| {
            let logits = rows.get(&beam.id)?;
            Some((logits.as_slice(), self.log_probs(beam.id, logits)?))
        });
        let Some(beams) = beams.collect::<Option<Vec<(&[f32], Vec<f32>)>>>() else {
            self.end(request);
            return Ok(vec![Event::ended(request, FinishReason::NotFinite)]);
        };
        let (logits, log_probs): (Vec<&[f32]>, Vec<Vec<f32>>) = beams.into_iter().unzip();
        let sampling = self.sequences.get(&request).map(|sequence| &sequence.sampling);
        let count = sampling.map_or(0, |sampling| sampling.top_logprobs);
        let ends = if sampling.is_some_and(|sampling| sampling.ignore_eos) {
            Vec::new()
        } else {
            self.decoder.model_config.eos_token_ids.clone()
        };
        let token_of = |beam: usize, token: u32| {
            let logits = logits.get(beam)?;
            Some(AnswerToken {
                sampled: describe(logits, token as usize, None)?,
                top_logprobs: top_logprobs(logits, count),
            })
        };
        let Some(search) = self.searches.get_mut(&request) else {
            return Ok(Vec::new());
        };
        let next = search.advance(&log_probs, &ends, token_of);
        if next.is_empty() {
            return Ok(self.finish_search(request));
        }
        let running = search.running.clone();
        let tokens = next.into_iter().filter_map(|next| {
            let token = token_of(next.beam, next.token)?;
            Some((next, token))
        });
        let set = self.set_beams(request, &running, tokens.collect(), preempted);
        if set.is_err() {
            // Some beams already have their next token, others do not.
            self.scheduler.preempt(request, &mut self.space);
            self.preempted(request);
        }
        set.map(|()| vec![Event::without_token(request)])
    }

    /// Returns the log probabilities of a beam's next token; `None` if a logit is not finite.
    fn log_probs(&self, beam: u64, logits: &[f32]) -> Option<Vec<f32>> {
        let sequence = self.sequences.get(&beam)?;
        let model_config = &self.decoder.model_config;
        let text = sequence.text(&model_config.eos_token_ids);
        log_probs(logits, &sequence.sampling, &model_config.rules, &text)
    }

    /// Ends a search. Returns one event per token of the best answer.
    fn finish_search(&mut self, request: u64) -> Vec<Event> {
        let search = self.searches.get(&request);
        let answer = search.and_then(BeamSearch::answer).map(<[AnswerToken]>::to_vec);
        let mut events: Vec<Event> = Vec::new();
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.restart();
        }
        for token in answer.into_iter().flatten() {
            events.extend(self.accept(request, token.sampled, token.top_logprobs));
            if events.last().is_some_and(|event| event.finish_reason.is_some()) {
                break;
            }
        }
        if events.last().is_none_or(|event| event.finish_reason.is_none()) {
            events.push(Event::ended(request, FinishReason::NotFinite));
        }
        self.end(request);
        events
    }

    /// Replaces the beams: each of `next` extends one of `running`. The first one that extends a beam takes over its
    /// sequence and blocks; others get a new sequence with a fork of the blocks.
    fn set_beams(
        &mut self,
        request: u64,
        running: &[Beam],
        next: Vec<(Continuation, AnswerToken)>,
        preempted: &mut BTreeSet<u64>,
    ) -> Result<(), EngineError> {
        let parents: BTreeSet<usize> = next.iter().map(|(next, _)| next.beam).collect();
        let dropped = running
            .iter()
            .enumerate()
            .filter(|(index, _)| !parents.contains(index));
        let mut free: Vec<u64> = dropped.map(|(_, beam)| beam.id).collect();
        for beam in &free {
            self.space.release(*beam);
        }
        // The first block table has the request's number; if its own beam is dropped, another beam takes it over.
        let mut ids: Vec<u64> = running.iter().map(|beam| beam.id).collect();
        if let Some(place) = free.iter().position(|id| *id == request)
            && let Some(heir) = parents.first().and_then(|parent| ids.get_mut(*parent))
            && let Some(freed) = free.get_mut(place)
        {
            *freed = std::mem::replace(heir, request);
            self.space.rename(*freed, request);
            if let Some(sequence) = self.sequences.remove(freed) {
                self.sequences.insert(request, sequence);
            }
        }
        let mut beams: Vec<Beam> = Vec::new();
        let mut forks = Vec::new();
        let mut taken = BTreeSet::new();
        for (next, token) in next {
            let Some((parent, id)) = running.get(next.beam).zip(ids.get(next.beam)) else {
                continue;
            };
            let mut answer = parent.answer.clone();
            answer.push(token);
            let beam = Beam {
                id: *id,
                score: next.score,
                answer,
            };
            if taken.insert(*id) {
                beams.push(beam);
            } else {
                forks.push(beam);
            }
        }
        self.update_scheduler(request, &beams);
        for fork in forks {
            let id = free.pop().unwrap_or_else(|| self.next_beam_id());
            match self.fork(request, fork.id, id, preempted)? {
                Forked::Done => beams.push(Beam { id, ..fork }),
                Forked::NoRoom => free.push(id),
                Forked::Preempted => return Ok(()),
            }
            self.update_scheduler(request, &beams);
        }
        for id in free {
            self.sequences.remove(&id);
        }
        for beam in &beams {
            let newest = beam.answer.last().map(|newest| newest.sampled.token);
            if let Some(sequence) = self.sequences.get_mut(&beam.id) {
                sequence.tokens.extend(newest);
            }
        }
        beams.sort_by(|a, b| b.score.total_cmp(&a.score));
        if let Some(search) = self.searches.get_mut(&request) {
            search.running = beams;
        }
        self.scheduler.extend(request);
        Ok(())
    }

    fn update_scheduler(&mut self, request: u64, beams: &[Beam]) {
        let others = beams.iter().map(|beam| beam.id).filter(|id| *id != request);
        self.scheduler.set_beams(request, others.collect());
    }

    fn next_beam_id(&mut self) -> u64 {
        while self.sequences.contains_key(&self.next_beam) {
            self.next_beam += 1;
        }
        self.next_beam += 1;
        self.next_beam - 1
    }

    /// Copies the tokens and blocks of sequence `from` to `to`. If there is no free block, preempts later requests; if
    /// there are none, the request itself is preempted and waits for earlier ones; if it is the only request and
    /// blocks of the needed kind are exhausted, it continues without this beam.
    fn fork(
        &mut self,
        request: u64,
        from: u64,
        to: u64,
        preempted: &mut BTreeSet<u64>,
    ) -> Result<Forked, EngineError> {
        let Some(sequence) = self.sequences.get(&from).map(super::sequence::Sequence::fork) else {
            return Ok(Forked::NoRoom);
        };
        let cached = sequence.tokens.len();
        let copy = loop {
            if let Ok(copy) = self.space.fork(from, to, cached) {
                break copy;
            }
            let Some(victim) = self.scheduler.make_room(request, &mut self.space) else {
                return Ok(Forked::NoRoom);
            };
            preempted.insert(victim);
            self.preempted(victim);
            if victim == request {
                return Ok(Forked::Preempted);
            }
        };
        if let Some(copy) = copy
            && let Err(error) = self.copy(&copy)
        {
            self.space.release(to);
            return Err(error.into());
        }
        self.sequences.insert(to, sequence);
        Ok(Forked::Done)
    }

    fn copy(&mut self, copy: &BlockCopy) -> Result<(), OpsError> {
        for layer in 0..self.device.layers() {
            copy_block(&self.ops, &self.host, &mut self.device, layer, copy)?;
        }
        Ok(())
    }
}

/// Result of a fork.
enum Forked {
    Done,
    /// No block is free, and there is no other request to preempt.
    NoRoom,
    /// The request itself was preempted.
    Preempted,
}
