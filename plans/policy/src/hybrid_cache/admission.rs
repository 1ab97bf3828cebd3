//! Decides which requests are admitted, which run, and which are preempted when the cache is full.
//!
//! One step either prefills waiting requests or generates a token for all running ones. Requests are served in the order of
//! arrival: no request overtakes the first waiting one, and if a block is lacking the latest arrival is preempted. It gives
//! its blocks back, keeps its tokens, and waits at its old place until its context is prefilled again. The earliest arrival is
//! thus never preempted, and since a request that could not run alone is refused on arrival, it always ends: no request
//! starves.
//!
//! A beam search is one request with a table per beam: its beams run in the same steps, and are preempted together. It then
//! begins again with its prompt.

use std::collections::BTreeMap;

use thiserror::Error;

use super::blocks::BlockSpace;

/// Limits of what the engine runs at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a request, prompt and answer.
    pub context: usize,
    /// Requests that run at a time, at least 1.
    pub requests: usize,
    /// Tokens that one step prefills; a longer context is prefilled alone.
    pub prefill_tokens: usize,
    /// Blocks that all running requests may grow to, answers included: what the buffers hold, for engines that load a layer's
    /// blocks all at once instead of in mini-batches. Such an engine admits fewer, and never preempts.
    pub blocks_at_once: Option<usize>,
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// The prompt has no tokens.
    #[error("the prompt has no tokens; send at least one")]
    Empty,
    /// Prompt and answer are longer than the model's context.
    #[error(
        "this model's maximum context length is {context} tokens; the prompt has {prompt} and the answer may have {answer}: shorten either"
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens of the answer.
        answer: usize,
        /// Context length of the model.
        context: usize,
    },
    /// The cache could not hold it if it were empty.
    #[error(
        "{tokens} tokens take {blocks} cache blocks and there are {capacity}; shorten the prompt or the answer, or give the cache more memory"
    )]
    Cache {
        /// Tokens, prompt and answer.
        tokens: usize,
        /// Blocks they take.
        blocks: usize,
        /// Blocks of the cache.
        capacity: usize,
    },
    /// The request has more beams than requests may run.
    #[error(
        "a beam search of {beams} beams takes the place of as many requests, and {requests} run at a time; use fewer beams or allow more requests"
    )]
    Beams {
        /// Number of beams.
        beams: usize,
        /// Requests that run at a time.
        requests: usize,
    },
    /// There is a request of this number already.
    #[error("request {request} is already in the engine")]
    Twice {
        /// Number of the request.
        request: u64,
    },
}

/// Work of the next step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// Requests whose whole context is computed, by arrival; then none decodes.
    pub prefill: Vec<u64>,
    /// Requests that get one more token, by arrival; of a beam search the tables of all beams.
    pub decode: Vec<u64>,
    /// Requests that made room, for the record.
    pub preempted: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    /// Position in the order of arrival.
    arrival: u64,
    /// Tokens so far, prompt and answer; of a beam search those of each beam.
    tokens: usize,
    /// Tokens of the prompt.
    prompt: usize,
    /// Most tokens it can grow to.
    most: usize,
    /// Beams that it may have.
    beams: usize,
    /// Tables of its beams but the first, whose table has the number of the request.
    others: Vec<u64>,
}

impl Request {
    /// The blocks that it can grow to: beams share those that the prompt fills.
    fn most_blocks(&self, space: &BlockSpace) -> usize {
        let most = space.blocks_for(self.most);
        let shared = (self.prompt / space.block_tokens()).min(most);
        shared + self.beams * (most - shared)
    }
}

