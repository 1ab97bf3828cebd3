//! Grid detector: classifies every cell of an image separately, as empty or as an object at a position.
//!
//! A small network assigns one class to every cell: empty, or an object of some kind at a position in the cell.
//! Downstream tasks receive the detections: the crop of every object is an input of the task named after the object's
//! kind, so that one request becomes several (Loki §3).
//!
//! `config.json`:
//!
//! | key | holds |
//! |---|---|
//! | `model_type` | `kaskade-grid-detector` |
//! | `input_shape` | `[channels, height, width]` of a cell |
//! | `grid` | `[rows, columns]` of cells in the input `image` |
//! | `crop` | side of an object, pixels; at most that of a cell |
//! | `kinds` | names of the kinds of objects, which are the names of the downstream tasks |
//! | `threshold` | minimum probability of an object, above 0 and below 1 |
//! | `stages` or `hidden_sizes` | the network, as in [`cnn`] or [`mlp`] |
//!
//! Tensors are those of the network. Its classifier has `1 + kinds * positions` outputs for the `(height - crop + 1) *
//! (width - crop + 1)` positions of an object: empty first, then by kind, and by position, row-major.
//!
//! Outputs: `count` FP32 `[kinds]`; if there are detections, `boxes` FP32 `[found, 4]` (kind, top, left, probability;
//! by cell, row-major), and for every detected kind `<kind>/image` FP32 `[n, channels, crop, crop]` in the order of
//! its boxes.

use super::image::{Network, shape_of};
use super::{cnn, mlp};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::Device;
use crate::images::ImageInput;
use crate::ops::probabilities;
use crate::runtime::batch::{BatchResults, run_batch_of};
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor;

/// The `model_type` of this architecture.
pub const MODEL_TYPE: &str = "kaskade-grid-detector";

/// Geometry and classes of a detector.
#[derive(Debug, Clone, PartialEq)]
pub struct GridDetectorConfig {
    /// Channels, height and width of a cell.
    pub cell: [usize; 3],
    /// Rows and columns of cells.
    pub grid: [usize; 2],
    /// Side of an object, pixels.
    pub crop: usize,
    /// Kinds of objects.
    pub kinds: Vec<String>,
    /// Minimum probability of a reported object.
    pub threshold: f32,
}

/// A detected object.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Detection {
    kind: usize,
    top: usize,
    left: usize,
    probability: f32,
}

impl GridDetectorConfig {
    /// Returns the number of positions of an object in a cell, vertically and horizontally.
    fn positions(&self) -> [usize; 2] {
        let [_, height, width] = self.cell;
        [height, width].map(|side| (side + 1).saturating_sub(self.crop))
    }

    /// Returns the number of classes of a cell; `None` on overflow.
    pub fn classes(&self) -> Option<usize> {
        let [down, across] = self.positions();
        let objects = self.kinds.len().checked_mul(down)?.checked_mul(across)?;
        objects.checked_add(1)
    }

    /// Returns the class of an object of this kind at this position in a cell.
    pub fn class(&self, kind: usize, [down, across]: [usize; 2]) -> usize {
        let [places_down, places_across] = self.positions();
        1 + (kind * places_down + down) * places_across + across
    }

    /// Returns height and width of the whole image.
    fn size(&self) -> [usize; 2] {
        let ([_, height, width], [rows, columns]) = (self.cell, self.grid);
        [rows * height, columns * width]
    }

    /// Returns a crop of an image `[channels, height, width]`, row-major.
    fn crop_of(&self, image: &[f32], [top, left]: [usize; 2], [height, width]: [usize; 2]) -> Vec<f32> {
        let ([image_height, image_width], [channels, ..]) = (self.size(), self.cell);
        let mut crop_of = Vec::with_capacity(channels * height * width);
        for channel in 0..channels {
            for row in top..top + height {
                let start = (channel * image_height + row) * image_width + left;
                crop_of.extend_from_slice(image.get(start..start + width).unwrap_or_default());
            }
        }
        crop_of
    }

