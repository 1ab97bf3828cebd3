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
pub struct Outcome {
    /// Per sample, whether the answer was right.
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

impl Outcome {
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
pub fn evaluate(family: &Family, exits: &[Vec<Band>]) -> Outcome {
    let variants = family.columns().len();
    let mut reach = vec![0_usize; variants];
    let mut answered = vec![0_usize; variants];
    let mut correct = Vec::with_capacity(family.samples());
    for sample in 0..family.samples() {
        let mut at = 0;
        while let Some(seen) = reach.get_mut(at) {
            *seen += 1;
            match next(family, exits, at, sample) {
                Some(next) => at = next,
                None => break,
            }
        }
        if let Some(answers) = answered.get_mut(at) {
            *answers += 1;
        }
        let right = family
            .columns()
            .get(at)
            .and_then(|column| column.correct.get(sample));
        correct.push(right.copied().unwrap_or(false));
    }
    let samples = family.samples() as f64;
    let share = |counts: &[usize]| {
        counts
            .iter()
            .map(|count| *count as f64 / samples)
            .collect::<Vec<f64>>()
    };
    let reach = share(&reach);
    let energy = |(rho, column): (&f64, &super::Column)| rho * column.energy_j;
    Outcome {
        accuracy: count(&correct) as f64 / samples,
        energy_j: reach.iter().zip(family.columns()).map(energy).sum(),
        answered: share(&answered),
        reach,
        correct,
    }
}

fn next(family: &Family, exits: &[Vec<Band>], at: usize, sample: usize) -> Option<usize> {
    let confidence = *family.columns().get(at)?.confidences.get(sample)?;
    let bands = exits.get(at)?;
    let band = bands
        .partition_point(|band| band.from <= confidence)
        .checked_sub(1)?;
    let to = bands.get(band)?.to?;
    (to > at && to < family.columns().len()).then_some(to)
}
