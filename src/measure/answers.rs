//! What a model answers on a labelled set, and how sure it is.

use anyhow::{Context as _, ensure};
use kaskade::models::{Inputs, Model, Tensor};
use kaskade::plans::confidence::{self, Calibration, Estimator, Label, Labelled, Scores};
use kaskade::plans::profile::{BeforeAfter, Validation};

/// The output that classes are read from, as Hugging Face names it.
pub(crate) const LOGITS: &str = "logits";

/// Requests per batch: here only the answers count.
const BATCH: usize = 32;

/// Answers on a set, calibrated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answers {
    /// The estimator with its temperature.
    pub(crate) calibration: Calibration,
    /// Calibration error before and after.
    pub(crate) ece: BeforeAfter,
    /// The answers themselves.
    pub(crate) validation: Validation,
}

/// Runs a classifier over a labelled set and calibrates its confidence there.
///
/// # Errors
/// When the model fails on a sample, gives no `logits`, or its scores cannot be calibrated.
pub(crate) fn calibrated(
    model: &mut dyn Model,
    requests: &[Inputs],
    labels: &[usize],
    estimator: Estimator,
    step: impl FnMut(u64),
) -> anyhow::Result<Answers> {
    ensure!(requests.len() == labels.len(), "every sample needs a label");
    let logits = scores(model, requests, step)?;
    let samples: Vec<Labelled<'_>> = logits
        .iter()
        .zip(labels)
        .map(|(logits, label)| Labelled {
            scores: Scores::Logits(logits),
            label: Label::Class(*label),
        })
        .collect();
    let calibrated = confidence::calibrate(estimator, &samples)?;
    let predictions = logits.iter().map(|logits| class_of(logits).unwrap_or_default());
    Ok(Answers {
        calibration: calibrated.calibration,
        ece: calibrated.ece,
        validation: Validation {
            predictions: predictions.map(|class| class as u32).collect(),
            confidences: calibrated.confidences,
            correct: calibrated.correct,
        },
    })
}

/// The class that a classifier gives each of some requests.
///
/// # Errors
/// When the model fails on one, or gives no `logits`.
pub(crate) fn classes(model: &mut dyn Model, requests: &[Inputs]) -> anyhow::Result<Vec<usize>> {
    let logits = scores(model, requests, |_| ())?;
    let classes = logits
        .iter()
        .map(|logits| class_of(logits).context("a reply has no class"));
    classes.collect()
}

fn scores(
    model: &mut dyn Model,
    requests: &[Inputs],
    mut step: impl FnMut(u64),
) -> anyhow::Result<Vec<Vec<f32>>> {
    let mut logits: Vec<Vec<f32>> = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for result in model.run(batch) {
            let scores = result
                .map_err(anyhow::Error::from)
                .and_then(|outputs| logits_of(&outputs));
            logits.push(scores.with_context(|| format!("sample {}", logits.len()))?);
        }
        step(batch.len() as u64);
    }
    ensure!(
        logits.len() == requests.len(),
        "the model answered {} of {} requests",
        logits.len(),
        requests.len()
    );
    Ok(logits)
}

/// The class scores among a reply's outputs.
///
/// # Errors
/// When there are none, or they are not FP32.
pub(crate) fn logits_of(outputs: &[Tensor]) -> anyhow::Result<Vec<f32>> {
    let logits = outputs.iter().find(|output| output.name == LOGITS);
    let logits = logits.with_context(|| {
        let names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        format!("there is no output `{LOGITS}` to read a class from, only {names:?}")
    })?;
    Ok(logits.to_f32()?)
}

/// The class with the highest score, the first of equals; none where there is no score.
pub(crate) fn class_of(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (class, score) in logits.iter().copied().enumerate() {
        if best.is_none_or(|(_, highest)| score > highest) {
            best = Some((class, score));
        }
    }
    best.map(|(class, _)| class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade::models::{ModelError, Outputs};

    /// Scores that say the class its input names, right three times out of four, always as sure.
    struct Overconfident;

    impl Model for Overconfident {
        fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            let answer = |inputs: &Inputs| {
                let said = inputs.first().map_or(0.0, |input| input.to_f32().unwrap()[0]);
                let scores = [0.0, 1.0, 2.0].map(|class| if (class - said).abs() < 0.5 { 9.0 } else { 0.0 });
                Ok(vec![Tensor::from_f32(LOGITS, &[3], &scores).unwrap()])
            };
            batch.iter().map(answer).collect()
        }
    }

    fn asking(class: f32) -> Inputs {
        vec![Tensor::from_f32("x", &[1], &[class]).unwrap()]
    }

    #[test]
    fn overconfidence_is_calibrated_and_no_answer_changes() {
        let requests: Vec<Inputs> = (0..200_u8).map(|n| asking(f32::from(n % 3))).collect();
        let labels: Vec<usize> = (0..200)
            .map(|n| if n % 4 == 0 { (n + 1) % 3 } else { n % 3 })
            .collect();
        let mut seen = 0;
        let answers = calibrated(
            &mut Overconfident,
            &requests,
            &labels,
            Estimator::MaxSquared,
            |done| seen += done,
        )
        .unwrap();
        assert_eq!(seen, 200);
        assert!(answers.calibration.temperature > 1.5, "{:?}", answers.calibration);
        assert!(
            answers.ece.after < 0.02 && answers.ece.before > 0.2,
            "{:?}",
            answers.ece
        );
        assert_eq!(
            answers.validation.correct.iter().filter(|right| **right).count(),
            150
        );
        assert!(
            answers
                .validation
                .predictions
                .iter()
                .zip(0..)
                .all(|(said, n)| *said == n % 3)
        );
    }

    #[test]
    fn a_reply_without_logits_is_named() {
        let outputs = [Tensor::from_f32("probs", &[1], &[1.0]).unwrap()];
        let error = logits_of(&outputs).unwrap_err().to_string();
        assert!(error.contains("`logits`") && error.contains("probs"), "{error}");
        assert_eq!(class_of(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(class_of(&[]), None);
    }
}
