//! Names of timm's `ResNet` variants that transformers lacks: `ResNeXt`, wide networks, squeeze-and-excitation, and
//! the variants C, S and T of the "Bag of Tricks" (He et al. 2019).

use serde_json::{Value, json};

use super::sizes;
use crate::checkpoint::{Config, LoadError};

/// `model_type` and class of these networks.
pub(crate) const RESNET: &str = "timm-resnet";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "resnetN and seresnetN with the endings c, d, s and t, wide_resnetN_2, resnextN_GxWd and \
    seresnextN_GxWd, resnetrsN, senet154";

/// Depths of networks with basic blocks.
const BASIC: [(&str, [usize; 4]); 3] = [("10", [1; 4]), ("18", [2; 4]), ("34", [3, 4, 6, 3])];
/// Depths of networks with bottlenecks.
const BOTTLENECKS: [(&str, [usize; 4]); 7] = [
    ("14", [1; 4]),
    ("26", [2; 4]),
    ("50", [3, 4, 6, 3]),
    ("101", [3, 4, 23, 3]),
    ("152", [3, 8, 36, 3]),
    ("200", [3, 24, 36, 3]),
    ("269", [3, 30, 48, 8]),
];
/// Depths of `ResNet`-RS (Bello et al. 2021).
const RESCALED: [(&str, [usize; 4]); 7] = [
    ("50", [3, 4, 6, 3]),
    ("101", [3, 4, 23, 3]),
    ("152", [3, 8, 36, 3]),
    ("200", [3, 24, 36, 3]),
    ("270", [4, 29, 53, 4]),
    ("350", [4, 36, 72, 4]),
    ("420", [4, 44, 87, 4]),
];
/// Squeeze ratio: fraction of the channels in a squeeze.
const SQUEEZE: f64 = 1.0 / 16.0;

/// Arguments that override dimensions.
pub(super) const ARGUMENTS: &[&str] = &["layers", "channels", "cardinality", "base_width", "stem_width"];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct Network {
    depths: [usize; 4],
    bottleneck: bool,
    groups: usize,
    /// Channels per group, relative to 64 for a bottleneck with one group.
    group_width: usize,
    stem: Stem,
    /// Whether shortcuts use average pooling instead of a stride.
    means: bool,
    /// Squeeze ratio of the blocks; zero without squeeze-and-excitation.
    squeeze: f64,
    /// Whether a convolution replaces the pooling after the stem.
    convolved_stem: bool,
    /// Whether the network is a `SENet`, with narrow first convolutions and shortcuts with windows.
    senet: bool,
}

/// The first convolutions of a network.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stem {
    /// One large convolution.
    Large,
    /// Three small convolutions; the value is the width of the first two.
    Deep(usize),
    /// Three small convolutions, the first narrower than the second.
    Tiered,
}

