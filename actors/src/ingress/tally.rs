//! The votes of a bagging ensemble (Cocktail). *Which* answer wins is decided by [`kaskade_plans::vote`].

use std::collections::BTreeSet;

use kaskade_plans::vote::{Vote, majority};

use crate::wire::{Done, DoneResult};

/// What the members have said so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    votes: Vec<Done>,
    /// The stages whose answer will not come.
    failed: BTreeSet<String>,
}

impl Tally {
    /// Takes a member's answer; a second one of the same member, to an older attempt, changes nothing.
    pub(super) fn add(&mut self, done: Done) {
        if !self.has(&done.stage) {
            self.votes.push(done);
        }
    }

    /// This member failed for good.
    pub(super) fn add_failure(&mut self, stage: &str) {
        if !self.has(stage) {
            self.failed.insert(stage.to_owned());
        }
    }

    /// Whether this member has answered or failed.
    pub(super) fn has(&self, stage: &str) -> bool {
        self.failed.contains(stage) || self.votes.iter().any(|vote| vote.stage == stage)
    }

    /// How many members have answered or failed.
    pub(super) fn len(&self) -> usize {
        self.votes.len() + self.failed.len()
    }

    /// Whether a member is missing from the vote.
    pub(super) fn is_incomplete(&self, members: usize) -> bool {
        self.votes.len() < members
    }

    /// The answer that wins, which tells the hops of all that voted. `None` where nobody did.
    pub(super) fn winner(&self) -> Option<Done> {
        let votes: Vec<Vote> = self.votes.iter().map(vote).collect();
        let place = majority(&votes)?;
        let hops = self.votes.iter().flat_map(|vote| vote.hops.clone()).collect();
        let winner = self.votes.get(place)?.clone();
        Some(Done { hops, ..winner })
    }
}

/// The class with the largest logit. An answer without logits is a class of its own, which nobody shares.
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