    /// Returns the upper left corners of the cells, row-major.
    fn cell_origins(&self) -> impl Iterator<Item = [usize; 2]> {
        let ([_, height, width], [rows, columns]) = (self.cell, self.grid);
        (0..rows).flat_map(move |row| (0..columns).map(move |column| [row * height, column * width]))
    }

    /// Returns the object with the highest probability in a cell, if there is one.
    fn detection(&self, probabilities: &[f32], [top, left]: [usize; 2]) -> Option<Detection> {
        let [down, across] = self.positions();
        let (_, objects) = probabilities.split_first()?;
        let kinds = objects.chunks_exact(down * across).enumerate();
        let sum = |positions: &[f32]| positions.iter().sum::<f32>();
        let (kind, positions) = kinds.max_by(|one, other| sum(one.1).total_cmp(&sum(other.1)))?;
        let probability = sum(positions);
        let place = (0..)
            .zip(positions)
            .max_by(|one, other| one.1.total_cmp(other.1))?
            .0;
        (probability >= self.threshold).then_some(Detection {
            kind,
            top: top + place / across,
            left: left + place % across,
            probability,
        })
    }

    fn outputs(&self, image: &[f32], found: &[Detection]) -> Result<Outputs, ModelError> {
        let of_kind = |kind: usize| found.iter().filter(move |found| found.kind == kind);
        let counts: Vec<f32> = (0..self.kinds.len())
            .map(|kind| of_kind(kind).count() as f32)
            .collect();
        let mut outputs = vec![tensor::Tensor::from_f32("count", &[counts.len()], &counts)?];
        if found.is_empty() {
            return Ok(outputs);
        }
        let rows = found.iter().flat_map(|found| {
            let [kind, top, left] = [found.kind, found.top, found.left].map(|value| value as f32);
            [kind, top, left, found.probability]
        });
        let rows: Vec<f32> = rows.collect();
        outputs.push(tensor::Tensor::from_f32("boxes", &[found.len(), 4], &rows)?);
        for (kind, name) in self.kinds.iter().enumerate() {
            let side = self.crop;
            let crops: Vec<Vec<f32>> = of_kind(kind)
                .map(|found| self.crop_of(image, [found.top, found.left], [side, side]))
                .collect();
            if !crops.is_empty() {
                let shape = [crops.len(), self.cell[0], side, side];
                let name = format!("{name}/image");
                outputs.push(tensor::Tensor::from_f32(&name, &shape, &crops.concat())?);
            }
        }
        Ok(outputs)
    }
}

/// A grid detector.
struct GridDetector {
    network: Box<dyn Network>,
    grid: GridDetectorConfig,
    input: ImageInput,
}

impl GridDetector {
    fn answer(&self, images: &[Vec<f32>]) -> Result<BatchResults, ModelError> {
        let [_, height, width] = self.grid.cell;
        let cells: Vec<f32> = images
            .iter()
            .flat_map(|image| {
                let cell = move |corner| self.grid.crop_of(image, corner, [height, width]);
                self.grid.cell_origins().flat_map(cell)
            })
            .collect();
        let logits = self.network.logits(cells)?;
        let probabilities: Vec<Vec<f32>> = logits.iter().map(|logits| probabilities(logits)).collect();
        let [rows, columns] = self.grid.grid;
        let answers = images.iter().zip(probabilities.chunks(rows * columns));
        Ok(answers
            .map(|(image, cells)| {
                // A cell with NaN would otherwise count as empty.
                if cells.iter().flatten().any(|probability| probability.is_nan()) {
                    return Err(ModelError::BadOutput {
                        reason: "the logits of a cell are not finite".into(),
                    });
                }
                let cells = self.grid.cell_origins().zip(cells);
                let found: Vec<Detection> = cells
                    .filter_map(|(corner, probabilities)| self.grid.detection(probabilities, corner))
                    .collect();
                self.grid.outputs(image, &found)
            })
            .collect())
    }
}

impl Model for GridDetector {
    fn signature(&self) -> Signature {
        self.input.signature()
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        run_batch_of(self.input.batch(batch), |images| self.answer(images))
    }
}

