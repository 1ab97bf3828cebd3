//! Beam search: which beams are extended, which answers are finished, and when no better answer is possible.
//!
//! Follows `generate` of transformers (`_beam_search`), so that a checkpoint with `num_beams` in its
//! `generation_config.json` gives the same answers.

use super::beam_options::BeamOptions;
use crate::checkpoint::EarlyStopping;
use crate::generation::sampling::SampledToken;

/// Score of a missing answer, as in transformers.
const NO_SCORE: f32 = -1e9;

/// First sequence number of beams in the engine. Requests have smaller numbers, or in batches numbers from `1 << 63`.
pub(crate) const FIRST_BEAM: u64 = 1 << 62;

/// A token of an answer, with the values to report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnswerToken {
    pub(crate) sampled: SampledToken,
    /// The most probable tokens with their log probabilities.
    pub(crate) top_logprobs: Vec<(u32, f32)>,
}

/// A running beam.
#[derive(Debug, Clone)]
pub(crate) struct Beam {
    /// Sequence number in the engine.
    pub(crate) id: u64,
    /// Log probability of the answer so far.
    pub(crate) score: f32,
    pub(crate) answer: Vec<AnswerToken>,
}

/// A beam extended by a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Continuation {
    /// Index of the extended beam.
    pub(crate) beam: usize,
    pub(crate) token: u32,
    /// Log probability of the answer including the token.
    pub(crate) score: f32,
}

/// A finished answer with its score.
#[derive(Debug, Clone)]
struct FinishedBeam {
    score: f32,
    answer: Vec<AnswerToken>,
}

/// Beam search of one request.
#[derive(Debug, Clone)]
pub(crate) struct BeamSearch {
    options: BeamOptions,
    max_tokens: usize,
    /// Running beams, the best first.
    pub(crate) running: Vec<Beam>,
    /// Finished answers, the best first; at most as many as beams.
    finished: Vec<FinishedBeam>,
}

impl BeamSearch {
    /// Starts a search for an answer of at most `max_tokens` tokens; `id` is its first sequence number.
    pub(crate) fn new(options: BeamOptions, max_tokens: usize, id: u64) -> Self {
        Self {
            options,
            max_tokens,
            running: vec![Beam {
                id,
                score: 0.0,
                answer: Vec::new(),
            }],
            finished: Vec::new(),
        }
    }

    /// Restarts the search.
    pub(crate) fn restart(&mut self, id: u64) {
        *self = Self::new(self.options, self.max_tokens, id);
    }

    /// Returns the continuations, the best first; empty if the search has ended. `log_probs` has one row per running
    /// beam, with the log probabilities of its next token; `ends` are the EOS tokens, and `describe` returns the
    /// values to report for a token.
    pub(crate) fn advance(
        &mut self,
        log_probs: &[Vec<f32>],
        ends: &[u32],
        describe: impl Fn(usize, u32) -> Option<AnswerToken>,
    ) -> Vec<Continuation> {
        let beams = self.options.beams;
        // Enough candidates to extend each beam even if the best ones all end.
        let candidates = self.best(log_probs, beams * (1 + ends.len()).max(2));
        let length = 1 + self.running.first().map_or(0, |beam| beam.answer.len());
        let is_last = length >= self.max_tokens;
        let mut continued = Vec::new();
        for (rank, candidate) in candidates.into_iter().enumerate() {
            if !is_last && !ends.contains(&candidate.token) {
                continued.push(candidate);
            } else if rank < beams
                && let Some(beam) = self.running.get(candidate.beam)
                && let Some(token) = describe(candidate.beam, candidate.token)
            {
                let mut answer = beam.answer.clone();
                answer.push(token);
                let score = candidate.score / self.penalty(length);
                self.finished.push(FinishedBeam { score, answer });
            }
        }
        continued.truncate(beams);
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(beams);
        if is_last || !self.can_improve(continued.first(), length) {
            continued.clear();
        }
        continued
    }

    /// Returns the best answer.
    pub(crate) fn answer(&self) -> Option<&[AnswerToken]> {
        Some(&self.finished.first()?.answer)
    }

    /// Returns whether a running beam, of which `best` is the best, can lead to a better answer than the finished
    /// ones.
    fn can_improve(&self, best: Option<&Continuation>, length: usize) -> bool {
        let is_full = self.finished.len() >= self.options.beams;
        let worst = self.finished.last().filter(|_| is_full);
        let worst = worst.map_or(NO_SCORE, |beam| beam.score);
        let longest = match self.options.early_stopping {
            EarlyStopping::Yes if is_full => return false,
            EarlyStopping::Never if self.options.length_penalty > 0.0 => self.max_tokens,
            _ => length,
        };
        best.is_some_and(|best| best.score / self.penalty(longest) > worst)
    }

    fn penalty(&self, length: usize) -> f32 {
        (length as f32).powf(self.options.length_penalty)
    }

