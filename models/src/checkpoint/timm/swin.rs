//! The names of timm's Swin, and of its tensors.

use serde_json::{Value, json};

use super::{MAX_SIZE, PACKED, parts, sizes};
use crate::checkpoint::{Config, LoadError};

/// The names, for errors.
pub(super) const SUPPORTED: &str = "swin_SIZE_patch4_windowN_SIDE";

/// Channels of the first stage, blocks of the third stage, and heads of the first one.
const SIZES: [(&str, [usize; 3]); 4] = [
    ("tiny", [96, 6, 3]),
    ("small", [96, 18, 3]),
    ("base", [128, 18, 4]),
    ("large", [192, 18, 6]),
];

/// A network of a name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    sizes: [usize; 3],
    window: usize,
}

/// Reads a name such as `swin_tiny_patch4_window7_224`.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let (size, rest) = name.strip_prefix("swin_")?.split_once("_patch4_window")?;
    let (_, sizes) = SIZES.into_iter().find(|(known, _)| *known == size)?;
    let (window, pixels) = rest.split_once('_')?;
    let number = |digits: &str| {
        let number = digits.parse::<usize>().ok();
        number.filter(|number| (1..=MAX_SIZE).contains(number))
    };
    number(pixels)?;
    Some(Network {
        sizes,
        window: number(window)?,
    })
}

impl Network {
    /// Returns the keys of transformers; `arguments` replace sizes.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, arguments: &Config) -> Result<Value, LoadError> {
        let [width, depth, heads] = self.sizes;
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        Ok(json!({
            "model_type": "swin",
            "architectures": ["SwinForImageClassification"],
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

/// Returns the name that transformers gives a tensor.
pub(super) fn renamed(name: &str) -> String {
    let (parts, name) = parts(name);
    let layer = |stage: &str| format!("swin.encoder.layers.{stage}");
    let found = match parts.as_slice() {
        ["patch_embed", "proj", end] => Some(format!("swin.embeddings.patch_embeddings.projection.{end}")),
        ["patch_embed", "norm", end] => Some(format!("swin.embeddings.norm.{end}")),
        ["norm", end] => Some(format!("swin.layernorm.{end}")),
        ["head", "fc", end] => Some(format!("classifier.{end}")),
        // Here at the beginning of a stage, there at the end of the one before.
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
