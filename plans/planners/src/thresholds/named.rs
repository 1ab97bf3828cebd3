//! The two named points of a frontier (HybridServe §IV-B), and the safety margin against overfitting the validation set.
//!
//! A frontier is the upper edge of thousands of cascades measured on the same few hundred samples, so its points overfit these
//! samples: the cheapest cascade that matches the best variant there usually misses it on other data. The study in
//! this folder measures by how much. The safety margin reduces the loss.

use std::sync::Arc;

use serde::Serialize;

use super::evaluate::{CascadeOutcome, evaluate, threshold_exits};
use super::family::Family;
use super::point::{FORWARD_ALL, Frontier, Point};
use crate::pareto::{Place, upper_hull};

/// The test that a point must pass to count as no less accurate than its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NonInferiorityTest {
    /// The paper's rule: at least as accurate on the validation set.
    None,
    /// In addition, a one-sided confidence bound on the paired difference stays above `-tolerance`.
    Bound {
        /// Safety margin in standard errors.
        z: f64,
        /// The accepted loss of accuracy, as a share (0.005 is half a point).
        tolerance: f64,
    },
}

impl Default for NonInferiorityTest {
    /// A margin of half a standard error. In the study it halves the loss of the bare rule on unseen data and keeps three quarters
    /// of its saving or more; a whole one halves the loss again, but on a few hundred samples often leaves nothing but the best
    /// variant, which is no cascade. Where the loss matters more than the energy, profile more samples first, then raise `z`.
    fn default() -> Self {
        Self::Bound {
            z: 0.5,
            tolerance: 0.0,
        }
    }
}

impl NonInferiorityTest {
    /// Whether a cascade is no less accurate than its baseline.
    pub fn passes(&self, outcome: &CascadeOutcome, baseline: &Baseline) -> bool {
        let paired = Paired::new(&outcome.correct, &baseline.correct);
        if paired.gained < paired.lost {
            return false;
        }
        match *self {
            Self::None => true,
            Self::Bound { z, tolerance } => paired.difference() - z * paired.standard_error() >= -tolerance,
        }
    }
}

/// A variant that cascades are compared with. It stays the same when variants are dropped from the family.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    /// The variant.
    pub name: String,
    /// Whether each answer of the variant is right.
    pub correct: Arc<[bool]>,
}

impl Baseline {
    /// A variant of a family.
    pub fn new(family: &Family, variant: usize) -> Self {
        let column = family.columns().get(variant);
        Self {
            name: column.map_or_else(String::new, |column| column.name.clone()),
            correct: column.map_or_else(Arc::default, |column| column.correct.clone()),
        }
    }

    fn accuracy(&self) -> f64 {
        super::family::count(&self.correct) as f64 / self.correct.len().max(1) as f64
    }
}

/// The difference between two sets of answers to the same samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Paired {
    /// Samples that only the first answers rightly.
    pub gained: usize,
    /// Samples that only the second does.
    pub lost: usize,
    /// All samples.
    pub samples: usize,
}

impl Paired {
    /// Compares two columns of right and wrong answers.
    pub fn new(first: &[bool], second: &[bool]) -> Self {
        let pairs = first.iter().zip(second);
        let (gained, lost) = pairs.fold((0, 0), |(gained, lost), (first, second)| {
            (
                gained + usize::from(*first && !*second),
                lost + usize::from(!*first && *second),
            )
        });
        Self {
            gained,
            lost,
            samples: first.len().min(second.len()),
        }
    }

    /// Difference in accuracy.
    pub fn difference(&self) -> f64 {
        (self.gained as f64 - self.lost as f64) / self.samples.max(1) as f64
    }

    /// Standard error of the difference, as if one more sample differed: few observed differences do not prove that there are none.
    /// Two columns that are known to be the same by construction need no such caution.
    pub fn standard_error(&self) -> f64 {
        let samples = self.samples.max(1) as f64;
        let differing = (self.gained + self.lost) as f64 + 1.0;
        (differing - self.difference().powi(2) * samples).max(0.0).sqrt() / samples
    }
}

