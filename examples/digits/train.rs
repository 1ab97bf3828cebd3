//! Trains a family of image classifiers, tiny to largest, on IDX files.
//!
//! ```text
//! cargo run --release -p kaskade-models --features train --example digits_train
//! cargo run --release -p kaskade-models --features train --example digits_train -- \
//!     --family mnist --data DIRECTORY --split 7000,1500,1500 --out DIRECTORY
//! ```
//!
//! It writes one Hugging Face directory per variant (`config.json`, `model.safetensors` in half precision) and
//! prints the accuracies of the written checkpoints, loaded as they are served. The weights see the training images alone;
//! the validation images are for choosing recipes. The test images are evaluated only with `--report-test`.

mod augment;
mod fit;
mod recipes;
mod save;
mod write;

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use clap::Parser;
use flate2::read::GzDecoder;
use kaskade_models::architectures::cnn::{Cnn, CnnConfig};
use kaskade_models::architectures::mlp::{Mlp, MlpConfig};
use kaskade_models::idx::LabelledImages;
use kaskade_models::{LoadOptions, Model, load};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::augment::Augmentation;
use crate::fit::{Fitting, Images};
use crate::recipes::{Family, Layers, Recipe};

/// Digits.
const LABELS: usize = 10;
/// Name that both networks give their input.
const INPUT: &str = "image";

/// Trains a family of image classifiers on IDX files.
#[derive(Debug, Parser)]
struct Arguments {
    /// Directory with one file of images and one of labels, named so; `.gz` is unpacked.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/data"))]
    data: PathBuf,
    /// Directory to write the family to.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/weights"))]
    out: PathBuf,
    /// Which family to train.
    #[arg(long, value_enum, default_value = "digits")]
    family: Family,
    /// Numbers of training, validation and test images, in file order.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "797,500,500")]
    split: Vec<usize>,
    /// Trains these variants alone, and keeps what is there of the others.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Start of all randomness.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints each variant's accuracy on the test images, too.
    #[arg(long)]
    report_test: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let &[train, validation, test] = arguments.split.as_slice() else {
        return Err("--split takes three numbers: train,validation,test".into());
    };
    let parts = read(&arguments.data)?.split([train, validation, test])?;
    let rescale = rescale(&parts[0])?;
    for (index, recipe) in arguments.family.recipes().iter().enumerate() {
        if arguments.only.is_empty() || arguments.only.iter().any(|name| name == recipe.name) {
            eprintln!("{}", recipe.name);
            let seed = arguments.seed.wrapping_add(1_000 * index as u64);
            train_variant(recipe, &arguments, &parts[0], rescale, seed)?;
        }
    }
    report(&arguments, &parts, rescale)
}

/// The labelled images in a directory.
fn read(directory: &Path) -> Result<LabelledImages, Box<dyn Error>> {
    let (images, labels) = (find(directory, "images")?, find(directory, "labels")?);
    let name = |path: &Path| path.display().to_string();
    Ok(LabelledImages::parse(
        (&name(&images), &unpacked(&images)?),
        (&name(&labels), &unpacked(&labels)?),
    )?)
}

/// The one file in a directory whose name has this word.
fn find(directory: &Path, word: &str) -> Result<PathBuf, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().contains(word) {
            found.push(entry.path());
        }
    }
    match found.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!(
            "{} has {} files named *{word}*; exactly one is needed",
            directory.display(),
            found.len()
        )
        .into()),
    }
}

fn unpacked(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).read_to_end(&mut bytes)?;
    } else {
        std::io::BufReader::new(file).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// What turns the highest intensity into 1.
fn rescale(images: &LabelledImages) -> Result<f32, Box<dyn Error>> {
    let highest = images.iter().flat_map(|(pixels, _)| pixels).max();
    match highest {
        Some(1..) => Ok(highest.map_or(1.0, |highest| 1.0 / f32::from(*highest))),
        _ => Err("the training images are absent or black".into()),
    }
}

fn train_variant(
    recipe: &Recipe,
    arguments: &Arguments,
    images: &LabelledImages,
    rescale: f32,
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let (height, width) = images.size();
    let device = Device::flex().autodiff();
    device.seed(seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let images = Images {
        width,
        samples: images
            .iter()
            .map(|(pixels, class)| {
                (
                    pixels.iter().map(|pixel| f32::from(*pixel) * rescale).collect(),
                    class,
                )
            })
            .collect(),
    };
    let fitting = Fitting {
        epochs: recipe.epochs,
        rate: recipe.rate,
        augmentation: arguments.family.augmentation().times(recipe.augment),
        device: device.clone(),
    };
    let directory = arguments.out.join(recipe.name);
    match recipe.layers {
        Layers::Mlp(hidden_sizes) => {
            let config = MlpConfig {
                inputs: height * width,
                hidden_sizes: hidden_sizes.to_vec(),
                labels: LABELS,
            };
            let network = fitting.run(config.init(&device), Mlp::forward, &images, &mut rng);
            save::mlp(&directory, [1, height, width], &config, &network)
        }
        Layers::Cnn(stages) => {
            let config = CnnConfig {
                input: [1, height, width],
                stages: stages.to_vec(),
                labels: LABELS,
            };
            let network = fitting.run(config.init(&device), Cnn::forward, &images, &mut rng);
            save::cnn(&directory, &config, &network)
        }
    }
}

/// Prints the size and the accuracy of every variant in the output directory.
fn report(
    arguments: &Arguments,
    [_, validation, test]: &[LabelledImages; 3],
    rescale: f32,
) -> Result<(), Box<dyn Error>> {
    for recipe in arguments.family.recipes() {
        let directory = arguments.out.join(recipe.name);
        if !directory.exists() {
            continue;
        }
        let mut loaded = load(&directory, &kaskade_models::Device::Cpu, &LoadOptions::default())?;
        let validation_accuracy = accuracy(loaded.model.as_mut(), validation, rescale)?;
        eprintln!(
            "{}: {} weights, {:.2} % of the validation images",
            recipe.name,
            loaded.info.parameters,
            validation_accuracy * 100.0
        );
        if arguments.report_test {
            let test = accuracy(loaded.model.as_mut(), test, rescale)?;
            eprintln!("  {:.2} % of the test images", test * 100.0);
        }
    }
    Ok(())
}

/// Share of the images that a model gets right.
fn accuracy(model: &mut dyn Model, images: &LabelledImages, rescale: f32) -> Result<f64, Box<dyn Error>> {
    let samples = images
        .tensors(INPUT, rescale)
        .map(|sample| sample.map(|(image, class)| (vec![image], class)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut right = 0;
    for batch in samples.chunks(100) {
        let (inputs, classes): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
        for (answer, class) in model.run(&inputs).into_iter().zip(classes) {
            let logits = answer?.first().map(kaskade_models::Tensor::to_f32).transpose()?;
            let best = logits
                .unwrap_or_default()
                .into_iter()
                .enumerate()
                .max_by(|a, b| a.1.total_cmp(&b.1));
            right += usize::from(best.is_some_and(|(best, _)| best == usize::from(class)));
        }
    }
    Ok(right as f64 / images.len().max(1) as f64)
}

impl Augmentation {
    fn times(self, factor: f32) -> Self {
        Self {
            shift: self.shift * factor,
            turn: self.turn * factor,
            scale: self.scale * factor,
            slant: self.slant * factor,
            noise: self.noise * factor,
        }
    }
}
