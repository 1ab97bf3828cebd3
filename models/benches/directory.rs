//! Times a Hugging Face directory, tokenising included; used by `scripts/bench-models.py`, or alone:
//! `echo '{"texts": "texts.txt", "batch": 32}' | cargo bench -p kaskade-models --bench directory -- DIR [DTYPE]`.
//!
//! A question names a file of texts, one per line, or the side of square images of three channels (`"pixels": 224`), and a
//! batch size. The answer is the items per second over all texts, or over `items` images. `CORES` sets the number of threads.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use kaskade_models::{Cores, Device, Inputs, LoadOptions, Model, OnCores, Tensor, WeightType, load};
use serde::Deserialize;

type Failure = Box<dyn Error>;

#[derive(Deserialize)]
#[serde(default)]
struct Question {
    texts: Option<String>,
    pixels: usize,
    items: usize,
    batch: usize,
}

impl Default for Question {
    fn default() -> Self {
        Self {
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
    let model = load(Path::new(dir), &Device::Cpu, &options)?.model;
    let mut model = OnCores::new(model, Cores::start(cores)?);
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
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
