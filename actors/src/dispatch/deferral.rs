//! Deferral scores at run time: gathers what the score of a stage reads, and notes what the scores of later stages will.

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
    /// The stages passed.
    pub(crate) hops: &'a [Hop],
    /// Bytes of its inputs' data; `None` if they are unknown.
    pub(crate) input_bytes: Option<usize>,
}

/// Returns what the bands of the stage compare: its score if it has one, else the calibrated confidence.
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
        spread: temperature.and_then(|temperature| ClassSpread::of(logits.as_deref()?, temperature)),
        // A partition gets hidden states.
        input_bytes: passing.input_bytes.filter(|_| stage.partition.is_none()),
    };
    let earlier = |name: &str| {
        let mut hops = passing.hops.iter().rev();
        hops.find(|hop| hop.stage == name)?.answer.map(ScoredSample::from)
    };
    Some(score.evaluate(&evidence, earlier))
}

/// Returns the bytes of the inputs' data, as scores read them.
pub(crate) fn input_bytes(inputs: &[Tensor]) -> usize {
    inputs.iter().map(|input| input.data.len()).sum()
}

/// Returns the score of a stage that does not route by itself, and notes its answer in its hop.
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

/// Returns the answer of the stage if the score of a later one reads it.
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
    let mut read = scores.flat_map(|score| score.terms().filter_map(|term| term.feature.earlier()));
    read.any(|name| name == stage).then(|| {
        HopAnswer::from(ScoredSample {
            confidence,
            answer: answer_number(outputs).unwrap_or_default(),
        })
    })
}

/// Notes the answer of a stage in its hop; a stage of another program may not have written one.
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
