//! `UltraBERT` (DMIS Lab 2026): `EuroBERT` with an attention window in two of three layers, and heads on the encoder
//! alone.

use super::{eurobert, modernbert};
use crate::architectures::encoder::activation;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};

/// Length of the layer pattern; its last layer is global.
const PERIOD: usize = 3;

/// Describes an `UltraBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = eurobert::of_layers(config, activation(config, "hidden_act")?)?;
    text.base = "ultrabert";
    let head_dim = text.encoder.attention_width / text.encoder.heads;
    // The first files list windows and rotary bases per layer.
    let windows = config.optional::<Vec<Option<usize>>>("attention_windows")?;
    let windows = windows.map(|windows| windows.into_iter().map(|window| window.filter(|size| *size > 0)));
    let windows: Option<Vec<Option<usize>>> = windows.map(Iterator::collect);
    let window = windows.iter().flatten().find_map(|window| *window);
    let window = match window {
        Some(window) => window,
        None => config.optional_size("sliding_window")?.unwrap_or(128),
    };
    let kinds = global_layers(config, text.blocks.len(), windows.as_deref())?;
    let thetas = config.optional::<Vec<f64>>("rope_theta")?.unwrap_or_default();
    let listed = |wanted: bool| {
        let mut of_kind = kinds.iter().zip(&thetas).filter(|(kind, _)| **kind == wanted);
        of_kind.next_back().map(|(_, theta)| *theta)
    };
    for (block, global) in text.blocks.iter_mut().zip(&kinds) {
        let (kind, absent) = if *global {
            ("full_attention", listed(true).unwrap_or(2_560_000.0))
        } else {
            ("sliding_attention", listed(false).unwrap_or(10_000.0))
        };
        block.window = (!global).then_some(window);
        let rotary = modernbert::rotary_of(config, kind, ("rope_parameters", absent), head_dim)?;
        block.rotary = Some(rotary);
    }
    text.classifier = TextHeadConfig {
        pooling: modernbert::pooling(config)?,
        ..TextHeadConfig::TOKENS
    };
    Ok(text)
}

/// Returns whether each of `count` layers is global.
fn global_layers(
    config: &Config,
    count: usize,
    windows: Option<&[Option<usize>]>,
) -> Result<Vec<bool>, LoadError> {
    let key = "layer_types";
    let kinds = config.optional::<Vec<String>>(key)?;
    let of = |kind: &String| match kind.as_str() {
        "full_attention" => Some(true),
        "sliding_attention" => Some(false),
        _ => None,
    };
    let global = match (&kinds, windows) {
        (Some(kinds), _) => kinds.iter().map(of).collect(),
        (None, Some(windows)) => Some(windows.iter().map(Option::is_none).collect()),
        (None, None) => Some((1..=count).map(|layer| layer.is_multiple_of(PERIOD)).collect()),
    };
    let global: Option<Vec<bool>> = global;
    global.filter(|global| global.len() == count).ok_or_else(|| {
        let reason = "it must be sliding_attention or full_attention, once for every layer";
        config.invalid_value(key, reason)
    })
}
