//! ViT (Dosovitskiy et al. 2021): `ViTForImageClassification`.
//!
//! Inputs: `pixel_values` FP32 `[channels, height, width]`, normalised according to the checkpoint's
//! `preprocessor_config.json`. Outputs: `logits` FP32 `[labels]`. As slices, all but the last return `hidden_states`
//! FP32 `[1 + patches, width]`, which all but the first take.

use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Tensor, TensorData};
use serde::Deserialize;

use super::encoder::{Block, BlockNames, EncoderConfig};
use super::layers::{layer_norm, linear};
use crate::checkpoint::{Checkpoint, Config, LoadError, Weights};
use crate::runtime::batch::{BatchResults, logits_per_row, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Extent, InputSpec, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::slice::Slice;
use crate::runtime::tensor::{self, Datatype};

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: "attention.attention",
    attention_norm: "layernorm_before",
    feed_forward_norm: "layernorm_after",
};

/// Builds a `ViTForImageClassification`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn image_classification(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    let labels = checkpoint.config.labels()?;
    let config = EncoderConfig::read(&checkpoint.config)?;
    let patches = Patches::read(&checkpoint.config)?;
    let (weights, width) = (&mut checkpoint.weights, config.width);
    let input_stage = if slice.is_first() {
        let (projection, offsets) = take_embeddings(weights, &patches, width, device)?;
        Some(InputStage { projection, offsets })
    } else {
        None
    };
    let blocks = config.take_blocks(weights, "vit.encoder.layer", &BLOCK_NAMES, device, slice)?;
    let head = if slice.is_last() {
        Some(Head {
            norm: layer_norm(weights, "vit.layernorm", width, config.epsilon, device)?,
            output: linear(weights, "classifier", width, labels.len(), device)?,
        })
    } else {
        None
    };
    Ok(Built {
        model: Box::new(Vit {
            patches,
            width,
            input_stage,
            blocks,
            head,
            device: device.clone(),
        }),
        task: Task::Classification,
        labels,
    })
}

/// A ViT model or a slice of one.
struct Vit {
    patches: Patches,
    width: usize,
    /// Only in the first slice.
    input_stage: Option<InputStage>,
    blocks: Vec<Block>,
    /// Only in the last slice.
    head: Option<Head>,
    device: Device,
}

/// Computes hidden states from pixels.
struct InputStage {
    /// `[pixels of a patch, width]`.
    projection: Tensor<2>,
    /// Added to the projected patches, `[1 + patches, width]`.
    offsets: Tensor<2>,
}

/// Computes logits from hidden states.
struct Head {
    norm: LayerNorm,
    output: Linear,
}

/// How an image is split into patches; all sizes in pixels, height first.
#[derive(Debug, Clone, Copy)]
struct Patches {
    channels: usize,
    image: [usize; 2],
    patch: [usize; 2],
}

/// One size for both directions, or height and width.
#[derive(Deserialize)]
#[serde(untagged)]
enum SideLengths {
    Square(usize),
    Rectangle([usize; 2]),
}

impl Patches {
    fn read(config: &Config) -> Result<Self, LoadError> {
        let side_lengths = |key: &str| {
            let side_lengths = match config.required(key)? {
                SideLengths::Square(side) => [side, side],
                SideLengths::Rectangle(sides) => sides,
            };
            if side_lengths.contains(&0) {
                return Err(config.invalid_value(key, "it must be at least 1"));
            }
            Ok(side_lengths)
        };
        let (image, patch) = (side_lengths("image_size")?, side_lengths("patch_size")?);
        if image.iter().zip(patch).any(|(image, patch)| patch > *image) {
            return Err(config.invalid_value("patch_size", format!("it must fit image_size = {image:?}")));
        }
        Ok(Self {
            channels: config.size("num_channels")?,
            image,
            patch,
        })
    }

    /// Number of patches vertically and horizontally. Pixels that fill no whole patch are ignored, as by a strided
    /// convolution.
    fn grid(&self) -> [usize; 2] {
        let ([height, width], [patch_height, patch_width]) = (self.image, self.patch);
        [height / patch_height, width / patch_width]
    }

    fn count(&self) -> usize {
        let [down, across] = self.grid();
        down.saturating_mul(across)
    }

    fn pixels(&self) -> usize {
        let [height, width] = self.patch;
        self.channels.saturating_mul(height).saturating_mul(width)
    }

