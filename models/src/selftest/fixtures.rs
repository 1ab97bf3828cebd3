//! Small random checkpoints with expected outputs, included in the library so that a device can be checked wherever
//! the binary runs.
//!
//! `models/fixtures/make_fixtures.py` generates them with transformers; `make_small_fixtures.py` generates those of
//! architectures that transformers lacks, with torch.

use bytes::Bytes;
use serde::Deserialize;
use thiserror::Error;

use crate::architectures::registry::{LoadOptions, load_checkpoint};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::precision::WeightType;
use crate::runtime::model::{Inputs, ModelError, Outputs};
use crate::runtime::tensor::{Datatype, Tensor, TensorError};
use crate::runtime::usage::USAGE;
use crate::{Device, Model};

/// A checkpoint with expected outputs.
#[derive(Debug, Clone, Copy)]
pub struct Fixture {
    /// Name of the folder.
    pub name: &'static str,
    /// `config.json`.
    pub config: &'static [u8],
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `tokenizer.json`, if there is one.
    pub tokenizer: Option<&'static [u8]>,
    /// `expected.json`: requests and their expected outputs.
    pub expected: &'static [u8],
}

macro_rules! file {
    ($folder:literal, $file:literal) => {
        include_bytes!(concat!("../../fixtures/", $folder, "/", $file))
    };
}

macro_rules! fixture {
    ($folder:literal) => {
        fixture!($folder, None)
    };
    ($folder:literal, $tokenizer:expr) => {
        Fixture {
            name: $folder,
            config: file!($folder, "config.json"),
            weights: file!($folder, "model.safetensors"),
            tokenizer: $tokenizer,
            expected: file!($folder, "expected.json"),
        }
    };
}

/// One fixture per encoder architecture with different operations, and one per head of BERT.
pub const ALL: [Fixture; 80] = [
    fixture!(
        "bert-classification",
        Some(file!("bert-classification", "tokenizer.json"))
    ),
    fixture!(
        "bert-question-answering",
        Some(file!("bert-question-answering", "tokenizer.json"))
    ),
    fixture!(
        "bert-token-classification",
        Some(file!("bert-token-classification", "tokenizer.json"))
    ),
    fixture!("distilbert"),
    fixture!("roberta"),
    fixture!("electra"),
    fixture!("albert"),
    fixture!("mpnet"),
    fixture!("deberta"),
    fixture!("deberta-v2"),
    fixture!("deberta-v2-convolution"),
    fixture!("modernbert"),
    fixture!("roberta-prelayernorm"),
    fixture!("ernie"),
    fixture!("nomic-bert"),
    fixture!("gte"),
    fixture!("gte-new"),
    fixture!("jina-bert"),
    fixture!("jina-embeddings-v3"),
    fixture!("longformer"),
    fixture!("roformer"),
    fixture!("megatron-bert"),
    fixture!("rembert"),
    fixture!("mobilebert"),
    fixture!("eurobert"),
    fixture!("ultrabert"),
    fixture!("big-bird"),
    fixture!("esm"),
    fixture!("t5-tokens"),
    fixture!("umt5-tokens"),
    fixture!("squeezebert"),
    fixture!("convbert"),
    fixture!("xlnet"),
    fixture!("fnet"),
    fixture!("vit"),
    fixture!("vit-features"),
    fixture!("vit-msn"),
    fixture!("ijepa"),
    fixture!("dinov2"),
    fixture!("dinov2-registers"),
    fixture!("deit"),
    fixture!("deit-distilled"),
    fixture!("beit"),
    fixture!("beit-shared"),
    fixture!("resnet"),
    fixture!("resnet-basic"),
    fixture!("convnext"),
    fixture!("convnextv2"),
    fixture!("swin"),
    fixture!("swinv2"),
    fixture!("regnet"),
    fixture!("mobilenet-v1"),
    fixture!("mobilenet-v2"),
    fixture!("efficientnet"),
    fixture!("timm-efficientnet"),
    fixture!("timm-mobilenetv3"),
    fixture!("timm-mobilenetv4"),
    fixture!("timm-densenet"),
    fixture!("timm-vgg"),
    fixture!("timm-mixer"),
    fixture!("hiera"),
    fixture!("mobilevit"),
    fixture!("mobilevitv2"),
    fixture!("pvt-v2"),
    fixture!("segformer"),
    fixture!("poolformer"),
    fixture!("cvt"),
    fixture!("bit"),
    fixture!("clip"),
    fixture!("metaclip-2-classification"),
    fixture!("siglip"),
    fixture!("embedding-gemma"),
    fixture!("model2vec", Some(file!("model2vec", "tokenizer.json"))),
    fixture!("dinov3"),
    fixture!("dinov3-convnext"),
    fixture!("clip-dual", Some(file!("clip-dual", "tokenizer.json"))),
    fixture!("chinese-clip"),
    fixture!("siglip-dual", Some(file!("siglip-dual", "tokenizer.json"))),
    fixture!("cnn"),
    fixture!("mlp"),
];

