//! Names of timm's `DenseNet`, `Inception` v3 and VGG.

use serde_json::{Value, json};

use super::sizes;
use crate::checkpoint::{Config, LoadError};

/// `model_type` and class of `DenseNet`.
pub(crate) const DENSENET: &str = "timm-densenet";
/// `model_type` and class of `Inception` v3.
pub(crate) const INCEPTION: &str = "timm-inception";
/// `model_type` and class of VGG.
pub(crate) const VGG: &str = "timm-vgg";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str =
    "densenet121, 161, 169 and 201, inception_v3, vgg11, 13, 16 and 19, also with _bn";

/// `DenseNet`: layers per block, and growth rate.
const DENSENETS: [(&str, [usize; 4], usize); 4] = [
    ("densenet121", [6, 12, 24, 16], 32),
    ("densenet161", [6, 12, 36, 24], 48),
    ("densenet169", [6, 12, 32, 32], 32),
    ("densenet201", [6, 12, 48, 32], 32),
];
/// VGG: convolutions in each of the first two stages, and in each of the others.
const VGGS: [(&str, [usize; 2]); 4] = [
    ("vgg11", [1, 2]),
    ("vgg13", [2, 2]),
    ("vgg16", [2, 3]),
    ("vgg19", [2, 4]),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Network {
    DenseNet { depths: [usize; 4], growth: usize },
    Inception,
    Vgg { counts: [usize; 2], normalised: bool },
}

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    if let Some((_, depths, growth)) = DENSENETS.into_iter().find(|(known, ..)| *known == name) {
        return Some(Network::DenseNet { depths, growth });
    }
    if name == "inception_v3" {
        return Some(Network::Inception);
    }
    let stripped = name.strip_suffix("_bn");
    let (_, counts) = VGGS
        .into_iter()
        .find(|(known, _)| *known == stripped.unwrap_or(name))?;
    Some(Network::Vgg {
        counts,
        normalised: stripped.is_some(),
    })
}

impl Network {
    /// Returns the arguments that override dimensions.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::DenseNet { .. } => &["growth_rate", "block_config"],
            Self::Inception => &["aux_logits"],
            Self::Vgg { .. } => &[],
        }
    }

    /// Returns the keys that the network's class reads; `arguments` override dimensions.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(super) fn keys(self, arguments: &Config) -> Result<Value, LoadError> {
        Ok(match self {
            Self::DenseNet { depths, growth } => json!({
                "model_type": DENSENET,
                "architectures": [DENSENET],
                "depths": sizes(arguments, "block_config", &depths)?,
                "growth_rate": arguments.optional_size("growth_rate")?.unwrap_or(growth),
            }),
            Self::Inception => json!({
                "model_type": INCEPTION,
                "architectures": [INCEPTION],
            }),
            Self::Vgg {
                counts: [near, far],
                normalised,
            } => {
                let stages = [(64, near), (128, near), (256, far), (512, far), (512, far)];
                let stages = stages.map(|(channels, count)| vec![channels; count]);
                json!({
                    "model_type": VGG,
                    "architectures": [VGG],
                    "stages": stages,
                    "batch_norm": normalised,
                    "num_features": 4096,
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let nothing = Config::parse("config.json", b"{}").unwrap();
        let keys = |name: &str| of_name(name).map(|network| network.keys(&nothing).unwrap());
        assert_eq!(keys("densenet161").unwrap()["growth_rate"], json!(48));
        let stages = json!([
            [64, 64],
            [128, 128],
            [256, 256, 256],
            [512, 512, 512],
            [512, 512, 512]
        ]);
        let found = keys("vgg16_bn").unwrap();
        assert_eq!((&found["stages"], &found["batch_norm"]), (&stages, &json!(true)));
        assert_eq!(keys("inception_v3").unwrap()["model_type"], json!(INCEPTION));
        for other in ["densenetblur121d", "vgg17", "vgg16_bn_bn"] {
            assert_eq!(keys(other), None, "{other}");
        }
    }
}
