//! Draws the scenes of `examples/traffic`, and trains what finds objects in them and what tells signs apart.
//!
//! ```text
//! cargo run --release -p kaskade-models --features train --example traffic_train
//! ```
//!
//! It writes one Hugging Face directory per variant (`config.json`, `model.safetensors` in half precision) and two sets of scenes as
//! IDX files. Scenes are composed of the digits of `examples/digits`: what is trained sees its training images alone, the
//! validation scenes its validation images, the test scenes its test images.

#[path = "../digits/augment.rs"]
mod augment;
#[path = "../digits/fit.rs"]
mod fit;
mod recipes;
mod scenes;
mod signs;
#[path = "../digits/write.rs"]
mod write;

use std::error::Error;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Parser;
use kaskade_models::architectures::cnn::{Cnn, CnnConfig};
use kaskade_models::architectures::grid_detector::{self, GridDetectorConfig};
use kaskade_models::architectures::mlp::{Mlp, MlpConfig};
use kaskade_models::idx::LabelledImages;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::augment::Augmentation;
use crate::fit::{Fitting, Images};
use crate::recipes::{DETECTORS, DIGITS, Layers, Recipe, SIGNS};
use crate::scenes::{Artist, CELL, CELLS, CROP, FAINT, NOISE, WHITE};

/// How sure a detector must be of an object.
const THRESHOLD: f32 = 0.5;

/// Nothing is changed: cells and signs are drawn differently every time as it is.
const AS_DRAWN: Augmentation = Augmentation {
    shift: 0.0,
    turn: 0.0,
    scale: 0.0,
    slant: 0.0,
    noise: 0.03,
};

/// What a detector cuts out is a pixel off now and then, faint and noisy.
const AS_CUT_OUT: Augmentation = Augmentation {
    shift: 0.8,
    turn: 4.0,
    scale: 0.05,
    slant: 0.05,
    noise: NOISE,
};

/// Draws scenes and trains the models that look at them.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder of the digits' IDX files.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/data"))]
    digits: PathBuf,
    /// Folder to write `data` and `weights` to.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/traffic"))]
    out: PathBuf,
    /// Scenes in each of the two sets.
    #[arg(long, default_value_t = 300)]
    scenes: usize,
    /// Cells that detectors are trained on.
    #[arg(long, default_value_t = 24_000)]
    cells: usize,
    /// Digits and signs that classifiers are trained on, each.
    #[arg(long, default_value_t = 6_000)]
    signs: usize,
    /// Trains these variants alone, and draws no scenes.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Start of all randomness.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let digits = LabelledImages::read(
        &arguments.digits.join("images.idx3-ubyte"),
        &arguments.digits.join("labels.idx1-ubyte"),
    )?;
    let [train, validation, test] = digits.split([797, 500, 500])?;
    if arguments.only.is_empty() {
        for (name, digits, stream) in [("validation", &validation, 1), ("test", &test, 2)] {
            write_scenes(&arguments, name, digits, stream)?;
        }
    }
    let cells = cells(&train, &arguments);
    train_all(DETECTORS, &cells, AS_DRAWN, &arguments, detector)?;
    let written = written(&train, &arguments);
    let digits = (0..scenes::DIGITS)
        .map(|digit| digit.to_string())
        .collect::<Vec<_>>();
    train_all(DIGITS, &written, AS_CUT_OUT, &arguments, |recipe| {
        classifier(recipe, &digits)
    })?;
    let signs = signs(&arguments);
    let names = signs::NAMES.map(str::to_owned).to_vec();
    train_all(SIGNS, &signs, AS_CUT_OUT, &arguments, |recipe| {
        classifier(recipe, &names)
    })
}

/// Writes a set of scenes: `[n, side, side]` intensities, and `[n, rows, columns]` labels of their cells.
fn write_scenes(
    arguments: &Arguments,
    name: &str,
    digits: &LabelledImages,
    stream: u64,
) -> Result<(), Box<dyn Error>> {
    let mut rng = ChaCha8Rng::seed_from_u64(arguments.seed);
    rng.set_stream(stream);
    let artist = Artist::new(digits);
    let (mut images, mut objects) = (Vec::new(), Vec::new());
    for _ in 0..arguments.scenes {
        let (pixels, labels) = artist.scene(&mut rng);
        images.extend(pixels);
        objects.extend(labels);
    }
    let folder = arguments.out.join("data");
    std::fs::create_dir_all(&folder)?;
    let side = CELLS * CELL;
    write_idx(
        &folder.join(format!("{name}-scenes.idx3-ubyte")),
        [arguments.scenes, side, side],
        &images,
    )?;
    write_idx(
        &folder.join(format!("{name}-objects.idx3-ubyte")),
        [arguments.scenes, CELLS, CELLS],
        &objects,
    )
}

fn write_idx(path: &Path, shape: [usize; 3], data: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut bytes = vec![0, 0, 8, 3];
    for extent in shape {
        bytes.extend(u32::try_from(extent)?.to_be_bytes());
    }
    bytes.extend_from_slice(data);
    Ok(std::fs::write(path, bytes)?)
}