/// The order of service. The tables lie in a [`BlockSpace`] that the caller owns.
#[derive(Debug, Clone)]
pub struct Scheduler {
    limits: Limits,
    requests: BTreeMap<u64, Request>,
    /// Ids of the waiting requests, by arrival.
    waiting: BTreeMap<u64, u64>,
    running: BTreeMap<u64, u64>,
    arrivals: u64,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            requests: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Takes a request of `prompt` tokens that may grow by `answer` more.
    ///
    /// # Errors
    /// [`Refused`] for one that could never run.
    pub fn submit(
        &mut self,
        request: u64,
        prompt: usize,
        answer: usize,
        space: &BlockSpace,
    ) -> Result<(), Refused> {
        self.submit_beams(request, 1, prompt, answer, space)
    }

    /// Takes a beam search of up to `beams` beams (at least 1), of which each may grow by `answer` tokens.
    ///
    /// # Errors
    /// [`Refused`] for one that could never run.
    pub fn submit_beams(
        &mut self,
        request: u64,
        beams: usize,
        prompt: usize,
        answer: usize,
        space: &BlockSpace,
    ) -> Result<(), Refused> {
        let (most, context) = (prompt.saturating_add(answer), self.limits.context);
        if prompt == 0 {
            return Err(Refused::Empty);
        }
        if most > context {
            return Err(Refused::Context {
                prompt,
                answer,
                context,
            });
        }
        let requests = self.limits.requests.max(1);
        if beams > requests {
            return Err(Refused::Beams { beams, requests });
        }
        let taken = Request {
            arrival: self.arrivals,
            tokens: prompt,
            prompt,
            most,
            beams: beams.max(1),
            others: Vec::new(),
        };
        let blocks = taken.most_blocks(space);
        let capacity = self.blocks_of_one(space);
        if blocks > capacity {
            return Err(Refused::Cache {
                tokens: most,
                blocks,
                capacity,
            });
        }
        if self.requests.contains_key(&request) {
            return Err(Refused::Twice { request });
        }
        self.arrivals += 1;
        self.waiting.insert(taken.arrival, request);
        self.requests.insert(request, taken);
        Ok(())
    }

    /// Returns the largest answer that [`Scheduler::submit_beams`] accepts for a prompt, tokens; 0 also if it accepts none.
    pub fn longest_answer(&self, beams: usize, prompt: usize, space: &BlockSpace) -> usize {
        let left = self.limits.context.saturating_sub(prompt);
        if space.blocks_for(1) == 0 {
            return left;
        }
        let shared = prompt / space.block_tokens();
        let own = self.blocks_of_one(space).saturating_sub(shared) / beams.max(1);
        let held = (shared + own).saturating_mul(space.block_tokens());
        left.min(held.saturating_sub(prompt))
    }

    /// Maximum blocks of one request.
    fn blocks_of_one(&self, space: &BlockSpace) -> usize {
        let at_once = self.limits.blocks_at_once.unwrap_or(usize::MAX);
        space.capacity().total().min(at_once)
    }

    /// Returns whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests that wait and that run.
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Returns the next step. Its requests have blocks by then for all their tokens; the token that each gets is computed, and
    /// needs its place, a step later.
    pub fn step(&mut self, space: &mut BlockSpace) -> Step {
        let prefill = self.admit(space);
        if prefill.is_empty() {
            self.decode(space)
        } else {
            Step {
                prefill,
                ..Step::default()
            }
        }
    }