    /// Returns the `count` best continuations of all beams, the best first. Tokens with log probability negative
    /// infinity are not allowed and are skipped.
    fn best(&self, log_probs: &[Vec<f32>], count: usize) -> Vec<Continuation> {
        let mut best: Vec<Continuation> = Vec::with_capacity(count + 1);
        for ((index, beam), row) in self.running.iter().enumerate().zip(log_probs) {
            for (token, log_prob) in (0..).zip(row) {
                let score = beam.score + log_prob;
                let is_worse = best.len() == count && best.last().is_some_and(|last| score <= last.score);
                if is_worse || score == f32::NEG_INFINITY {
                    continue;
                }
                let place = best.partition_point(|other| other.score >= score);
                best.insert(
                    place,
                    Continuation {
                        beam: index,
                        token,
                        score,
                    },
                );
                best.truncate(count);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EOS token.
    const END: u32 = 0;

    fn token(token: u32) -> AnswerToken {
        AnswerToken {
            sampled: SampledToken {
                token,
                probability: 1.0,
                margin: 1.0,
                confidence: 1.0,
            },
            top_logprobs: Vec::new(),
        }
    }

    /// Runs a search on a function that returns the log probabilities after each answer.
    fn search(options: BeamOptions, max_tokens: usize, model: impl Fn(&[u32]) -> Vec<f32>) -> Vec<u32> {
        let tokens =
            |beam: &Beam| -> Vec<u32> { beam.answer.iter().map(|token| token.sampled.token).collect() };
        let mut search = BeamSearch::new(options, max_tokens, 0);
        loop {
            let rows: Vec<Vec<f32>> = search.running.iter().map(|beam| model(&tokens(beam))).collect();
            let next = search.advance(&rows, &[END], |_, next| Some(token(next)));
            if next.is_empty() {
                let answer = search.answer().unwrap();
                return answer.iter().map(|token| token.sampled.token).collect();
            }
            assert!(next.len() <= options.beams);
            let beams = next.iter().map(|next| {
                let parent = &search.running[next.beam];
                let mut answer = parent.answer.clone();
                answer.push(token(next.token));
                Beam {
                    id: 0,
                    score: next.score,
                    answer,
                }
            });
            search.running = beams.collect();
        }
    }

    fn logs(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|probability| probability.ln()).collect()
    }

    fn options(beams: usize) -> BeamOptions {
        BeamOptions {
            beams,
            ..BeamOptions::default()
        }
    }

    /// A model in which the first token of the best answer is not the most probable one.
    fn garden_path(answer: &[u32]) -> Vec<f32> {
        match answer {
            [] => logs(&[0.0, 0.6, 0.4]),
            [1] => logs(&[0.4, 0.3, 0.3]),
            [2] => logs(&[0.9, 0.05, 0.05]),
            _ => logs(&[1.0, 0.0, 0.0]),
        }
    }

    #[test]
    fn two_beams_find_what_one_misses() {
        assert_eq!(search(options(1), 3, garden_path), [1, END]);
        assert_eq!(search(options(2), 3, garden_path), [2, END]);
    }

    #[test]
    fn the_length_penalty_decides_between_short_and_long() {
        let model = |answer: &[u32]| match answer.len() {
            0 => logs(&[0.5, 0.5]),
            1 | 2 => logs(&[0.05, 0.95]),
            _ => logs(&[1.0, 0.0]),
        };
        let with = |length_penalty| BeamOptions {
            length_penalty,
            ..options(2)
        };
        assert_eq!(search(with(0.0), 9, model), [END]);
        assert_eq!(search(with(2.0), 9, model), [1, 1, 1, END]);
    }

    #[test]
    fn early_stopping_ends_with_the_first_full_set() {
        // Two answers are finished after two tokens; the penalty favours the longest.
        let model = |answer: &[u32]| match answer {
            [] => logs(&[0.0, 0.5, 0.5]),
            [_] => logs(&[0.34, 0.33, 0.33]),
            _ => logs(&[0.999, 0.000_5, 0.000_5]),
        };
        let with = |early_stopping| BeamOptions {
            early_stopping,
            length_penalty: 3.0,
            ..options(2)
        };
        assert_eq!(search(with(EarlyStopping::Yes), 9, model).len(), 2);
        assert_eq!(search(with(EarlyStopping::Never), 9, model).len(), 9);
    }

    #[test]
    fn an_answer_of_the_maximum_length_ends() {
        assert_eq!(search(options(3), 4, |_| logs(&[0.0, 0.9, 0.1])), [1, 1, 1, 1]);
        assert_eq!(search(options(3), 1, garden_path), [1]);
    }

    #[test]
    fn tokens_that_are_not_allowed_are_no_continuations() {
        let forced = |answer: &[u32]| {
            if answer.is_empty() {
                logs(&[0.0, 1.0, 0.0])
            } else {
                garden_path(&[2])
            }
        };
        assert_eq!(search(options(4), 3, forced), [1, END]);
        let mut none = BeamSearch::new(options(2), 3, 0);
        assert_eq!(
            none.advance(&[logs(&[0.0, 0.0])], &[END], |_, next| Some(token(next))),
            []
        );
        assert_eq!(none.answer(), None);
    }
}
