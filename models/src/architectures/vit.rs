//! ViT (Dosovitskiy et al. 2021) and similar models, each described by a [`VitConfig`]: ViT-MSN; DeiT (Touvron et al.
//! 2021), with a distillation token besides the class token; `DINOv2` (Oquab et al. 2024), with layer scales,
//! classification of class token and mean patch, and optional register tokens (Darcet et al. 2024); `BEiT` (Bao et al.
//! 2022), with a relative position bias; the image encoders of CLIP (Radford et al. 2021) and `SigLIP` (Zhai et al.
//! 2023), with classification of the mean patch; EVA-02 (Fang et al. 2023), with rotary positions and gated
//! feed-forwards.
//!
//! Inputs: `pixel_values` FP32 `[channels, height, width]`, normalised according to the checkpoint's
//! `preprocessor_config.json`, or with that file `image_file`. Outputs: those of [`Classifier::outputs`], or
//! `embedding` FP32 `[width]` of a base model.
//!
//! In partitions, all but the last return `hidden_states` FP32 `[tokens, width]`, which all but the first take.

pub(super) mod attention_pooling;
pub(super) mod config;
pub(super) mod head;
pub(super) mod patches;
pub(super) mod positions;

use std::sync::Arc;

use kaskade_policy::plan::Partition;

use self::config::{ImageHead, Kind, RelativePositions, VitConfig};
use self::head::{Head, Tokens};
use self::patches::{Patches, interpolated};
use super::encoder::grid_rotary::GridRotary;
use super::encoder::{Bias, Block};
use super::layers::Layers;
use crate::checkpoint::timm::REFERENCE_GRID;
use crate::checkpoint::weights::transposed;
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::device::{Device, with_ops};
use crate::images::{self, ImageInput};
use crate::ops::{Ops, Span};
use crate::runtime::batch::{BatchResults, device_failed, run_batch_in_parallel};
use crate::runtime::hidden_states as states;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Extent, Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor;
use crate::tasks::classification::Classifier;

/// Buffers that old versions of transformers and timm saved.
const BUFFERS: [&str; 1] = ["relative_position_index"];

/// Builds an image classifier, or a base model, or a partition of it.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build(
    checkpoint: &mut Checkpoint,
    device: &Device,
    partition: Partition,
    vit: VitConfig,
) -> Result<Built, LoadError> {
    let classifier = match vit.head {
        ImageHead::Features { .. } | ImageHead::Probe { .. } => None,
        _ => Some(Classifier::read(&checkpoint.config)?),
    };
    checkpoint.weights.expect_base(&format!("{}.", vit.base));
    Ok(Built {
        task: classifier.as_ref().map_or(Task::Embedding, Classifier::task),
        labels: classifier.as_ref().map(Classifier::labels).unwrap_or_default(),
        model: with_ops!(device, ops => Vit::boxed(ops, checkpoint, device, partition, (vit, classifier))?),
    })
}

/// A ViT model, or a partition of it.
struct Vit<O: Ops> {
    ops: O,
    patches: Patches,
    /// Number of tokens before the patches.
    first: usize,
    width: usize,
    /// Present only in the first partition.
    input_stage: Option<(ImageInput, InputStage<O>)>,
    /// Blocks with their relative position scores.
    blocks: Vec<ScoredBlock<O>>,
    /// Present only in the last partition.
    head: Option<Head<O>>,
    device: Device,
}

/// A block, with the scores to add to those of its attention.
type ScoredBlock<O> = (Arc<Block<O>>, Option<Arc<<O as Ops>::Matrix>>);

/// Computes hidden states from pixels.
struct InputStage<O: Ops> {
    /// Patch embedding: linear layer over the pixels of a patch, without bias.
    projection: O::Linear,
    /// Offsets to add to the projected patches, `[tokens, width]`.
    offsets: O::Matrix,
    /// Norm of the sum.
    norm: Option<O::Norm>,
}