    /// Appends the patches of an image, row by row, each as channels of rows of pixels.
    fn cut(&self, image: &[f32], into: &mut Vec<f32>) {
        let ([height, width], [patch_height, patch_width]) = (self.image, self.patch);
        let [down, across] = self.grid();
        for top in (0..down).map(|row| row * patch_height) {
            for left in (0..across).map(|column| column * patch_width) {
                for channel in image.chunks_exact(height * width) {
                    for line in channel.chunks_exact(width).skip(top).take(patch_height) {
                        into.extend(line.iter().skip(left).take(patch_width));
                    }
                }
            }
        }
    }
}

/// Takes the patch projection as a matrix, and everything that does not depend on the image.
///
/// The first row of the offsets belongs to the class token, whose patch is all zeros: `cls + position[0]`; the others
/// to the patches: `bias + position[i]`. One product and one sum then compute the whole embedding.
fn take_embeddings(
    weights: &mut Weights,
    patches: &Patches,
    width: usize,
    device: &Device,
) -> Result<(Tensor<2>, Tensor<2>), LoadError> {
    let at = |name: &str| format!("vit.embeddings.{name}");
    let ([down, across], tokens) = (patches.patch, patches.count().saturating_add(1));
    let projection = weights.kernel_matrix(
        &at("patch_embeddings.projection.weight"),
        [width, patches.channels, down, across],
        device,
    )?;
    let bias = weights.tensor(&at("patch_embeddings.projection.bias"), [width], device)?;
    let class = weights
        .tensor(&at("cls_token"), [1, 1, width], device)?
        .reshape([1, width]);
    let positions = weights
        .tensor(&at("position_embeddings"), [1, tokens, width], device)?
        .reshape([tokens, width]);
    let first = class + positions.clone().slice_dim(0, 0..1);
    let others = positions.slice_dim(0, 1..tokens) + bias.unsqueeze::<2>();
    Ok((projection, Tensor::cat(vec![first, others], 0)))
}

impl Model for Vit {
    fn signature(&self) -> Signature {
        if self.input_stage.is_none() {
            return states::signature(Extent::Exactly(self.tokens()), self.width, false);
        }
        let [height, width] = self.patches.image;
        let shape = [self.patches.channels, height, width]
            .map(Extent::Exactly)
            .to_vec();
        Signature {
            inputs: vec![InputSpec::required("pixel_values", Datatype::F32, shape)],
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let signature = self.signature();
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| {
                signature.check(inputs)?;
                let values = inputs.first().map(tensor::Tensor::to_f32).transpose()?;
                Ok(values.unwrap_or_default())
            },
            Vec::len,
            |requests| self.answer(requests),
        )
    }
}

impl Vit {
    fn tokens(&self) -> usize {
        self.patches.count() + 1
    }

    fn answer(&self, requests: &[Vec<f32>]) -> Result<BatchResults, ModelError> {
        let embedded = if let Some(input_stage) = &self.input_stage {
            self.embedded(input_stage, requests)
        } else {
            let sequences: Vec<&[f32]> = requests.iter().map(Vec::as_slice).collect();
            states::pad_and_stack(&sequences, self.tokens(), self.width, &self.device)
        };
        let states = self.blocks.iter().fold(embedded, |x, block| block.pre_norm(x));
        let Some(head) = &self.head else {
            return states::outputs(states, &vec![self.tokens(); requests.len()], None);
        };
        let [batch, _, width] = states.dims();
        // Only the class token is classified, so only it needs the final norm.
        let class = states.slice_dim(1, 0..1).reshape([batch, width]);
        logits_per_row(head.output.forward(head.norm.forward(class)))
    }

    fn embedded(&self, input_stage: &InputStage, images: &[Vec<f32>]) -> Tensor<3> {
        let (pixels, tokens) = (self.patches.pixels(), self.tokens());
        let mut cut = Vec::with_capacity(images.len() * tokens * pixels);
        for image in images {
            cut.resize(cut.len() + pixels, 0.0);
            self.patches.cut(image, &mut cut);
        }
        let cut = Tensor::<3>::from_data(TensorData::new(cut, [images.len(), tokens, pixels]), &self.device);
        let projected = burn::tensor::module::linear(cut, input_stage.projection.clone(), None);
        projected + input_stage.offsets.clone().unsqueeze::<3>()
    }
}