pub(super) fn build(checkpoint: &mut Checkpoint, device: &Device) -> Result<Built, LoadError> {
    let grid = grid(&checkpoint.config)?;
    let classes = grid.classes().unwrap_or(usize::MAX);
    let convolutional = checkpoint
        .config
        .optional::<serde_json::Value>("stages")?
        .is_some();
    let network = if convolutional {
        cnn::network(checkpoint, device, classes)?
    } else {
        mlp::network(checkpoint, device, classes)?
    };
    let ([channels, ..], [height, width]) = (grid.cell, grid.size());
    let input = ImageInput::read(checkpoint, "image", vec![channels, height, width])?;
    Ok(Built {
        labels: grid.kinds.clone(),
        model: Box::new(GridDetector { network, grid, input }),
        task: Task::Detection,
    })
}

fn grid(config: &Config) -> Result<GridDetectorConfig, LoadError> {
    let (cell, _) = shape_of(config, "input_shape")?;
    let cell: [usize; 3] = cell
        .as_slice()
        .try_into()
        .map_err(|_| config.invalid_value("input_shape", "it must be [channels, height, width] of a cell"))?;
    let (grid, cells) = shape_of(config, "grid")?;
    let grid: [usize; 2] = grid
        .as_slice()
        .try_into()
        .map_err(|_| config.invalid_value("grid", "it must be [rows, columns]"))?;
    if cells
        .checked_mul(cell.iter().product())
        .is_none_or(|pixels| pixels > MAX_PIXELS)
    {
        return Err(config.invalid_value(
            "grid",
            format!("the image would have more than {MAX_PIXELS} values"),
        ));
    }
    let crop = config.size("crop")?;
    if crop > cell[1].min(cell[2]) {
        return Err(config.invalid_value("crop", "an object must fit into a cell"));
    }
    let kinds: Vec<String> = config.required("kinds")?;
    let unusable = |kind: &String| kind.is_empty() || kind.contains('/');
    if kinds.is_empty() || kinds.iter().any(unusable) {
        return Err(config.invalid_value(
            "kinds",
            "it must name at least one kind, and no name may be empty or hold `/`",
        ));
    }
    let threshold: f32 = config.required("threshold")?;
    if !(threshold > 0.0 && threshold < 1.0) {
        return Err(config.invalid_value("threshold", "it must be above 0 and below 1"));
    }
    Ok(GridDetectorConfig {
        cell,
        grid,
        crop,
        kinds,
        threshold,
    })
}

