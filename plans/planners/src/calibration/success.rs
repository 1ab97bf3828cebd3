//! The temperature of answers that are only known to be right or wrong: texts, spans and rankings whose right answer is no single class.

use kaskade_policy::confidence::{Calibration, ConfidenceError, Estimator};
use kaskade_policy::profile::BeforeAfter;

use super::{Label, Labelled, TemperatureFit, at, wrong_label};

/// Decades of the inverse temperature that are searched, on both sides of 1.
const DECADES: f64 = 4.0;

/// Points of the first search.
const GRID: u32 = 64;

/// Steps of the second search; each cuts the bracket to 0.618 of its length.
const STEPS: u32 = 40;

/// Probabilities are kept this far from 0 and 1, so that one certain and wrong answer costs a finite amount.
const EDGE: f64 = 1e-9;

/// Fits the temperature at which the probability of being right explains best which answers were right, by the likelihood of a Bernoulli
/// variable with the penalty of [`fit_temperature`](super::fit_temperature). The likelihood may have several maxima: a grid finds the
/// highest one, golden sections refine it.
///
/// # Errors
/// A [`ConfidenceError`] naming the sample, if one is unusable or the set is empty.
pub(super) fn fit(estimator: Estimator, samples: &[Labelled<'_>]) -> Result<TemperatureFit, ConfidenceError> {
    if samples.is_empty() {
        return Err(ConfidenceError::Empty);
    }
    // The first evaluation reports unusable samples; the others cannot fail.
    let before = loss(estimator, samples, 0.0)?;
    let penalised = |log_b: f64| {
        let b = log_b.exp();
        let penalty = (b - 1.0 - log_b) / samples.len() as f64;
        loss(estimator, samples, log_b).map_or(f64::INFINITY, |loss| loss + penalty)
    };
    let range = DECADES * std::f64::consts::LN_10;
    let step = 2.0 * range / f64::from(GRID);
    let best = (0..=GRID)
        .map(|place| f64::from(place).mul_add(step, -range))
        .map(|log_b| (log_b, penalised(log_b)))
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .map_or(0.0, |(log_b, _)| log_b);
    let log_b = golden(best - step, best + step, penalised);
    Ok(TemperatureFit {
        temperature: (-log_b).exp(),
        nll: BeforeAfter {
            before,
            after: loss(estimator, samples, log_b)?,
        },
    })
}

/// Returns the place of the smallest value between two bounds.
fn golden(mut low: f64, mut high: f64, value: impl Fn(f64) -> f64) -> f64 {
    const CUT: f64 = 0.618_033_988_749_894_8;
    let mut left = high - CUT * (high - low);
    let mut right = low + CUT * (high - low);
    let (mut of_left, mut of_right) = (value(left), value(right));
    for _ in 0..STEPS {
        if of_left <= of_right {
            high = right;
            (right, of_right) = (left, of_left);
            left = high - CUT * (high - low);
            of_left = value(left);
        } else {
            low = left;
            (left, of_left) = (right, of_right);
            right = low + CUT * (high - low);
            of_right = value(right);
        }
    }
    f64::midpoint(low, high)
}

/// Mean negative log likelihood of being right or wrong.
fn loss(estimator: Estimator, samples: &[Labelled<'_>], log_b: f64) -> Result<f64, ConfidenceError> {
    let calibration = Calibration {
        estimator,
        temperature: (-log_b).exp(),
    };
    let mut total = 0.0;
    for (place, sample) in samples.iter().enumerate() {
        let Label::Correct(right) = sample.label else {
            return Err(at(place, wrong_label(sample)));
        };
        let probability = calibration
            .probability(&sample.scores)
            .map_err(|cause| at(place, cause))?
            .clamp(EDGE, 1.0 - EDGE);
        total -= if right { probability } else { 1.0 - probability }.ln();
    }
    Ok(total / samples.len() as f64)
}

#[cfg(test)]
mod tests {
    use kaskade_policy::confidence::Scores;

    use super::*;

    /// Answers with a margin of 6 between two classes, of which three in four are right.
    fn samples(logits: &[f32], right: impl Fn(usize) -> bool) -> Vec<Labelled<'_>> {
        let one = |place| Labelled {
            scores: Scores::Logits(logits),
            label: Label::Correct(right(place)),
        };
        (0..400).map(one).collect()
    }

    #[test]
    fn the_temperature_states_the_share_of_right_answers() {
        let logits = [0.0_f32, 6.0];
        let samples = samples(&logits, |place| !place.is_multiple_of(4));
        let fit = fit(Estimator::MaxSquared, &samples).unwrap();
        let calibration = Calibration {
            estimator: Estimator::MaxSquared,
            temperature: fit.temperature,
        };
        let probability = calibration.probability(&Scores::Logits(&logits)).unwrap();
        assert!((probability - 0.75).abs() < 0.01, "{probability}, {fit:?}");
        // The entropy of 3 in 4.
        assert!(
            (fit.nll.after - 0.562_335).abs() < 1e-3 && fit.nll.before > 1.4,
            "{fit:?}"
        );
    }

    #[test]
    fn a_set_without_a_mistake_has_a_finite_temperature() {
        let logits = [0.0_f32, 6.0];
        for right in [true, false] {
            let samples = samples(&logits, |_| right);
            let temperature = fit(Estimator::MaxSquared, &samples).unwrap().temperature;
            assert!((1e-3..1e4).contains(&temperature), "{right}: {temperature}");
            assert_eq!(temperature < 1.0, right);
        }
    }

    #[test]
    fn an_unusable_sample_is_named() {
        let logits = [0.0_f32, 6.0];
        let broken = [f32::NAN, 0.0];
        let mut set = samples(&logits, |_| true);
        set[3].scores = Scores::Logits(&broken);
        let error = fit(Estimator::MaxSquared, &set).unwrap_err().to_string();
        assert!(error.contains("sample 3"), "{error}");
        set[3].label = Label::Class(1);
        set[3].scores = Scores::Logits(&logits);
        assert!(fit(Estimator::MaxSquared, &set).is_err());
        assert!(fit(Estimator::MaxSquared, &[]).is_err());
    }
}
