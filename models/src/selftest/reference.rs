//! The project's own families, computed a second time: plainly, in double precision, one number after the other.

use burn::tensor::Device;
use serde_json::{Value, json};

use super::parity::logits;
use super::random::{Filled, Uniform, safetensors};
use crate::checkpoint::Checkpoint;
use crate::families::{LoadOptions, load_checkpoint};
use crate::model::Inputs;
use crate::tensor::Tensor;

const SEED: u64 = 4;
const CASES: usize = 3;
const LABELS: usize = 3;

/// A family's smallest network that has every part, and how it is computed plainly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) name: &'static str,
    /// Channels, height and width of an image; extents that differ, so that a transposition shows.
    input: [usize; 3],
    config: fn() -> Value,
    tensors: fn() -> Vec<Filled>,
    forward: fn(Image, &mut Weights<'_>) -> Vec<f64>,
}

/// Every family of the project's own.
pub(super) const ALL: [Known; 2] = [
    Known {
        name: "kaskade-mlp",
        input: [2, 3, 5],
        config: mlp_config,
        tensors: mlp_tensors,
        forward: mlp,
    },
    Known {
        name: "kaskade-cnn",
        input: [2, 7, 5],
        config: cnn_config,
        tensors: cnn_tensors,
        forward: cnn,
    },
];

impl Known {
    /// Number of images compared and the largest absolute difference of a logit, each image alone and all in a batch.
    pub(super) fn compare(&self, device: &Device) -> Result<(usize, f64), String> {
        let tensors = (self.tensors)();
        let images: Vec<Vec<f32>> = (0..CASES)
            .map(|case| {
                Uniform::new(SEED + 1, case as u64)
                    .take(self.input.iter().product())
                    .collect()
            })
            .collect();
        let expected: Vec<f64> = images
            .iter()
            .flat_map(|image| self.answer(image, &tensors))
            .collect();

        let mut config = (self.config)();
        if let Value::Object(config) = &mut config {
            config.insert("model_type".into(), self.name.into());
            config.insert("input_shape".into(), json!(self.input));
            config.insert("num_labels".into(), json!(LABELS));
        }
        let weights = safetensors(&tensors, SEED);
        let checkpoint = Checkpoint::from_bytes(self.name, config.to_string().as_bytes(), weights, None)
            .map_err(|error| error.to_string())?;
        let loaded = load_checkpoint(checkpoint, device, &LoadOptions::default())
            .map_err(|error| error.to_string())?;
        let mut model = loaded.model;
        let requests = images
            .iter()
            .map(|image| Ok(vec![Tensor::from_f32("image", &self.input, image)?]))
            .collect::<Result<Vec<Inputs>, crate::TensorError>>()
            .map_err(|error| error.to_string())?;
        let together = logits(model.as_mut(), &requests)?;
        let alone = requests
            .iter()
            .map(|request| logits(model.as_mut(), std::slice::from_ref(request)))
            .collect::<Result<Vec<_>, _>>()?
            .concat();
        if together.len() != expected.len() || alone.len() != expected.len() {
            return Err(format!("{} logits instead of {}", together.len(), expected.len()));
        }
        let differences = together
            .iter()
            .chain(&alone)
            .zip(expected.iter().cycle())
            .map(|(actual, expected)| (f64::from(*actual) - expected).abs());
        // `max` would pass over a NaN.
        let largest = differences.fold(0.0, |largest: f64, difference| {
            if difference.is_nan() {
                f64::NAN
            } else {
                largest.max(difference)
            }
        });
        Ok((CASES, largest))
    }

    fn answer(&self, image: &[f32], tensors: &[Filled]) -> Vec<f64> {
        let image = Image {
            size: self.input,
            values: image.iter().copied().map(f64::from).collect(),
        };
        (self.forward)(image, &mut Weights { tensors, position: 0 })
    }
}

/// The values of a checkpoint's tensors, in the order in which they were listed.
struct Weights<'a> {
    tensors: &'a [Filled],
    position: usize,
}

impl Weights<'_> {
    fn next(&mut self) -> Vec<f64> {
        let position = self.position;
        self.position += 1;
        self.tensors
            .get(position)
            .map(|tensor| tensor.values(SEED, position).map(f64::from).collect())
            .unwrap_or_default()
    }
}

struct Image {
    /// Channels, height, width.
    size: [usize; 3],
    values: Vec<f64>,
}

impl Image {
    /// A pixel; 0 outside.
    fn at(&self, channel: usize, y: Option<usize>, x: Option<usize>) -> f64 {
        let [_, height, width] = self.size;
        match (y, x) {
            (Some(y), Some(x)) if y < height && x < width => self
                .values
                .get((channel * height + y) * width + x)
                .copied()
                .unwrap_or_default(),
            _ => 0.0,
        }
    }
}

fn mlp_config() -> Value {
    json!({"hidden_sizes": [11, 6]})
}

fn mlp_tensors() -> Vec<Filled> {
    [30, 11, 6]
        .into_iter()
        .zip([11, 6, LABELS])
        .enumerate()
        .flat_map(|(layer, (inputs, outputs))| parts(&format!("layers.{layer}"), &[outputs, inputs]))
        .collect()
}

