//! The registry of architectures: finds and loads the architecture of a checkpoint.
//!
//! An architecture is added with one file and one line in `text_families` or `OTHERS`; language models are in the registry of
//! `decoder/`.

use std::path::Path;

use super::text_decoder;
use super::text_encoder;
use super::text_form::TextForm;
use super::text_head::TextTask;
use super::{cnn, grid, mlp, text_families, vision, vit, vit_form};
use crate::checkpoint::{Checkpoint, Config, LoadError, SentenceModules, WeightTotals, quantised};
use crate::decoder::registry::{self as decoders, DecoderTask};
use crate::device::Device;
use crate::language::{self, Generation};
use crate::precision::WeightType;
use crate::runtime::loaded::{Built, Loaded, ModelInfo, Task};
use crate::runtime::slice::Slice;
use crate::tasks::entities::AggregationStrategy;

/// A supported architecture.
struct Architecture {
    /// `architectures[0]` of its `config.json`.
    name: &'static str,
    /// `model_type` of its `config.json`.
    model_type: &'static str,
    /// Prefix of a tensor that only this class of its `model_type` has; `None` for the base model.
    head: Option<&'static str>,
    /// Builds the model from a checkpoint.
    build: Build,
    /// Name prefixes of tensors that its checkpoints contain but the model does not use.
    unused: &'static [&'static str],
}

/// How an architecture builds a model.
#[derive(Clone, Copy)]
enum Build {
    /// As a whole only.
    Whole(fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>),
    /// A slice of its layers, or the whole, from the description of a text encoder.
    Text(fn(&Config) -> Result<TextForm, LoadError>, TextTask),
    /// Likewise, an image classifier.
    Image(vit_form::Form),
}

/// Describes an image classifier that is built as a whole, with the prefix of its head.
const fn image_classifier(
    name: &'static str,
    model_type: &'static str,
    build: fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>,
) -> Architecture {
    Architecture {
        name,
        model_type,
        head: Some("classifier."),
        build: Build::Whole(build),
        unused: &[],
    }
}

/// Describes the base model of an image classifier, with the tensors that it does not use.
const fn image_features(
    name: &'static str,
    model_type: &'static str,
    form: vit_form::Form,
    unused: &'static [&'static str],
) -> Architecture {
    Architecture {
        name,
        model_type,
        head: None,
        build: Build::Image(form.features()),
        unused,
    }
}

