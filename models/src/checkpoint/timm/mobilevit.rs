//! Names of timm's `MobileViT` and `MobileViT` v2, and of their tensors.

use serde_json::{Value, json};

use super::{PACKED, parts};

/// Supported names, for errors.
pub(super) const SUPPORTED: &str =
    "mobilevit_xxs, xs and s, mobilevitv2_050, 075, 100, 125, 150, 175 and 200";

/// `MobileViT`: factor of the width inside a residual block, channels of the stages and of the features, and widths
/// of the transformers.
const FIRST: [(&str, f64, [usize; 7], [usize; 3]); 3] = [
    ("mobilevit_xxs", 2.0, [16, 16, 24, 48, 64, 80, 320], [64, 80, 96]),
    ("mobilevit_xs", 4.0, [16, 32, 48, 64, 80, 96, 384], [96, 120, 144]),
    (
        "mobilevit_s",
        4.0,
        [16, 32, 64, 96, 128, 160, 640],
        [144, 192, 240],
    ),
];
/// Percentages by which the channels of `MobileViT` v2 are multiplied.
const SECOND: [(&str, u32); 7] = [
    ("050", 50),
    ("075", 75),
    ("100", 100),
    ("125", 125),
    ("150", 150),
    ("175", 175),
    ("200", 200),
];

/// Prefix of the tensors of `MobileViT` v2 in transformers.
const SECOND_BASE: &str = "mobilevitv2";

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Network {
    First {
        expansion: f64,
        channels: [usize; 7],
        widths: [usize; 3],
    },
    Second {
        percentage: u32,
    },
}

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    if let Some(factor) = name.strip_prefix("mobilevitv2_") {
        let (_, percentage) = SECOND.into_iter().find(|(known, _)| *known == factor)?;
        return Some(Network::Second { percentage });
    }
    let (_, expansion, channels, widths) = FIRST.into_iter().find(|(known, ..)| *known == name)?;
    Some(Network::First {
        expansion,
        channels,
        widths,
    })
}

impl Network {
    /// Returns the keys of transformers.
    pub(super) fn keys(self) -> Value {
        match self {
            Self::First {
                expansion,
                channels,
                widths,
            } => json!({
                "model_type": "mobilevit",
                "architectures": ["MobileViTForImageClassification"],
                PACKED: true,
                "expand_ratio": expansion,
                "neck_hidden_sizes": channels,
                "hidden_sizes": widths,
                "num_attention_heads": 4,
                "patch_size": 2,
                "hidden_act": "silu",
                "layer_norm_eps": 1e-5,
            }),
            Self::Second { percentage } => json!({
                "model_type": "mobilevitv2",
                "architectures": ["MobileViTV2ForImageClassification"],
                "width_multiplier": f64::from(percentage) / 100.0,
                "n_attn_blocks": [2, 4, 3],
                "base_attn_unit_dims": [128, 192, 256],
                "patch_size": 2,
                "hidden_act": "silu",
                "layer_norm_eps": 1e-5,
            }),
        }
    }
}

/// Returns the name of a tensor of `MobileViT` in transformers.
pub(super) fn renamed(name: &str) -> String {
    named(name, "mobilevit").unwrap_or_else(|| parts(name).1.to_owned())
}

/// Returns the name of a tensor of `MobileViT` v2 in transformers.
pub(super) fn renamed_second(name: &str) -> String {
    named(name, SECOND_BASE).unwrap_or_else(|| parts(name).1.to_owned())
}

fn named(name: &str, base: &str) -> Option<String> {
    let (parts, _) = parts(name);
    Some(match parts.as_slice() {
        ["stem", rest @ ..] => format!("{base}.conv_stem.{}", convolution(rest)?),
        ["final_conv", rest @ ..] => format!("{base}.conv_1x1_exp.{}", convolution(rest)?),
        ["head", "fc", end] => format!("classifier.{end}"),
        ["stages", stage @ ("0" | "1"), block, rest @ ..] => {
            format!("{base}.encoder.layer.{stage}.layer.{block}.{}", residual(rest)?)
        }
        ["stages", stage, "0", rest @ ..] => {
            format!(
                "{base}.encoder.layer.{stage}.downsampling_layer.{}",
                residual(rest)?
            )
        }
        ["stages", stage, "1", rest @ ..] => format!(
            "{base}.encoder.layer.{stage}.{}",
            transformer(rest, base == SECOND_BASE)?
        ),
        _ => return None,
    })
}

/// Returns the name of a tensor of a convolution or its norm.
fn convolution(parts: &[&str]) -> Option<String> {
    match parts {
        ["conv", end] => Some(format!("convolution.{end}")),
        ["bn", end] => Some(format!("normalization.{end}")),
        _ => None,
    }
}

/// Returns the name of a tensor within a residual block.
fn residual(parts: &[&str]) -> Option<String> {
    let (layer, rest) = parts.split_first()?;
    let layer = match *layer {
        "conv1_1x1" => "expand_1x1",
        "conv2_kxk" => "conv_3x3",
        "conv3_1x1" => "reduce_1x1",
        _ => return None,
    };
    Some(format!("{layer}.{}", convolution(rest)?))
}

/// Returns the name of a tensor within a stage with transformer layers.
fn transformer(parts: &[&str], second: bool) -> Option<String> {
    Some(match parts {
        ["conv_1x1", end] => format!("conv_1x1.convolution.{end}"),
        ["conv_kxk", rest @ ..] => format!("conv_kxk.{}", convolution(rest)?),
        ["conv_proj", rest @ ..] => format!("conv_projection.{}", convolution(rest)?),
        ["conv_fusion", rest @ ..] => format!("fusion.{}", convolution(rest)?),
        ["norm", end] => format!("layernorm.{end}"),
        ["transformer", layer, rest @ ..] => {
            let part = match rest {
                ["norm1", end] => format!("layernorm_before.{end}"),
                ["norm2", end] => format!("layernorm_after.{end}"),
                ["attn", "qkv", end] => format!("attention.qkv.{end}"),
                ["attn", "proj", end] => format!("attention.output.dense.{end}"),
                ["attn", part @ ("qkv_proj" | "out_proj"), end] => {
                    format!("attention.{part}.convolution.{end}")
                }
                ["mlp", "fc1", end] if second => format!("ffn.conv1.convolution.{end}"),
                ["mlp", "fc2", end] if second => format!("ffn.conv2.convolution.{end}"),
                ["mlp", "fc1", end] => format!("intermediate.dense.{end}"),
                ["mlp", "fc2", end] => format!("output.dense.{end}"),
                _ => return None,
            };
            format!("transformer.layer.{layer}.{part}")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let keys = |name: &str| of_name(name).map(Network::keys);
        assert_eq!(
            keys("mobilevit_xs").unwrap()["hidden_sizes"],
            json!([96, 120, 144])
        );
        assert_eq!(keys("mobilevitv2_075").unwrap()["width_multiplier"], json!(0.75));
        for other in ["semobilevit_s", "mobilevit_m", "mobilevitv2_300"] {
            assert_eq!(keys(other), None, "{other}");
        }
    }
}
