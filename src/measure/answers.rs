//! What a model answers on a labelled set, and how sure it is.

use anyhow::{Context as _, ensure};
use kaskade::models::{Inputs, Model, Tensor, check_outputs};
use kaskade::plans::confidence::{self, Estimator, Label, Labelled, Scores};
use kaskade::plans::profile::{BeforeAfter, Validation};
use kaskade::plans::confidence::Calibration;

/// The output that classes are read from, as Hugging Face names it.
pub const LOGITS: &str = "logits";

/// Answers on a set, calibrated.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers {
    /// The estimator with its temperature.
    pub calibration: Calibration,
    /// Calibration error before and after.
    pub ece: BeforeAfter,
    /// The answers themselves.
    pub validation: Validation,
}

/// Runs a classifier over a labelled set and calibrates its confidence there.
///
/// # Errors
/// When the model fails on a sample, gives no `logits`, or its scores cannot be calibrated.
pub fn calibrated(
    model: &mut dyn Model,
    requests: &[Inputs],
    labels: &[usize],
    estimator: Estimator,
    batch: usize,
    mut step: impl FnMut(u64),
) -> anyhow::Result<Answers> {
    ensure!(requests.len() == labels.len(), "every sample needs a label");
    let mut logits: Vec<Vec<f32>> = Vec::with_capacity(requests.len());
    for batch in requests.chunks(batch.max(1)) {
        for result in model.run(batch) {
            let number = logits.len();
            let scores = result
                .and_then(check_outputs)
                .map_err(anyhow::Error::from)
                .and_then(|outputs| logits_of(&outputs));
            logits.push(scores.with_context(|| format!("sample {number}"))?);
        }
        step(batch.len() as u64);
    }
    ensure!(logits.len() == labels.len(), "the model answered {} of {} samples", logits.len(), labels.len());
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

/// The class scores among a reply's outputs.
///
/// # Errors
/// When there are none, or they are not FP32.
pub fn logits_of(outputs: &[Tensor]) -> anyhow::Result<Vec<f32>> {
    let logits = outputs.iter().find(|output| output.name == LOGITS);
    let logits = logits.with_context(|| {
        let names: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        format!("there is no output `{LOGITS}` to read a class from, only {names:?}")
    })?;
    Ok(logits.to_f32()?)
}

/// The class with the highest score, the first of equals; none where there is no score.
pub fn class_of(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (class, score) in logits.iter().copied().enumerate() {
        if best.is_none_or(|(_, highest)| score > highest) {
            best = Some((class, score));
        }
    }
    best.map(|(class, _)| class)
}
