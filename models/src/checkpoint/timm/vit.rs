//! Names of timm's ViT, `DeiT`, `DeiT` III (Touvron et al. 2022) and CLIP image encoders with a classifier.

use serde_json::{Value, json};

use super::{BARE_TOKENS, NORM_FIRST, PACKED, SCALED, parts, size_in_name};
use crate::checkpoint::{Config, LoadError};

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "vit_SIZE_patchN_SIDE, vit_SIZE_patchN_clip_SIDE, vit_SIZE_patchN_clip_quickgelu_SIDE, \
    vit_SIZE_patchN_dinov2, vit_SIZE_patchN_reg4_dinov2, deit_SIZE_patchN_SIDE, deit3_SIZE_patchN_SIDE";

/// Width, blocks and heads of each size.
const SIZES: [(&str, [usize; 3]); 6] = [
    ("tiny", [192, 12, 3]),
    ("small", [384, 12, 6]),
    ("medium", [512, 12, 8]),
    ("base", [768, 12, 12]),
    ("large", [1024, 24, 16]),
    ("huge", [1280, 32, 16]),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    pub sizes: [usize; 3],
    pub patch: usize,
    pub image: usize,
    pub kind: Kind,
}

/// Kind of network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// ViT.
    Plain,
    /// CLIP, optionally with quick GELU.
    Clip { quick: bool },
    /// `DeiT` III.
    Third,
    /// `DINOv2`, optionally with register tokens.
    Dino { registers: bool },
}

/// Returns width, blocks and heads of a size.
pub(super) fn size_of(name: &str) -> Option<[usize; 3]> {
    let (_, sizes) = SIZES.into_iter().find(|(known, _)| *known == name)?;
    Some(sizes)
}

/// Returns the feed-forward width for this hidden width.
///
/// # Errors
/// [`LoadError::BadKey`] for an invalid `mlp_ratio`.
pub(super) fn feed_forward_size(
    config: &Config,
    arguments: &Config,
    width: usize,
) -> Result<usize, LoadError> {
    let ratio = arguments.optional::<f64>("mlp_ratio")?.unwrap_or(4.0);
    if !(ratio > 0.0 && ratio <= 64.0) {
        return Err(config.invalid_value("model_args", "`mlp_ratio` must be above 0 and at most 64"));
    }
    Ok((width as f64 * ratio) as usize)
}

/// Parses a name such as `vit_base_patch16_224`.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let (family, rest) = name.split_once('_')?;
    let (size, rest) = rest.split_once("_patch")?;
    let (patch, rest) = rest.split_once('_')?;
    let rest = match rest.strip_suffix("dinov2") {
        // The name does not state the image size.
        Some(registers) => format!("{registers}dinov2_518"),
        None => rest.to_owned(),
    };
    let rest = rest.as_str();
    let (kind, image) = match (family, rest.strip_prefix("clip_")) {
        ("vit", Some(rest)) => {
            let quick = rest.strip_prefix("quickgelu_");
            (
                Kind::Clip {
                    quick: quick.is_some(),
                },
                quick.unwrap_or(rest),
            )
        }
        ("vit", None) if rest.ends_with("dinov2_518") => {
            let (kind, image) = rest.rsplit_once('_')?;
            let registers = match kind {
                "dinov2" => false,
                "reg4_dinov2" => true,
                _ => return None,
            };
            (Kind::Dino { registers }, image)
        }
        ("vit" | "deit", None) => (Kind::Plain, rest),
        ("deit3", None) => (Kind::Third, rest),
        _ => return None,
    };
    let sizes = size_of(size)?;
    Some(Network {
        sizes,
        patch: size_in_name(patch)?,
        image: size_in_name(image)?,
        kind,
    })
}

impl Network {
    /// Returns the keys of transformers; `arguments` override dimensions. Without classes, the network returns
    /// features.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, config: &Config, arguments: &Config) -> Result<Value, LoadError> {
        let features = config.optional("num_classes")? == Some(0_u32);
        let [width, depth, heads] = self.sizes;
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        let width = size("embed_dim", width)?;
        let image = arguments
            .optional::<Value>("img_size")?
            .unwrap_or(self.image.into());
        let is_clip = matches!(self.kind, Kind::Clip { .. });
        let quick = self.kind == Kind::Clip { quick: true };
        Ok(json!({
            "model_type": "vit",
            "architectures": [if features { "ViTModel" } else { "ViTForImageClassification" }],
            PACKED: true,
            NORM_FIRST: is_clip,
            SCALED: matches!(self.kind, Kind::Third | Kind::Dino { .. }),
            BARE_TOKENS: matches!(self.kind, Kind::Third | Kind::Dino { registers: true }),
            "num_register_tokens": if self.kind == (Kind::Dino { registers: true }) { 4 } else { 0 },
            "hidden_size": width,
            "num_hidden_layers": size("depth", depth)?,
            "num_attention_heads": size("num_heads", heads)?,
            "intermediate_size": feed_forward_size(config, arguments, width)?,
            "patch_size": size("patch_size", self.patch)?,
            "image_size": image,
            "hidden_act": if quick { "quick_gelu" } else { "gelu" },
            "layer_norm_eps": if is_clip { 1e-5 } else { 1e-6 },
        }))
    }
}

/// Returns the name of a tensor in transformers.
pub(super) fn renamed(name: &str) -> String {
    let (parts, name) = parts(name);
    match parts.as_slice() {
        ["reg_token"] => "vit.embeddings.register_tokens".to_owned(),
        ["cls_token"] => "vit.embeddings.cls_token".to_owned(),
        ["pos_embed"] => "vit.embeddings.position_embeddings".to_owned(),
        ["patch_embed", "proj", end] => format!("vit.embeddings.patch_embeddings.projection.{end}"),
        ["norm_pre", end] => format!("vit.embeddings.norm_pre.{end}"),
        ["norm", end] => format!("vit.layernorm.{end}"),
        ["head", end] => format!("classifier.{end}"),
        ["blocks", block, rest @ ..] => {
            let block = format!("vit.encoder.layer.{block}");
            match rest {
                ["ls1", "gamma"] => format!("{block}.layer_scale1.lambda1"),
                ["ls2", "gamma"] => format!("{block}.layer_scale2.lambda1"),
                ["norm1", end] => format!("{block}.layernorm_before.{end}"),
                ["norm2", end] => format!("{block}.layernorm_after.{end}"),
                ["attn", "qkv", end] => format!("{block}.attention.qkv.{end}"),
                ["attn", "proj", end] => format!("{block}.attention.output.dense.{end}"),
                ["mlp", "fc1", end] => format!("{block}.intermediate.dense.{end}"),
                ["mlp", "fc2", end] => format!("{block}.output.dense.{end}"),
                _ => name.to_owned(),
            }
        }
        _ => name.to_owned(),
    }
}
