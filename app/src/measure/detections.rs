//! Records the objects that a detector finds in scenes, and measures the accuracy with different classifiers.

use kaskade_models::{Inputs, Model, Tensor};
use kaskade_policy::pipeline::TaskVariant;
use kaskade_simulator::MeasuredCopies;

use super::MeasureError;
use crate::data::reply::{class_of, logits_of};
use crate::data::scenes::{ClassifiedObject, Detection, Scenes, Score};

/// Requests per batch; run times are not measured here.
const BATCH: usize = 32;

/// Results of a variant of the root task for all scenes.
pub(super) struct Detections {
    found: Vec<Vec<Detection>>,
    /// Crops by kind: index of the scene, the detection, and the crop as a request.
    crops: Vec<Vec<(usize, Detection, Inputs)>>,
}

/// Returns the requests to a task in a detector's outputs: the rows of `<task>/<input>`.
fn requests(outputs: &[Tensor], task: &str) -> Result<Vec<Inputs>, MeasureError> {
    let mut requests: Vec<Inputs> = Vec::new();
    for output in outputs {
        let Some((_, input)) = output.name.split_once('/').filter(|(to, _)| *to == task) else {
            continue;
        };
        let (count, shape) = output.shape.split_first().ok_or_else(|| MeasureError::NoRows {
            output: output.name.clone(),
        })?;
        requests.resize_with(*count, Vec::new);
        let values = output.to_f32()?;
        let size = shape.iter().product::<usize>().max(1);
        for (request, row) in requests.iter_mut().zip(values.chunks(size)) {
            request.push(Tensor::from_f32(input, shape, row)?);
        }
    }
    Ok(requests)
}

fn answers(model: &mut dyn Model, requests: &[Inputs]) -> Result<Vec<Vec<Tensor>>, MeasureError> {
    let mut answers = Vec::with_capacity(requests.len());
    for batch in requests.chunks(BATCH) {
        for answer in model.run(batch) {
            answers.push(answer.map_err(MeasureError::Refused)?);
        }
    }
    Ok(answers)
}

fn classes(
    model: &mut dyn Model,
    crops: &[(usize, Detection, Inputs)],
) -> Result<Vec<Option<usize>>, MeasureError> {
    let requests: Vec<Inputs> = crops.iter().map(|(.., inputs)| inputs.clone()).collect();
    let answers = answers(model, &requests)?;
    answers
        .iter()
        .map(|outputs| Ok(class_of(&logits_of(outputs)?)))
        .collect()
}

impl Detections {
    /// Runs a detector over all scenes.
    ///
    /// # Errors
    /// [`MeasureError`] if the detector fails on a scene, or reports objects in another form.
    pub(super) fn run(model: &mut dyn Model, scenes: &Scenes) -> Result<Self, MeasureError> {
        let mut detections = Self {
            found: Vec::new(),
            crops: vec![Vec::new(); scenes.kinds.len()],
        };
        for outputs in answers(model, &scenes.inputs)? {
            let scene = detections.found.len();
            let found = scenes.found(&outputs)?;
            for (kind, name) in scenes.kinds.iter().enumerate() {
                let own = found.iter().filter(|found| found.kind == kind);
                let inputs = requests(&outputs, name)?;
                let crops = own
                    .copied()
                    .zip(inputs)
                    .map(|(found, inputs)| (scene, found, inputs));
                if let Some(list) = detections.crops.get_mut(kind) {
                    list.extend(crops);
                }
            }
            detections.found.push(found);
        }
        Ok(detections)
    }

    /// Returns the found objects of a task as requests.
    pub(super) fn requests(&self, scenes: &Scenes, task: &str) -> Vec<Inputs> {
        let kind = scenes.kinds.iter().position(|kind| kind == task);
        let crops = kind.and_then(|kind| self.crops.get(kind)).into_iter().flatten();
        crops.map(|(.., inputs)| inputs.clone()).collect()
    }

    /// Returns the accuracy of the detection.
    pub(super) fn score(&self, scenes: &Scenes) -> Score {
        let mut sum = Score::default();
        for (scene, found) in self.found.iter().enumerate() {
            sum.add(&scenes.judge_found(scene, found));
        }
        sum
    }

    /// Sets the mean number of child requests per scene, and its distribution over the tasks.
    pub(super) fn factors(&self, scenes: &Scenes, variant: &mut TaskVariant) {
        let counts: Vec<f64> = self.crops.iter().map(|crops| crops.len() as f64).collect();
        let all: f64 = counts.iter().sum();
        variant.multiplicative_factor = all / scenes.len().max(1) as f64;
        let ratios = scenes.kinds.iter().zip(&counts);
        variant.branch_ratios = ratios
            .map(|(kind, count)| (kind.clone(), count / all.max(1.0)))
            .collect();
    }

    /// Returns the distribution of the number of child requests per scene, by task.
    pub(super) fn copies(&self, variant: &str, scenes: &Scenes) -> Vec<MeasuredCopies> {
        let of_kind = |(kind, task): (usize, &String)| {
            let counts = self
                .found
                .iter()
                .map(|found| found.iter().filter(|found| found.kind == kind).count());
            let mut weights: Vec<f64> = Vec::new();
            for count in counts {
                weights.resize(weights.len().max(count + 1), 0.0);
                if let Some(weight) = weights.get_mut(count) {
                    *weight += 1.0;
                }
            }
            MeasuredCopies {
                variant: variant.to_owned(),
                to: task.clone(),
                weights,
            }
        };
        scenes.kinds.iter().enumerate().map(of_kind).collect()
    }

    /// Returns the share of the objects of the right kind to which a classifier assigns the right class.
    pub(super) fn single(
        &self,
        kind: usize,
        model: &mut dyn Model,
        scenes: &Scenes,
    ) -> Result<f64, MeasureError> {
        let crops = self.crops.get(kind).map_or(&[][..], Vec::as_slice);
        let (mut right, mut all) = (0_u32, 0_u32);
        for ((scene, found, _), class) in crops.iter().zip(classes(model, crops)?) {
            let truth = scenes.class_at(*scene, *found);
            all += u32::from(truth.is_some());
            right += u32::from(truth.is_some() && truth == class);
        }
        Ok(f64::from(right) / f64::from(all.max(1)))
    }

    /// Returns the accuracy (F1) of the path through this detector and a classifier.
    pub(super) fn path(
        &self,
        kind: usize,
        model: &mut dyn Model,
        scenes: &Scenes,
    ) -> Result<f64, MeasureError> {
        let crops = self.crops.get(kind).map_or(&[][..], Vec::as_slice);
        let mut reported: Vec<Vec<ClassifiedObject>> = vec![Vec::new(); scenes.len()];
        for ((scene, found, _), class) in crops.iter().zip(classes(model, crops)?) {
            if let Some(reported) = reported.get_mut(*scene) {
                reported.push(ClassifiedObject { found: *found, class });
            }
        }
        let mut sum = Score::default();
        for (scene, reported) in reported.iter().enumerate() {
            if let Some(score) = scenes.judge(scene, reported).get(kind) {
                sum.add(score);
            }
        }
        Ok(sum.f1().unwrap_or(0.0))
    }
}
