//! Names of timm's `RepVGG`.

use serde_json::{Value, json};

/// `model_type` and class of these networks.
pub(crate) const REPVGG: &str = "timm-repvgg";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "repvgg_a0 to a2, repvgg_b0 to b3";

/// Blocks and channels per stage, and channels of the stem.
const NETWORKS: [(&str, [usize; 4], [usize; 4], usize); 7] = [
    ("repvgg_a0", [2, 4, 14, 1], [48, 96, 192, 1280], 48),
    ("repvgg_a1", [2, 4, 14, 1], [64, 128, 256, 1280], 64),
    ("repvgg_a2", [2, 4, 14, 1], [96, 192, 384, 1408], 64),
    ("repvgg_b0", [4, 6, 16, 1], [64, 128, 256, 1280], 64),
    ("repvgg_b1", [4, 6, 16, 1], [128, 256, 512, 2048], 64),
    ("repvgg_b2", [4, 6, 16, 1], [160, 320, 640, 2560], 64),
    ("repvgg_b3", [4, 6, 16, 1], [192, 384, 768, 2560], 64),
];

/// A network, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    depths: [usize; 4],
    widths: [usize; 4],
    stem: usize,
}

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let (_, depths, widths, stem) = NETWORKS.into_iter().find(|(known, ..)| *known == name)?;
    Some(Network { depths, widths, stem })
}

impl Network {
    /// Returns the keys that the class reads.
    pub(super) fn keys(self) -> Value {
        json!({
            "model_type": REPVGG,
            "architectures": [REPVGG],
            "depths": self.depths,
            "hidden_sizes": self.widths,
            "stem_size": self.stem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_sizes() {
        let keys = |name: &str| of_name(name).map(Network::keys);
        assert_eq!(
            keys("repvgg_a2").unwrap()["hidden_sizes"],
            json!([96, 192, 384, 1408])
        );
        for other in ["repvgg_b1g4", "repvgg_d2se", "repvgg_a3"] {
            assert_eq!(keys(other), None, "{other}");
        }
    }
}
