//! Measures a Hugging Face directory, including tokenization; used by `scripts/bench-models.py`, or alone:
//! `echo '{"texts": "texts.txt", "batch": 32}' | cargo bench -p kaskade-models --bench directory -- DIR [DTYPE]`.
//!
//! A line of input states a file of texts, one per line, or the size of square images with three channels
//! (`"pixels": 224`), and a batch size. Prints the items per second over all texts, or over `items` images. `CORES` sets
//! the number of threads.
//!
//! `{"load": true}` prints the seconds for loading the directory again and for reading its weights from the page cache,
//! the bytes of the weights, and the resident memory that the first load added, at its peak and at its end.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use kaskade_models::{Cores, Device, Inputs, LoadOptions, Model, PinnedModel, Tensor, WeightType, load};
use serde::Deserialize;

type Failure = Box<dyn Error>;

#[derive(Deserialize)]
#[serde(default)]
struct Question {
    /// Measures loading instead.
    load: bool,
    texts: Option<String>,
    pixels: usize,
    items: usize,
    batch: usize,
}

impl Default for Question {
    fn default() -> Self {
        Self {
            load: false,
            texts: None,
            pixels: 224,
            items: 8,
            batch: 1,
        }
    }
}

impl Question {
    fn requests(&self) -> Result<Vec<Inputs>, Failure> {
        if let Some(file) = &self.texts {
            let texts = std::fs::read_to_string(file)?;
            let requests = texts
                .lines()
                .map(|text| Ok(vec![Tensor::from_texts("text", &[text])?]));
            return requests.collect();
        }
        let count = 3 * self.pixels * self.pixels;
        let values: Vec<f32> = (0..count)
            .map(|index| ((index * 37) % 255) as f32 / 127.0 - 1.0)
            .collect();
        let image = Tensor::from_f32("pixel_values", &[3, self.pixels, self.pixels], &values)?;
        Ok(vec![vec![image]; self.items])
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let [dir, rest @ ..] = arguments.as_slice() else {
        return Err("give the directory of a model".into());
    };
    let options = LoadOptions {
        dtype: rest.first().map(|name| name.parse::<WeightType>()).transpose()?,
        ..LoadOptions::default()
    };
    let cores = std::env::var("CORES")
        .ok()
        .map(|cores| cores.parse())
        .transpose()?;
    let dir = Path::new(dir);
    let before = resident("VmRSS")?;
    let model = load(dir, &Device::Cpu, &options)?.model;
    let memory = [resident("VmHWM")?, resident("VmRSS")?].map(|bytes| bytes.saturating_sub(before));
    let mut model = PinnedModel::new(model, Cores::start(cores)?);
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        if question.load {
            println!("{}", loading(dir, &options, memory)?);
            continue;
        }
        let requests = question.requests()?;
        let began = Instant::now();
        for batch in requests.chunks(question.batch.max(1)) {
            for answer in model.run(batch) {
                answer?;
            }
        }
        let per_s = requests.len() as f64 / began.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({ "items_per_s": per_s }));
    }
    Ok(())
}

/// Returns measurements of loading as JSON.
fn loading(dir: &Path, options: &LoadOptions, [most, after]: [u64; 2]) -> Result<serde_json::Value, Failure> {
    let file = dir.join("model.safetensors");
    let began = Instant::now();
    let bytes = std::fs::read(file)?.len();
    let read_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let model = load(dir, &Device::Cpu, options)?.model;
    let load_s = began.elapsed().as_secs_f64();
    drop(model);
    Ok(serde_json::json!({
        "load_s": load_s, "read_s": read_s, "file_bytes": bytes, "most_bytes": most, "bytes": after
    }))
}

/// Returns a memory size of this process in `/proc/self/status`, bytes.
fn resident(name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(1024 * kilobytes.ok_or("no such size of memory")?.parse::<u64>()?)
}
