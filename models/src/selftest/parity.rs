//! Compares a device's results with expected outputs, for every architecture.
//!
//! The expected outputs belong to the committed checkpoints and were computed by torch. On a GPU, larger networks are
//! also compared with this program on the CPU, because the committed checkpoints are too small for the kernels of
//! large matrices.

use std::time::Instant;

use serde::Serialize;

use super::options::{NOT_REACHED, SelftestOptions};
use super::section::{Section, guarded};
use super::shapes::{BERT_SMALL, Shape, VIT_TINY};
use crate::device::{Device, DeviceChoice};
use crate::precision::WeightType;
use crate::runtime::model::{Inputs, Model, Outputs};
use crate::selftest::fixtures::{self, Parity};

/// Maximum difference of a logit on a CPU.
const PROCESSOR_BOUND: f64 = 1e-4;
/// Maximum difference of a logit on a GPU, relative to the maximum expected one. Tensor cores may use TF32, whose 10
/// bits of mantissa give a relative error of about 1/2,000 per product, and errors accumulate over the layers.
const GPU_SHARE: f64 = 2e-2;
/// Maximum difference of a large network's logits on a GPU, relative to their norm; rounding errors accumulate over
/// the blocks.
const GPU_RELATIVE_BOUND: f64 = 1e-2;

/// Returns the maximum difference of a logit on a device, for a network whose maximum expected logit has this absolute
/// value.
pub(super) fn bound(choice: DeviceChoice, largest: f64) -> f64 {
    match choice {
        DeviceChoice::Cpu => PROCESSOR_BOUND,
        DeviceChoice::Cuda(_) => GPU_SHARE * largest,
    }
}

/// Results of the comparisons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParityReport {
    /// Results per architecture and checkpoint.
    pub rows: Vec<ParityRow>,
    /// Agreement of large networks between this device and the CPU; empty if the device is the CPU.
    pub agreement: Vec<Agreement>,
}

/// Comparison of one architecture with expected outputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParityRow {
    /// Name of the checkpoint or architecture.
    pub name: &'static str,
    /// Number of compared requests; each runs alone, and all in one batch.
    pub cases: usize,
    /// Maximum absolute difference of a logit; `None` without a comparison.
    pub max_abs_diff: Option<f64>,
    /// Maximum allowed difference.
    pub bound: f64,
    /// Whether the difference is within the bound.
    pub passed: bool,
    /// Reason if there was no comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Comparison of a large network on this device with the CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Network and input size.
    pub shape: Shape,
    /// Norm of the difference of all logits, divided by their norm on the CPU; `None` without a comparison.
    pub relative_difference: Option<f64>,
    /// Maximum allowed difference.
    pub bound: f64,
    /// Whether the difference is within the bound.
    pub passed: bool,
    /// Reason if there was no comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ParityReport {
    /// Returns whether all comparisons passed.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty()
            && self.rows.iter().all(|row| row.passed)
            && self.agreement.iter().all(|row| row.passed)
    }
}

pub(super) fn compare_all(
    options: &SelftestOptions,
    device: &Device,
    began: Instant,
    progress: &mut dyn FnMut(&str),
) -> ParityReport {
    let large: &[Shape] = match options.device {
        DeviceChoice::Cuda(_) if options.families.is_empty() => &[BERT_SMALL.at(64), VIT_TINY.at(224)],
        DeviceChoice::Cpu | DeviceChoice::Cuda(_) => &[],
    };
    let mut rows = Vec::new();
    for fixture in fixtures::ALL
        .iter()
        .filter(|fixture| options.compares(fixture.name))
    {
        let compared = if options.is_over(began) {
            Section::Skipped(NOT_REACHED.into())
        } else {
            guarded(|| {
                let parity = fixture.compare(device).map_err(|error| error.to_string())?;
                Ok(parity)
            })
        };
        progress(&format!("parity of {}: {}", fixture.name, in_words(&compared)));
        rows.push(row(fixture.name, options.device, compared));
    }
    let agreement = large
        .iter()
        .map(|shape| {
            progress(&format!("agreement of {shape} with the processor"));
            let compared = if options.is_over(began) {
                Section::Skipped(NOT_REACHED.into())
            } else {
                guarded(|| relative_difference(*shape, device))
            };
            agreement(*shape, compared)
        })
        .collect();
    ParityReport { rows, agreement }
}

