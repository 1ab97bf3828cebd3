//! Names of timm's MLP-Mixer and `ResMLP`.

use serde_json::{Value, json};

/// `model_type` and class of these networks.
pub(crate) const MIXER: &str = "timm-mixer";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str =
    "mixer_SN_224, mixer_BN_224 and mixer_LN_224 with patches of 16 or 32, resmlp_12_224, 24, 36 and big_24";

/// Arguments besides those of all architectures.
pub(super) const ARGUMENTS: &[&str] = &["img_size"];

/// MLP-Mixer: patch size, blocks and channels.
const MIXERS: [(&str, [usize; 3]); 6] = [
    ("mixer_s32_224", [32, 8, 512]),
    ("mixer_s16_224", [16, 8, 512]),
    ("mixer_b32_224", [32, 12, 768]),
    ("mixer_b16_224", [16, 12, 768]),
    ("mixer_l32_224", [32, 24, 1024]),
    ("mixer_l16_224", [16, 24, 1024]),
];
/// Like [`MIXERS`], for `ResMLP`.
const RESIDUAL: [(&str, [usize; 3]); 4] = [
    ("resmlp_12_224", [16, 12, 384]),
    ("resmlp_24_224", [16, 24, 384]),
    ("resmlp_36_224", [16, 36, 384]),
    ("resmlp_big_24_224", [8, 24, 768]),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    sizes: [usize; 3],
    /// Whether the network is a `ResMLP`.
    residual: bool,
}

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let of = |networks: &[(&str, [usize; 3])], residual| {
        let (_, sizes) = networks.iter().find(|(known, _)| *known == name)?;
        Some(Network {
            sizes: *sizes,
            residual,
        })
    };
    of(&MIXERS, false).or_else(|| of(&RESIDUAL, true))
}

impl Network {
    /// Returns the keys that the class reads.
    pub(super) fn keys(self) -> Value {
        let [patch, depth, width] = self.sizes;
        json!({
            "model_type": MIXER,
            "architectures": [MIXER],
            "patch_size": patch,
            "num_hidden_layers": depth,
            "hidden_size": width,
            "affine": self.residual,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let keys = |name: &str| of_name(name).map(Network::keys);
        let found = keys("resmlp_big_24_224").unwrap();
        assert_eq!(
            (&found["patch_size"], &found["affine"]),
            (&json!(8), &json!(true))
        );
        assert_eq!(keys("mixer_l16_224").unwrap()["num_hidden_layers"], json!(24));
        for other in ["gmixer_24_224", "gmlp_s16_224", "mixer_b16_224_miil"] {
            assert_eq!(keys(other), None, "{other}");
        }
    }
}
