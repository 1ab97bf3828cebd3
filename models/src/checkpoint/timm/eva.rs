//! Names of timm's EVA-02 (Fang et al. 2023), and of their tensors.

use serde_json::{Value, json};

use super::vit::size_of;
use super::{PACKED, parts, size_in_name};
use crate::checkpoint::{Config, LoadError};

/// `model_type` and class of these networks.
pub(crate) const EVA: &str = "timm-eva";
/// Key: the feed-forward of a block has a norm before its second layer, and a layer of its own for its gates.
pub(crate) const INNER_NORM: &str = "inner_norm";
/// Key: rows and columns of patches to which positions are scaled.
pub(crate) const REFERENCE_GRID: &str = "reference_grid";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "eva02_SIZE_patchN_SIDE";

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    /// Width, blocks and heads.
    sizes: [usize; 3],
    patch: usize,
    /// Whether the network is one of the larger ones, whose blocks have inner norms and separate projections.
    large: bool,
}

/// Parses a name such as `eva02_tiny_patch14_336`.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let (size, rest) = name.strip_prefix("eva02_")?.split_once("_patch")?;
    let (patch, image) = rest.split_once('_')?;
    size_in_name(image)?;
    let large = match size {
        "tiny" | "small" => false,
        "base" | "large" => true,
        _ => return None,
    };
    Some(Network {
        sizes: size_of(size)?,
        patch: size_in_name(patch)?,
        large,
    })
}

impl Network {
    /// Returns the keys that the class reads; `arguments` override dimensions.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, config: &Config, arguments: &Config) -> Result<Value, LoadError> {
        let [width, depth, heads] = self.sizes;
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        let width = size("embed_dim", width)?;
        let ratio = arguments.optional::<f64>("mlp_ratio")?.unwrap_or(4.0 * 2.0 / 3.0);
        if !(ratio > 0.0 && ratio <= 64.0) {
            let reason = "`mlp_ratio` must be above 0 and at most 64";
            return Err(config.invalid_value("model_args", reason));
        }
        Ok(json!({
            "model_type": EVA,
            "architectures": [EVA],
            PACKED: !self.large,
            INNER_NORM: self.large,
            // The grid of images of 224 pixels.
            REFERENCE_GRID: 16,
            "hidden_size": width,
            "num_hidden_layers": size("depth", depth)?,
            "num_attention_heads": size("num_heads", heads)?,
            "intermediate_size": (width as f64 * ratio) as usize,
            "patch_size": size("patch_size", self.patch)?,
            "hidden_act": "silu",
            "layer_norm_eps": 1e-6,
        }))
    }
}

/// Returns the name of a tensor in the class.
pub(super) fn renamed(name: &str) -> String {
    let (parts, name) = parts(name);
    match parts.as_slice() {
        ["cls_token"] => "eva.embeddings.cls_token".to_owned(),
        ["pos_embed"] => "eva.embeddings.position_embeddings".to_owned(),
        ["patch_embed", "proj", end] => format!("eva.embeddings.patch_embeddings.projection.{end}"),
        ["fc_norm", end] => format!("eva.pooler.layernorm.{end}"),
        ["head", end] => format!("classifier.{end}"),
        ["blocks", ..] => format!("eva.{name}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let sizes = |name: &str| of_name(name).map(|network| (network.sizes, network.patch, network.large));
        assert_eq!(sizes("eva02_tiny_patch14_336"), Some(([192, 12, 3], 14, false)));
        assert_eq!(sizes("eva02_large_patch14_448"), Some(([1024, 24, 16], 14, true)));
        for other in [
            "eva02_base_patch16_clip_224",
            "eva02_enormous_patch14_clip_224",
            "eva_giant_patch14_336",
            "eva02_huge_patch14_224",
        ] {
            assert_eq!(sizes(other), None, "{other}");
        }
    }

    #[test]
    fn the_width_of_the_feed_forward_is_rounded_down() {
        let nothing = Config::parse("config.json", b"{}").unwrap();
        let inner = |name: &str| {
            let keys = of_name(name).unwrap().keys(&nothing, &nothing).unwrap();
            keys["intermediate_size"].as_u64().unwrap()
        };
        assert_eq!(inner("eva02_small_patch14_224"), 1024);
        assert_eq!(inner("eva02_large_patch14_224"), 2730);
    }
}