fn in_words(compared: &Section<Parity>) -> String {
    match compared {
        Section::Done(parity) => format!("largest difference {:.1e}", parity.largest_difference),
        Section::Failed(reason) | Section::Skipped(reason) => reason.clone(),
    }
}

fn row(name: &'static str, device: DeviceChoice, compared: Section<Parity>) -> ParityRow {
    let (parity, error) = match compared {
        Section::Done(parity) => (Some(parity), None),
        Section::Failed(reason) | Section::Skipped(reason) => (None, Some(reason)),
    };
    let largest = parity.map_or(0.0, |parity| parity.largest_expected);
    let bound = bound(device, f64::from(largest));
    let max_abs_diff = parity.map(|parity| f64::from(parity.largest_difference));
    ParityRow {
        name,
        cases: parity.map_or(0, |parity| parity.cases),
        max_abs_diff,
        bound,
        passed: max_abs_diff.is_some_and(|difference| difference <= bound),
        error,
    }
}

fn agreement(shape: Shape, compared: Section<f64>) -> Agreement {
    let (relative_difference, error) = match compared {
        Section::Done(difference) => (Some(difference), None),
        Section::Failed(reason) | Section::Skipped(reason) => (None, Some(reason)),
    };
    Agreement {
        shape,
        relative_difference,
        bound: GPU_RELATIVE_BOUND,
        passed: relative_difference.is_some_and(|difference| difference <= GPU_RELATIVE_BOUND),
        error,
    }
}

fn relative_difference(shape: Shape, device: &Device) -> Result<f64, String> {
    let requests = shape.requests(4).map_err(|error| error.to_string())?;
    let logits = |device: &Device| -> Result<Vec<f32>, String> {
        let model = shape.load(device, WeightType::F32);
        let mut model = model.map_err(|error| error.to_string())?;
        logits(model.as_mut(), &requests)
    };
    relative(&logits(device)?, &logits(&Device::Cpu)?)
}

/// Returns the norm of the difference divided by the norm of `expected`.
fn relative(actual: &[f32], expected: &[f32]) -> Result<f64, String> {
    let norm = |squares: f64| squares.sqrt();
    let difference: f64 = actual
        .iter()
        .zip(expected)
        .map(|(actual, expected)| (f64::from(*actual) - f64::from(*expected)).powi(2))
        .sum();
    let expected_norm = norm(expected.iter().map(|value| f64::from(*value).powi(2)).sum());
    let relative = norm(difference) / expected_norm;
    if actual.len() != expected.len() || !relative.is_finite() {
        return Err("the logits cannot be compared: their number differs, or one is NaN".into());
    }
    Ok(relative)
}

