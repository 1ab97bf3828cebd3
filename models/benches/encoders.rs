//! Measures the speed of BERT, ViT, convolutional networks and perceptrons with random weights on the CPU by batch size.
//!
//! `cargo bench --profile release -p kaskade-models --bench encoders -- [SECONDS]` prints one line per network and batch
//! size: the median of the items per second; each measurement takes `SECONDS` (1 by default). `RAYON_NUM_THREADS` sets
//! the number of threads.

#![allow(clippy::print_stdout, reason = "a program that prints measurements")]

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kaskade_models::{Checkpoint, Device, Inputs, LoadOptions, Model, Tensor, load_checkpoint};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

const VOCABULARY: usize = 30_522;
const LABELS: usize = 10;
const ROUNDS: usize = 5;

type Failure = Box<dyn Error>;

/// Names and shapes of a checkpoint's tensors.
#[derive(Default)]
struct Shapes(Vec<(String, Vec<usize>)>);

/// A network with its requests.
struct Case {
    name: String,
    model: Box<dyn Model>,
    request: Inputs,
    batches: &'static [usize],
}

impl Shapes {
    fn add(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.0.push((name.into(), shape.to_vec()));
    }

    fn layer(&mut self, name: &str, shape: &[usize]) {
        self.add(format!("{name}.weight"), shape);
        let outputs = shape.first().copied().unwrap_or_default();
        self.add(format!("{name}.bias"), &[outputs]);
    }

    fn blocks(&mut self, prefix: &str, projections: &str, norms: [&str; 2], blocks: usize, width: usize) {
        for block in 0..blocks {
            let at = |name: &str| format!("{prefix}.{block}.{name}");
            for part in ["query", "key", "value"] {
                self.layer(&at(&format!("{projections}.{part}")), &[width, width]);
            }
            self.layer(&at("attention.output.dense"), &[width, width]);
            self.layer(&at("intermediate.dense"), &[4 * width, width]);
            self.layer(&at("output.dense"), &[width, 4 * width]);
            for norm in norms {
                self.layer(&at(norm), &[width]);
            }
        }
    }

    /// Loads a network with random tensors of these shapes, whose layers preserve the variance of their inputs.
    fn load(&self, name: &str, config: &Value) -> Result<Box<dyn Model>, Failure> {
        let tensors: Vec<(Vec<u8>, &[usize])> = (1..)
            .zip(&self.0)
            .map(|(seed, (_, shape))| {
                let summed: usize = shape.iter().skip(1).product();
                let spread = (3.0 / summed.max(1) as f32).sqrt();
                let values = random(seed, shape.iter().product()).map(|unit| spread * unit);
                (values.flat_map(f32::to_le_bytes).collect(), shape.as_slice())
            })
            .collect();
        let views = self.0.iter().zip(&tensors).map(|((name, _), (bytes, shape))| {
            Ok((name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes)?))
        });
        let file = serialize(views.collect::<Result<Vec<_>, Failure>>()?, None)?;
        let checkpoint =
            Checkpoint::from_bytes(name, config.to_string().as_bytes(), Bytes::from(file), None)?;
        Ok(load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())?.model)
    }
}