fn mlp(image: Image, weights: &mut Weights<'_>) -> Vec<f64> {
    let hidden = rectified(dense(&image.values, weights));
    let hidden = rectified(dense(&hidden, weights));
    dense(&hidden, weights)
}

fn cnn_config() -> Value {
    json!({"stages": [
        {"channels": 4, "stride": 1, "blocks": 1},
        {"channels": 6, "stride": 2, "blocks": 1},
    ]})
}

fn cnn_tensors() -> Vec<Filled> {
    let convolution = |name: &str, inputs, outputs| parts(name, &[outputs, inputs, 3, 3]);
    [
        convolution("stages.0.entry", 2, 4),
        convolution("stages.0.blocks.0.conv1", 4, 4),
        convolution("stages.0.blocks.0.conv2", 4, 4),
        convolution("stages.1.entry", 4, 6),
        convolution("stages.1.blocks.0.conv1", 6, 6),
        convolution("stages.1.blocks.0.conv2", 6, 6),
        parts("classifier", &[LABELS, 6 * 4 * 3]),
    ]
    .concat()
}

fn cnn(image: Image, weights: &mut Weights<'_>) -> Vec<f64> {
    let image = cnn_stage(&image, 1, weights);
    let image = cnn_stage(&image, 2, weights);
    dense(&image.values, weights)
}

fn cnn_stage(image: &Image, stride: usize, weights: &mut Weights<'_>) -> Image {
    let mut entry = convolved(image, stride, weights);
    entry.values = rectified(entry.values);
    let mut inner = convolved(&entry, 1, weights);
    inner.values = rectified(inner.values);
    let mut block = convolved(&inner, 1, weights);
    block
        .values
        .iter_mut()
        .zip(&entry.values)
        .for_each(|(out, skipped)| *out += skipped);
    block.values = rectified(block.values);
    block
}

fn parts(prefix: &str, shape: &[usize]) -> Vec<Filled> {
    let outputs: Vec<usize> = shape.iter().copied().take(1).collect();
    vec![
        Filled::weight(format!("{prefix}.weight"), shape),
        Filled::around(format!("{prefix}.bias"), &outputs, 0.0, 0.5),
    ]
}

fn dense(inputs: &[f64], weights: &mut Weights<'_>) -> Vec<f64> {
    let (weight, bias) = (weights.next(), weights.next());
    weight
        .chunks(inputs.len())
        .zip(bias)
        .map(|(row, bias)| {
            bias + row
                .iter()
                .zip(inputs)
                .map(|(weight, input)| weight * input)
                .sum::<f64>()
        })
        .collect()
}

/// A 3x3 convolution over an image that is padded with one pixel of zeros on each side.
fn convolved(image: &Image, stride: usize, weights: &mut Weights<'_>) -> Image {
    let [channels, height, width] = image.size;
    let (weight, bias) = (weights.next(), weights.next());
    let size = [bias.len(), height.div_ceil(stride), width.div_ceil(stride)];
    let mut values = Vec::with_capacity(size.iter().product());
    for (kernel, bias) in weight.chunks(channels * 9).zip(bias) {
        for y in (0..height).step_by(stride) {
            for x in (0..width).step_by(stride) {
                let sum: f64 = kernel
                    .iter()
                    .enumerate()
                    .map(|(tap, weight)| {
                        let (channel, dy, dx) = (tap / 9, tap % 9 / 3, tap % 3);
                        weight * image.at(channel, (y + dy).checked_sub(1), (x + dx).checked_sub(1))
                    })
                    .sum();
                values.push(bias + sum);
            }
        }
    }
    Image { size, values }
}

fn rectified(mut values: Vec<f64>) -> Vec<f64> {
    for value in &mut values {
        *value = value.max(0.0);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_sums_its_neighbourhood() {
        let ones = [
            Filled::around("w", &[1, 1, 3, 3], 1.0, 0.0),
            Filled::around("b", &[1], 0.5, 0.0),
        ];
        let image = Image {
            size: [1, 2, 3],
            values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        };
        let plain = convolved(
            &image,
            1,
            &mut Weights {
                tensors: &ones,
                position: 0,
            },
        );
        assert_eq!(plain.values, [12.5, 21.5, 16.5, 12.5, 21.5, 16.5]);
        let halved = convolved(
            &image,
            2,
            &mut Weights {
                tensors: &ones,
                position: 0,
            },
        );
        assert_eq!((halved.size, halved.values), ([1, 1, 2], vec![12.5, 16.5]));
    }

    #[test]
    fn a_dense_layer_is_a_matrix_product() {
        let tensors = [
            Filled::around("w", &[2, 3], 2.0, 0.0),
            Filled::around("b", &[2], 1.0, 0.0),
        ];
        let outputs = dense(
            &[1.0, 2.0, 3.0],
            &mut Weights {
                tensors: &tensors,
                position: 0,
            },
        );
        assert_eq!(outputs, [13.0, 13.0]);
        assert_eq!(rectified(vec![-1.0, 2.0]), [0.0, 2.0]);
    }
}
