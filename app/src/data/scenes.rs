//! Scenes: images with several objects each, as requests of a pipeline, and the accuracy of its answers.

use std::num::NonZeroUsize;

use kaskade_actors::wire::InferReply;
use kaskade_models::idx::Idx;
use kaskade_models::{Inputs, Signature, Tensor};

use super::reply::{class_of, logits_of};
use super::scene_error::BOXES;
pub use super::scene_error::SceneError;
use super::{DataError, image_input};
use crate::config::data::{DataSet, Scenes as Spec};

/// Scenes with their objects.
#[derive(Debug, Clone)]
pub struct Scenes {
    /// Inputs of the request for each scene.
    pub inputs: Vec<Inputs>,
    /// The tasks that classify objects.
    pub kinds: Vec<String>,
    /// Object in each cell, by scene.
    truths: Vec<Vec<Option<Object>>>,
    /// Height and width of a cell, pixels.
    cell: [usize; 2],
    /// Number of cells in a row.
    columns: usize,
}

/// The object in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Object {
    kind: usize,
    class: usize,
}

/// An object that a detector found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detection {
    /// Index of the object's kind.
    pub kind: usize,
    /// Index of the cell, row-major.
    pub cell: usize,
}

/// A found object with its classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassifiedObject {
    /// The found object.
    pub found: Detection,
    /// Class of the object; `None` if the branch was dropped or failed.
    pub class: Option<usize>,
}

/// Counts of reported and correct objects, of one kind or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// Objects reported with the right kind, cell and class.
    pub right: u64,
    /// Objects reported.
    pub reported: u64,
    /// Objects in the scene.
    pub actual: u64,
}

impl Score {
    /// Returns the F1 score, the harmonic mean of precision and recall; `None` if there are neither reported nor real
    /// objects.
    pub fn f1(&self) -> Option<f64> {
        let both = self.reported + self.actual;
        (both > 0).then(|| 2.0 * self.right as f64 / both as f64)
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.right += other.right;
        self.reported += other.reported;
        self.actual += other.actual;
    }
}

impl Scenes {
    /// Reads scenes in the input form of the root task's models.
    ///
    /// # Errors
    /// [`DataError`] if the path is not configured, the files are not scenes, or the models do not accept the scenes.
    pub fn read(set: &DataSet, signature: &Signature) -> Result<Self, DataError> {
        if let Some(name) = set.unset_variable() {
            return Err(DataError::UnsetVariable {
                name: name.to_owned(),
            });
        }
        let DataSet::Scenes(spec) = set else {
            return Err(DataError::NeedsScenes);
        };
        let images = Idx::read(&spec.images)?;
        let objects = Idx::read(&spec.objects)?;
        Self::of(spec, &images, &objects, signature).map_err(|source| DataError::Scenes {
            images: spec.images.clone(),
            objects: spec.objects.clone(),
            source: Box::new(source),
        })
    }

    fn of(spec: &Spec, images: &Idx, objects: &Idx, signature: &Signature) -> Result<Self, SceneError> {
        let &[count, height, width] = images.shape.as_slice() else {
            return Err(SceneError::Images {
                shape: images.shape.clone(),
            });
        };
        let &[labelled, rows @ 1..=usize::MAX, columns @ 1..=usize::MAX] = objects.shape.as_slice() else {
            return Err(SceneError::Objects {
                shape: objects.shape.clone(),
            });
        };
        if count != labelled {
            return Err(SceneError::Counts {
                images: count,
                labelled,
            });
        }
        if !(height.is_multiple_of(rows) && width.is_multiple_of(columns) && height * width > 0) {
            return Err(SceneError::Cells {
                height,
                width,
                rows,
                columns,
            });
        }
        let input = image_input(signature).map_err(|error| SceneError::Input(Box::new(error)))?;
        let take = spec.take.map_or(usize::MAX, NonZeroUsize::get);
        let pixels = images.data.chunks_exact(height * width);
        let chosen = pixels
            .zip(objects.data.chunks_exact(rows * columns))
            .skip(spec.skip)
            .take(take);
        let mut scenes = Self {
            inputs: Vec::new(),
            kinds: spec.kinds.iter().map(|kind| kind.task.to_string()).collect(),
            truths: Vec::new(),
            cell: [height / rows, width / columns],
            columns,
        };
        for (image, labels) in chosen {
            let values: Vec<f32> = image.iter().map(|pixel| spec.normalise.apply(*pixel)).collect();
            let inputs = vec![Tensor::from_f32(&input.name, &[1, height, width], &values)?];
            signature.check(&inputs)?;
            scenes.inputs.push(inputs);
            let truth = labels.iter().map(|label| object(spec, usize::from(*label)));
            scenes.truths.push(truth.collect::<Result<_, _>>()?);
        }
        if scenes.inputs.is_empty() {
            return Err(SceneError::Empty { skip: spec.skip });
        }
        Ok(scenes)
    }

