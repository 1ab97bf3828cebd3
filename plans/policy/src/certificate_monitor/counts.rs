//! What ingresses count, and report to the one that decides.

use serde::{Deserialize, Serialize};

use crate::plan::MAX_CERTIFIED;

/// Stages of a cascade that are counted.
pub const MAX_STAGES: usize = 16;

/// Categories of a stage that are counted.
pub const MAX_CATEGORIES: usize = 32;

/// Counts of all cascades of a certified list, by index. Counts of several ingresses are added.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// The cascades.
    #[serde(default)]
    pub cascades: Vec<CascadeCounts>,
}

/// Counts of one cascade.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CascadeCounts {
    /// Audits of requests that it answered.
    pub audits: AuditCounts,
    /// Audits in which it was only probed.
    pub probes: AuditCounts,
    /// Labels of requests that it answered.
    pub labels: LabelCounts,
    /// Results by stage and category ([`crate::plan::ExpectedStage::category`]).
    pub stages: Vec<Vec<u64>>,
}

/// Outcomes of audits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditCounts {
    /// The answers agree. A request that the largest variant answered agrees with itself.
    pub agree: u64,
    /// The answers differ.
    pub differ: u64,
    /// The audit did not end.
    pub failed: u64,
}

/// Counts of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelCounts {
    /// The answer was right.
    pub right: u64,
    /// It was wrong.
    pub wrong: u64,
    /// Of audited requests: only the largest variant was right.
    pub lost: u64,
    /// Of audited requests: only the cascade was right.
    pub gained: u64,
    /// Of audited requests: both were right, or both wrong.
    pub same: u64,
}

impl AuditCounts {
    /// Adds further audits.
    pub fn add(&mut self, other: &Self) {
        add(&mut self.agree, other.agree);
        add(&mut self.differ, other.differ);
        add(&mut self.failed, other.failed);
    }

    /// Returns the audits that ended.
    pub fn ended(&self) -> u64 {
        self.agree.saturating_add(self.differ)
    }
}

impl LabelCounts {
    /// Adds further labels.
    pub fn add(&mut self, other: &Self) {
        add(&mut self.right, other.right);
        add(&mut self.wrong, other.wrong);
        add(&mut self.lost, other.lost);
        add(&mut self.gained, other.gained);
        add(&mut self.same, other.same);
    }
}

impl CascadeCounts {
    /// Counts a result of a stage.
    pub fn count(&mut self, stage: usize, category: usize) {
        if stage >= MAX_STAGES || category >= MAX_CATEGORIES {
            return;
        }
        if self.stages.len() <= stage {
            self.stages.resize(stage + 1, Vec::new());
        }
        if let Some(counts) = self.stages.get_mut(stage) {
            if counts.len() <= category {
                counts.resize(category + 1, 0);
            }
            if let Some(count) = counts.get_mut(category) {
                add(count, 1);
            }
        }
    }

    /// Adds the counts of another ingress.
    pub fn add(&mut self, other: &Self) {
        self.audits.add(&other.audits);
        self.probes.add(&other.probes);
        self.labels.add(&other.labels);
        let stages = other.stages.len().min(MAX_STAGES);
        if self.stages.len() < stages {
            self.stages.resize(stages, Vec::new());
        }
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            let categories = theirs.len().min(MAX_CATEGORIES);
            if mine.len() < categories {
                mine.resize(categories, 0);
            }
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                add(mine, *theirs);
            }
        }
    }
}

impl Counts {
    /// Returns the counts of the cascade at that index, for adding to them; `None` beyond the longest list.
    pub fn at(&mut self, index: usize) -> Option<&mut CascadeCounts> {
        if index < MAX_CERTIFIED && self.cascades.len() <= index {
            self.cascades.resize(index + 1, CascadeCounts::default());
        }
        self.cascades.get_mut(index)
    }

    /// Adds the counts of another ingress.
    pub fn add(&mut self, other: &Self) {
        for (index, counts) in other.cascades.iter().enumerate() {
            if let Some(mine) = self.at(index) {
                mine.add(counts);
            }
        }
    }

    /// Returns whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.cascades.is_empty()
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_stay_within_their_limits() {
        let mut one = Counts::default();
        one.at(1).unwrap().count(0, 2);
        one.at(1).unwrap().audits.differ += 1;
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!(sum.cascades[1].stages, [vec![0, 0, 2]]);
        assert_eq!(sum.cascades[1].audits.differ, 2);
        assert!(sum.at(MAX_CERTIFIED).is_none());
        sum.at(0).unwrap().count(MAX_STAGES, 0);
        sum.at(0).unwrap().count(0, MAX_CATEGORIES);
        assert!(sum.cascades[0].stages.is_empty());
        let huge = CascadeCounts {
            stages: vec![vec![u64::MAX; 100]; 100],
            ..CascadeCounts::default()
        };
        sum.add(&Counts {
            cascades: vec![huge; 100],
        });
        assert_eq!(sum.cascades.len(), MAX_CERTIFIED);
        assert_eq!(sum.cascades[0].stages.len(), MAX_STAGES);
        assert_eq!(sum.cascades[0].stages[0].len(), MAX_CATEGORIES);
    }
}