const OTHERS: [Architecture; 35] = [
    Architecture {
        name: "BeitForImageClassification",
        model_type: "beit",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::BEIT),
        unused: &["beit.embeddings.mask_token"],
    },
    Architecture {
        name: "Data2VecVisionForImageClassification",
        model_type: "data2vec-vision",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::DATA2VEC),
        unused: &["data2vec_vision.embeddings.mask_token"],
    },
    Architecture {
        name: "CLIPForImageClassification",
        model_type: "clip",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::CLIP),
        unused: &["vision_model.post_layernorm."],
    },
    Architecture {
        name: "SiglipForImageClassification",
        model_type: "siglip",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::SIGLIP),
        unused: &["vision_model.head."],
    },
    image_classifier("ResNetForImageClassification", "resnet", vision::resnet::build),
    image_classifier(
        "ConvNextForImageClassification",
        "convnext",
        vision::convnext::build,
    ),
    image_classifier(
        "ConvNextV2ForImageClassification",
        "convnextv2",
        vision::convnext::build_second,
    ),
    image_classifier(
        "EfficientNetForImageClassification",
        "efficientnet",
        vision::efficientnet::build,
    ),
    image_classifier(
        "MobileNetV1ForImageClassification",
        "mobilenet_v1",
        vision::mobilenet::build,
    ),
    image_classifier(
        "MobileNetV2ForImageClassification",
        "mobilenet_v2",
        vision::mobilenet::build_second,
    ),
    image_classifier(
        "MobileViTForImageClassification",
        "mobilevit",
        vision::mobilevit::build,
    ),
    image_classifier(
        "MobileViTV2ForImageClassification",
        "mobilevitv2",
        vision::mobilevit::build_second,
    ),
    image_classifier("BitForImageClassification", "bit", vision::bit::build),
    image_classifier("CvtForImageClassification", "cvt", vision::cvt::build),
    image_classifier(
        "PoolFormerForImageClassification",
        "poolformer",
        vision::poolformer::build,
    ),
    image_classifier("PvtV2ForImageClassification", "pvt_v2", vision::pyramid::pvt),
    image_classifier(
        "SegformerForImageClassification",
        "segformer",
        vision::pyramid::segformer,
    ),
    image_classifier("RegNetForImageClassification", "regnet", vision::regnet::build),
    image_classifier("SwinForImageClassification", "swin", vision::swin::build),
    image_classifier(
        "Swinv2ForImageClassification",
        "swinv2",
        vision::swin::build_second,
    ),
    Architecture {
        name: "ViTForImageClassification",
        model_type: "vit",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::VIT),
        unused: &["vit.pooler."],
    },
    Architecture {
        name: "ViTMSNForImageClassification",
        model_type: "vit_msn",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::VIT),
        unused: &[],
    },
    Architecture {
        name: "Dinov2ForImageClassification",
        model_type: "dinov2",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::DINO),
        unused: &["dinov2.embeddings.mask_token"],
    },
    Architecture {
        name: "Dinov2WithRegistersForImageClassification",
        model_type: "dinov2_with_registers",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::DINO_WITH_REGISTERS),
        unused: &["dinov2_with_registers.embeddings.mask_token"],
    },
    Architecture {
        name: "DeiTForImageClassification",
        model_type: "deit",
        head: Some("classifier."),
        build: Build::Image(vit_form::Form::DEIT),
        unused: &["deit.pooler."],
    },
    Architecture {
        name: "DeiTForImageClassificationWithTeacher",
        model_type: "deit",
        head: Some("cls_classifier."),
        build: Build::Image(vit_form::Form::DEIT_WITH_TEACHER),
        unused: &["deit.pooler."],
    },
    image_classifier(
        vision::blocks::MODEL_TYPE,
        vision::blocks::MODEL_TYPE,
        vision::blocks::build,
    ),
    Architecture {
        name: cnn::MODEL_TYPE,
        model_type: cnn::MODEL_TYPE,
        head: None,
        build: Build::Whole(cnn::build),
        unused: &[],
    },
    Architecture {
        name: grid::MODEL_TYPE,
        model_type: grid::MODEL_TYPE,
        head: None,
        build: Build::Whole(grid::build),
        unused: &[],
    },
    Architecture {
        name: mlp::MODEL_TYPE,
        model_type: mlp::MODEL_TYPE,
        head: None,
        build: Build::Whole(mlp::build),
        unused: &[],
    },
    image_features(
        "ViTModel",
        "vit",
        vit_form::Form::VIT,
        &["vit.pooler.", "pooler."],
    ),
    image_features("ViTMSNModel", "vit_msn", vit_form::Form::VIT, &[]),
    image_features(
        "DeiTModel",
        "deit",
        vit_form::Form::DEIT,
        &["deit.pooler.", "pooler."],
    ),
    image_features(
        "Dinov2Model",
        "dinov2",
        vit_form::Form::DINO,
        &["dinov2.embeddings.mask_token", "embeddings.mask_token"],
    ),
    image_features(
        "Dinov2WithRegistersModel",
        "dinov2_with_registers",
        vit_form::Form::DINO_WITH_REGISTERS,
        &[
            "dinov2_with_registers.embeddings.mask_token",
            "embeddings.mask_token",
        ],
    ),
];

/// Prefixes of tensors of heads that this build does not compute, or that a directory of sentence-transformers does not use.
const OTHER_HEADS: [&str; 16] = [
    "classifier.",
    "cls.",
    "decoder.",
    "discriminator_predictions.",
    "generator_lm_head.",
    "generator_predictions.",
    "head.",
    "lm_head.",
    "lm_loss.",
    "lm_predictions.",
    "logits_proj.",
    "predictions.",
    "qa_classifier.",
    "qa_outputs.",
    "sequence_summary.",
    "vocab_",
];

/// All architectures of this registry.
fn architectures() -> impl Iterator<Item = Architecture> {
    let texts = text_families::classes().map(|class| Architecture {
        name: class.name,
        model_type: class.model_type,
        head: class.head,
        build: Build::Text(class.form, class.task),
        unused: class.unused,
    });
    texts.chain(OTHERS)
}

/// Options for loading a checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadOptions {
    /// Name of the model; by default that of the directory.
    pub name: Option<String>,
    /// Slice of its layers.
    pub slice: Slice,
    /// Settings for language models.
    pub generation: Generation,
    /// Type of the weights of linear layers and embeddings; `None`: as stored, on a GPU bf16 for quantised ones.
    pub dtype: Option<WeightType>,
    /// How a token classifier finds entities, unless a request says otherwise.
    pub aggregation_strategy: AggregationStrategy,
}

/// Returns the architecture of a Hugging Face directory. Reads its `config.json`, and the header of its weights only if
/// that does not name a class.
///
/// # Errors
/// [`LoadError::UnknownArchitecture`] if this build does not support it; [`LoadError::BadKey`] if its weights are quantised by a
/// scheme that is not read; otherwise [`LoadError`], naming the file.
pub fn architecture(dir: &Path) -> Result<&'static str, LoadError> {
    let config = Config::of_directory(dir)?;
    if config.class()?.is_none() || SentenceModules::open(dir)?.is_some() {
        let checkpoint = Checkpoint::open(dir)?;
        return match decoders::of_checkpoint(&checkpoint)? {
            Some(found) => Ok(found.name()),
            None => Ok(of_checkpoint(&checkpoint)?.name),
        };
    }
    quantised::check(&config)?;
    match decoders::of_config(&config)? {
        Some(found) => Ok(found.name()),
        None => Ok(of_class(&config)?.ok_or_else(|| unknown(&config))?.name),
    }
}