/// Cells with and without objects, by class of the detectors.
fn cells(digits: &LabelledImages, arguments: &Arguments) -> Images {
    let mut rng = ChaCha8Rng::seed_from_u64(arguments.seed);
    rng.set_stream(3);
    let (artist, grid) = (Artist::new(digits), scenes::grid(THRESHOLD));
    let cell = |_| {
        let (pixels, object) = artist.cell(&mut rng);
        let class = object.map_or(0, |object| grid.class(object.kind, object.place));
        (pixels, u8::try_from(class).unwrap_or(u8::MAX))
    };
    Images {
        width: CELL,
        samples: (0..arguments.cells).map(cell).collect(),
    }
}

/// Digits, strong and faint, by class.
fn written(digits: &LabelledImages, arguments: &Arguments) -> Images {
    let mut rng = ChaCha8Rng::seed_from_u64(arguments.seed);
    rng.set_stream(5);
    let digit = |(pixels, class): (&[u8], u8)| {
        let strength = rng.random_range(FAINT..=1.0) / WHITE;
        let pixels = pixels.iter().map(|pixel| f32::from(*pixel) * strength);
        (pixels.collect(), class)
    };
    let copies = std::iter::repeat_with(|| digits.iter())
        .flatten()
        .take(arguments.signs);
    Images {
        width: CROP,
        samples: copies.map(digit).collect(),
    }
}

/// Signs, strong and faint, by class.
fn signs(arguments: &Arguments) -> Images {
    let mut rng = ChaCha8Rng::seed_from_u64(arguments.seed);
    rng.set_stream(4);
    let sign = |at: usize| {
        let class = at % signs::SIGNS;
        let strength = rng.random_range(FAINT..=1.0);
        let pixels = signs::draw(class, &mut rng).into_iter();
        (
            pixels.map(|pixel| pixel * strength).collect(),
            u8::try_from(class).unwrap_or(u8::MAX),
        )
    };
    Images {
        width: CROP,
        samples: (0..arguments.signs).map(sign).collect(),
    }
}

/// What a variant's `config.json` holds besides its layers.
struct Shape {
    /// Channels, height and width of what the network sees.
    input: [usize; 3],
    classes: usize,
    config: Value,
}

fn detector(recipe: &Recipe) -> Shape {
    let grid: GridDetectorConfig = scenes::grid(THRESHOLD);
    Shape {
        input: grid.cell,
        classes: grid.classes().unwrap_or_default(),
        config: json!({
            "architectures": [grid_detector::MODEL_TYPE],
            "model_type": grid_detector::MODEL_TYPE,
            "input_shape": grid.cell,
            "grid": grid.grid,
            "crop": grid.crop,
            "kinds": grid.kinds,
            "threshold": grid.threshold,
            layers_key(recipe): layers(recipe),
        }),
    }
}

fn classifier(recipe: &Recipe, names: &[String]) -> Shape {
    let architecture = match recipe.layers {
        Layers::Mlp(_) => kaskade_models::architectures::mlp::MODEL_TYPE,
        Layers::Cnn(_) => kaskade_models::architectures::cnn::MODEL_TYPE,
    };
    let classes = names.iter().enumerate();
    let id2label: serde_json::Map<String, Value> = classes
        .map(|(class, name)| (class.to_string(), Value::from(name.as_str())))
        .collect();
    Shape {
        input: [1, CROP, CROP],
        classes: names.len(),
        config: json!({
            "architectures": [architecture],
            "model_type": architecture,
            "input_shape": [1, CROP, CROP],
            "id2label": id2label,
            layers_key(recipe): layers(recipe),
        }),
    }
}

fn layers_key(recipe: &Recipe) -> &'static str {
    match recipe.layers {
        Layers::Mlp(_) => "hidden_sizes",
        Layers::Cnn(_) => "stages",
    }
}

fn layers(recipe: &Recipe) -> Value {
    match recipe.layers {
        Layers::Mlp(sizes) => json!(sizes),
        Layers::Cnn(stages) => json!(stages),
    }
}

fn train_all(
    recipes: &[Recipe],
    images: &Images,
    augmentation: Augmentation,
    arguments: &Arguments,
    shape: impl Fn(&Recipe) -> Shape,
) -> Result<(), Box<dyn Error>> {
    let wanted =
        |recipe: &&Recipe| arguments.only.is_empty() || arguments.only.iter().any(|name| name == recipe.name);
    for (index, recipe) in (1_u64..).zip(recipes.iter()).filter(|(_, recipe)| wanted(recipe)) {
        eprintln!("{}", recipe.name);
        let seed = arguments.seed.wrapping_add(1_000 * index);
        let device = Device::flex().autodiff();
        device.seed(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let fitting = Fitting {
            epochs: recipe.epochs,
            rate: recipe.rate,
            augmentation,
            device: device.clone(),
        };
        let Shape {
            input,
            classes,
            config,
        } = shape(recipe);
        let directory = arguments.out.join("weights").join(recipe.name);
        match recipe.layers {
            Layers::Mlp(hidden_sizes) => {
                let size = MlpConfig {
                    inputs: input.iter().product(),
                    hidden_sizes: hidden_sizes.to_vec(),
                    labels: classes,
                };
                let network = fitting.run(size.init(&device), Mlp::forward, images, &mut rng);
                write::write(&directory, &config, &network)?;
            }
            Layers::Cnn(stages) => {
                let size = CnnConfig {
                    input,
                    stages: stages.to_vec(),
                    labels: classes,
                };
                let network = fitting.run(size.init(&device), Cnn::forward, images, &mut rng);
                write::write(&directory, &config, &network)?;
            }
        }
    }
    Ok(())
}