    /// Returns the number of scenes.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Returns the objects in a detector's outputs.
    ///
    /// # Errors
    /// [`SceneError`] if the outputs have another form.
    pub fn found(&self, outputs: &[Tensor]) -> Result<Vec<Detection>, SceneError> {
        let Some(boxes) = outputs.iter().find(|output| output.name == BOXES) else {
            return Ok(Vec::new());
        };
        let values = boxes.to_f32()?;
        let (rows, rest) = values.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(SceneError::Boxes {
                shape: boxes.shape.clone(),
            });
        }
        let [height, width] = self.cell;
        let found = rows.iter().map(|[kind, top, left, _]| {
            let [kind, top, left] = [kind, top, left].map(|value| *value as usize);
            if kind >= self.kinds.len() {
                return Err(SceneError::Kind {
                    kind,
                    kinds: self.kinds.len(),
                });
            }
            Ok(Detection {
                kind,
                cell: (top / height) * self.columns + left / width,
            })
        });
        found.collect()
    }

    /// Returns the objects in a reply, each with the class from its branch.
    ///
    /// # Errors
    /// As [`found`](Self::found).
    pub fn reported_objects(&self, reply: &InferReply) -> Result<Vec<ClassifiedObject>, SceneError> {
        let mut numbers = vec![0_u32; self.kinds.len()];
        let reported = self.found(&reply.outputs)?.into_iter().map(|found| {
            let number = numbers
                .get_mut(found.kind)
                .map_or(0, |number| std::mem::replace(number, *number + 1));
            let kind = self.kinds.get(found.kind).map_or("", String::as_str);
            let name = format!("{kind}.{number}");
            let branch = reply
                .branches
                .iter()
                .find(|branch| branch.branch.to_string() == name);
            let class = branch
                .filter(|branch| branch.error.is_none())
                .and_then(|branch| class_of(&logits_of(&branch.outputs).ok()?));
            ClassifiedObject { found, class }
        });
        Ok(reported.collect())
    }

    /// Compares the reported objects with a scene, by kind. Objects without a class are left out: they count as
    /// dropped, not as wrong.
    pub fn judge(&self, scene: usize, reported: &[ClassifiedObject]) -> Vec<Score> {
        let empty = Vec::new();
        let truth = self.truths.get(scene).unwrap_or(&empty);
        let unseen = |cell: usize| {
            reported
                .iter()
                .any(|reported| reported.found.cell == cell && reported.class.is_none())
        };
        let actual = |kind: usize| {
            let objects = truth.iter().enumerate();
            let objects = objects
                .filter(|(cell, object)| object.is_some_and(|object| object.kind == kind) && !unseen(*cell));
            objects.count() as u64
        };
        let of_kind = |kind: usize| {
            let reported = reported
                .iter()
                .filter(move |reported| reported.found.kind == kind);
            let classes = reported.filter_map(|reported| Some((reported.found.cell, reported.class?)));
            let mut score = Score {
                actual: actual(kind),
                ..Score::default()
            };
            for (cell, class) in classes {
                score.reported += 1;
                let object = truth.get(cell).copied().flatten();
                score.right += u64::from(object == Some(Object { kind, class }));
            }
            score
        };
        (0..self.kinds.len()).map(of_kind).collect()
    }

    /// Compares the found objects with a scene, regardless of their classes.
    pub(crate) fn judge_found(&self, scene: usize, found: &[Detection]) -> Score {
        let truth = self.truths.get(scene).map_or(&[][..], Vec::as_slice);
        let is_there = |found: &&Detection| self.kind_at(scene, found.cell) == Some(found.kind);
        Score {
            right: found.iter().filter(is_there).count() as u64,
            reported: found.len() as u64,
            actual: truth.iter().flatten().count() as u64,
        }
    }

    /// Returns the kind of the object in a cell.
    fn kind_at(&self, scene: usize, cell: usize) -> Option<usize> {
        Some(self.truths.get(scene)?.get(cell).copied()??.kind)
    }

    /// Returns the class of the object in the cell of a found one, if it has the same kind.
    pub(crate) fn class_at(&self, scene: usize, found: Detection) -> Option<usize> {
        let object = self.truths.get(scene)?.get(found.cell).copied()??;
        (object.kind == found.kind).then_some(object.class)
    }
}

