//! Logistic regression with weighted samples and a ridge penalty, by Newton's method.

#![expect(
    clippy::indexing_slicing,
    reason = "matrices are square, of the size that this module gives them; planning solves thousands of them"
)]

use kaskade_policy::confidence::deferral::{Feature, Linear, Term, log_odds, sigmoid};

use super::samples::{Row, Rows};

/// Penalty on a squared weight per standard deviation of its feature, in units of one sample's log likelihood. It keeps weights finite
/// where classes are separable, and small where they rest on few samples.
const RIDGE: f64 = 2.0;

/// Newton steps at most; it converges in about six.
const STEPS: u32 = 25;

/// A feature with its value at every row.
pub(super) struct Column {
    pub(super) feature: Feature,
    pub(super) values: Vec<f64>,
}

/// Fits the log odds of `holds`. Features that are constant are left out. `None` if all rows, or none, hold.
pub(super) fn fit(rows: &Rows<'_>, columns: &[Column], holds: impl Fn(&Row) -> bool) -> Option<Linear> {
    let weights: Vec<f64> = rows.iter().map(|row| row.weight).collect();
    let targets: Vec<f64> = rows.iter().map(|row| f64::from(u8::from(holds(row)))).collect();
    let total: f64 = weights.iter().sum();
    let positive: f64 = weights.iter().zip(&targets).map(|(w, y)| w * y).sum();
    if total <= 0.0 || positive <= 0.0 || positive >= total {
        return None;
    }
    let mut scaled = Vec::new();
    for column in columns {
        let moment = |of: &dyn Fn(f64) -> f64| {
            let sum: f64 = column.values.iter().zip(&weights).map(|(x, w)| w * of(*x)).sum();
            sum / total
        };
        let mean = moment(&|x| x);
        let deviation = moment(&|x| (x - mean).powi(2)).sqrt();
        if deviation > 1e-9 {
            let values = column.values.iter().map(|x| (x - mean) / deviation);
            scaled.push((&column.feature, mean, deviation, values.collect::<Vec<f64>>()));
        }
    }
    let features: Vec<&[f64]> = scaled.iter().map(|column| column.3.as_slice()).collect();
    let solution = newton(
        &features,
        &weights,
        &targets,
        (positive / (total - positive)).ln(),
    )?;
    let terms = scaled.iter().zip(solution.iter().skip(1));
    Some(Linear {
        intercept: rounded(solution[0]),
        terms: terms
            .map(|((feature, mean, deviation, _), weight)| Term {
                feature: (*feature).clone(),
                weight: rounded(weight / deviation),
                mean: rounded(*mean),
            })
            .collect(),
    })
}

/// Log odds that are linear in the log odds of a confidence.
pub(crate) struct Curve {
    intercept: f64,
    slope: f64,
}

impl Curve {
    /// Fits the log odds of an event; they never rise with the confidence. `None` if the event happens always, never, or the more often the
    /// surer the model is.
    pub(crate) fn fit(confidences: &[f64], happens: &[bool]) -> Option<Self> {
        let total = happens.len() as f64;
        let positive = happens.iter().filter(|happens| **happens).count() as f64;
        if positive <= 0.0 || positive >= total {
            return None;
        }
        let odds: Vec<f64> = confidences
            .iter()
            .map(|confidence| log_odds(*confidence))
            .collect();
        let mean = odds.iter().sum::<f64>() / total;
        let deviation = (odds.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / total).sqrt();
        if deviation <= 1e-9 {
            return None;
        }
        let scaled: Vec<f64> = odds.iter().map(|x| (x - mean) / deviation).collect();
        let targets: Vec<f64> = happens
            .iter()
            .map(|happens| f64::from(u8::from(*happens)))
            .collect();
        let weights = vec![1.0; targets.len()];
        let solution = newton(
            &[&scaled],
            &weights,
            &targets,
            (positive / (total - positive)).ln(),
        )?;
        let slope = solution[1] / deviation;
        (slope < 0.0).then(|| Self {
            intercept: solution[0] - slope * mean,
            slope,
        })
    }

    /// Returns the probability of the event at each confidence.
    pub(crate) fn at(&self, confidences: &[f64]) -> Vec<f64> {
        let at = |confidence: &f64| sigmoid(self.intercept + self.slope * log_odds(*confidence));
        confidences.iter().map(at).collect()
    }
}

/// Seven significant digits: more would only lengthen the plan.
fn rounded(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}