/// Returns the logits of all requests, run as one batch.
fn logits(model: &mut dyn Model, requests: &[Inputs]) -> Result<Vec<f32>, String> {
    let answers = model
        .run(requests)
        .into_iter()
        .collect::<Result<Vec<Outputs>, _>>()
        .map_err(|error| error.to_string())?;
    let tensors = answers.iter().flatten().filter(|output| output.name == "logits");
    let values = tensors
        .map(|output| output.to_f32().map_err(|error| error.to_string()))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(values.concat())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::selftest::shapes::BERT_TINY;

    #[test]
    fn differences_are_compared_with_their_bound() {
        let judged = |device, difference| {
            let parity = Parity {
                cases: 3,
                largest_difference: difference,
                largest_expected: 5.0,
                largest_padding_difference: 0.0,
            };
            row("bert", device, Section::Done(parity)).passed
        };
        let exact = |difference| judged(DeviceChoice::Cpu, difference);
        assert!(exact(0.0) && exact(0.9e-4));
        assert!(!exact(1.1e-4) && !exact(f32::NAN) && !exact(f32::INFINITY));
        let rounded = |difference| judged(DeviceChoice::Cuda(0), difference);
        assert!(rounded(0.09) && !rounded(0.11) && !rounded(f32::NAN));
        let failed = row("bert", DeviceChoice::Cpu, Section::Failed("it panicked".into()));
        assert!(!failed.passed && failed.max_abs_diff.is_none());
        assert_eq!(failed.error.as_deref(), Some("it panicked"));
    }

    #[test]
    fn relative_differences_reject_incomparable_logits() {
        assert_eq!(relative(&[3.0, 4.0], &[3.0, 4.0]), Ok(0.0));
        assert_eq!(relative(&[3.0, 5.0], &[3.0, 4.0]), Ok(0.2));
        assert!(relative(&[f32::NAN, 4.0], &[3.0, 4.0]).is_err());
        assert!(relative(&[3.0], &[3.0, 4.0]).is_err());
        assert!(relative(&[0.0], &[0.0]).is_err());
    }

    #[test]
    fn a_network_matches_itself() {
        assert_eq!(relative_difference(BERT_TINY.at(8), &Device::Cpu), Ok(0.0));
    }

    /// Maps a class to the name of its encoder, without the head; classes with the same operations map to one name.
    fn form(class: &str) -> String {
        let heads = [
            "ForSequenceClassification",
            "ForQuestionAnsweringSimple",
            "ForQuestionAnswering",
            "ForTokenClassification",
            "Model",
        ];
        let body = heads
            .iter()
            .find_map(|head| class.strip_suffix(head))
            .unwrap_or(class);
        match body {
            "XLMRoberta" | "Camembert" | "Data2VecText" | "IBert" | "Luke" => "Roberta".to_owned(),
            "XLMRobertaXL" => "RobertaPreLayerNorm".to_owned(),
            "DPRQuestionEncoder" | "DPRContextEncoder" => "Bert".to_owned(),
            "Data2VecVisionForImageClassification" => "BeitForImageClassification".to_owned(),
            "T5" | "MT5" | "MT5Encoder" => "T5Encoder".to_owned(),
            "UMT5" => "UMT5Encoder".to_owned(),
            "StaticEmbedding" => "Static".to_owned(),
            "ViTMSN" | "DeiT" | "Dinov2" | "Dinov2WithRegisters" => "ViT".to_owned(),
            "CLIPText" | "CLIPTextModelWithProjection" | "CLIPVision" | "CLIPVisionModelWithProjection" => {
                "CLIP".to_owned()
            }
            "MetaClip2" => "CLIP".to_owned(),
            "SiglipText" | "SiglipVision" => "Siglip".to_owned(),
            other => other.to_owned(),
        }
    }

    /// Checks that every encoder is compared here, because otherwise it would not be tested on a GPU.
    #[test]
    fn every_form_of_encoder_is_compared() {
        let mut known = crate::architectures::registry::supported();
        // The detector reuses the networks of two other architectures; interpreting its classes needs no device.
        known.retain(|family| *family != crate::architectures::grid_detector::MODEL_TYPE);
        // Same operations as ResNet, VGG, PVT v2 and BERT, or operations with comparison tests of their own; the family tests compare them,
        // on the CPU alone.
        let alike = [
            "timm-resnet",
            "timm-repvgg",
            "PvtForImageClassification",
            "HGNetV2ForImageClassification",
            "TextNetForImageClassification",
            "SwiftFormerForImageClassification",
            "FocalNetForImageClassification",
            "XLM",
            "Flaubert",
            "LayoutLM",
        ];
        known.retain(|family| !alike.contains(&form(family).as_str()));
        // Their files have other names or further tensors than the class, which the strict tests of these fixtures do not allow; the
        // family tests compare them, on the CPU alone.
        let renamed = ["timm-eva", "timm-inception"];
        known.retain(|family| !renamed.contains(family));
        // Language models use the operations of `ops`, which have their own comparison tests.
        let generating = crate::decoder::registry::supported();
        // `Gemma3TextModel` is also an encoder class.
        known.retain(|family| !generating.contains(family) || *family == "Gemma3TextModel");
        let known: BTreeSet<String> = known.iter().map(|class| form(class)).collect();
        let compared: BTreeSet<String> = fixtures::ALL
            .iter()
            .map(|fixture| {
                let config = fixture.checkpoint().unwrap().config;
                let model_type = || config.optional("model_type").unwrap();
                form(&config.class().unwrap().or_else(model_type).unwrap())
            })
            .collect();
        assert_eq!(known, compared);
    }
}