/// Decodes a label: 0 is an empty cell, followed by the classes of the first kind, then of the next.
fn object(spec: &Spec, label: usize) -> Result<Option<Object>, SceneError> {
    let Some(mut class) = label.checked_sub(1) else {
        return Ok(None);
    };
    for (kind, of) in spec.kinds.iter().enumerate() {
        match class.checked_sub(of.classes.get()) {
            None => return Ok(Some(Object { kind, class })),
            Some(rest) => class = rest,
        }
    }
    Err(SceneError::Label { label })
}

#[cfg(test)]
mod tests {
    use kaskade_actors::wire::BranchReply;
    use kaskade_models::{Datatype, Extent, InputSpec};

    use super::*;

    /// Creates two scenes of 2x2 cells of 2x3 pixels: digits have the labels 1 to 3, signs 4 and 5.
    fn scenes(labels: &[u8]) -> Result<Scenes, SceneError> {
        let spec: Spec = toml::from_str(
            "images = 'i'\nobjects = 'o'\nkinds = [{ task = 'digit', classes = 3 }, { task = 'sign', classes = 2 }]",
        )
        .unwrap();
        let images = Idx {
            shape: vec![2, 4, 6],
            data: vec![0; 48],
        };
        let objects = Idx {
            shape: vec![labels.len() / 4, 2, 2],
            data: labels.to_vec(),
        };
        let shape = [1, 4, 6].map(Extent::Exactly).to_vec();
        let signature = Signature {
            inputs: vec![InputSpec::required("image", Datatype::F32, shape)],
        };
        Scenes::of(&spec, &images, &objects, &signature)
    }

    const LABELS: [u8; 8] = [0, 3, 4, 0, 1, 0, 0, 5];

    fn reply(boxes: &[[f32; 4]], branches: &[(&str, Option<usize>)]) -> InferReply {
        let logits = |class: usize| {
            let mut logits = [0.0; 3];
            logits[class] = 1.0;
            vec![Tensor::from_f32("logits", &[3], &logits).unwrap()]
        };
        let branches = branches.iter().map(|(name, class)| BranchReply {
            branch: name.parse().unwrap(),
            outputs: class.map(logits).unwrap_or_default(),
            ..BranchReply::default()
        });
        InferReply {
            outputs: vec![Tensor::from_f32(BOXES, &[boxes.len(), 4], &boxes.concat()).unwrap()],
            branches: branches.collect(),
            ..InferReply::default()
        }
    }

    #[test]
    fn what_is_told_is_right_with_kind_cell_and_class() {
        let scenes = scenes(&LABELS).unwrap();
        assert_eq!(scenes.len(), 2);
        // The first scene has digit 2 at the upper right and sign 0 at the lower left.
        let all = reply(
            &[[0.0, 0.0, 4.0, 1.0], [1.0, 3.0, 0.0, 1.0]],
            &[("digit.0", Some(2)), ("sign.0", Some(0))],
        );
        let reported = scenes.reported_objects(&all).unwrap();
        let right = Score {
            right: 1,
            reported: 1,
            actual: 1,
        };
        assert_eq!(scenes.judge(0, &reported), [right, right]);
        // In the second scene none of these exist: two objects are reported wrongly, two others are missed.
        let scores = scenes.judge(1, &reported);
        assert_eq!(
            scores,
            [Score {
                right: 0,
                reported: 1,
                actual: 1
            }; 2]
        );
        assert_eq!(scores[0].f1(), Some(0.0));
    }

    #[test]
    fn a_wrong_class_is_wrong_and_a_dropped_branch_is_left_out() {
        let scenes = scenes(&LABELS).unwrap();
        let boxes = [[0.0, 0.0, 4.0, 1.0], [1.0, 3.0, 0.0, 1.0]];
        let wrong = reply(&boxes, &[("digit.0", Some(1)), ("sign.0", None)]);
        let reported = scenes.reported_objects(&wrong).unwrap();
        assert_eq!(
            scenes.judge(0, &reported),
            [
                Score {
                    right: 0,
                    reported: 1,
                    actual: 1
                },
                Score::default()
            ]
        );
        let found: Vec<Detection> = reported.iter().map(|reported| reported.found).collect();
        assert_eq!(
            scenes.judge_found(0, &found),
            Score {
                right: 2,
                reported: 2,
                actual: 2
            }
        );
        assert_eq!(scenes.class_at(0, found[1]), Some(0));
        assert_eq!(scenes.class_at(1, found[1]), None);
    }

    #[test]
    fn files_that_do_not_belong_together_are_refused() {
        let refusal = |labels: &[u8]| scenes(labels).unwrap_err().to_string();
        assert!(refusal(&[0, 0, 0, 0]).contains("objects of 1"));
        assert!(refusal(&[0, 0, 0, 0, 0, 0, 0, 6]).contains("label 6"));
    }
}
