//! Counts the votes of a bagging ensemble (Cocktail). The policy is [`kaskade_policy::vote`].

use std::collections::BTreeSet;

use kaskade_policy::vote::{Vote, majority};

use crate::wire::{Done, DoneResult};

/// The answers and failures of the members so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    votes: Vec<Done>,
    /// Stages that failed permanently.
    failed: BTreeSet<String>,
}

impl Tally {
    /// Adds a member's answer; a second answer of the same member, to an older attempt, is ignored.
    pub(super) fn add(&mut self, done: Done) {
        if !self.has(&done.stage) {
            self.votes.push(done);
        }
    }

    /// Records that this member failed permanently.
    pub(super) fn add_failure(&mut self, stage: &str) {
        if !self.has(stage) {
            self.failed.insert(stage.to_owned());
        }
    }

    /// Returns whether this member has answered or failed.
    pub(super) fn has(&self, stage: &str) -> bool {
        self.failed.contains(stage) || self.votes.iter().any(|vote| vote.stage == stage)
    }

    /// Returns how many members have answered or failed.
    pub(super) fn len(&self) -> usize {
        self.votes.len() + self.failed.len()
    }

    /// Returns whether a member is missing from the vote.
    pub(super) fn is_incomplete(&self, members: usize) -> bool {
        self.votes.len() < members
    }

    /// Returns the winning answer with the hops of all voters; `None` without votes.
    pub(super) fn winner(&self) -> Option<Done> {
        let votes: Vec<Vote> = self.votes.iter().map(vote).collect();
        let place = majority(&votes)?;
        let hops = self.votes.iter().flat_map(|vote| vote.hops.clone()).collect();
        let winner = self.votes.get(place)?.clone();
        Some(Done { hops, ..winner })
    }
}

/// The class with the largest logit. An answer without logits votes for a class of its own.
fn vote(done: &Done) -> Vote {
    let DoneResult::Outputs {
        outputs, confidence, ..
    } = &done.result
    else {
        return Vote {
            prediction: u32::MAX,
            confidence: f64::NAN,
        };
    };
    let logits = outputs.iter().find(|output| output.name == "logits");
    let logits = logits.and_then(|logits| logits.to_f32().ok()).unwrap_or_default();
    let largest = (0..).zip(&logits).max_by(|(_, a), (_, b)| a.total_cmp(b));
    Vote {
        prediction: largest.map_or(u32::MAX, |(class, _)| class),
        confidence: confidence.unwrap_or(0.0),
    }
}