/// Loads a Hugging Face directory onto a device.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn load(dir: &Path, device: &Device, options: &LoadOptions) -> Result<Loaded, LoadError> {
    load_checkpoint(Checkpoint::open(dir)?, device, options)
}

/// Loads an opened checkpoint onto a device.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn load_checkpoint(
    mut checkpoint: Checkpoint,
    device: &Device,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    let name = options.name.clone().unwrap_or_else(|| checkpoint.name.clone());
    if *device == Device::Cpu {
        checkpoint.weights.request(options.dtype);
    } else {
        let requested = checkpoint.weights.request_unquantised(options.dtype);
        requested.map_err(|dtype| LoadError::NotServed {
            name: name.clone(),
            reason: format!("`dtype = \"{dtype}\"` needs the CPU; this device has f32, bf16 and f16"),
        })?;
    }
    if let Some(found) = decoders::of_checkpoint(&checkpoint)? {
        let architecture = found.name();
        if found.task != DecoderTask::Generation {
            let (slice, strategy) = (options.slice, options.aggregation_strategy);
            let (built, totals) = text_decoder::build(checkpoint, found, device, slice, strategy)?;
            return Ok(describe(built, name, architecture, totals));
        }
        let (model, totals) = language::load(checkpoint, device, options.slice, &options.generation)?;
        let built = Built {
            model,
            task: Task::Generation,
            labels: Vec::new(),
        };
        return Ok(describe(built, name, architecture, totals));
    }
    let whole = options.slice == Slice::WHOLE;
    let entry = of_checkpoint(&checkpoint)?;
    let is_sentence = checkpoint.sentence.is_some();
    let built = match entry.build {
        Build::Whole(build) if whole => build(&mut checkpoint, device)?,
        Build::Image(form) => vit::build(&mut checkpoint, device, options.slice, form)?,
        Build::Text(form, task) => {
            let (slice, strategy) = (options.slice, options.aggregation_strategy);
            text_encoder::build(form, task, &mut checkpoint, device, slice, strategy)?
        }
        Build::Whole(_) => {
            return Err(LoadError::NotSliced {
                architecture: entry.name,
                of: options.slice.of(),
            });
        }
    };
    let totals = if whole {
        let others: &[&str] = if is_sentence { &OTHER_HEADS } else { &[] };
        checkpoint.weights.finish(&[entry.unused, others].concat())?
    } else {
        // The other slices use the remaining tensors.
        checkpoint.weights.totals()
    };
    Ok(describe(built, name, entry.name, totals))
}

fn describe(built: Built, name: String, architecture: &str, totals: WeightTotals) -> Loaded {
    Loaded {
        model: built.model,
        info: ModelInfo {
            name,
            architecture: architecture.to_owned(),
            parameters: totals.parameters,
            weight_bytes: totals.bytes,
            task: built.task,
            labels: built.labels,
        },
    }
}

/// All supported architectures.
pub(crate) fn supported() -> Vec<&'static str> {
    let entries = architectures().map(|entry| entry.name);
    entries.chain(decoders::supported()).collect()
}

/// Finds the architecture by its class, `architectures[0]`; networks of this project may have a `model_type` only.
fn of_class(config: &Config) -> Result<Option<Architecture>, LoadError> {
    let class = config.class()?;
    let model_type = config.optional::<String>("model_type")?;
    let mut known = class.iter().chain(&model_type);
    Ok(known.find_map(|name| architectures().find(|entry| entry.name == name)))
}

/// Finds the architecture of a checkpoint: by its class; in a directory of sentence-transformers, whose class may be any of
/// its family, the base model; without a class by `model_type` and the tensors of the head.
fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Architecture, LoadError> {
    let (config, weights) = (&checkpoint.config, &checkpoint.weights);
    if let Some(entry) = of_class(config)? {
        return Ok(entry);
    }
    let model_type = config.optional::<String>("model_type")?.unwrap_or_default();
    let mut family = architectures().filter(|entry| entry.model_type == model_type);
    let found = if checkpoint.sentence.is_some() {
        family.find(|entry| entry.head.is_none())
    } else if config.class()?.is_none() {
        let is_base = !OTHER_HEADS.iter().any(|head| weights.contains_prefix(head));
        family.find(|entry| match entry.head {
            Some(head) => weights.contains_prefix(head),
            None => is_base,
        })
    } else {
        None
    };
    found.ok_or_else(|| unknown(config))
}

fn unknown(config: &Config) -> LoadError {
    config.unknown_architecture(supported())
}
