//! Image preprocessing settings: `processor_config.json` or `preprocessor_config.json`.

use std::path::Path;

use serde_json::Value;

use super::files::optional_config;
use super::{Config, LoadError};

/// Image processors with their model types, for files that do not name a processor, as in transformers.
const PROCESSORS: [(&str, &[&str]); 12] = [
    ("BeitImageProcessor", &["beit", "data2vec-vision"]),
    (
        "BitImageProcessor",
        &["bit", "dinov2", "dinov2_with_registers", "focalnet"],
    ),
    ("CLIPImageProcessor", &["clip", "clip_vision_model", "metaclip_2"]),
    ("ChineseCLIPImageProcessor", &["chinese_clip"]),
    (
        "ConvNextImageProcessor",
        &["convnext", "convnextv2", "cvt", "regnet", "resnet"],
    ),
    ("DINOv3ViTImageProcessor", &["dinov3_convnext", "dinov3_vit"]),
    ("DeiTImageProcessor", &["deit"]),
    ("EfficientNetImageProcessor", &["efficientnet"]),
    ("MobileViTImageProcessor", &["mobilevit", "mobilevitv2"]),
    ("PoolFormerImageProcessor", &["poolformer"]),
    ("PvtImageProcessor", &["pvt_v2"]),
    ("SegformerImageProcessor", &["segformer"]),
];
/// Like [`PROCESSORS`], for processors with a single model type.
const OTHERS: [(&str, &str); 4] = [
    ("MobileNetV1ImageProcessor", "mobilenet_v1"),
    ("MobileNetV2ImageProcessor", "mobilenet_v2"),
    ("SiglipImageProcessor", "siglip"),
    ("SiglipImageProcessor", "siglip_vision_model"),
];

/// Keys of the image processor's name.
const NAMES: [&str; 2] = ["image_processor_type", "feature_extractor_type"];

/// Reads the image processor settings of a directory; `config` is the model's configuration. Settings in
/// `processor_config.json`, as saved by transformers 5, take precedence. Without a processor name, it follows from
/// `model_type`.
///
/// # Errors
/// [`LoadError`] for a file that is unreadable or malformed.
pub(super) fn read(dir: &Path, config: &Config) -> Result<Option<Config>, LoadError> {
    let key = "image_processor";
    let read = match optional_config(dir, "processor_config.json")? {
        Some(own) if own.keys().get(key).is_some_and(Value::is_object) => Some(own.nested(key)?),
        _ => optional_config(dir, "preprocessor_config.json")?,
    };
    let Some(mut read) = read else {
        return Ok(None);
    };
    let is_named = NAMES.iter().any(|key| read.keys().contains_key(*key));
    let model_type = config.optional::<String>("model_type")?.unwrap_or_default();
    if let Some(name) = of_type(&model_type).filter(|_| !is_named) {
        read.set("image_processor_type", name.into());
    }
    Ok(Some(read))
}

fn of_type(model_type: &str) -> Option<&'static str> {
    let mut several = PROCESSORS.iter();
    let several = several.find(|(_, types)| types.contains(&model_type));
    let single = || OTHERS.iter().find(|(_, own)| *own == model_type);
    several.map(|(name, _)| *name).or_else(|| Some(single()?.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn processor(model_type: &str, files: &[(&str, Value)]) -> Option<Config> {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        }
        let config = json!({"model_type": model_type}).to_string();
        read(
            dir.path(),
            &Config::parse("config.json", config.as_bytes()).unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn the_processor_of_transformers_5_comes_first() {
        let [old, new] =
            [3, 4].map(|size| json!({"image_processor_type": "CLIPImageProcessor", "size": size}));
        let nested = (
            "processor_config.json",
            json!({"image_processor": new, "processor_class": "CLIPProcessor"}),
        );
        let plain = ("preprocessor_config.json", old);
        let size = |files: &[(&str, Value)]| processor("clip", files).unwrap().size("size").unwrap();
        assert_eq!(size(&[nested.clone(), plain.clone()]), 4);
        assert_eq!(size(&[nested]), 4);
        let without = (
            "processor_config.json",
            json!({"processor_class": "CLIPProcessor"}),
        );
        assert_eq!(size(&[without, plain]), 3);
        assert!(processor("clip", &[]).is_none());
    }

    #[test]
    fn a_processor_without_a_name_is_that_of_the_model_type() {
        let named = |model_type: &str, content: Value| {
            let read = processor(model_type, &[("preprocessor_config.json", content)]).unwrap();
            read.optional::<String>("image_processor_type").unwrap()
        };
        let of = |model_type| named(model_type, json!({"size": {"shortest_edge": 224}}));
        assert_eq!(of("convnext").as_deref(), Some("ConvNextImageProcessor"));
        assert_eq!(of("clip").as_deref(), Some("CLIPImageProcessor"));
        assert_eq!(of("mobilenet_v2").as_deref(), Some("MobileNetV2ImageProcessor"));
        assert_eq!(of("vit"), None, "the default is that of ViT");
        let stated = json!({"feature_extractor_type": "ViTFeatureExtractor"});
        assert_eq!(named("clip", stated), None);
    }
}
