//! ViT (Dosovitskiy et al. 2021): `ViTForImageClassification`; and DeiT (Touvron et al. 2021), which has a distillation
//! token beside the class token: `DeiTForImageClassification` and `DeiTForImageClassificationWithTeacher`.
//!
//! Inputs: `pixel_values` FP32 `[channels, height, width]`, normalised according to the checkpoint's
//! `preprocessor_config.json`, or with that file `image_file`. Outputs: those of [`Classifier::outputs`]. As slices, all but the last return `hidden_states`
//! FP32 `[tokens, width]`, which all but the first take.

use std::sync::Arc;

use serde::Deserialize;

use super::encoder::{Block, BlockNames, EncoderConfig};
use super::layers::Layers;
use crate::checkpoint::weights::transposed;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::{Device, with_ops};
use crate::images::ImageInput;
use crate::ops::{Ops, Span};
use crate::runtime::batch::{BatchResults, device_failed, rows, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::Built;
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::slice::Slice;
use crate::runtime::tensor;
use crate::tasks::classification::Classifier;

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: &[
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ],
    attention_norm: "layernorm_before",
    feed_forward_norm: "layernorm_after",
    ..BlockNames::BERT
};

/// What distinguishes the architectures.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Prefix of the base model's tensors.
    base: &'static str,
    /// Tokens before the patches.
    tokens: &'static [&'static str],
    /// Layer that classifies each of the first tokens; the logits of several are averaged.
    classifiers: &'static [&'static str],
}

/// Builds a `ViTForImageClassification`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn image_classification(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    let form = Form {
        base: "vit",
        tokens: &["cls_token"],
        classifiers: &["classifier"],
    };
    build(checkpoint, device, slice, form)
}

/// Builds a `DeiTForImageClassification`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn deit_classification(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    let form = Form {
        base: "deit",
        tokens: &["cls_token", "distillation_token"],
        classifiers: &["classifier"],
    };
    build(checkpoint, device, slice, form)
}

/// Builds a `DeiTForImageClassificationWithTeacher`, or a slice of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(crate) fn deit_classification_with_teacher(
    checkpoint: &mut Checkpoint,
    device: &Device,
    slice: Slice,
) -> Result<Built, LoadError> {
    let form = Form {
        base: "deit",
        tokens: &["cls_token", "distillation_token"],
        classifiers: &["cls_classifier", "distillation_classifier"],
    };
    build(checkpoint, device, slice, form)
}

fn build(checkpoint: &mut Checkpoint, device: &Device, slice: Slice, form: Form) -> Result<Built, LoadError> {
    let classifier = Classifier::read(&checkpoint.config)?;
    Ok(Built {
        task: classifier.task(),
        labels: classifier.labels(),
        model: with_ops!(device, ops => Vit::boxed(ops, checkpoint, device, slice, (form, classifier))?),
    })
}

/// A ViT model or a slice of one.
struct Vit<O: Ops> {
    ops: O,
    form: Form,
    patches: Patches,
    width: usize,
    /// Only in the first slice.
    input_stage: Option<(ImageInput, InputStage<O>)>,
    blocks: Vec<Arc<Block<O>>>,
    /// Only in the last slice.
    head: Option<Head<O>>,
    device: Device,
}

/// Computes hidden states from pixels.
struct InputStage<O: Ops> {
    /// From the pixels of a patch to its vector, without bias.
    projection: O::Linear,
    /// Added to the projected patches, `[tokens, width]`.
    offsets: O::Matrix,
}