/// Maximum number of values of an image.
const MAX_PIXELS: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use safetensors::tensor::{Dtype, TensorView, serialize};
    use serde_json::json;

    use super::*;
    use crate::architectures::registry::{LoadOptions, load_checkpoint};
    use crate::runtime::loaded::Loaded;

    /// Cells of 3x3 in a grid of 1x3, objects of 2x2: four positions, two kinds, nine classes.
    fn config() -> serde_json::Value {
        json!({
            "model_type": MODEL_TYPE, "input_shape": [1, 3, 3], "grid": [1, 3], "crop": 2,
            "kinds": ["dot", "bar"], "threshold": 0.5, "hidden_sizes": [],
        })
    }

    /// Returns the weights of a linear network: the middle pixel indicates a dot at the lower right, the first pixel a
    /// bar at the upper left; otherwise the cell is empty.
    fn weights() -> Vec<u8> {
        let mut weight = vec![0.0_f32; 9 * 9];
        weight[4 * 9 + 4] = 20.0;
        weight[5 * 9] = 20.0;
        let mut bias = vec![0.0_f32; 9];
        bias[0] = 8.0;
        let bytes = |values: &[f32]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let (weight, bias) = (bytes(&weight), bytes(&bias));
        let tensors = [
            (
                "layers.0.weight",
                TensorView::new(Dtype::F32, vec![9, 9], &weight).unwrap(),
            ),
            (
                "layers.0.bias",
                TensorView::new(Dtype::F32, vec![9], &bias).unwrap(),
            ),
        ];
        serialize(tensors, None).unwrap()
    }

    fn load(config: &serde_json::Value) -> Result<Loaded, LoadError> {
        let json = serde_json::to_vec(config).unwrap();
        let checkpoint = Checkpoint::from_bytes("grid", &json, Bytes::from(weights()), None)?;
        load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
    }

    fn answer(pixels: &[f32]) -> Outputs {
        let mut model = load(&config()).unwrap().model;
        let image = tensor::Tensor::from_f32("image", &[1, 3, 9], pixels).unwrap();
        model.run(&[vec![image]]).remove(0).unwrap()
    }

    fn read(outputs: &Outputs, name: &str) -> (Vec<usize>, Vec<f32>) {
        let found = outputs.iter().find(|output| output.name == name).unwrap();
        (found.shape.clone(), found.to_f32().unwrap())
    }

    #[test]
    fn detections_become_inputs_of_the_downstream_tasks() {
        // A dot in the first cell, nothing in the second, a bar in the third.
        let mut pixels = [0.0_f32; 27];
        (pixels[10], pixels[11], pixels[6]) = (1.0, 0.25, 1.0);
        let outputs = answer(&pixels);
        assert_eq!(read(&outputs, "count").1, [1.0, 1.0]);
        let (shape, boxes) = read(&outputs, "boxes");
        assert_eq!(shape, [2, 4]);
        assert_eq!(
            (&boxes[..3], &boxes[4..7]),
            (&[0.0, 1.0, 1.0][..], &[1.0, 0.0, 6.0][..])
        );
        assert!(boxes[3] > 0.99 && boxes[7] > 0.99);
        assert_eq!(
            read(&outputs, "dot/image"),
            (vec![1, 1, 2, 2], vec![1.0, 0.25, 0.0, 0.0])
        );
        assert_eq!(
            read(&outputs, "bar/image"),
            (vec![1, 1, 2, 2], vec![1.0, 0.0, 0.0, 0.0])
        );
    }

    #[test]
    fn an_empty_image_is_answered() {
        let outputs = answer(&[0.0; 27]);
        assert_eq!(outputs.len(), 1);
        assert_eq!(read(&outputs, "count").1, [0.0, 0.0]);
    }

    #[test]
    fn a_cell_that_is_not_a_number_is_not_empty() {
        let mut model = load(&config()).unwrap().model;
        let mut pixels = [0.0_f32; 27];
        // The product overflows; the bias of the empty class wins in all other cells.
        pixels[10] = f32::MAX;
        let image = tensor::Tensor::from_f32("image", &[1, 3, 9], &pixels).unwrap();
        let answer = model.run(&[vec![image]]).remove(0);
        assert!(matches!(answer, Err(ModelError::BadOutput { .. })), "{answer:?}");
    }

    #[test]
    fn classes_are_ordered_by_kind_and_position() {
        let grid = GridDetectorConfig {
            cell: [1, 10, 9],
            grid: [1, 1],
            crop: 8,
            kinds: vec!["a".into(), "b".into()],
            threshold: 0.5,
        };
        assert_eq!(grid.classes(), Some(13));
        let positions = (0..2)
            .flat_map(|kind| (0..3).flat_map(move |down| (0..2).map(move |across| (kind, [down, across]))));
        let classes: Vec<usize> = positions.map(|(kind, place)| grid.class(kind, place)).collect();
        assert_eq!(classes, (1..13).collect::<Vec<_>>());
        let mut probabilities = vec![0.0; 13];
        probabilities[grid.class(1, [2, 0])] = 0.6;
        let found = grid.detection(&probabilities, [20, 9]).unwrap();
        assert_eq!((found.kind, found.top, found.left), (1, 22, 9));
    }

    #[test]
    fn an_invalid_configuration_is_named() {
        for (key, value, message) in [
            ("grid", json!([3]), "[rows, columns]"),
            ("grid", json!([1_000_000, 1_000_000]), "more than"),
            ("input_shape", json!([3, 3]), "of a cell"),
            ("crop", json!(4), "fit into a cell"),
            ("kinds", json!([]), "at least one"),
            ("kinds", json!(["a/b"]), "`/`"),
            ("threshold", json!(1.0), "below 1"),
            ("hidden_sizes", json!(null), "hidden_sizes"),
        ] {
            let mut config = config();
            config[key] = value;
            let error = load(&config).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(message), "{key}: {error}");
        }
    }
}
