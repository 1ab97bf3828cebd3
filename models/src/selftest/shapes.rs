//! Measured networks: published sizes of BERT and ViT, with random weights.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use super::random::{Filled, Uniform, safetensors};
use crate::architectures::registry::{LoadOptions, load_checkpoint};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::device::Device;
use crate::precision::WeightType;
use crate::runtime::model::{Inputs, Model};
use crate::runtime::tensor::{Tensor, TensorError};

const SEED: u64 = 2026;
const VOCABULARY: usize = 30_522;
const CONTEXT: usize = 512;
const PATCH: usize = 16;

/// Dimensions of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Name of the network.
    pub name: &'static str,
    /// Architecture of the network.
    pub family: Family,
    /// Width of the hidden state.
    pub width: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub inner: usize,
}

/// Architecture of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Text classification into two classes.
    Bert,
    /// Image classification into a thousand classes, patches of 16 pixels.
    Vit,
}

/// A network and its input size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The network.
    pub network: Network,
    /// Tokens of a text, or side of an image in pixels.
    pub extent: usize,
}

const fn network(name: &'static str, family: Family, sizes: [usize; 4]) -> Network {
    let [width, blocks, heads, inner] = sizes;
    Network {
        name,
        family,
        width,
        blocks,
        heads,
        inner,
    }
}

pub(super) const BERT_TINY: Network = network("bert-tiny", Family::Bert, [128, 2, 2, 512]);
pub(super) const BERT_SMALL: Network = network("bert-small", Family::Bert, [512, 4, 8, 2048]);
pub(super) const BERT_BASE: Network = network("bert-base", Family::Bert, [768, 12, 12, 3072]);
pub(super) const VIT_TINY: Network = network("vit-tiny", Family::Vit, [192, 12, 3, 768]);
pub(super) const VIT_BASE: Network = network("vit-base", Family::Vit, [768, 12, 12, 3072]);

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.network.name, self.extent)
    }
}

impl Network {
    /// Combines the network with an input size.
    pub(super) const fn at(self, extent: usize) -> Shape {
        Shape {
            network: self,
            extent,
        }
    }
}

impl Shape {
    /// Loads the network on a device with random weights, which are the same each time and stored as `dtype`.
    pub(super) fn load(self, device: &Device, dtype: WeightType) -> Result<Box<dyn Model>, LoadError> {
        let weights = safetensors(&self.tensors(), SEED);
        let config = self.config().to_string();
        let checkpoint = Checkpoint::from_bytes(self.network.name, config.as_bytes(), weights, None)?;
        let options = LoadOptions {
            dtype: Some(dtype),
            ..LoadOptions::default()
        };
        Ok(load_checkpoint(checkpoint, device, &options)?.model)
    }

    /// Returns a batch of random requests.
    pub(super) fn requests(self, batch: usize) -> Result<Vec<Inputs>, TensorError> {
        (0..batch).map(|index| self.request(index as u64)).collect()
    }

    fn request(self, index: u64) -> Result<Inputs, TensorError> {
        let numbers = Uniform::new(SEED, index);
        let input = match self.network.family {
            Family::Bert => {
                let id = |unit: f32| (f64::midpoint(1.0, f64::from(unit)) * VOCABULARY as f64) as i64;
                let ids: Vec<i64> = numbers.take(self.extent).map(id).collect();
                Tensor::from_i64("input_ids", &[self.extent], &ids)
            }
            Family::Vit => {
                let pixels: Vec<f32> = numbers.take(3 * self.extent * self.extent).collect();
                Tensor::from_f32("pixel_values", &[3, self.extent, self.extent], &pixels)
            }
        };
        Ok(vec![input?])
    }

    /// Returns a `config.json` in the format of transformers.
    fn config(self) -> Value {
        let Network {
            width,
            blocks,
            heads,
            inner,
            ..
        } = self.network;
        let mut config = json!({
            "hidden_size": width,
            "num_hidden_layers": blocks,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
        });
        let own = match self.network.family {
            Family::Bert => json!({
                "architectures": ["BertForSequenceClassification"],
                "model_type": "bert",
                "vocab_size": VOCABULARY,
                "max_position_embeddings": CONTEXT,
                "type_vocab_size": 2,
                "num_labels": self.labels(),
            }),
            Family::Vit => json!({
                "architectures": ["ViTForImageClassification"],
                "model_type": "vit",
                "image_size": self.extent,
                "patch_size": PATCH,
                "num_channels": 3,
                "num_labels": self.labels(),
            }),
        };
        if let (Value::Object(config), Value::Object(own)) = (&mut config, own) {
            config.extend(own);
        }
        config
    }

    fn labels(self) -> usize {
        match self.network.family {
            Family::Bert => 2,
            Family::Vit => 1000,
        }
    }

