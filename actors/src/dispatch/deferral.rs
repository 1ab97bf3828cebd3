//! Computes deferral scores at run time, and records the answers that scores of later stages read.

use kaskade_models::Tensor;
use kaskade_policy::confidence::Estimator;
use kaskade_policy::confidence::deferral::{ClassSpread, Evidence, ScoredSample};

use crate::{
    dispatch::answer::answer_number,
    plan::versions::PlanVersion,
    wire::{Hop, HopAnswer},
};

/// A request at a stage.
pub(crate) struct StageVisit<'a> {
    pub(crate) gear: u32,
    pub(crate) stage: &'a str,
    /// The hops passed so far.
    pub(crate) hops: &'a [Hop],
    /// Size of the input data, bytes; `None` if unknown.
    pub(crate) input_bytes: Option<usize>,
}

/// Returns the value that the bands of the stage compare: the stage's score if it has one, else the calibrated
/// confidence.
pub(crate) fn score(
    version: &PlanVersion,
    passing: &StageVisit<'_>,
    calibrated: Option<f64>,
    outputs: &[Tensor],
) -> Option<f64> {
    let confidence = calibrated?;
    let Some(stage) = version.stage(passing.gear, passing.stage) else {
        return Some(confidence);
    };
    let Some(score) = &stage.score else {
        return Some(confidence);
    };
    let temperature = version.calibration(&stage.variant).and_then(|calibration| {
        let of_classes = matches!(calibration.estimator, Estimator::MaxSquared | Estimator::Margin);
        of_classes.then_some(calibration.temperature)
    });
    let logits = temperature.and_then(|_| logits(outputs));
    let evidence = Evidence {
        judged: ScoredSample {
            confidence,
            answer: answer_number(outputs).unwrap_or_default(),
        },
        spread: temperature.and_then(|temperature| ClassSpread::from_logits(logits.as_deref()?, temperature)),
        // The inputs of a partition are hidden states.
        input_bytes: passing.input_bytes.filter(|_| stage.partition.is_none()),
    };
    let earlier = |name: &str| {
        let mut hops = passing.hops.iter().rev();
        hops.find(|hop| hop.stage == name)?.answer.map(ScoredSample::from)
    };
    Some(score.evaluate(&evidence, earlier))
}

/// Returns the size of the input data, bytes, as scores read it.
pub(crate) fn input_bytes(inputs: &[Tensor]) -> usize {
    inputs.iter().map(|input| input.data.len()).sum()
}

/// Returns the score of a stage that does not route by itself, and records the stage's answer in its hop.
pub(crate) fn score_for_stage(
    version: &PlanVersion,
    gear: u32,
    stage: &str,
    hops: &mut Vec<Hop>,
    input_bytes: Option<usize>,
    calibrated: Option<f64>,
    outputs: &[Tensor],
) -> Option<f64> {
    let passing = StageVisit {
        gear,
        stage,
        hops,
        input_bytes,
    };
    let score = score(version, &passing, calibrated, outputs);
    note(
        hops,
        stage,
        answer_to_note(version, gear, stage, calibrated, outputs),
    );
    score
}

/// Returns the answer of the stage if the score of another stage reads it.
pub(crate) fn answer_to_note(
    version: &PlanVersion,
    gear: u32,
    stage: &str,
    calibrated: Option<f64>,
    outputs: &[Tensor],
) -> Option<HopAnswer> {
    let confidence = calibrated?;
    let stages = &version.gear(gear)?.wiring.stages;
    let scores = stages.iter().filter_map(|other| other.score.as_ref());
    let mut read = scores.flat_map(|score| score.terms().filter_map(|term| term.feature.earlier_variant()));
    read.any(|name| name == stage).then(|| {
        HopAnswer::from(ScoredSample {
            confidence,
            answer: answer_number(outputs).unwrap_or_default(),
        })
    })
}

/// Records the answer of a stage in its hop. Adds the hop if it is missing, as a stage in another program may not have
/// written one.
pub(crate) fn note(hops: &mut Vec<Hop>, stage: &str, answer: Option<HopAnswer>) {
    if answer.is_none() {
        return;
    }
    match hops.iter_mut().rev().find(|hop| hop.stage == stage) {
        Some(hop) => hop.answer = answer,
        None => hops.push(Hop {
            stage: stage.to_owned(),
            answer,
            ..Hop::default()
        }),
    }
}

fn logits(outputs: &[Tensor]) -> Option<Vec<f32>> {
    let logits = outputs.iter().find(|output| output.name == "logits");
    logits.and_then(|output| output.to_f32().ok())
}
