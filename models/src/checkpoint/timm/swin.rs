//! Names of timm's Swin and Swin v2, and of their tensors.

use serde_json::{Value, json};

use super::{PACKED, parts, size_in_name, sizes};
use crate::checkpoint::{Config, LoadError};

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "swin_SIZE_patch4_windowN_SIDE, swinv2_SIZE_windowN_SIDE";

/// Channels of the first stage, blocks of the third stage, and heads of the first stage.
const SIZES: [(&str, [usize; 3]); 4] = [
    ("tiny", [96, 6, 3]),
    ("small", [96, 18, 3]),
    ("base", [128, 18, 4]),
    ("large", [192, 18, 6]),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    sizes: [usize; 3],
    window: usize,
    /// Whether the network is version 2.
    second: bool,
    /// Window size of pretraining; 0 if it equals `window`.
    trained: usize,
}

/// Parses a name such as `swin_tiny_patch4_window7_224` or `swinv2_base_window12to16_192to256`.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let second = name.strip_prefix("swinv2_");
    let (size, rest) = match second {
        Some(rest) => rest.split_once("_window")?,
        None => name.strip_prefix("swin_")?.split_once("_patch4_window")?,
    };
    let (_, sizes) = SIZES.into_iter().find(|(known, _)| *known == size)?;
    let (window, pixels) = rest.split_once('_')?;
    let (trained, window, pixels) = match (window.split_once("to"), pixels.split_once("to")) {
        (None, None) => (0, window, pixels),
        (Some((trained, window)), Some((before, pixels))) if second.is_some() => {
            size_in_name(before)?;
            (size_in_name(trained)?, window, pixels)
        }
        _ => return None,
    };
    size_in_name(pixels)?;
    Some(Network {
        sizes,
        window: size_in_name(window)?,
        second: second.is_some(),
        trained,
    })
}

impl Network {
    /// Returns the arguments that override dimensions.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        const FIRST: [&str; 6] = [
            "embed_dim",
            "depths",
            "num_heads",
            "window_size",
            "img_size",
            "pretrained_window_sizes",
        ];
        if self.second {
            &FIRST
        } else {
            FIRST.split_last().map_or(&[], |(_, first)| first)
        }
    }

    /// Returns the keys of transformers for images of this size; `arguments` override dimensions.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, arguments: &Config, image: [usize; 2]) -> Result<Value, LoadError> {
        let [height, across] = image;
        // Windows that are clipped to smaller images have the image's sides.
        if self.second && (height != across || !height.is_multiple_of(32)) {
            let reason = "images of this network must be squares whose sides are multiples of 32";
            return Err(arguments.invalid_value("img_size", reason));
        }
        let [width, depth, heads] = self.sizes;
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        let trained = [self.trained, self.trained, self.trained, self.trained / 2];
        let trained = arguments
            .optional::<Vec<usize>>("pretrained_window_sizes")?
            .unwrap_or_else(|| trained.to_vec());
        Ok(json!({
            "model_type": if self.second { "swinv2" } else { "swin" },
            "architectures": [if self.second { "Swinv2ForImageClassification" } else { "SwinForImageClassification" }],
            "pretrained_window_sizes": trained,
            PACKED: true,
            "embed_dim": size("embed_dim", width)?,
            "depths": sizes(arguments, "depths", &[2, 2, depth, 2])?,
            "num_heads": sizes(arguments, "num_heads", &[heads, 2 * heads, 4 * heads, 8 * heads])?,
            "window_size": size("window_size", self.window)?,
            "patch_size": 4,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
        }))
    }
}

/// Returns the name of a tensor in transformers.
pub(super) fn renamed(name: &str) -> String {
    renamed_in(name, "swin")
}

/// Returns the name of a version 2 tensor in transformers.
pub(super) fn renamed_second(name: &str) -> String {
    renamed_in(name, "swinv2")
}

/// Renames a tensor; `base` is the prefix of the base model in transformers.
fn renamed_in(name: &str, base: &str) -> String {
    let (parts, name) = parts(name);
    let layer = |stage: &str| format!("{base}.encoder.layers.{stage}");
    let found = match parts.as_slice() {
        ["patch_embed", "proj", end] => Some(format!("{base}.embeddings.patch_embeddings.projection.{end}")),
        ["patch_embed", "norm", end] => Some(format!("{base}.embeddings.norm.{end}")),
        ["norm", end] => Some(format!("{base}.layernorm.{end}")),
        ["head", "fc", end] => Some(format!("classifier.{end}")),
        // timm downsamples at the start of a stage, transformers at the end of the previous stage.
        ["layers", stage, "downsample", part, end] => {
            let before = stage.parse::<usize>().ok().and_then(|stage| stage.checked_sub(1));
            before.map(|stage| format!("{}.downsample.{part}.{end}", layer(&stage.to_string())))
        }
        ["layers", stage, "blocks", block, rest @ ..] => {
            let block = format!("{}.blocks.{block}", layer(stage));
            match rest {
                ["attn", "relative_position_bias_table"] => {
                    Some(format!("{block}.attention.self.relative_position_bias_table"))
                }
                ["attn", "qkv", end] => Some(format!("{block}.attention.self.qkv.{end}")),
                ["attn", part @ ("q_bias" | "v_bias" | "logit_scale")] => {
                    Some(format!("{block}.attention.self.{part}"))
                }
                ["attn", "cpb_mlp", part, end] => Some(format!(
                    "{block}.attention.self.continuous_position_bias_mlp.{part}.{end}"
                )),
                ["attn", "proj", end] => Some(format!("{block}.attention.output.dense.{end}")),
                ["norm1", end] => Some(format!("{block}.layernorm_before.{end}")),
                ["norm2", end] => Some(format!("{block}.layernorm_after.{end}")),
                ["mlp", "fc1", end] => Some(format!("{block}.intermediate.dense.{end}")),
                ["mlp", "fc2", end] => Some(format!("{block}.output.dense.{end}")),
                _ => None,
            }
        }
        _ => None,
    };
    found.unwrap_or_else(|| name.to_owned())
}
