//! Evaluation of a given cascade on the validation set.

use super::family::{Family, count};
use super::point::{FORWARD_ALL, Point};

/// An interval of confidence and its target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    /// Inclusive lower end.
    pub from: f64,
    /// The variant to escalate to, or `None` to reply.
    pub to: Option<usize>,
}

/// The bands of every variant, ascending by `from` and beginning at 0. No bands: the variant replies.
pub type Exits = Vec<Vec<Band>>;

/// The results of a cascade on the validation set.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadeOutcome {
    /// Whether the answer to each sample was right.
    pub correct: Vec<bool>,
    /// Share of right answers.
    pub accuracy: f64,
    /// Cost per request.
    pub energy_j: f64,
    /// Share of requests that every variant runs.
    pub reach: Vec<f64>,
    /// Share of requests that every variant answers.
    pub answered: Vec<f64>,
}

impl CascadeOutcome {
    /// The point of these thresholds.
    pub(crate) fn into_point(self, thresholds: Vec<f64>) -> Point {
        Point {
            thresholds,
            accuracy: self.accuracy,
            energy_j: self.energy_j,
            reach: self.reach,
            answered: self.answered,
        }
    }
}

/// The exits of a plain cascade: below its threshold every variant forwards to the next one.
pub fn threshold_exits(thresholds: &[f64]) -> Exits {
    let reply = |from| Band { from, to: None };
    let bands = |(variant, threshold): (usize, &f64)| {
        let on = Band {
            from: 0.0,
            to: Some(variant + 1),
        };
        match *threshold {
            none if none <= 0.0 => vec![reply(0.0)],
            all if all >= FORWARD_ALL => vec![on],
            some => vec![on, reply(some)],
        }
    };
    let mut exits: Exits = thresholds.iter().enumerate().map(bands).collect();
    exits.push(Vec::new());
    exits
}

/// Sends every validation sample through the cascade. It enters at the first variant; a band that leads back or to nowhere replies.
pub fn evaluate(family: &Family, exits: &[Vec<Band>]) -> CascadeOutcome {
    let columns = family.columns();
    let mut correct = vec![false; family.samples()];
    let mut counts = Counts::new(columns.len());
    // By variant: the samples that reach it. Bands lead to later variants only.
    let mut arriving: Vec<Vec<u32>> = vec![Vec::new(); columns.len()];
    if let Some(first) = arriving.first_mut() {
        first.extend(0..family.samples() as u32);
    }
    for (at, column) in columns.iter().enumerate() {
        let (here, later) = arriving.split_at_mut(at + 1);
        let here = here.last_mut().map(std::mem::take).unwrap_or_default();
        let bands = exits.get(at).map_or(&[][..], Vec::as_slice);
        let mut answered = 0;
        for sample in &here {
            let place = *sample as usize;
            let next = column
                .confidences
                .get(place)
                .and_then(|confidence| target(bands, *confidence));
            if let Some(later) = next.and_then(|to| later.get_mut(to.checked_sub(at + 1)?)) {
                later.push(*sample);
                continue;
            }
            answered += 1;
            if let (Some(slot), Some(right)) = (correct.get_mut(place), column.correct.get(place)) {
                *slot = *right;
            }
        }
        if let (Some(reach), Some(answers)) = (counts.reach.get_mut(at), counts.answered.get_mut(at)) {
            (*reach, *answers) = (here.len(), answered);
        }
    }
    counts.right = count(&correct);
    counts.outcome(family, correct)
}

/// Returns the target of a confidence.
#[inline]
fn target(bands: &[Band], confidence: f64) -> Option<usize> {
    let above = match bands {
        // Most variants have one threshold.
        [low, high] => usize::from(low.from <= confidence) + usize::from(high.from <= confidence),
        _ => bands.partition_point(|band| band.from <= confidence),
    };
    bands.get(above.checked_sub(1)?)?.to
}

/// The samples that a cascade answers rightly, and by variant those that run and that are answered by it.
pub(super) struct Counts {
    pub(super) right: usize,
    pub(super) reach: Vec<usize>,
    pub(super) answered: Vec<usize>,
}

impl Counts {
    fn new(variants: usize) -> Self {
        Self {
            right: 0,
            reach: vec![0; variants],
            answered: vec![0; variants],
        }
    }

    /// Creates the counts of a plain cascade from the number of samples that each variant but the last forwards.
    pub(super) fn of_plain(samples: usize, right: u32, forwarded: &[u32]) -> Self {
        let reach: Vec<usize> = std::iter::once(samples)
            .chain(forwarded.iter().map(|samples| *samples as usize))
            .collect();
        let later = reach.iter().skip(1).chain([&0]);
        Self {
            right: right as usize,
            answered: reach.iter().zip(later).map(|(here, next)| here - next).collect(),
            reach,
        }
    }

    /// The shares of the samples and the cost.
    pub(super) fn outcome(self, family: &Family, correct: Vec<bool>) -> CascadeOutcome {
        let samples = family.samples() as f64;
        let share = |counts: Vec<usize>| -> Vec<f64> {
            let shares = counts.into_iter().map(|count| count as f64 / samples);
            shares.collect()
        };
        let reach = share(self.reach);
        let energy = |(rho, column): (&f64, &super::Column)| rho * column.energy_j;
        CascadeOutcome {
            accuracy: self.right as f64 / samples,
            energy_j: reach.iter().zip(family.columns()).map(energy).sum(),
            answered: share(self.answered),
            reach,
            correct,
        }
    }
}