    /// Returns all tensors of the checkpoint, with their names in transformers.
    fn tensors(self) -> Vec<Filled> {
        let width = self.network.width;
        let mut tensors = match self.network.family {
            Family::Bert => bert_embeddings(width),
            Family::Vit => vit_embeddings(width, self.extent),
        };
        for index in 0..self.network.blocks {
            tensors.extend(self.block(index));
        }
        match self.network.family {
            Family::Bert => tensors.extend(linear("bert.pooler.dense", width, width)),
            Family::Vit => tensors.extend(norm("vit.layernorm", width)),
        }
        tensors.extend(linear("classifier", width, self.labels()));
        tensors
    }

    fn block(self, index: usize) -> Vec<Filled> {
        let Network { width, inner, .. } = self.network;
        let (prefix, projections, norms) = match self.network.family {
            Family::Bert => (
                format!("bert.encoder.layer.{index}"),
                "attention.self",
                ["attention.output.LayerNorm", "output.LayerNorm"],
            ),
            Family::Vit => (
                format!("vit.encoder.layer.{index}"),
                "attention.attention",
                ["layernorm_before", "layernorm_after"],
            ),
        };
        let mut tensors = Vec::new();
        for name in ["query", "key", "value"] {
            tensors.extend(linear(&format!("{prefix}.{projections}.{name}"), width, width));
        }
        tensors.extend(linear(&format!("{prefix}.attention.output.dense"), width, width));
        tensors.extend(linear(&format!("{prefix}.intermediate.dense"), width, inner));
        tensors.extend(linear(&format!("{prefix}.output.dense"), inner, width));
        for name in norms {
            tensors.extend(norm(&format!("{prefix}.{name}"), width));
        }
        tensors
    }
}

fn bert_embeddings(width: usize) -> Vec<Filled> {
    let table =
        |name: &str, rows| Filled::around(format!("bert.embeddings.{name}.weight"), &[rows, width], 0.0, 1.0);
    let mut tensors = vec![
        table("word_embeddings", VOCABULARY),
        table("position_embeddings", CONTEXT),
        table("token_type_embeddings", 2),
    ];
    tensors.extend(norm("bert.embeddings.LayerNorm", width));
    tensors
}

fn vit_embeddings(width: usize, side: usize) -> Vec<Filled> {
    let tokens = (side / PATCH) * (side / PATCH) + 1;
    let at = |name: &str| format!("vit.embeddings.{name}");
    vec![
        Filled::weight(
            at("patch_embeddings.projection.weight"),
            &[width, 3, PATCH, PATCH],
        ),
        Filled::around(at("patch_embeddings.projection.bias"), &[width], 0.0, 0.1),
        Filled::around(at("cls_token"), &[1, 1, width], 0.0, 1.0),
        Filled::around(at("position_embeddings"), &[1, tokens, width], 0.0, 1.0),
    ]
}

fn linear(prefix: &str, inputs: usize, outputs: usize) -> [Filled; 2] {
    [
        Filled::weight(format!("{prefix}.weight"), &[outputs, inputs]),
        Filled::around(format!("{prefix}.bias"), &[outputs], 0.0, 0.1),
    ]
}

fn norm(prefix: &str, width: usize) -> [Filled; 2] {
    [
        Filled::around(format!("{prefix}.weight"), &[width], 1.0, 0.1),
        Filled::around(format!("{prefix}.bias"), &[width], 0.0, 0.1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with published sizes: 110 million parameters for BERT base, 86 million for ViT base, 5.7 million for
    /// ViT tiny.
    #[test]
    fn networks_have_their_published_sizes() {
        let millions = |shape: Shape| {
            let elements = |tensor: &Filled| tensor.shape.iter().product::<usize>();
            shape.tensors().iter().map(elements).sum::<usize>() as f64 / 1e6
        };
        for (shape, expected) in [
            (BERT_TINY.at(64), 4.4),
            (BERT_SMALL.at(64), 28.8),
            (BERT_BASE.at(64), 109.5),
            (VIT_TINY.at(224), 5.7),
            (VIT_BASE.at(224), 86.6),
        ] {
            assert!(
                (millions(shape) - expected).abs() < 0.1,
                "{shape}: {}",
                millions(shape)
            );
        }
    }

    #[test]
    fn every_network_loads_strictly_and_answers() {
        let device = Device::Cpu;
        for (shape, labels) in [(BERT_TINY.at(16), 2), (VIT_TINY.at(32), 1000)] {
            let mut model = shape.load(&device, WeightType::F32).unwrap();
            let requests = shape.requests(2).unwrap();
            assert_ne!(requests[0], requests[1]);
            let answers: Vec<_> = model.run(&requests).into_iter().map(Result::unwrap).collect();
            for answer in &answers {
                let logits = answer[0].to_f32().unwrap();
                assert_eq!(logits.len(), labels);
                assert!(logits.iter().all(|logit| logit.is_finite()));
            }
            assert_ne!(
                answers[0], answers[1],
                "different requests must have different answers"
            );
        }
    }
}
