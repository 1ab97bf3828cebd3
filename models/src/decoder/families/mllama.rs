//! The language model of Llama 3.2 Vision (Grattafiori et al. 2024, section 7): Llama with additional cross-attention
//! layers for images. Without an image these layers are skipped, so they are not loaded.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::Decoder;

/// Key of the cross-attention layers.
const KEY: &str = "cross_attention_layers";
/// Embedding rows after the vocabulary, which represent images.
const IMAGE_TOKENS: usize = 8;

pub(in crate::decoder) fn read(
    checkpoint: &mut Checkpoint,
    partition: Partition,
) -> Result<Decoder, LoadError> {
    let (own, reading) = layers(&checkpoint.config)?;
    checkpoint.weights.ignore(|name| {
        let parts: Vec<&str> = name.split('.').collect();
        let index = parts.windows(2).find_map(|pair| match pair {
            ["layers", index] => index.parse::<usize>().ok(),
            _ => None,
        });
        index.is_some_and(|index| reading.contains(&index))
    });
    checkpoint.config.set("num_hidden_layers", own.len().into());
    let keys = RotaryKeys {
        theta: 5e5,
        ..RotaryKeys::LLAMA
    };
    let model_config = gated::model_config(&checkpoint.config, keys)?;
    let layout = Layout {
        unused_tokens: IMAGE_TOKENS,
        layer_names: own,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Returns the number of layers without cross-attention.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::decoder) fn layer_count(config: &Config) -> Result<usize, LoadError> {
    Ok(layers(config)?.0.len())
}

/// Returns the layers without cross-attention, and those with it.
fn layers(config: &Config) -> Result<(Vec<usize>, Vec<usize>), LoadError> {
    let count = config.size("num_hidden_layers")?;
    let reading = config.required::<Vec<usize>>(KEY)?;
    let own: Vec<usize> = (0..count).filter(|index| !reading.contains(index)).collect();
    if own.is_empty() || reading.iter().any(|index| *index >= count) {
        let reason = format!("it must name some of the {count} layers, and not all");
        return Err(config.invalid_value(KEY, reason));
    }
    Ok((own, reading))
}