const PLAIN: Network = Network {
    depths: [0; 4],
    bottleneck: true,
    groups: 1,
    group_width: 64,
    stem: Stem::Large,
    means: false,
    squeeze: 0.0,
    convolved_stem: false,
    senet: false,
};

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let of = |depths: &[(&str, [usize; 4])], name: &str| {
        let found = depths.iter().find(|(known, _)| *known == name);
        found.map(|(_, depths)| *depths)
    };
    if name == "senet154" {
        return Some(Network {
            depths: of(&BOTTLENECKS, "152")?,
            groups: 64,
            group_width: 4,
            stem: Stem::Deep(64),
            squeeze: SQUEEZE,
            senet: true,
            ..PLAIN
        });
    }
    if let Some(depth) = name.strip_prefix("resnetrs") {
        return Some(Network {
            depths: of(&RESCALED, depth)?,
            stem: Stem::Deep(32),
            means: true,
            squeeze: 0.25,
            convolved_stem: true,
            ..PLAIN
        });
    }
    if let Some(depth) = name.strip_prefix("wide_resnet") {
        return Some(Network {
            depths: of(&BOTTLENECKS, depth.strip_suffix("_2")?)?,
            group_width: 128,
            ..PLAIN
        });
    }
    let stripped = name.strip_prefix("se");
    let rest = stripped.unwrap_or(name);
    let grouped = rest.strip_prefix("resnext");
    let rest = grouped.or_else(|| rest.strip_prefix("resnet"))?;
    let (rest, groups, group_width) = match (grouped, rest.split_once('_')) {
        (Some(_), Some((rest, groups))) => {
            let (groups, width) = groups.strip_suffix('d')?.split_once('x')?;
            let number = |digits: &str| {
                digits
                    .parse::<usize>()
                    .ok()
                    .filter(|number| (1..=64).contains(number))
            };
            (rest, number(groups)?, number(width)?)
        }
        (None, None) => (rest, 1, 64),
        _ => return None,
    };
    let depth = rest.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let (stem, means) = match rest.strip_prefix(depth)? {
        "" => (Stem::Large, false),
        "c" => (Stem::Deep(32), false),
        "d" => (Stem::Deep(32), true),
        "s" => (Stem::Deep(64), false),
        "t" => (Stem::Tiered, true),
        _ => return None,
    };
    let basic = of(&BASIC, depth).filter(|_| grouped.is_none());
    Some(Network {
        depths: basic.or_else(|| of(&BOTTLENECKS, depth))?,
        bottleneck: basic.is_none(),
        groups,
        group_width,
        stem,
        means,
        squeeze: if stripped.is_some() { SQUEEZE } else { 0.0 },
        ..PLAIN
    })
}

impl Network {
    /// Returns the keys that the network's class reads; `arguments` override dimensions.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, arguments: &Config) -> Result<Value, LoadError> {
        let size = |key, default| Ok::<_, LoadError>(arguments.optional_size(key)?.unwrap_or(default));
        let (stem, width) = match self.stem {
            Stem::Large => ("", 64),
            Stem::Deep(width) => ("deep", width),
            Stem::Tiered => ("deep_tiered", 32),
        };
        Ok(json!({
            "model_type": RESNET,
            "architectures": [RESNET],
            "depths": sizes(arguments, "layers", &self.depths)?,
            "channels": sizes(arguments, "channels", &[64, 128, 256, 512])?,
            "bottleneck": self.bottleneck,
            "cardinality": size("cardinality", self.groups)?,
            "base_width": size("base_width", self.group_width)?,
            "stem_type": stem,
            "stem_width": if self.stem == Stem::Large { width } else { size("stem_width", width)? },
            "replace_stem_pool": self.convolved_stem,
            "avg_down": self.means,
            "block_reduce_first": if self.senet { 2 } else { 1 },
            "down_kernel_size": if self.senet { 3 } else { 1 },
            "squeeze_ratio": self.squeeze,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_forms() {
        let nothing = Config::parse("config.json", b"{}").unwrap();
        let keys = |name: &str| of_name(name).map(|network| network.keys(&nothing).unwrap());
        let found = keys("seresnext101d_32x8d").unwrap();
        for (key, value) in [
            ("depths", json!([3, 4, 23, 3])),
            ("cardinality", json!(32)),
            ("base_width", json!(8)),
            ("stem_type", json!("deep")),
            ("avg_down", json!(true)),
            ("squeeze_ratio", json!(0.0625)),
        ] {
            assert_eq!(found[key], value, "{key}");
        }
        assert_eq!(keys("resnet10t").unwrap()["bottleneck"], json!(false));
        assert_eq!(keys("resnet50s").unwrap()["stem_width"], json!(64));
        assert_eq!(keys("wide_resnet50_2").unwrap()["base_width"], json!(128));
        assert_eq!(keys("resnetrs350").unwrap()["replace_stem_pool"], json!(true));
        assert_eq!(keys("senet154").unwrap()["down_kernel_size"], json!(3));
        for other in [
            "resnet50_gn",
            "resnetaa50",
            "resnetblur18",
            "ecaresnet50d",
            "resnext18_32x4d",
            "resnext50",
            "resnet51",
            "resnext50_0x4d",
            "resnetv2_50",
            "wide_resnet50",
        ] {
            assert_eq!(keys(other), None, "{other}");
        }
    }
}