/// Maximises the penalised likelihood. The first entry of the solution is the intercept, which is not penalised.
fn newton(features: &[&[f64]], weights: &[f64], targets: &[f64], start: f64) -> Option<Vec<f64>> {
    let size = features.len() + 1;
    let mut solution = vec![0.0; size];
    solution[0] = start;
    for _ in 0..STEPS {
        let mut sums = Sums::penalised(&solution);
        let blocks = weights.len() / BLOCK * BLOCK;
        for first in (0..blocks).step_by(BLOCK) {
            sums.add::<BLOCK>(features, weights, targets, &solution, first);
        }
        for sample in blocks..weights.len() {
            sums.add::<1>(features, weights, targets, &solution, sample);
        }
        // Of an intercept whose samples are all certain.
        sums.curvature[0][0] += 1e-9;
        let step = solve(&mut sums.curvature, &sums.slope)?;
        // A step of more than a few units of log odds is an overshoot.
        let longest = step.iter().fold(0.0_f64, |longest, s| longest.max(s.abs()));
        let shrink = (4.0 / longest.max(f64::MIN_POSITIVE)).min(1.0);
        for (value, step) in solution.iter_mut().zip(&step) {
            *value += shrink * step;
        }
        if longest < 1e-8 {
            break;
        }
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

/// Samples that are added to the sums together, so that a processor can do several at once. Every sum has the order of the samples.
const BLOCK: usize = 4;

/// First and second derivatives of the penalised likelihood; of the second, the lower triangle.
struct Sums {
    slope: Vec<f64>,
    curvature: Vec<Vec<f64>>,
    /// The features of each sample of a block, one sample after the other.
    rows: Vec<f64>,
}

impl Sums {
    fn penalised(solution: &[f64]) -> Self {
        let size = solution.len();
        let mut sums = Self {
            slope: vec![0.0; size],
            curvature: vec![vec![0.0; size]; size],
            rows: vec![1.0; BLOCK * size],
        };
        for (place, value) in solution.iter().enumerate().skip(1) {
            sums.slope[place] = -RIDGE * value;
            sums.curvature[place][place] = RIDGE;
        }
        sums
    }

    /// Adds `N` samples from the first on, at most [`BLOCK`].
    fn add<const N: usize>(
        &mut self,
        features: &[&[f64]],
        weights: &[f64],
        targets: &[f64],
        solution: &[f64],
        first: usize,
    ) {
        let size = solution.len();
        let mut odds = [solution[0]; N];
        for ((place, feature), factor) in (1..).zip(features).zip(&solution[1..]) {
            let values = &feature[first..first + N];
            for (n, value) in values.iter().enumerate() {
                odds[n] += value * factor;
                self.rows[n * size + place] = *value;
            }
        }
        let mut pull = [0.0; N];
        let mut stiffness = [0.0; N];
        for n in 0..N {
            let (weight, chance) = (weights[first + n], sigmoid(odds[n]));
            pull[n] = weight * (targets[first + n] - chance);
            stiffness[n] = weight * chance * (1.0 - chance);
        }
        let rows: [&[f64]; N] = std::array::from_fn(|n| &self.rows[n * size..(n + 1) * size]);
        for (place, (slope, sums)) in self.slope.iter_mut().zip(&mut self.curvature).enumerate() {
            let mut factors = [0.0; N];
            for n in 0..N {
                *slope += pull[n] * rows[n][place];
                factors[n] = stiffness[n] * rows[n][place];
            }
            let sums = &mut sums[..=place];
            let rows = rows.map(|row| &row[..=place]);
            for (other, sum) in sums.iter_mut().enumerate() {
                let mut total = *sum;
                for n in 0..N {
                    total += factors[n] * rows[n][other];
                }
                *sum = total;
            }
        }
    }
}

/// Solves `A x = b` for a positive definite matrix of which the lower triangle is given, by Cholesky's decomposition in place.
fn solve(matrix: &mut [Vec<f64>], right: &[f64]) -> Option<Vec<f64>> {
    let size = right.len();
    for row in 0..size {
        for column in 0..=row {
            let dot: f64 = (0..column).map(|k| matrix[row][k] * matrix[column][k]).sum();
            let rest = matrix[row][column] - dot;
            if row == column {
                if rest <= 0.0 {
                    return None;
                }
                matrix[row][row] = rest.sqrt();
            } else {
                matrix[row][column] = rest / matrix[column][column];
            }
        }
    }
    let mut x = right.to_vec();
    for row in 0..size {
        let dot: f64 = (0..row).map(|k| matrix[row][k] * x[k]).sum();
        x[row] = (x[row] - dot) / matrix[row][row];
    }
    for row in (0..size).rev() {
        let dot: f64 = (row + 1..size).map(|k| matrix[k][row] * x[k]).sum();
        x[row] = (x[row] - dot) / matrix[row][row];
    }
    Some(x)
}
