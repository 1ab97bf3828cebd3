//! Image architectures, including dual encoders of texts and images.

use super::architecture::{Architecture, Build};
use super::dual::DualEncoderConfig;
use super::dual::clip;
use super::vit::config::VitConfig;
use super::{cnn, grid_detector, mlp, vision};
use crate::checkpoint::timm::EVA;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::device::Device;
use crate::runtime::loaded::Built;
use crate::tasks::embedding::Pooling;

/// Defines an image classifier that is built as a whole, with the prefix of its head.
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

/// Defines the base model of an image classifier, with the tensors that it does not use.
const fn image_features(
    name: &'static str,
    model_type: &'static str,
    vit: VitConfig,
    unused: &'static [&'static str],
) -> Architecture {
    Architecture {
        name,
        model_type,
        head: None,
        build: Build::Image(vit.features()),
        unused,
    }
}

/// All image architectures.
pub(super) const IMAGES: [Architecture; 59] = [
    Architecture {
        name: "BeitForImageClassification",
        model_type: "beit",
        head: Some("classifier."),
        build: Build::Image(VitConfig::BEIT),
        unused: &["beit.embeddings.mask_token"],
    },
    Architecture {
        name: "Data2VecVisionForImageClassification",
        model_type: "data2vec-vision",
        head: Some("classifier."),
        build: Build::Image(VitConfig::DATA2VEC),
        unused: &["data2vec_vision.embeddings.mask_token"],
    },
    Architecture {
        name: EVA,
        model_type: EVA,
        head: Some("classifier."),
        build: Build::Image(VitConfig::EVA),
        unused: &[],
    },
    Architecture {
        name: "CLIPForImageClassification",
        model_type: "clip",
        head: Some("classifier."),
        build: Build::Image(VitConfig::CLIP),
        unused: &[
            "vision_model.post_layernorm.",
            "vision_model.embeddings.position_ids",
        ],
    },
    Architecture {
        name: "MetaClip2ForImageClassification",
        model_type: "metaclip_2",
        head: Some("classifier."),
        build: Build::Image(VitConfig::CLIP),
        unused: &[
            "vision_model.post_layernorm.",
            "vision_model.embeddings.position_ids",
        ],
    },
    Architecture {
        name: "IJepaForImageClassification",
        model_type: "ijepa",
        head: Some("classifier."),
        build: Build::Image(VitConfig::IJEPA),
        unused: &["ijepa.embeddings.mask_token"],
    },
    Architecture {
        name: "SiglipForImageClassification",
        model_type: "siglip",
        head: Some("classifier."),
        build: Build::Image(VitConfig::SIGLIP),
        unused: &["vision_model.head.", "vision_model.embeddings.position_ids"],
    },
    image_classifier(
        "ResNetForImageClassification",
        "resnet",
        vision::build::<vision::resnet::ResNet>,
    ),
    image_classifier(
        "ConvNextForImageClassification",
        "convnext",
        vision::build::<vision::convnext::ConvNext>,
    ),
    image_classifier(
        "ConvNextV2ForImageClassification",
        "convnextv2",
        vision::build::<vision::convnext::ConvNextV2>,
    ),
    image_classifier(
        "EfficientNetForImageClassification",
        "efficientnet",
        vision::build::<vision::efficientnet::EfficientNet>,
    ),
    image_classifier(
        "MobileNetV1ForImageClassification",
        "mobilenet_v1",
        vision::build::<vision::mobilenet::MobileNetV1>,
    ),
    image_classifier(
        "MobileNetV2ForImageClassification",
        "mobilenet_v2",
        vision::build::<vision::mobilenet::MobileNetV2>,
    ),
    image_classifier(
        "MobileViTForImageClassification",
        "mobilevit",
        vision::build::<vision::mobilevit::MobileVit>,
    ),
    image_classifier(
        "MobileViTV2ForImageClassification",
        "mobilevitv2",
        vision::build::<vision::mobilevit::MobileVitV2>,
    ),
    image_classifier(
        "BitForImageClassification",
        "bit",
        vision::build::<vision::bit::Bit>,
    ),
    image_classifier(
        "CvtForImageClassification",
        "cvt",
        vision::build::<vision::cvt::Cvt>,
    ),
    image_classifier(
        "HieraForImageClassification",
        "hiera",
        vision::build::<vision::hiera::Hiera>,
    ),
    image_classifier(
        "PoolFormerForImageClassification",
        "poolformer",
        vision::build::<vision::poolformer::PoolFormer>,
    ),
    image_classifier(
        "PvtForImageClassification",
        "pvt",
        vision::build::<vision::pvt::FirstPvt>,
    ),
    image_classifier(
        "PvtV2ForImageClassification",
        "pvt_v2",
        vision::build::<vision::pyramid::Pvt>,
    ),
    image_classifier(
        "SegformerForImageClassification",
        "segformer",
        vision::build::<vision::pyramid::Segformer>,
    ),
    image_classifier(
        "RegNetForImageClassification",
        "regnet",
        vision::build::<vision::regnet::RegNet>,
    ),
    Architecture {
        head: Some("fc."),
        ..image_classifier(
            "HGNetV2ForImageClassification",
            "hgnet_v2",
            vision::build::<vision::hgnet::HgNetV2>,
        )
    },
    Architecture {
        head: Some("fc."),
        ..image_classifier(
            "TextNetForImageClassification",
            "textnet",
            vision::build::<vision::textnet::TextNet>,
        )
    },
    Architecture {
        head: Some("head."),
        ..image_classifier(
            "SwiftFormerForImageClassification",
            "swiftformer",
            vision::build::<vision::swiftformer::SwiftFormer>,
        )
    },
    image_classifier(
        "FocalNetForImageClassification",
        "focalnet",
        vision::build::<vision::focalnet::FocalNet>,
    ),
    image_classifier(
        "SwinForImageClassification",
        "swin",
        vision::build::<vision::swin::Swin>,
    ),
    image_classifier(
        "Swinv2ForImageClassification",
        "swinv2",
        vision::build::<vision::swin::SwinV2>,
    ),
    Architecture {
        name: "ViTForImageClassification",
        model_type: "vit",
        head: Some("classifier."),
        build: Build::Image(VitConfig::VIT),
        unused: &["vit.pooler."],
    },
    Architecture {
        name: "ViTMSNForImageClassification",
        model_type: "vit_msn",
        head: Some("classifier."),
        build: Build::Image(VitConfig::VIT),
        unused: &[],
    },
    Architecture {
        name: "Dinov2ForImageClassification",
        model_type: "dinov2",
        head: Some("classifier."),
        build: Build::Image(VitConfig::DINO),
        unused: &["dinov2.embeddings.mask_token"],
    },
    Architecture {
        name: "Dinov2WithRegistersForImageClassification",
        model_type: "dinov2_with_registers",
        head: Some("classifier."),
        build: Build::Image(VitConfig::DINO_WITH_REGISTERS),
        unused: &["dinov2_with_registers.embeddings.mask_token"],
    },
    Architecture {
        name: "DeiTForImageClassification",
        model_type: "deit",
        head: Some("classifier."),
        build: Build::Image(VitConfig::DEIT),
        unused: &["deit.pooler."],
    },
    Architecture {
        name: "DeiTForImageClassificationWithTeacher",
        model_type: "deit",
        head: Some("cls_classifier."),
        build: Build::Image(VitConfig::DEIT_WITH_TEACHER),
        unused: &["deit.pooler."],
    },
    image_classifier(
        vision::densenet::MODEL_TYPE,
        vision::densenet::MODEL_TYPE,
        vision::build::<vision::densenet::DenseNet>,
    ),
    image_classifier(
        vision::timm_resnet::MODEL_TYPE,
        vision::timm_resnet::MODEL_TYPE,
        vision::build::<vision::timm_resnet::TimmResNet>,
    ),
    image_classifier(
        vision::mixer::MODEL_TYPE,
        vision::mixer::MODEL_TYPE,
        vision::build::<vision::mixer::Mixer>,
    ),
    image_classifier(
        vision::repvgg::MODEL_TYPE,
        vision::repvgg::MODEL_TYPE,
        vision::build::<vision::repvgg::RepVgg>,
    ),
    Architecture {
        // The auxiliary classifier is for training only.
        unused: &["timm_model.AuxLogits.", "AuxLogits."],
        ..image_classifier(
            vision::inception::MODEL_TYPE,
            vision::inception::MODEL_TYPE,
            vision::build::<vision::inception::Inception>,
        )
    },
    image_classifier(
        vision::vgg::MODEL_TYPE,
        vision::vgg::MODEL_TYPE,
        vision::build::<vision::vgg::Vgg>,
    ),
    image_classifier(
        vision::blocks::MODEL_TYPE,
        vision::blocks::MODEL_TYPE,
        vision::build::<vision::blocks::Blocks>,
    ),
    Architecture {
        name: cnn::MODEL_TYPE,
        model_type: cnn::MODEL_TYPE,
        head: None,
        build: Build::Whole(cnn::build),
        unused: &[],
    },
    Architecture {
        name: grid_detector::MODEL_TYPE,
        model_type: grid_detector::MODEL_TYPE,
        head: None,
        build: Build::Whole(grid_detector::build),
        unused: &[],
    },
    Architecture {
        name: mlp::MODEL_TYPE,
        model_type: mlp::MODEL_TYPE,
        head: None,
        build: Build::Whole(mlp::build),
        unused: &[],
    },
    image_features("ViTModel", "vit", VitConfig::VIT, &["vit.pooler.", "pooler."]),
    Architecture {
        name: "CLIPModel",
        model_type: "clip",
        head: Some("visual_projection."),
        build: Build::Dual(DualEncoderConfig {
            text: clip::projected_text,
            pooling: Pooling::End,
            image: VitConfig::CLIP_PROJECTED,
        }),
        unused: &["logit_scale", "vision_model.embeddings.position_ids"],
    },
    Architecture {
        name: "MetaClip2Model",
        model_type: "metaclip_2",
        head: Some("visual_projection."),
        build: Build::Dual(DualEncoderConfig {
            text: clip::meta_text,
            pooling: Pooling::End,
            image: VitConfig::CLIP_PROJECTED,
        }),
        unused: &["logit_scale"],
    },
    Architecture {
        name: "ChineseCLIPModel",
        model_type: "chinese_clip",
        head: Some("visual_projection."),
        build: Build::Dual(DualEncoderConfig {
            text: clip::chinese_text,
            pooling: Pooling::First,
            image: VitConfig::CLIP_PROJECTED,
        }),
        unused: &[
            "logit_scale",
            "text_model.pooler.",
            "vision_model.embeddings.position_ids",
        ],
    },
    Architecture {
        name: "CLIPVisionModelWithProjection",
        model_type: "clip_vision_model",
        head: Some("visual_projection."),
        build: Build::Image(VitConfig::CLIP_PROJECTED),
        unused: &["vision_model.embeddings.position_ids"],
    },
    Architecture {
        name: "CLIPVisionModel",
        model_type: "clip_vision_model",
        head: None,
        build: Build::Image(VitConfig::CLIP_FEATURES),
        unused: &["vision_model.embeddings.position_ids", "embeddings.position_ids"],
    },
    Architecture {
        name: "SiglipModel",
        model_type: "siglip",
        head: Some("text_model."),
        build: Build::Dual(DualEncoderConfig {
            text: clip::siglip_text,
            pooling: Pooling::End,
            image: VitConfig::SIGLIP_FEATURES,
        }),
        unused: &[
            "logit_scale",
            "logit_bias",
            "vision_model.embeddings.position_ids",
        ],
    },
    Architecture {
        name: "SiglipVisionModel",
        model_type: "siglip_vision_model",
        head: None,
        build: Build::Image(VitConfig::SIGLIP_FEATURES),
        unused: &["vision_model.embeddings.position_ids", "embeddings.position_ids"],
    },
    Architecture {
        name: "DINOv3ViTModel",
        model_type: "dinov3_vit",
        head: None,
        build: Build::Image(VitConfig::DINO_ROTARY),
        unused: &["embeddings.mask_token", "model.embeddings.mask_token"],
    },
    Architecture {
        name: "DINOv3ConvNextModel",
        model_type: "dinov3_convnext",
        head: None,
        build: Build::Whole(vision::build_features::<vision::convnext::DinoConvNext>),
        unused: &[],
    },
    image_features("ViTMSNModel", "vit_msn", VitConfig::VIT, &[]),
    image_features("DeiTModel", "deit", VitConfig::DEIT, &["deit.pooler.", "pooler."]),
    image_features(
        "Dinov2Model",
        "dinov2",
        VitConfig::DINO,
        &["dinov2.embeddings.mask_token", "embeddings.mask_token"],
    ),
    image_features(
        "Dinov2WithRegistersModel",
        "dinov2_with_registers",
        VitConfig::DINO_WITH_REGISTERS,
        &[
            "dinov2_with_registers.embeddings.mask_token",
            "embeddings.mask_token",
        ],
    ),
];
