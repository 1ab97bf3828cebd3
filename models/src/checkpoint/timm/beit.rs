//! Names of timm's `BEiT` and `BEiT` v2 (Peng et al. 2022), and of their tensors.

use serde_json::{Value, json};

use super::vit::{feed_forward_size, size_of};
use super::{PACKED, parts, size_in_name};
use crate::checkpoint::{Config, LoadError};

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "beit_SIZE_patchN_SIDE, beitv2_SIZE_patchN_SIDE";

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    /// Width, blocks and heads.
    sizes: [usize; 3],
    patch: usize,
}

/// Parses a name such as `beit_base_patch16_224`.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let rest = name
        .strip_prefix("beit_")
        .or_else(|| name.strip_prefix("beitv2_"))?;
    let (size, rest) = rest.split_once("_patch")?;
    let (patch, image) = rest.split_once('_')?;
    size_in_name(image)?;
    Some(Network {
        sizes: size_of(size).filter(|_| ["base", "large"].contains(&size))?,
        patch: size_in_name(patch)?,
    })
}

impl Network {
    /// Returns the keys of transformers; `arguments` override dimensions.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, config: &Config, arguments: &Config) -> Result<Value, LoadError> {
        let [width, depth, heads] = self.sizes;
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        let width = size("embed_dim", width)?;
        Ok(json!({
            "model_type": "beit",
            "architectures": ["BeitForImageClassification"],
            PACKED: true,
            "hidden_size": width,
            "num_hidden_layers": size("depth", depth)?,
            "num_attention_heads": size("num_heads", heads)?,
            "intermediate_size": feed_forward_size(config, arguments, width)?,
            "patch_size": size("patch_size", self.patch)?,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "use_relative_position_bias": true,
        }))
    }
}

/// Returns the name of a tensor in transformers.
pub(super) fn renamed(name: &str) -> String {
    let (parts, name) = parts(name);
    match parts.as_slice() {
        ["cls_token"] => "beit.embeddings.cls_token".to_owned(),
        ["patch_embed", "proj", end] => format!("beit.embeddings.patch_embeddings.projection.{end}"),
        ["fc_norm", end] => format!("beit.pooler.layernorm.{end}"),
        ["head", end] => format!("classifier.{end}"),
        ["blocks", block, rest @ ..] => {
            let block = format!("beit.encoder.layer.{block}");
            match rest {
                ["gamma_1"] => format!("{block}.lambda_1"),
                ["gamma_2"] => format!("{block}.lambda_2"),
                ["norm1", end] => format!("{block}.layernorm_before.{end}"),
                ["norm2", end] => format!("{block}.layernorm_after.{end}"),
                ["attn", "relative_position_bias_table"] => {
                    format!("{block}.attention.attention.relative_position_bias.relative_position_bias_table")
                }
                ["attn", "proj", end] => format!("{block}.attention.output.dense.{end}"),
                ["attn", rest @ ..] => format!("{block}.attention.{}", rest.join(".")),
                ["mlp", "fc1", end] => format!("{block}.intermediate.dense.{end}"),
                ["mlp", "fc2", end] => format!("{block}.output.dense.{end}"),
                _ => name.to_owned(),
            }
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let sizes = |name: &str| of_name(name).map(|network| (network.sizes, network.patch));
        assert_eq!(sizes("beit_large_patch16_512"), Some(([1024, 24, 16], 16)));
        assert_eq!(sizes("beitv2_base_patch16_224"), Some(([768, 12, 12], 16)));
        for other in [
            "beit_tiny_patch16_224",
            "beit3_base_patch16_224",
            "beit_base_patch16",
            "beit",
        ] {
            assert_eq!(sizes(other), None, "{other}");
        }
    }

    #[test]
    fn tensors_have_the_names_of_transformers() {
        for (of_timm, expected) in [
            ("blocks.3.attn.q_bias", "beit.encoder.layer.3.attention.q_bias"),
            (
                "timm_model.blocks.0.attn.qkv.weight",
                "beit.encoder.layer.0.attention.qkv.weight",
            ),
            ("fc_norm.bias", "beit.pooler.layernorm.bias"),
            ("mask_token", "mask_token"),
        ] {
            assert_eq!(renamed(of_timm), expected);
        }
    }
}
