//! Counts the votes of a bagging ensemble (Cocktail). The policy is [`kaskade_policy::vote`].

use std::collections::BTreeSet;

use kaskade_policy::vote::{Vote, majority};

use crate::dispatch::answer::answer_number;
use crate::wire::{StageOutcome, StageReply};

/// Answers and failures of the members so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    votes: Vec<StageReply>,
    /// Stages that failed permanently.
    failed: BTreeSet<String>,
}

impl Tally {
    /// Adds a member's answer. A second answer of the same member, to an older attempt, is ignored.
    pub(super) fn add(&mut self, done: StageReply) {
        if !self.has(&done.stage) {
            self.votes.push(done);
        }
    }

    /// Records that a member failed permanently.
    pub(super) fn add_failure(&mut self, stage: &str) {
        if !self.has(stage) {
            self.failed.insert(stage.to_owned());
        }
    }

    /// Returns whether a member has answered or failed.
    pub(super) fn has(&self, stage: &str) -> bool {
        self.failed.contains(stage) || self.votes.iter().any(|vote| vote.stage == stage)
    }

    /// Returns the number of members that have answered or failed.
    pub(super) fn len(&self) -> usize {
        self.votes.len() + self.failed.len()
    }

    /// Returns whether a member is missing from the vote.
    pub(super) fn is_incomplete(&self, members: usize) -> bool {
        self.votes.len() < members
    }

    /// Returns the winning answer with the hops of all voters; `None` without votes.
    pub(super) fn winner(&self) -> Option<StageReply> {
        let votes: Vec<Vote> = self.votes.iter().map(vote).collect();
        let place = majority(&votes)?;
        let hops = self.votes.iter().flat_map(|vote| vote.hops.clone()).collect();
        let winner = self.votes.get(place)?.clone();
        Some(StageReply { hops, ..winner })
    }
}

/// Returns the vote for an answer, by its answer number. Answers that cannot be compared, such as embeddings, count as
/// equal.
fn vote(done: &StageReply) -> Vote {
    let StageOutcome::Outputs {
        outputs, confidence, ..
    } = &done.result
    else {
        return Vote {
            prediction: u32::MAX,
            confidence: f64::NAN,
        };
    };
    Vote {
        prediction: answer_number(outputs).unwrap_or(u32::MAX),
        confidence: confidence.unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kaskade_models::Tensor;
    use kaskade_policy::fan_in::Branch;

    use super::*;

    /// Returns the winning stage of members with these answers and confidences.
    fn winner(answers: Vec<(Tensor, f64)>) -> String {
        let mut tally = Tally::default();
        for (place, (output, confidence)) in answers.into_iter().enumerate() {
            tally.add(StageReply {
                id: 1,
                attempt: 1,
                branch: Branch::ROOT,
                stage: place.to_string(),
                replica: String::new(),
                hops: Vec::new(),
                result: StageOutcome::Outputs {
                    outputs: vec![output],
                    confidence: Some(confidence),
                    routed: true,
                    children: BTreeMap::new(),
                },
            });
        }
        tally.winner().unwrap().stage
    }

    /// Regression: answers without logits counted as one class, so that the most confident member won.
    #[test]
    fn texts_are_voted_on() {
        let text = |text: &str| Tensor::from_texts("text", &[text]).unwrap();
        let answers = vec![(text("no"), 0.9), (text("yes"), 0.1), (text(" yes"), 0.2)];
        assert_eq!(winner(answers), "2");
    }

    /// Regression: the last of equally likely classes was counted, where profiles and replies use the first.
    #[test]
    fn of_equal_logits_the_first_counts() {
        let logits = |values: &[f32]| Tensor::from_f32("logits", &[values.len()], values).unwrap();
        let answers = vec![
            (logits(&[0.0, 0.0, 1.0]), 0.9),
            (logits(&[1.0, 1.0, 0.0]), 0.1),
            (logits(&[1.0, 0.0, 0.0]), 0.2),
        ];
        assert_eq!(winner(answers), "2");
    }
}
