//! Tests of the translation of timm's configurations and names.

use super::*;

fn config(keys: &Value) -> Config {
    Config::parse("config.json", keys.to_string().as_bytes()).unwrap()
}

/// Returns the configuration of `timm/resnet50.a1_in1k`, with fewer classes.
fn published() -> Value {
    json!({
        "architecture": "resnet50", "num_classes": 7, "num_features": 2048, "global_pool": "avg",
        "model_args": {"num_classes": 7, "in_chans": 3},
        "pretrained_cfg": {
            "tag": "a1_in1k", "input_size": [3, 224, 224], "test_input_size": [3, 288, 288], "fixed_input_size": false,
            "interpolation": "bicubic", "crop_pct": 0.95, "test_crop_pct": 1.0, "crop_mode": "center",
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "num_classes": 7, "pool_size": [7, 7],
            "first_conv": "conv1", "classifier": "fc",
        },
    })
}

#[test]
fn a_published_file_is_translated() {
    let mut found = config(&published());
    translate(&mut found).unwrap();
    assert_eq!(
        found.class().unwrap().as_deref(),
        Some("ResNetForImageClassification")
    );
    let widths: Vec<usize> = found.required("hidden_sizes").unwrap();
    assert_eq!(widths, [256, 512, 1024, 2048]);
    assert_eq!(found.labels().unwrap().len(), 7);
    let prepared = preprocessor(&found).unwrap().unwrap();
    assert_eq!(prepared.keys()["size"], json!({"shortest_edge": 235}));
    assert_eq!(prepared.keys()["resample"], json!(3));
    let name = renamed(&found).unwrap();
    for (of_timm, expected) in [
        (
            "layer3.5.bn2.running_mean",
            "resnet.encoder.stages.2.layers.5.layer.1.normalization.running_mean",
        ),
        ("timm_model.fc.bias", "classifier.1.bias"),
        ("layer0.0.conv1.weight", "layer0.0.conv1.weight"),
        ("maxpool", "maxpool"),
    ] {
        assert_eq!(name(of_timm), expected);
    }
}

#[test]
fn a_model_of_a_thousand_classes_has_those_of_imagenet() {
    let labels = |keys: &Value| {
        let mut found = config(keys);
        translate(&mut found).unwrap();
        found.labels().unwrap()
    };
    let mut keys = published();
    keys["num_classes"] = json!(1000);
    let named = labels(&keys);
    assert_eq!(named.len(), 1000);
    assert_eq!(named[0], "tench, Tinca tinca");
    assert_eq!(named[281], "tabby, tabby cat");
    assert_eq!(named[999], "toilet tissue, toilet paper, bathroom tissue");
    keys["label_names"] = (0..1000).map(|class| format!("own {class}")).collect::<Value>();
    assert_eq!(labels(&keys)[0], "own 0");
    assert_eq!(labels(&published())[0], "LABEL_0");
}

#[test]
fn names_state_sizes() {
    let expected = |kind| {
        let sizes = [384, 12, 6];
        Some(vit::Network {
            sizes,
            patch: 32,
            image: 384,
            kind,
        })
    };
    for (name, kind) in [
        ("vit_small_patch32_384", vit::Kind::Plain),
        ("deit_small_patch32_384", vit::Kind::Plain),
        ("deit3_small_patch32_384", vit::Kind::Third),
        ("vit_small_patch32_clip_384", vit::Kind::Clip { quick: false }),
        (
            "vit_small_patch32_clip_quickgelu_384",
            vit::Kind::Clip { quick: true },
        ),
    ] {
        assert_eq!(vit::of_name(name), expected(kind), "{name}");
    }
    let dino = vit::of_name("vit_small_patch14_reg4_dinov2").unwrap();
    assert_eq!(
        (dino.kind, dino.image),
        (vit::Kind::Dino { registers: true }, 518)
    );
    for other in [
        "deit_base_patch16_clip_224",
        "vit_base_patch16_clip_gap_224",
        "vit_base_patch14_reg2_dinov2",
        "vit_base_patch0_224",
        "vit_giant_patch14_224",
        "vit_base_patch16_224_miil",
        "vit",
    ] {
        assert_eq!(vit::of_name(other), None, "{other}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_its_key() {
    for (key, value, reason) in [
        ("architecture", json!("resnetaa50"), "resnet18"),
        ("global_pool", json!("catavgmax"), "only avg"),
        ("model_args", json!({"cardinality": 32}), "`cardinality`"),
        ("model_args", json!({"layers": [1, 2]}), "4 sizes"),
        ("num_classes", json!(0), "without a classifier"),
        ("pretrained_cfg", json!({"input_size": [3, 0, 224]}), "from 1 to"),
        ("pretrained_cfg", json!({"crop_pct": 1.5}), "at most 1"),
        ("pretrained_cfg", json!({"crop_mode": "border"}), "squash"),
        ("pretrained_cfg", json!({"interpolation": "random"}), "nearest"),
    ] {
        let mut keys = published();
        keys[key] = value.clone();
        let mut found = config(&keys);
        let error = translate(&mut found).and_then(|()| preprocessor(&found).map(|_| ()));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(reason), "{key} {value}: {error}");
    }
    // A configuration of another model that happens to have this key.
    let mut other = config(&json!({"model_type": "bert", "architecture": "x"}));
    translate(&mut other).unwrap();
    assert!(renamed(&other).is_none() && preprocessor(&other).unwrap().is_none());
}