    /// A request got another token.
    pub fn extend(&mut self, request: u64) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.tokens += 1;
        }
    }

    /// The tables of a beam search's beams, but that of the first, are now these. The caller has forked and released
    /// them.
    pub fn set_beams(&mut self, request: u64, others: Vec<u64>) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.others = others;
        }
    }

    /// Makes room for another beam of `request`: the latest arrival that runs, which may be `request` itself, gives its
    /// blocks back and waits again. `None` if `request` runs alone.
    pub fn make_room(&mut self, request: u64, space: &mut BlockSpace) -> Option<u64> {
        let runs_alone = self.running.values().all(|running| *running == request);
        if runs_alone {
            return None;
        }
        self.preempt_latest(space)
    }

    /// A request has ended or was cancelled: it leaves, and its blocks are free. Whether it was there.
    pub fn end(&mut self, request: u64, space: &mut BlockSpace) -> bool {
        space.release(request);
        let Some(known) = self.requests.remove(&request) else {
            return false;
        };
        for beam in &known.others {
            space.release(*beam);
        }
        self.waiting.remove(&known.arrival);
        self.running.remove(&known.arrival);
        true
    }

    fn admit(&mut self, space: &mut BlockSpace) -> Vec<u64> {
        let mut admitted = Vec::new();
        let mut tokens = 0;
        while let Some((&arrival, &id)) = self.waiting.first_key_value() {
            let Some(request) = self.requests.get(&id) else {
                self.waiting.remove(&arrival);
                continue;
            };
            let too_many = self.running_tables() + request.beams > self.limits.requests.max(1);
            let too_long = !admitted.is_empty() && tokens + request.tokens > self.limits.prefill_tokens;
            if too_many || too_long || !self.has_room(request, id, space) {
                break;
            }
            let prefilled = request.tokens;
            if space.reserve(id, prefilled).is_err() {
                break;
            }
            self.waiting.remove(&arrival);
            self.running.insert(arrival, id);
            tokens += prefilled;
            admitted.push(id);
        }
        admitted
    }

    /// Returns whether a request can begin. Those that run keep a block each in reserve, so that a newcomer does not drive them, or
    /// itself, out again at the next step.
    fn has_room(&self, request: &Request, id: u64, space: &BlockSpace) -> bool {
        if let Some(bound) = self.limits.blocks_at_once {
            let running = self.running.values().filter_map(|id| self.requests.get(id));
            let promised: usize = running.map(|running| running.most_blocks(space)).sum();
            return promised + request.most_blocks(space) <= bound.min(space.capacity().total());
        }
        let reserve = match self.running_tables() {
            _ if space.blocks_for(1) == 0 => 0,
            0 => 0,
            running => running + request.beams,
        };
        space.lacking(id, request.tokens) + reserve <= space.free()
    }

    /// Tables that running requests may have.
    fn running_tables(&self) -> usize {
        let running = self.running.values().filter_map(|id| self.requests.get(id));
        running.map(|request| request.beams).sum()
    }

    /// The latest arrival that runs gives its blocks back and waits again.
    fn preempt_latest(&mut self, space: &mut BlockSpace) -> Option<u64> {
        let (_, latest) = self.running.last_key_value()?;
        let latest = *latest;
        self.preempt(latest, space);
        Some(latest)
    }

    /// A running request gives its blocks back and waits again at its place.
    pub fn preempt(&mut self, request: u64, space: &mut BlockSpace) {
        let Some(known) = self.requests.get_mut(&request) else {
            return;
        };
        if self.running.remove(&known.arrival).is_some() {
            self.waiting.insert(known.arrival, request);
        }
        space.release(request);
        for beam in known.others.drain(..) {
            space.release(beam);
        }
        if known.beams > 1 {
            known.tokens = known.prompt;
        }
    }

    fn decode(&mut self, space: &mut BlockSpace) -> Step {
        let mut step = Step::default();
        let order: Vec<(u64, u64)> = self.running.iter().map(|(arrival, id)| (*arrival, *id)).collect();
        for (arrival, id) in order {
            if !self.running.contains_key(&arrival) {
                continue; // It made room for an earlier one.
            }
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            let (tokens, mut tables) = (request.tokens, vec![id]);
            tables.extend(&request.others);
            for table in &tables {
                while space.reserve(*table, tokens).is_err() {
                    let Some(victim) = self.preempt_latest(space) else {
                        break;
                    };
                    step.preempted.push(victim);
                    if victim == id {
                        break;
                    }
                }
                if !self.running.contains_key(&arrival) {
                    break;
                }
            }
            if self.running.contains_key(&arrival) {
                step.decode.extend(tables);
            }
        }
        step
    }
}

#[cfg(test)]
mod tests;