impl<O: Ops> InputStage<O> {
    /// Takes the patch projection, and everything that does not depend on the image.
    ///
    /// The first rows of the offsets belong to the tokens before the patches, whose own patches are all zeros:
    /// `token + position[i]`, or `token` without a position. The other rows belong to the patches:
    /// `bias + position[i]`. The whole embedding is then one product and one sum. If the image size differs from that
    /// in training, `trained`, positions are interpolated.
    fn take(
        layers: &mut Layers<'_, O>,
        vit: VitConfig,
        (patches, trained): (&Patches, &Patches),
        registers: usize,
        (width, epsilon): (usize, f64),
    ) -> Result<Self, LoadError> {
        let at = |name: &str| format!("{}.embeddings.{name}", vit.base);
        let ([down, across], tokens) = (patches.patch, vit.tokens.len());
        let norm = vit
            .input_norm
            .map(|name| layers.layer_norm(&format!("{}.{name}", vit.base), width, epsilon));
        let norm = norm.transpose()?;
        let weights = &mut *layers.weights;
        let (projection, (positions, flat)) = match vit.clip {
            Some(_) => (vit.projection, ("position_embedding.weight", true)),
            None => (vit.projection, ("position_embeddings", false)),
        };
        // Tables have an additional first dimension, unless they are `flat`.
        let shape = |sides: &[usize]| {
            if flat {
                sides.to_vec()
            } else {
                [&[1], sides].concat()
            }
        };
        let kernel = weights.take(
            &at(&format!("{projection}.weight")),
            &[width, patches.channels, down, across],
        )?;
        let bias = if vit.biased {
            weights.take(&at(&format!("{projection}.bias")), &[width])?
        } else {
            vec![0.0; width]
        };
        let token_shape = if flat { vec![width] } else { vec![1, 1, width] };
        let take = |name: &&str| weights.take(&at(name), &token_shape);
        let mut offsets = vit
            .tokens
            .iter()
            .map(take)
            .collect::<Result<Vec<_>, _>>()?
            .concat();
        let tokens = if vit.token_positions { tokens } else { 0 };
        let count = trained.count().saturating_add(tokens);
        let mut positions = if vit.positions {
            weights.take(&at(positions), &shape(&[count, width]))?
        } else {
            vec![0.0; count.saturating_mul(width)]
        };
        let mut of_patches = positions.split_off(tokens * width);
        for (offset, position) in offsets.iter_mut().zip(&positions) {
            *offset += position;
        }
        if let Some(name) = vit.registers {
            offsets.extend(weights.take(&at(name), &[1, registers, width])?);
        }
        if patches.grid() != trained.grid() {
            of_patches = interpolated(&of_patches, width, trained.grid(), patches.grid());
        }
        for position in of_patches.chunks(width.max(1)) {
            offsets.extend(position.iter().zip(&bias).map(|(position, bias)| position + bias));
        }
        let pixels = patches.pixels();
        Ok(Self {
            projection: layers.upload(transposed(&kernel, pixels), Vec::new(), pixels, width),
            offsets: layers.ops.upload(offsets, width),
            norm,
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

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        match &self.input_stage {
            Some((input, _)) => input.values(inputs).map(drop),
            None => self.signature().check(inputs),
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
    /// Takes a model, or a partition of it, from a checkpoint.
    fn boxed(
        ops: O,
        checkpoint: &mut Checkpoint,
        device: &Device,
        partition: Partition,
        (vit, classifier): (VitConfig, Option<Classifier>),
    ) -> Result<Box<dyn Model>, LoadError> {
        let settings = vit.settings(&checkpoint.config)?;
        let (vit, relative) = vit.configured(&settings)?;
        checkpoint.weights.ignore_suffixes(&BUFFERS);
        let (mut config, names) = vit.blocks(&settings)?;
        config.norms_first = true;
        let registers = vit.register_count(&settings)?;
        let trained = Patches::read(&settings)?;
        let mut patches = trained;
        if let (true, Some(config)) = (vit.resizes(), &checkpoint.preprocessor) {
            // Images are often preprocessed to another size than in training.
            patches.image = images::fixed_size(config, trained.channels)?.unwrap_or(trained.image);
        }
        if !vit.positions {
            // The size is not limited by a position table in the file.
            images::limit_size(&settings, "image_size", trained.image)?;
        }
        if relative != RelativePositions::default() {
            images::limit_size(&settings, "image_size", patches.image)?;
            let [down, across] = patches.grid();
            if down != across {
                let reason = "relative positions need as many patches in both directions";
                return Err(settings.invalid_value("image_size", reason));
            }
        }
        if patches.count() == 0 {
            return Err(settings.invalid_value("patch_size", "it must fit the prepared images"));
        }
        let width = config.width;
        let [height, across] = patches.image;
        let input = ImageInput::read(checkpoint, "pixel_values", vec![patches.channels, height, across])?;
        let mut layers = Layers {
            ops: &ops,
            weights: &mut checkpoint.weights,
        };
        let input_stage = if partition.is_first() {
            Some((
                input,
                InputStage::take(
                    &mut layers,
                    vit,
                    (&patches, &trained),
                    registers,
                    (width, config.epsilon),
                )?,
            ))
        } else {
            None
        };
        let mut block_configs = config.numbered(&vit.block_prefix());
        let first = vit.tokens.len() + registers;
        if let Some(grid) = grid_rotary(&vit, &settings, width / config.heads, patches.grid(), first)? {
            let grid = Arc::new(grid);
            for block in &mut block_configs {
                block.grid = Some(grid.clone());
            }
        }
        let blocks = config.take_blocks(&mut layers, &block_configs, &names, None, partition)?;
        let parts = block_configs
            .get(partition.layers(block_configs.len()))
            .unwrap_or_default();
        let base = format!("{}.encoder", vit.base);
        let scores = positions::take(&mut layers, relative, &base, parts, patches.grid(), config.heads)?;
        let blocks = blocks.into_iter().zip(scores).collect();
        let head = if partition.is_last() {
            Some(Head::take(
                &mut layers,
                &vit,
                &config,
                &checkpoint.config,
                classifier,
            )?)
        } else {
            None
        };
        Ok(Box::new(Self {
            ops,
            patches,
            first,
            width,
            input_stage,
            blocks,
            head,
            device: device.clone(),
        }))
    }

    fn tokens(&self) -> usize {
        self.patches.count() + self.first
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
        let states = self.blocks.iter().try_fold(embedded, |x, (block, scores)| {
            let scores = scores.as_deref().map(|scores| Bias::Pairs(scores, tokens));
            block.forward(ops, &x, &sequences, scores.as_ref())
        });
        let states = states.map_err(|error| device_failed(&error))?;
        let Some(head) = &self.head else {
            let states = ops.values(&states).map_err(|error| device_failed(&error))?;
            return Ok(states::outputs(
                &states,
                width,
                &vec![tokens; requests.len()],
                None,
            ));
        };
        let place = Tokens {
            count: tokens,
            first: self.first,
            width,
        };
        head.outputs(ops, &states, requests.len(), place)
    }

    fn embedded(&self, input_stage: &InputStage<O>, images: &[Vec<f32>]) -> O::Matrix {
        let (ops, pixels, tokens) = (&self.ops, self.patches.pixels(), self.tokens());
        let mut cut = Vec::with_capacity(images.len() * tokens * pixels);
        for image in images {
            cut.resize(cut.len() + self.first * pixels, 0.0);
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
        match &input_stage.norm {
            Some(norm) => ops.normalise(&projected, norm),
            None => projected,
        }
    }
}

/// Returns the rotary positions of patches on a grid after `first` other tokens, if the model has some.
///
/// # Errors
/// [`LoadError`], naming the key.
fn grid_rotary(
    vit: &VitConfig,
    settings: &Config,
    head_dim: usize,
    grid: [usize; 2],
    first: usize,
) -> Result<Option<GridRotary>, LoadError> {
    let (created, key) = match vit.kind {
        Kind::Rotary => {
            let theta = settings.optional("rope_theta")?.unwrap_or(100.0);
            (GridRotary::new(theta, head_dim, grid, first), "rope_theta")
        }
        Kind::Eva => {
            let reference = settings.size(REFERENCE_GRID)?;
            let created = GridRotary::by_index(head_dim, grid, first, reference);
            (created, "num_attention_heads")
        }
        _ => return Ok(None),
    };
    match created {
        None => {
            let reason = "rotary positions need a positive base, and a head size that is a multiple of 4";
            Err(settings.invalid_value(key, reason))
        }
        created => Ok(created),
    }
}