/// Returns uniform random numbers in [-1, 1).
fn random(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn encoder(kind: &str, model_type: &str, blocks: usize, width: usize) -> Value {
    json!({
        "architectures": [kind], "model_type": model_type, "hidden_size": width, "num_hidden_layers": blocks,
        "num_attention_heads": width / 64, "intermediate_size": 4 * width, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "num_labels": LABELS, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
        "type_vocab_size": 2, "image_size": 224, "patch_size": 16, "num_channels": 3,
    })
}

/// Builds a BERT, and an input of each of these lengths.
fn bert(
    blocks: usize,
    width: usize,
    lengths: &[usize],
    batches: &'static [usize],
) -> Result<Vec<Case>, Failure> {
    let mut shapes = Shapes::default();
    for (table, rows) in [("word", VOCABULARY), ("position", 512), ("token_type", 2)] {
        shapes.add(
            format!("bert.embeddings.{table}_embeddings.weight"),
            &[rows, width],
        );
    }
    shapes.layer("bert.embeddings.LayerNorm", &[width]);
    let norms = ["attention.output.LayerNorm", "output.LayerNorm"];
    shapes.blocks("bert.encoder.layer", "attention.self", norms, blocks, width);
    shapes.layer("bert.pooler.dense", &[width, width]);
    shapes.layer("classifier", &[LABELS, width]);
    let config = encoder("BertForSequenceClassification", "bert", blocks, width);
    let case = |length: usize| {
        let ids: Vec<i64> = (0_i64..).take(length).map(|token| token * 37 % 30_000).collect();
        Ok(Case {
            name: format!("bert-{blocks}x{width} at {length}"),
            model: shapes.load("bert", &config)?,
            request: vec![Tensor::from_i64("input_ids", &[length], &ids)?],
            batches,
        })
    };
    lengths.iter().map(|length| case(*length)).collect()
}

fn vit(blocks: usize, width: usize, batches: &'static [usize]) -> Result<Case, Failure> {
    let mut shapes = Shapes::default();
    shapes.layer("vit.embeddings.patch_embeddings.projection", &[width, 3, 16, 16]);
    shapes.add("vit.embeddings.cls_token", &[1, 1, width]);
    shapes.add("vit.embeddings.position_embeddings", &[1, 197, width]);
    let norms = ["layernorm_before", "layernorm_after"];
    shapes.blocks("vit.encoder.layer", "attention.attention", norms, blocks, width);
    shapes.layer("vit.layernorm", &[width]);
    shapes.layer("classifier", &[LABELS, width]);
    let pixels: Vec<f32> = random(1, 3 * 224 * 224).collect();
    Ok(Case {
        name: format!("vit-{blocks}x{width} at 224"),
        model: shapes.load("vit", &encoder("ViTForImageClassification", "vit", blocks, width))?,
        request: vec![Tensor::from_f32("pixel_values", &[3, 224, 224], &pixels)?],
        batches,
    })
}

/// Builds a network with these stages (channels, stride, residual blocks) for square images with one channel.
fn cnn(side: usize, stages: &[(usize, usize, usize)], batches: &'static [usize]) -> Result<Case, Failure> {
    let mut shapes = Shapes::default();
    let (mut inputs, mut extent) = (1, side);
    for (index, (channels, stride, blocks)) in stages.iter().enumerate() {
        shapes.layer(&format!("stages.{index}.entry"), &[*channels, inputs, 3, 3]);
        for block in 0..*blocks {
            for part in ["conv1", "conv2"] {
                let name = format!("stages.{index}.blocks.{block}.{part}");
                shapes.layer(&name, &[*channels, *channels, 3, 3]);
            }
        }
        (inputs, extent) = (*channels, extent.div_ceil(*stride));
    }
    shapes.layer("classifier", &[LABELS, inputs * extent * extent]);
    let stages: Vec<Value> = stages
        .iter()
        .map(|(channels, stride, blocks)| json!({"channels": channels, "stride": stride, "blocks": blocks}))
        .collect();
    let name = format!("cnn-{inputs} at {side}");
    let config = json!({
        "model_type": "kaskade-cnn", "input_shape": [1, side, side], "stages": stages, "num_labels": LABELS,
    });
    image_case(name, &shapes, &config, side, batches)
}

fn mlp(side: usize, hidden: &[usize], batches: &'static [usize]) -> Result<Case, Failure> {
    let mut shapes = Shapes::default();
    let mut inputs = side * side;
    for (index, outputs) in hidden.iter().chain([&LABELS]).enumerate() {
        shapes.layer(&format!("layers.{index}"), &[*outputs, inputs]);
        inputs = *outputs;
    }
    let config = json!({
        "model_type": "kaskade-mlp", "input_shape": [1, side, side], "hidden_sizes": hidden, "num_labels": LABELS,
    });
    image_case(
        format!("mlp-{hidden:?} at {side}"),
        &shapes,
        &config,
        side,
        batches,
    )
}

fn image_case(
    name: String,
    shapes: &Shapes,
    config: &Value,
    side: usize,
    batches: &'static [usize],
) -> Result<Case, Failure> {
    let pixels: Vec<f32> = random(1, side * side).collect();
    Ok(Case {
        model: shapes.load(&name, config)?,
        name,
        request: vec![Tensor::from_f32("image", &[1, side, side], &pixels)?],
        batches,
    })
}

/// Runs batches for a while and returns the items per second.
fn speed(model: &mut dyn Model, batch: &[Inputs], time: Duration) -> Result<f64, Failure> {
    let (started, mut items) = (Instant::now(), 0);
    while items == 0 || started.elapsed() < time {
        for result in model.run(batch) {
            result?;
            items += 1;
        }
    }
    Ok(f64::from(items) / started.elapsed().as_secs_f64())
}

fn main() -> Result<(), Failure> {
    let mut seconds = std::env::args().filter_map(|argument| argument.parse::<f64>().ok());
    let time = Duration::from_secs_f64(seconds.next_back().unwrap_or(1.0)).div_f64(ROUNDS as f64);
    let mut cases = bert(6, 384, &[32, 128, 512], &[1, 8])?;
    cases.extend(bert(12, 768, &[32, 128], &[1, 8])?);
    cases.push(vit(3, 768, &[1, 4])?);
    cases.push(cnn(8, &[(24, 1, 0), (48, 2, 0)], &[1, 4, 32])?);
    cases.push(cnn(8, &[(96, 1, 5)], &[1, 4, 32])?);
    cases.push(cnn(28, &[(16, 1, 0), (32, 2, 1), (64, 2, 1)], &[1, 4, 32])?);
    cases.push(mlp(8, &[8], &[1, 32])?);
    cases.push(mlp(8, &[128], &[1, 32])?);
    cases.push(mlp(28, &[512, 512], &[1, 32])?);
    for case in &mut cases {
        for batch in case.batches {
            let requests = vec![case.request.clone(); *batch];
            speed(case.model.as_mut(), &requests, time)?;
            let mut speeds = (0..ROUNDS)
                .map(|_| speed(case.model.as_mut(), &requests, time))
                .collect::<Result<Vec<f64>, _>>()?;
            speeds.sort_by(f64::total_cmp);
            let median = speeds.get(ROUNDS / 2).copied().unwrap_or_default();
            println!("{}\t{batch}\t{median:.2}", case.name);
        }
    }
    Ok(())
}
