//! Compares image files with transformers' image processors, and checks that invalid files and configurations are
//! rejected.

use std::io::Write as _;

use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::decode::decode;
use super::processor::ImageProcessor;
use super::*;
use crate::architectures::registry::{LoadOptions, load_checkpoint};
use crate::checkpoint::{Config, LoadError};
use crate::device::Device;
use crate::runtime::loaded::Loaded;
use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;
use crate::selftest::fixtures;

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
    vit: Classified,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    config: Value,
    shape: Vec<usize>,
    values: Vec<f32>,
}

#[derive(Deserialize)]
struct Classified {
    file: String,
    config: Value,
    logits: Vec<f32>,
}

fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/images");
    std::fs::read(std::path::Path::new(folder).join(name)).unwrap()
}

fn expected() -> Expected {
    serde_json::from_slice(&file("expected.json")).unwrap()
}

fn config(value: &Value) -> Config {
    Config::parse("preprocessor_config.json", value.to_string().as_bytes()).unwrap()
}

fn vit(preprocessor: &Value) -> Result<Loaded, LoadError> {
    let fixture = fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == "vit")
        .unwrap();
    let mut checkpoint = fixture.checkpoint().unwrap();
    checkpoint.preprocessor = Some(config(preprocessor));
    load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
}

/// Returns the settings of the fixture `vit`.
fn settings() -> Value {
    json!({"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 8}})
}

#[test]
fn prepared_images_are_those_of_transformers() {
    let cases = expected().cases;
    assert!(cases.len() > 40, "{}", cases.len());
    for case in cases {
        let processor = ImageProcessor::read(&config(&case.config), &case.shape).unwrap();
        let pixels = decode(&file(&case.file), case.shape[0], processor.transparency()).unwrap();
        let values = processor.prepare(pixels).unwrap();
        assert_eq!(values.len(), case.values.len());
        let differences = values
            .iter()
            .zip(&case.values)
            .map(|(one, other)| (one - other).abs());
        let largest = differences.fold(0.0, f32::max);
        // JPEG decoders round differently; a PNG file decodes to the same pixels everywhere, so the rest is equal too.
        let step = 2.0 / 255.0;
        let limit = if case.file.contains(".jpg") || case.file == "lossy.webp" {
            1.01 * step
        } else {
            1e-5
        };
        assert!(largest < limit, "{} with {}: {largest}", case.file, case.config);
    }
}

#[test]
fn a_vit_classifies_a_file_as_transformers_does() {
    let Classified {
        file: name,
        config,
        logits,
    } = expected().vit;
    let mut loaded = vit(&config).unwrap();
    let bytes = file(&name);
    let url = format!("data:image/png;base64,{}", STANDARD.encode(&bytes));
    for sent in [bytes.as_slice(), url.as_bytes()] {
        // Runs in a batch with a damaged file, which fails alone.
        let damaged = vec![image_file(b"\x89PNG\r\n\x1a\n").unwrap()];
        let results = loaded.model.run(&[vec![image_file(sent).unwrap()], damaged]);
        let outputs = results[0].as_ref().unwrap();
        let found = outputs[0].to_f32().unwrap();
        for (found, expected) in found.iter().zip(&logits) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
        assert!(matches!(&results[1], Err(ModelError::BadInput { name, .. }) if name == IMAGE_FILE));
    }
}

#[test]
fn one_of_tensor_and_file_is_required() {
    let mut loaded = vit(&settings()).unwrap();
    let names: Vec<String> = loaded
        .model
        .signature()
        .inputs
        .into_iter()
        .map(|input| input.name)
        .collect();
    assert_eq!(names, ["pixel_values", IMAGE_FILE]);
    let tensor = Tensor::from_f32("pixel_values", &[3, 12, 8], &[0.0; 288]).unwrap();
    let image = image_file(&file("rgb.png")).unwrap();
    let mut run = |inputs: &[Tensor]| loaded.model.run(&[inputs.to_vec()]).remove(0);
    assert!(run(std::slice::from_ref(&tensor)).is_ok());
    assert!(run(std::slice::from_ref(&image)).is_ok());
    assert!(matches!(run(&[]), Err(ModelError::MissingInput { .. })));
    let both = run(&[tensor, image]).unwrap_err().to_string();
    assert!(both.contains("takes the place of `pixel_values`"), "{both}");
}

#[test]
fn a_checkpoint_directory_brings_its_preprocessor() {
    let fixture = fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == "cnn")
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), fixture.config).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), fixture.weights).unwrap();
    let load = || crate::load(dir.path(), &Device::Cpu, &LoadOptions::default());
    let inputs = |loaded: Loaded| loaded.model.signature().inputs.len();
    assert_eq!(inputs(load().unwrap()), 1);
    // The model has two channels, which no image file has.
    std::fs::write(
        dir.path().join("preprocessor_config.json"),
        settings().to_string(),
    )
    .unwrap();
    let error = load().err().unwrap().to_string();
    assert!(
        error.contains("preprocessor_config.json") && error.contains("1 or 3 channels"),
        "{error}"
    );
}

