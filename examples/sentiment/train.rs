//! Trains a family of BERTs, tiny to small, and their tokenizer on labelled sentences: the Stanford Sentiment Treebank
//! (Socher et al. 2013), in two classes.
//!
//! ```text
//! cargo run --release -p kaskade-models --features train --example sentiment_train -- --data DIRECTORY
//! ```
//!
//! The directory holds `train.tsv`, `dev.tsv` and `test.tsv`, a sentence, a tab and a class (0 or 1) on each line. The
//! program writes one Hugging Face directory per variant (`config.json`, `tokenizer.json`, `model.safetensors` in half
//! precision) and prints the accuracies of the written checkpoints, loaded as they are served. Tokenizer and weights
//! see the training sentences alone; the others (`dev.tsv`) are for choosing recipes. The test sentences are
//! read only with `--report-test`, for the last word.

mod corpus;
mod fit;
mod network;
mod recipes;
mod save;
mod tokens;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use clap::Parser;
use kaskade_models::{Inputs, LoadOptions, Loaded, Tensor, load};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokenizers::Tokenizer;

use crate::corpus::Sentence;
use crate::network::Extents;
use crate::recipes::{FAMILY, Recipe};

/// What the classes mean, in the order of their numbers.
const LABELS: [&str; 2] = ["negative", "positive"];
/// The longest sequence, tokens.
const CONTEXT: usize = 64;

/// Trains a family of BERTs on labelled sentences.
#[derive(Debug, Parser)]
struct Arguments {
    /// Directory with `train.tsv`, `dev.tsv` and `test.tsv`.
    #[arg(long)]
    data: PathBuf,
    /// Directory to write the family to.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/sentiment/weights"))]
    out: PathBuf,
    /// Trains these variants alone, and keeps what is there of the others.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Number of word pieces.
    #[arg(long, default_value_t = 3_000)]
    vocabulary: usize,
    /// Start of all randomness.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints each variant's accuracy on the test sentences, too.
    #[arg(long)]
    report_test: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let read = |name: &str| corpus::read(&arguments.data.join(name), LABELS.len());
    let (train, dev) = (read("train.tsv")?, read("dev.tsv")?);
    let texts: Vec<&str> = train.iter().map(|sentence| sentence.text.as_str()).collect();
    let tokenizer =
        tokens::learn(&texts, arguments.vocabulary, CONTEXT).map_err(|error| error.to_string())?;
    for (index, recipe) in (0..).zip(FAMILY) {
        if arguments.only.is_empty() || arguments.only.iter().any(|name| name == recipe.name) {
            eprintln!("{}", recipe.name);
            let seed = arguments.seed.wrapping_add(1_000 * index);
            train_variant(recipe, &arguments.out, &tokenizer, &train, &dev, seed)?;
        }
    }
    for recipe in FAMILY {
        let directory = arguments.out.join(recipe.name);
        if directory.exists() {
            let mut loaded = served(&directory)?;
            let name = recipe.name;
            eprintln!("{name}: {} weights", loaded.info.parameters);
            eprintln!(
                "  {:.2} % of the dev sentences",
                accuracy(&mut loaded, &dev)? * 100.0
            );
            if arguments.report_test {
                let test = accuracy(&mut loaded, &read("test.tsv")?)?;
                eprintln!("  {:.2} % of the test sentences", test * 100.0);
            }
        }
    }
    Ok(())
}

fn train_variant(
    recipe: &Recipe,
    out: &Path,
    tokenizer: &Tokenizer,
    train: &[Sentence],
    dev: &[Sentence],
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let extents = Extents {
        shape: recipe.shape,
        vocabulary: tokenizer.get_vocab_size(true),
        context: CONTEXT,
        labels: LABELS.len(),
        dropout: recipe.training.dropout,
    };
    let sentences = corpus::tokenise(tokenizer, train).map_err(|error| error.to_string())?;
    let (directory, started) = (out.join(recipe.name), Instant::now());
    let network = extents.init(&device);
    let watch = |epoch: usize, loss: f32, network: &network::Bert| {
        save::save(&directory, &extents, &LABELS, network, tokenizer)?;
        let right = accuracy(&mut served(&directory)?, dev)? * 100.0;
        let (epochs, seconds) = (recipe.training.epochs, started.elapsed().as_secs());
        eprintln!("  epoch {epoch:>2}/{epochs}  loss {loss:.4}  dev {right:.2} %  {seconds} s");
        Ok(())
    };
    fit::fit(network, &sentences, recipe.training, &device, &mut rng, watch)?;
    Ok(())
}

/// A checkpoint as it is served.
fn served(directory: &Path) -> Result<Loaded, Box<dyn Error>> {
    Ok(load(
        directory,
        &kaskade_models::Device::Cpu,
        &LoadOptions::default(),
    )?)
}

/// Share of the sentences that a model gets right.
fn accuracy(loaded: &mut Loaded, sentences: &[Sentence]) -> Result<f64, Box<dyn Error>> {
    let mut right = 0;
    for batch in sentences.chunks(64) {
        let requests = batch
            .iter()
            .map(|sentence| Ok(vec![Tensor::from_texts("text", &[&sentence.text])?]))
            .collect::<Result<Vec<Inputs>, Box<dyn Error>>>()?;
        for (answer, sentence) in loaded.model.run(&requests).into_iter().zip(batch) {
            let logits = answer?
                .first()
                .map(Tensor::to_f32)
                .transpose()?
                .unwrap_or_default();
            let best = (0..).zip(logits).max_by(|(_, a), (_, b)| a.total_cmp(b));
            right += usize::from(best.is_some_and(|(class, _): (u8, _)| class == sentence.class));
        }
    }
    Ok(right as f64 / sentences.len().max(1) as f64)
}
