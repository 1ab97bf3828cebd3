//! The samples of one stage, as the fits and the choice read them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use kaskade_policy::confidence::deferral::{DeferralScore, Feature};

use crate::thresholds::{Family, Features};

/// One sample at a stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Number of the sample in the family.
    pub(super) sample: usize,
    /// Calibrated confidence.
    pub(super) confidence: f64,
    /// Whether the stage is right.
    pub(super) right: bool,
    /// Whether the last variant is right.
    pub(super) right_last: bool,
    /// Share of the earlier thresholds, drawn at uniform ranks, under which the sample reaches the stage.
    pub(super) weight: f64,
}

impl Row {
    /// Returns the gain of escalating to the last variant over keeping the answer: -1, 0 or 1.
    pub(super) fn gain_of_escalating(&self) -> f64 {
        f64::from(u8::from(self.right_last)) - f64::from(u8::from(self.right))
    }
}

/// Samples of one stage of a family.
pub(super) struct Rows<'a> {
    family: &'a Family,
    variant: usize,
    each: Vec<Row>,
    /// Features of all samples of the family, shared with the rows that are filtered from these.
    features: Rc<RefCell<Features<'a>>>,
}

impl<'a> Rows<'a> {
    /// All samples of a family at a variant.
    pub(super) fn at(family: &'a Family, variant: usize) -> Option<Self> {
        let column = family.columns().get(variant)?;
        let last = family.columns().last()?;
        let mut weights = vec![1.0; family.samples()];
        for earlier in family.columns().iter().take(variant) {
            for (weight, rank) in weights.iter_mut().zip(ranks(&earlier.confidences)) {
                *weight *= 1.0 - rank;
            }
        }
        let answers = column.correct.iter().zip(last.correct.iter());
        let samples = column.confidences.iter().zip(answers);
        let rows = samples.zip(weights).enumerate();
        let rows = rows.map(|(sample, ((confidence, (right, right_last)), weight))| Row {
            sample,
            confidence: *confidence,
            right: *right,
            right_last: *right_last,
            weight,
        });
        Some(Self {
            each: rows.collect(),
            features: Rc::new(RefCell::new(Features::new(family, variant))),
            family,
            variant,
        })
    }

    /// Returns the rows whose index passes.
    pub(super) fn filtered(&self, keep: impl Fn(usize) -> bool) -> Self {
        let rows = self.each.iter().enumerate();
        Self {
            family: self.family,
            variant: self.variant,
            each: rows
                .filter(|(place, _)| keep(*place))
                .map(|(_, row)| *row)
                .collect(),
            features: self.features.clone(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.each.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    /// The value of a feature at every row; `None` if a sample of the family lacks it.
    pub(super) fn feature(&self, feature: &Feature) -> Option<Vec<f64>> {
        let values = self.features.borrow_mut().values(feature)?;
        let values = self.each.iter().map(|row| values.get(row.sample).copied());
        values.collect()
    }

    /// The classes that the stage answers with, most frequent first.
    pub(super) fn answers(&self) -> Vec<u32> {
        let mut counts = HashMap::<u32, usize>::new();
        for row in &self.each {
            if let Some(evidence) = self.family.evidence(self.variant, row.sample) {
                *counts.entry(evidence.judged.answer).or_default() += 1;
            }
        }
        let mut answers: Vec<(u32, usize)> = counts.into_iter().collect();
        answers.sort_unstable_by_key(|(answer, count)| (std::cmp::Reverse(*count), *answer));
        answers.into_iter().map(|(answer, _)| answer).collect()
    }

    /// The names of the variants before this one.
    pub(super) fn earlier(&self) -> Vec<&'a str> {
        let columns = self.family.columns().iter().take(self.variant);
        columns.map(|column| column.name.as_str()).collect()
    }

    /// The values of a score at every row; the confidences if the family is not observed.
    pub(super) fn scores(&self, score: &DeferralScore) -> Vec<f64> {
        let samples = self.each.iter().map(|row| row.sample);
        let scores = self.features.borrow_mut().scores(score, samples);
        scores.unwrap_or_else(|| self.each.iter().map(|row| row.confidence).collect())
    }
}

/// The rank of each value as a share in [0, 1], from the lowest; equal values have their mean rank.
pub(super) fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let at = |place: &usize| values.get(*place).copied().unwrap_or(f64::NAN);
    order.sort_by(|a, b| at(a).total_cmp(&at(b)));
    let mut ranks = vec![0.0; values.len()];
    let mut begin = 0;
    for equal in order.chunk_by(|a, b| at(a) >= at(b)) {
        let rank = (begin as f64 + equal.len() as f64 / 2.0) / values.len() as f64;
        for place in equal {
            if let Some(slot) = ranks.get_mut(*place) {
                *slot = rank;
            }
        }
        begin += equal.len();
    }
    ranks
}
