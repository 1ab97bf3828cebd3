//! Names of timm's `RegNet`, and of its tensors.

use serde_json::{Value, json};

use super::parts;

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "regnetx_002 to 320, regnety_002 to 2560";

/// Blocks and channels per stage, and channels per group.
const NETWORKS: [(&str, [usize; 4], [usize; 4], usize); 27] = [
    ("regnetx_002", [1, 1, 4, 7], [24, 56, 152, 368], 8),
    ("regnetx_004", [1, 2, 7, 12], [32, 64, 160, 384], 16),
    ("regnetx_006", [1, 3, 5, 7], [48, 96, 240, 528], 24),
    ("regnetx_008", [1, 3, 7, 5], [64, 128, 288, 672], 16),
    ("regnetx_016", [2, 4, 10, 2], [72, 168, 408, 912], 24),
    ("regnetx_032", [2, 6, 15, 2], [96, 192, 432, 1008], 48),
    ("regnetx_040", [2, 5, 14, 2], [80, 240, 560, 1360], 40),
    ("regnetx_064", [2, 4, 10, 1], [168, 392, 784, 1624], 56),
    ("regnetx_080", [2, 5, 15, 1], [80, 240, 720, 1920], 120),
    ("regnetx_120", [2, 5, 11, 1], [224, 448, 896, 2240], 112),
    ("regnetx_160", [2, 6, 13, 1], [256, 512, 896, 2048], 128),
    ("regnetx_320", [2, 7, 13, 1], [336, 672, 1344, 2520], 168),
    ("regnety_002", [1, 1, 4, 7], [24, 56, 152, 368], 8),
    ("regnety_004", [1, 3, 6, 6], [48, 104, 208, 440], 8),
    ("regnety_006", [1, 3, 7, 4], [48, 112, 256, 608], 16),
    ("regnety_008", [1, 3, 8, 2], [64, 128, 320, 768], 16),
    ("regnety_016", [2, 6, 17, 2], [48, 120, 336, 888], 24),
    ("regnety_032", [2, 5, 13, 1], [72, 216, 576, 1512], 24),
    ("regnety_040", [2, 6, 12, 2], [128, 192, 512, 1088], 64),
    ("regnety_064", [2, 7, 14, 2], [144, 288, 576, 1296], 72),
    ("regnety_080", [2, 4, 10, 1], [168, 448, 896, 2016], 56),
    ("regnety_120", [2, 5, 11, 1], [224, 448, 896, 2240], 112),
    ("regnety_160", [2, 4, 11, 1], [224, 448, 1232, 3024], 112),
    ("regnety_320", [2, 5, 12, 1], [232, 696, 1392, 3712], 232),
    ("regnety_640", [2, 5, 12, 1], [328, 984, 1968, 4920], 328),
    ("regnety_1280", [2, 7, 17, 1], [528, 1056, 2904, 7392], 264),
    ("regnety_2560", [2, 7, 17, 1], [746, 1492, 4103, 10444], 373),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    depths: [usize; 4],
    widths: [usize; 4],
    group: usize,
    /// Whether its blocks have squeeze-and-excitation.
    squeezes: bool,
}

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let (_, depths, widths, group) = NETWORKS.into_iter().find(|(known, ..)| *known == name)?;
    Some(Network {
        depths,
        widths,
        group,
        squeezes: name.starts_with("regnety"),
    })
}

impl Network {
    /// Returns the keys of transformers.
    pub(super) fn keys(self) -> Value {
        json!({
            "model_type": "regnet",
            "architectures": ["RegNetForImageClassification"],
            "embedding_size": 32,
            "hidden_sizes": self.widths,
            "depths": self.depths,
            "groups_width": self.group,
            "layer_type": if self.squeezes { "y" } else { "x" },
            "hidden_act": "relu",
        })
    }
}

/// Returns the name of a tensor in transformers.
pub(super) fn renamed(name: &str) -> String {
    renamed_with(name, 2)
}

/// Returns the name of a tensor in transformers, for a network with squeeze-and-excitation.
pub(super) fn renamed_squeezing(name: &str) -> String {
    renamed_with(name, 3)
}

/// Renames a tensor; `last` is the index of the third convolution of a block.
fn renamed_with(name: &str, last: usize) -> String {
    let (parts, name) = parts(name);
    let kind = |layer: &str| match layer {
        "conv" => Some("convolution"),
        "bn" => Some("normalization"),
        _ => None,
    };
    let number = |part: &str, letter: char| part.strip_prefix(letter)?.parse::<usize>().ok()?.checked_sub(1);
    let found = match parts.as_slice() {
        ["stem", layer, end] => kind(layer).map(|kind| format!("regnet.embedder.embedder.{kind}.{end}")),
        ["head", "fc", end] => Some(format!("classifier.1.{end}")),
        [stage, block, rest @ ..] => number(stage, 's')
            .zip(number(block, 'b'))
            .and_then(|(stage, block)| {
                let block = format!("regnet.encoder.stages.{stage}.layers.{block}");
                match rest {
                    ["downsample", layer, end] => Some(format!("{block}.shortcut.{}.{end}", kind(layer)?)),
                    ["se", "fc1", end] => Some(format!("{block}.layer.2.attention.0.{end}")),
                    ["se", "fc2", end] => Some(format!("{block}.layer.2.attention.2.{end}")),
                    [convolution, layer, end] => {
                        let place = match *convolution {
                            "conv1" => 0,
                            "conv2" => 1,
                            "conv3" => last,
                            _ => return None,
                        };
                        Some(format!("{block}.layer.{place}.{}.{end}", kind(layer)?))
                    }
                    _ => None,
                }
            }),
        _ => None,
    };
    found.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_names_of_transformers() {
        for (of_timm, expected) in [
            ("stem.bn.bias", "regnet.embedder.embedder.normalization.bias"),
            (
                "s2.b3.conv3.conv.weight",
                "regnet.encoder.stages.1.layers.2.layer.3.convolution.weight",
            ),
            (
                "s1.b1.se.fc2.bias",
                "regnet.encoder.stages.0.layers.0.layer.2.attention.2.bias",
            ),
            (
                "s4.b1.downsample.bn.weight",
                "regnet.encoder.stages.3.layers.0.shortcut.normalization.weight",
            ),
            ("timm_model.head.fc.weight", "classifier.1.weight"),
            ("s0.b1.conv1.conv.weight", "s0.b1.conv1.conv.weight"),
        ] {
            assert_eq!(renamed_squeezing(of_timm), expected);
        }
        assert_eq!(
            renamed("s1.b1.conv3.bn.bias"),
            "regnet.encoder.stages.0.layers.0.layer.2.normalization.bias"
        );
        assert_eq!(of_name("regnetx_080").unwrap().keys()["layer_type"], json!("x"));
        assert_eq!(of_name("regnety_008_tv"), None);
    }
}