/// Computes logits from hidden states.
struct Head<O: Ops> {
    norm: O::Norm,
    /// One per classified token.
    outputs: Vec<O::Linear>,
    classifier: Classifier,
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

impl<O: Ops> InputStage<O> {
    /// Takes the patch projection, and everything that does not depend on the image.
    ///
    /// The first rows of the offsets belong to the class token and, in DeiT, the distillation token, whose patches are all
    /// zeros: `token + position[i]`; the others to the patches: `bias + position[i]`. One product and one sum then compute
    /// the whole embedding.
    fn take(
        layers: &mut Layers<'_, O>,
        form: Form,
        patches: &Patches,
        width: usize,
    ) -> Result<Self, LoadError> {
        let at = |name: &str| format!("{}.embeddings.{name}", form.base);
        let ([down, across], tokens) = (patches.patch, patches.count().saturating_add(form.tokens.len()));
        let weights = &mut *layers.weights;
        let kernel = weights.take(
            &at("patch_embeddings.projection.weight"),
            &[width, patches.channels, down, across],
        )?;
        let bias = weights.take(&at("patch_embeddings.projection.bias"), &[width])?;
        let take = |name: &&str| weights.take(&at(name), &[1, 1, width]);
        let first = form.tokens.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        let mut offsets = weights.take(&at("position_embeddings"), &[1, tokens, width])?;
        for (index, position) in offsets.chunks_mut(width.max(1)).enumerate() {
            for (value, added) in position.iter_mut().zip(first.get(index).unwrap_or(&bias)) {
                *value += added;
            }
        }
        let pixels = patches.pixels();
        Ok(Self {
            projection: layers.upload(transposed(&kernel, pixels), Vec::new(), pixels, width),
            offsets: layers.ops.upload(offsets, width),
        })
    }
}

impl<O: Ops> Model for Vit<O> {
    fn signature(&self) -> Signature {
        match &self.input_stage {
            Some((input, _)) => input.signature(),
            None => states::signature(Extent::Exactly(self.tokens()), self.width, false),
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let signature = self.signature();
        run_batch_in_parallel(
            &self.device,
            batch,
            |inputs| {
                if let Some((input, _)) = &self.input_stage {
                    return input.values(inputs);
                }
                signature.check(inputs)?;
                let values = inputs.first().map(tensor::Tensor::to_f32).transpose()?;
                Ok(values.unwrap_or_default())
            },
            Vec::len,
            |requests| self.answer(requests),
        )
    }
}

impl<O: Ops> Vit<O> {
    /// Takes a model or a slice of one from a checkpoint.
    fn boxed(
        ops: O,
        checkpoint: &mut Checkpoint,
        device: &Device,
        slice: Slice,
        (form, classifier): (Form, Classifier),
    ) -> Result<Box<dyn Model>, LoadError> {
        let mut config = EncoderConfig::read(&checkpoint.config)?;
        config.norms_first = true;
        let patches = Patches::read(&checkpoint.config)?;
        let width = config.width;
        let [height, across] = patches.image;
        let input = ImageInput::read(checkpoint, "pixel_values", vec![patches.channels, height, across])?;
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let input_stage = if slice.is_first() {
            Some((input, InputStage::take(&mut layers, form, &patches, width)?))
        } else {
            None
        };
        let forms = config.numbered(&format!("{}.encoder.layer", form.base));
        let blocks = config.take_blocks(&mut layers, &forms, &BLOCK_NAMES, None, slice)?;
        let head = if slice.is_last() {
            let outputs = form
                .classifiers
                .iter()
                .map(|name| layers.linear(name, width, classifier.len()));
            Some(Head {
                outputs: outputs.collect::<Result<_, _>>()?,
                norm: layers.layer_norm(&format!("{}.layernorm", form.base), width, config.epsilon)?,
                classifier,
            })
        } else {
            None
        };
        Ok(Box::new(Self {
            ops,
            form,
            patches,
            width,
            input_stage,
            blocks,
            head,
            device: device.clone(),
        }))
    }

    fn tokens(&self) -> usize {
        self.patches.count() + self.form.tokens.len()
    }

    fn answer(&self, requests: &[Vec<f32>]) -> Result<BatchResults, ModelError> {
        let (ops, width, tokens) = (&self.ops, self.width, self.tokens());
        let embedded = if let Some((_, input_stage)) = &self.input_stage {
            self.embedded(input_stage, requests)
        } else {
            ops.upload(requests.concat(), width)
        };
        let mask = vec![true; tokens];
        let sequences = vec![mask.as_slice(); requests.len()];
        let states = self
            .blocks
            .iter()
            .fold(embedded, |x, block| block.forward(ops, &x, &sequences, None));
        let Some(head) = &self.head else {
            let states = ops.values(&states).map_err(|error| device_failed(&error))?;
            return Ok(states::outputs(
                &states,
                width,
                &vec![tokens; requests.len()],
                None,
            ));
        };
        // Only the first tokens are classified, so only they need the final norm.
        let mut sum: Vec<Vec<f32>> = vec![vec![0.0; head.classifier.len()]; requests.len()];
        for (token, output) in head.outputs.iter().enumerate() {
            let spans = (0..requests.len()).map(|index| Span {
                matrix: &states,
                from: index * tokens + token,
                count: 1,
            });
            let first = ops.gather(&spans.collect::<Vec<_>>(), width);
            let logits = ops.multiply(&ops.normalise(&first, &head.norm), output);
            let logits = rows(ops, &logits, head.classifier.len())?;
            for (sum, logits) in sum.iter_mut().flatten().zip(logits.iter().flatten()) {
                *sum += logits / head.outputs.len() as f32;
            }
        }
        Ok(sum.iter().map(|logits| head.classifier.outputs(logits)).collect())
    }

    fn embedded(&self, input_stage: &InputStage<O>, images: &[Vec<f32>]) -> O::Matrix {
        let (ops, pixels, tokens) = (&self.ops, self.patches.pixels(), self.tokens());
        let mut cut = Vec::with_capacity(images.len() * tokens * pixels);
        for image in images {
            cut.resize(cut.len() + self.form.tokens.len() * pixels, 0.0);
            self.patches.cut(image, &mut cut);
        }
        let mut projected = ops.multiply(&ops.upload(cut, pixels), &input_stage.projection);
        let offsets = Span {
            matrix: &input_stage.offsets,
            from: 0,
            count: tokens,
        };
        ops.add(
            &mut projected,
            &ops.gather(&vec![offsets; images.len()], self.width),
        );
        projected
    }
}