/// A request with its expected outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Inputs of the request.
    pub inputs: Inputs,
    /// Expected outputs, computed by transformers.
    pub outputs: Outputs,
}

/// Differences between a device's outputs and the expected ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parity {
    /// Number of compared requests; each runs alone, and all in one padded batch.
    pub cases: usize,
    /// Maximum absolute difference of a logit from the expected one.
    pub largest_difference: f32,
    /// Maximum absolute value of an expected logit.
    pub largest_expected: f32,
    /// Maximum absolute difference of a logit between a request alone and in the padded batch.
    pub largest_padding_difference: f32,
}

/// Why a fixture could not be compared.
#[derive(Debug, Error)]
pub enum FixtureError {
    /// The checkpoint could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// `expected.json` is malformed.
    #[error("fixture `{name}`: expected.json is malformed: {reason}")]
    Expected {
        /// The fixture.
        name: &'static str,
        /// The reason.
        reason: String,
    },
    /// An output differs by more than rounding: in name, shape, text or position.
    #[error("fixture `{name}`, request {case}: the model returned {actual}, expected {expected}")]
    Differs {
        /// The fixture.
        name: &'static str,
        /// Index of the request.
        case: usize,
        /// The model's output.
        actual: String,
        /// The expected output.
        expected: String,
    },
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<ExpectedCase>,
}

#[derive(Deserialize)]
struct ExpectedCase {
    inputs: Vec<JsonTensor>,
    outputs: Vec<JsonTensor>,
}

/// A tensor in the JSON encoding of the Open Inference Protocol.
#[derive(Deserialize)]
struct JsonTensor {
    name: String,
    shape: Vec<usize>,
    #[serde(flatten)]
    elements: Elements,
}

#[derive(Deserialize)]
#[serde(tag = "datatype", content = "data")]
enum Elements {
    #[serde(rename = "FP32")]
    F32(Vec<f32>),
    #[serde(rename = "INT64")]
    I64(Vec<i64>),
    #[serde(rename = "BYTES")]
    Texts(Vec<String>),
}

impl JsonTensor {
    fn tensor(&self) -> Result<Tensor, TensorError> {
        match &self.elements {
            Elements::F32(values) => Tensor::from_f32(&self.name, &self.shape, values),
            Elements::I64(values) => Tensor::from_i64(&self.name, &self.shape, values),
            Elements::Texts(texts) => {
                Tensor::from_texts(&self.name, &texts.iter().map(String::as_str).collect::<Vec<_>>())
            }
        }
    }
}

impl Fixture {
    /// Opens the checkpoint.
    ///
    /// # Errors
    /// [`LoadError`]; does not occur with the committed fixtures.
    pub fn checkpoint(&self) -> Result<Checkpoint, LoadError> {
        let tokenizer = self.tokenizer.map(Bytes::from_static);
        Checkpoint::from_bytes(
            self.name,
            self.config,
            Bytes::from_static(self.weights),
            tokenizer,
        )
    }

    /// Returns the requests with their expected outputs.
    ///
    /// # Errors
    /// [`FixtureError::Expected`]; does not occur with the committed fixtures.
    pub fn cases(&self) -> Result<Vec<Case>, FixtureError> {
        let malformed = |reason: String| FixtureError::Expected {
            name: self.name,
            reason,
        };
        let expected: Expected =
            serde_json::from_slice(self.expected).map_err(|error| malformed(error.to_string()))?;
        let tensors = |listed: &[JsonTensor]| {
            let tensors = listed
                .iter()
                .map(JsonTensor::tensor)
                .collect::<Result<Vec<_>, _>>();
            tensors.map_err(|error| malformed(error.to_string()))
        };
        let cases = expected.cases.iter();
        cases
            .map(|case| {
                Ok(Case {
                    inputs: tensors(&case.inputs)?,
                    outputs: tensors(&case.outputs)?,
                })
            })
            .collect()
    }

