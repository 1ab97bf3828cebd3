//! Dual encoders: a text encoder and an image encoder whose embeddings are comparable (CLIP, `SigLIP`).
//!
//! Inputs: those of a text encoder ([`super::text_encoder`]) or those of an image encoder ([`super::vit`]). Output:
//! `embedding` FP32 `[width]`, normalised only if a sentence-transformers module does so.

pub(super) mod clip;

use kaskade_policy::plan::Partition;

use super::text_encoder;
use super::text_encoder::config::TextEncoderConfig;
use super::text_encoder::head::TextTask;
use super::vit;
use super::vit::config::VitConfig;
use crate::checkpoint::sentence::SentenceLayer;
use crate::checkpoint::{Checkpoint, Config, LoadError, SentenceModules};
use crate::device::Device;
use crate::runtime::loaded::{Built, Task};
use crate::runtime::model::{Inputs, Model, ModelError, Outputs, Signature};
use crate::runtime::tensor::Tensor;
use crate::tasks::embedding::{Pooling, normalised};
use crate::tasks::entities::AggregationStrategy;

/// Configuration of a dual encoder.
#[derive(Clone, Copy)]
pub(super) struct DualEncoderConfig {
    /// Function that describes the text encoder.
    pub text: fn(&Config) -> Result<TextEncoderConfig, LoadError>,
    /// Pooling of the text encoder.
    pub pooling: Pooling,
    /// Configuration of the image encoder.
    pub image: VitConfig,
}

/// Builds a dual encoder.
///
/// # Errors
/// [`LoadError`], naming the key or tensor.
pub(super) fn build(
    checkpoint: &mut Checkpoint,
    device: &Device,
    config: DualEncoderConfig,
) -> Result<Built, LoadError> {
    let modules = checkpoint.sentence.take();
    let changes = |modules: &SentenceModules| {
        let is_norm = |layer: &SentenceLayer| matches!(layer, SentenceLayer::Normalise);
        !modules.layers.iter().all(is_norm) || modules.kept.is_some()
    };
    if modules.as_ref().is_some_and(changes) {
        return Err(LoadError::NotServed {
            name: checkpoint.name.clone(),
            reason: "layers after an encoder of texts and images, and `truncate_dim`, are not supported"
                .into(),
        });
    }
    let task = TextTask::Embedding(config.pooling);
    let strategy = AggregationStrategy::default();
    let text = text_encoder::build(config.text, task, checkpoint, device, Partition::WHOLE, strategy)?;
    let image = vit::build(checkpoint, device, Partition::WHOLE, config.image)?;
    let images = image.model.signature().inputs;
    Ok(Built {
        model: Box::new(Dual {
            images: images.into_iter().map(|input| input.name).collect(),
            text: text.model,
            image: image.model,
            normalise: modules.is_some_and(|modules| !modules.layers.is_empty()),
        }),
        task: Task::Embedding,
        labels: Vec::new(),
    })
}

/// A dual encoder.
struct Dual {
    text: Box<dyn Model>,
    image: Box<dyn Model>,
    /// Names of the image encoder's inputs.
    images: Vec<String>,
    normalise: bool,
}

impl Dual {
    fn is_image(&self, input: &Tensor) -> bool {
        self.images.contains(&input.name)
    }

    /// Returns whether a request contains an image.
    fn kind(&self, inputs: &Inputs) -> Result<bool, ModelError> {
        let images = inputs.iter().filter(|input| self.is_image(input)).count();
        match inputs.iter().find(|input| self.is_image(input)) {
            Some(image) if images < inputs.len() => Err(ModelError::BadInput {
                name: image.name.clone(),
                reason: "an image and a text have an embedding each; send one of them".into(),
            }),
            image => Ok(image.is_some()),
        }
    }
}

impl Model for Dual {
    fn signature(&self) -> Signature {
        let mut signature = self.text.signature();
        signature.inputs.extend(self.image.signature().inputs);
        for input in &mut signature.inputs {
            input.optional = true;
        }
        signature
    }

    fn check_request(&self, inputs: &Inputs) -> Result<(), ModelError> {
        if self.kind(inputs)? {
            self.image.check_request(inputs)
        } else {
            self.text.check_request(inputs)
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let kinds: Vec<_> = batch.iter().map(|inputs| self.kind(inputs)).collect();
        let of = |image: bool| -> Vec<Inputs> {
            let own = batch.iter().zip(&kinds).filter(|(_, kind)| **kind == Ok(image));
            own.map(|(inputs, _)| inputs.clone()).collect()
        };
        let mut answers = [(&mut self.text, of(false)), (&mut self.image, of(true))].map(|(model, own)| {
            if own.is_empty() {
                return Vec::new().into_iter();
            }
            model.run(&own).into_iter()
        });
        let [texts, images] = &mut answers;
        let answers = kinds.into_iter().filter_map(|kind| match kind {
            Ok(true) => images.next(),
            Ok(false) => texts.next(),
            Err(error) => Some(Err(error)),
        });
        if self.normalise {
            return answers.map(|answer| with_length_one(answer?)).collect();
        }
        answers.collect()
    }
}

/// Normalises the embedding to unit length.
fn with_length_one(mut outputs: Outputs) -> Result<Outputs, ModelError> {
    for output in outputs.iter_mut().filter(|output| output.name == "embedding") {
        let mut vector = output.to_f32()?;
        normalised(&mut vector);
        *output = Tensor::from_f32("embedding", &[vector.len()], &vector)?;
    }
    Ok(outputs)
}