#[test]
fn unsupported_steps_and_sizes_are_refused_when_loading() {
    let with = |key: &str, value: Value| {
        let mut settings = settings();
        settings[key] = value;
        vit(&settings).err().unwrap().to_string()
    };
    for (key, value, reason) in [
        (
            "image_processor_type",
            json!("SwinImageProcessor"),
            "supported image processors are ViTImageProcessor",
        ),
        ("do_pad", json!(true), "this step is not supported"),
        (
            "size",
            json!({"height": 224, "width": 224}),
            "the model takes 12x8",
        ),
        ("size", json!({"longest_edge": 12}), "are supported"),
        ("size", json!({"height": 12}), "must have `height` and `width`"),
        ("size", json!("224"), "it must be a number, [height, width]"),
        ("image_mean", json!("none"), "a list of one number per channel"),
        ("size", json!(0), "from 1 to 65535"),
        ("size", json!({"height": 100_000, "width": 8}), "from 1 to 65535"),
        ("resample", json!(9), "PIL's filters"),
        ("image_mean", json!([0.5]), "3 channels"),
        ("image_std", json!([0.5, 0.0, 0.5]), "above 0"),
        ("do_center_crop", json!(true), "needs it"),
    ] {
        let error = with(key, value.clone());
        assert!(
            error.contains(reason) && error.contains("preprocessor_config.json"),
            "{key} {value}: {error}"
        );
    }
}

#[test]
fn broken_files_are_refused_with_the_reason() {
    for name in [
        "rgb.png",
        "rgb.jpg",
        "progressive.jpg",
        "grey.jpg",
        "cmyk.jpg",
        "ycck.jpg",
        "lossless.webp",
        "lossy.webp",
        "rgb.bmp",
        "palette.gif",
    ] {
        let whole = file(name);
        assert!(decode(&whole, 3, Transparency::Dropped).is_ok(), "{name}");
        // A file truncated within the pixels is rejected, not classified in part.
        for share in [2, 10, 50, 90] {
            let cut = &whole[..whole.len() * share / 100];
            assert!(
                decode(cut, 3, Transparency::Dropped).is_err(),
                "{name} cut to {share} %"
            );
        }
    }
    let mut flipped = file("rgb.png");
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    assert!(matches!(
        decode(&flipped, 3, Transparency::Dropped),
        Err(ImageError::Damaged { format: "PNG", .. })
    ));
    for other in [&b""[..], b"II*\0", b"RIFF\0\0\0\0WAVE", b"<svg>"] {
        assert_eq!(decode(other, 3, Transparency::Dropped), Err(ImageError::Format));
    }
    for other in [&b"GIF89a"[..], b"BM", b"RIFF\0\0\0\0WEBP"] {
        assert!(
            matches!(
                decode(other, 3, Transparency::Dropped),
                Err(ImageError::Damaged { .. })
            ),
            "{other:?}"
        );
    }
}

/// Returns a black grey-scale PNG file of this size.
fn black(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let mut writer = encoder.write_header().unwrap();
    let mut stream = writer.stream_writer().unwrap();
    let row = vec![0_u8; (width as usize).div_ceil(8)];
    for _ in 0..height {
        stream.write_all(&row).unwrap();
    }
    stream.finish().unwrap();
    writer.finish().unwrap();
    bytes
}

#[test]
fn a_decompression_bomb_is_refused_by_its_header() {
    let bomb = black(20_000, 20_000);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    assert!(matches!(
        decode(&bomb, 3, Transparency::Dropped),
        Err(ImageError::TooLarge {
            width: 20_000,
            height: 20_000
        })
    ));
    assert!(matches!(
        decode(&black(70_000, 1), 3, Transparency::Dropped),
        Err(ImageError::TooLarge { .. })
    ));
    // A narrow image within the limits would be resized to more pixels than allowed.
    let strip = decode(&black(65_000, 1), 3, Transparency::Dropped).unwrap();
    let settings = json!({
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
    });
    let processor = ImageProcessor::read(&config(&settings), &[3, 224, 224]).unwrap();
    assert!(matches!(
        processor.prepare(strip),
        Err(ImageError::TooLarge { .. })
    ));
    // A JPEG header can also claim any size.
    let mut jpeg = file("grey.jpg");
    let frame = jpeg.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    let refused = decode(&jpeg, 3, Transparency::Dropped);
    assert!(matches!(refused, Err(ImageError::TooLarge { .. })), "{refused:?}");
}

/// One file of each kind.
const FILES: [&str; 12] = [
    "rgb.png",
    "rgb.jpg",
    "progressive.jpg",
    "oriented-6.jpg",
    "cmyk.jpg",
    "ycck.jpg",
    "lossless.webp",
    "lossy.webp",
    "animated.webp",
    "palette.gif",
    "animated.gif",
    "rgb.bmp",
];

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(name in 0..FILES.len(), at in 0..1_000_usize, byte: u8) {
        let mut bytes = file(FILES[name]);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(pixels) = decode(&bytes, 3, Transparency::Dropped) {
            assert_eq!(pixels.data.len(), pixels.width * pixels.height * 3);
        }
    }
}