    /// Loads the checkpoint onto a device and compares its outputs, each request alone and all in one batch.
    ///
    /// # Errors
    /// [`FixtureError`] if loading or a request fails, or an output has another text, position, name or shape.
    pub fn compare(&self, device: &Device) -> Result<Parity, FixtureError> {
        // The expected outputs were computed in f32, and only the CPU computes in f32 with weights of other types.
        let options = LoadOptions {
            dtype: (*device != Device::Cpu).then_some(WeightType::F32),
            ..LoadOptions::default()
        };
        let mut model = load_checkpoint(self.checkpoint()?, device, &options)?.model;
        self.compare_model(model.as_mut())
    }

    /// Compares the outputs of a loaded model, as [`Fixture::compare`] does.
    ///
    /// # Errors
    /// Same as [`Fixture::compare`].
    pub(crate) fn compare_model(&self, model: &mut dyn Model) -> Result<Parity, FixtureError> {
        let cases = self.cases()?;
        let requests: Vec<Inputs> = cases.iter().map(|case| case.inputs.clone()).collect();
        let together = model.run(&requests).into_iter().collect::<Result<Vec<_>, _>>()?;
        let alone = requests
            .iter()
            .flat_map(|request| model.run(std::slice::from_ref(request)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut parity = Parity {
            cases: cases.len(),
            largest_difference: 0.0,
            largest_expected: cases
                .iter()
                .flat_map(|case| &case.outputs)
                .map(largest)
                .fold(0.0, f32::max),
            largest_padding_difference: 0.0,
        };
        for (case, ((expected, together), alone)) in cases.iter().zip(&together).zip(&alone).enumerate() {
            let (together, alone) = (without_usage(together), without_usage(alone));
            let (together, alone) = (together.as_slice(), alone.as_slice());
            let difference = |actual: &[Tensor], expected: &[Tensor]| {
                largest_difference(actual, expected).ok_or_else(|| FixtureError::Differs {
                    name: self.name,
                    case,
                    actual: described(actual),
                    expected: described(expected),
                })
            };
            parity.largest_difference = parity
                .largest_difference
                .max(difference(together, &expected.outputs)?)
                .max(difference(alone, &expected.outputs)?);
            parity.largest_padding_difference = parity
                .largest_padding_difference
                .max(difference(together, alone)?);
        }
        Ok(parity)
    }
}

/// Returns the maximum absolute value of a tensor of floats; 0 for other types.
fn largest(tensor: &Tensor) -> f32 {
    let values = tensor.to_f32().unwrap_or_default();
    values.into_iter().map(f32::abs).fold(0.0, f32::max)
}

/// Removes the token usage, which transformers does not report.
fn without_usage(outputs: &Outputs) -> Outputs {
    let others = outputs.iter().filter(|output| output.name != USAGE);
    others.cloned().collect()
}

/// Returns the maximum absolute difference of an element; `None` if the tensors differ in more than floats, or contain
/// NaN.
fn largest_difference(actual: &[Tensor], expected: &[Tensor]) -> Option<f32> {
    if actual.len() != expected.len() {
        return None;
    }
    let mut largest = 0.0_f32;
    for (actual, expected) in actual.iter().zip(expected) {
        if actual.datatype != Datatype::F32 {
            if actual != expected {
                return None;
            }
            continue;
        }
        if (&actual.name, &actual.shape) != (&expected.name, &expected.shape) {
            return None;
        }
        for (actual, expected) in actual.to_f32().ok()?.iter().zip(expected.to_f32().ok()?) {
            let difference = (actual - expected).abs();
            if difference.is_nan() {
                return None;
            }
            largest = largest.max(difference);
        }
    }
    Some(largest)
}

fn described(tensors: &[Tensor]) -> String {
    let described = tensors.iter().map(|tensor| {
        let Tensor {
            name,
            shape,
            datatype,
            ..
        } = tensor;
        let content = match datatype {
            Datatype::Bytes => format!(" {:?}", tensor.to_texts()),
            Datatype::I64 => format!(" {:?}", tensor.to_i64()),
            _ => String::new(),
        };
        format!("{name} {}{shape:?}{content}", datatype.name())
    });
    described.collect::<Vec<_>>().join(", ")
}