/// The accuracy-preserving point: the least energy that is as accurate as the best variant and passes the test. If there is none,
/// the best variant alone; `None` if the family no longer has it.
pub(crate) fn accuracy_preserving(
    family: &Family,
    frontier: &Frontier,
    best: &Baseline,
    guard: NonInferiorityTest,
) -> Option<Point> {
    let needed = best.accuracy();
    frontier
        .points
        .iter()
        .filter(|point| point.accuracy >= needed)
        .find(|point| guard.passes(&evaluate(family, &threshold_exits(&point.thresholds)), best))
        .cloned()
        .or_else(|| alone(family, &best.name))
}

/// One variant answers everything; those before it forward everything.
pub fn alone(family: &Family, name: &str) -> Option<Point> {
    let variant = family.columns().iter().position(|column| column.name == name)?;
    let gates = family.columns().len() - 1;
    let thresholds: Vec<f64> = (0..gates)
        .map(|gate| if gate < variant { FORWARD_ALL } else { 0.0 })
        .collect();
    Some(evaluate(family, &threshold_exits(&thresholds)).into_point(thresholds))
}

/// Steps in which the curve is sampled for its knee. The raw frontier bends at every sample; this is the resolution of a bend.
const STEPS: usize = 32;

/// The energy-optimising point: the knee of the accuracy-energy curve below the accuracy-preserving point, where it bends most
/// (its second derivative, on axes from 0 to 1), among cascades that keep up with the second-best variant. `None` if there
/// are none; the accuracy-preserving point then serves.
pub(crate) fn energy_optimising(
    family: &Family,
    frontier: &Frontier,
    floor: &Baseline,
    preserving: &Point,
    guard: NonInferiorityTest,
) -> Option<Point> {
    let needed = floor.accuracy();
    let passes = |point: &Point| guard.passes(&evaluate(family, &threshold_exits(&point.thresholds)), floor);
    let eligible: Vec<&Point> = frontier
        .points
        .iter()
        .filter(|point| point.accuracy >= needed && point.energy_j <= preserving.energy_j)
        .skip_while(|point| !passes(point))
        .collect();
    let hull = upper_hull(eligible, |point| place(point));
    let bend = sharpest_bend(&hull)?;
    let distance = |point: &Point| (point.energy_j - bend).abs();
    // Beyond the first point that passes, nearly all do; the one that is taken is checked.
    hull.into_iter()
        .filter(|point| passes(point))
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .cloned()
}

/// Returns the place of a point on the accuracy-energy curve.
fn place(point: &Point) -> Place {
    Place {
        cost: point.energy_j,
        gain: point.accuracy,
    }
}

/// The energy at which the curve through these points bends most; their only energy if there is one.
fn sharpest_bend(hull: &[&Point]) -> Option<f64> {
    let (first, last) = (hull.first()?, hull.last()?);
    let width = last.energy_j - first.energy_j;
    let energy = |step: usize| first.energy_j + width * step as f64 / STEPS as f64;
    // Only the position of the largest second difference matters, so scaling the axes to 0..1 would change nothing.
    let bend = |step: usize| {
        height(hull, energy(step - 1)) - 2.0 * height(hull, energy(step)) + height(hull, energy(step + 1))
    };
    (1..STEPS)
        .min_by(|a, b| bend(*a).total_cmp(&bend(*b)))
        .map(energy)
}

/// Accuracy of the curve at an energy.
fn height(hull: &[&Point], energy: f64) -> f64 {
    let above = hull.partition_point(|point| point.energy_j < energy);
    match (
        above.checked_sub(1).and_then(|below| hull.get(below)),
        hull.get(above),
    ) {
        (Some(below), Some(above)) => {
            let share = (energy - below.energy_j) / (above.energy_j - below.energy_j);
            below.accuracy + share * (above.accuracy - below.accuracy)
        }
        (Some(only), None) | (None, Some(only)) => only.accuracy,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests;
