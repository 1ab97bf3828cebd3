//! Names of timm's networks of mobile blocks, and their block definitions.

use serde_json::{Value, json};

use super::layouts::{
    EDGE, EFFICIENT, EFFICIENT_2_BASE, EFFICIENT_2_L, EFFICIENT_2_M, EFFICIENT_2_RW, EFFICIENT_2_RW_T,
    EFFICIENT_2_S, EFFICIENT_2_XL, FBNET_C, LARGE_3, LARGE_3_MINIMAL, LARGE_4, LC, LITE, Layout, MEDIUM_4,
    MNAS, MNAS_SMALL, MNAS_SQUEEZING, MOBILE_1, MOBILE_1_WITH_HEAD, MOBILE_2, SMALL_3, SMALL_3_MINIMAL,
    SMALL_4, SPNAS, TEST, TINY,
};

/// `model_type` and class of these networks.
pub(crate) const BLOCKS: &str = "timm-blocks";

/// Supported names, for errors.
pub(super) const SUPPORTED: &str = "mobilenetv4_conv_SIZE, mobilenetv2_NNN, mobilenetv3_small_NNN and mobilenetv3_large_NNN, efficientnet_bN, \
    efficientnet_liteN, efficientnet_es, em and el, efficientnetv2_s, m, l, xl, bN, rw_s and rw_t, also with the prefix tf_, mobilenetv1_NNN, \
    mnasnet_NNN, semnasnet_NNN, fbnetc_100, spnasnet_100, tinynet_LETTER, lcnet_NNN";

/// A network with its width and depth multipliers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    layout: Layout,
    width: f64,
    depth: f64,
    /// Whether stem and head keep their sizes.
    fixed: bool,
    /// Whether padding and norms follow TensorFlow.
    tensorflow: bool,
}

/// Width and depth multipliers of `TinyNet` (Han et al. 2020) a to e.
const TINY_SCALES: [(f64, f64); 5] = [(1.0, 1.2), (0.75, 1.1), (0.54, 0.85), (0.54, 0.695), (0.51, 0.6)];

/// Parses a name that states a layout and at most a width multiplier.
fn of_plain_name(name: &str) -> Option<(Layout, (f64, f64))> {
    let (family, end) = name.rsplit_once('_')?;
    let width = match end {
        "035" => 0.35,
        "050" => 0.5,
        "075" => 0.75,
        "100" => 1.0,
        "125" => 1.25,
        "140" => 1.4,
        "150" => 1.5,
        _ => 0.0,
    };
    let layout = match (family, end) {
        ("mnasnet", "small") => return Some((MNAS_SMALL, (1.0, 1.0))),
        ("mobilenetv1", "100h") => return Some((MOBILE_1_WITH_HEAD, (1.0, 1.0))),
        ("test", "efficientnet") => return Some((TEST, (1.0, 1.0))),
        ("tinynet", letter) => {
            let place = "abcde".find(letter).filter(|_| letter.len() == 1)?;
            return Some((TINY, *TINY_SCALES.get(place)?));
        }
        _ if width <= 0.0 => return None,
        ("mnasnet", _) => MNAS,
        ("semnasnet", _) => MNAS_SQUEEZING,
        ("fbnetc", "100") => FBNET_C,
        ("spnasnet", "100") => SPNAS,
        ("mobilenetv1", _) => MOBILE_1,
        ("lcnet", _) => LC,
        _ => return None,
    };
    Some((layout, (width, 1.0)))
}

/// Width and depth multipliers of `EfficientNet` b0 to b8; the lite variants use the first five.
const SCALES: [(f64, f64); 9] = [
    (1.0, 1.0),
    (1.0, 1.1),
    (1.1, 1.2),
    (1.2, 1.4),
    (1.4, 1.8),
    (1.6, 2.2),
    (1.8, 2.6),
    (2.0, 3.1),
    (2.2, 3.6),
];

/// Parses the name of a network.
pub(super) fn of_name(name: &str) -> Option<Network> {
    let stripped = name.strip_prefix("tf_");
    let rest = stripped.unwrap_or(name);
    let digit = |digits: &str, count: usize| digits.parse().ok().filter(|index: &usize| *index < count);
    let (mut fixed, mut scale) = (false, (1.0, 1.0));
    let mobile = |digits: &str| match digits {
        "035" => Some(0.35),
        "050" => Some(0.5),
        "075" => Some(0.75),
        "100" => Some(1.0),
        "140" => Some(1.4),
        _ => None,
    };
    let layout = if let Some((layout, factors)) = of_plain_name(name) {
        // `TinyNet` keeps the size of the stem.
        (fixed, scale) = (layout == TINY, factors);
        layout
    } else if let Some(size) = name.strip_prefix("mobilenetv4_conv_") {
        let (size, digits) = size.split_once('_').unwrap_or((size, "100"));
        scale.0 = mobile(digits)?;
        fixed = scale.0 < 1.0;
        match size {
            "small" => SMALL_4,
            "medium" => MEDIUM_4,
            "large" => LARGE_4,
            _ => return None,
        }
    } else if let Some(size) = rest.strip_prefix("mobilenetv3_") {
        let layout = match size.rsplit_once('_')? {
            ("small", _) => SMALL_3,
            ("large", _) => LARGE_3,
            ("small_minimal", _) => SMALL_3_MINIMAL,
            ("large_minimal", _) => LARGE_3_MINIMAL,
            _ => return None,
        };
        scale.0 = mobile(size.rsplit_once('_')?.1)?;
        fixed = scale.0 < 0.75;
        layout
    } else if let Some(size) = rest.strip_prefix("mobilenetv2_") {
        match size {
            "110d" => (fixed, scale) = (true, (1.1, 1.2)),
            "120d" => (fixed, scale) = (true, (1.2, 1.4)),
            _ => scale.0 = mobile(size)?,
        }
        MOBILE_2
    } else if let Some(size) = rest.strip_prefix("efficientnet_lite") {
        (fixed, scale) = (true, *SCALES.get(digit(size, 5)?)?);
        LITE
    } else if let Some(size) = rest.strip_prefix("efficientnet_e") {
        scale = match size {
            "s" => (1.0, 1.0),
            "m" => (1.0, 1.1),
            "l" => (1.2, 1.4),
            _ => return None,
        };
        EDGE
    } else if let Some(size) = rest.strip_prefix("efficientnet_b") {
        scale = *SCALES.get(digit(size, SCALES.len())?)?;
        EFFICIENT
    } else {
        match rest.strip_prefix("efficientnetv2_")? {
            "s" => EFFICIENT_2_S,
            "m" => EFFICIENT_2_M,
            "l" => EFFICIENT_2_L,
            "xl" => EFFICIENT_2_XL,
            "rw_s" => EFFICIENT_2_RW,
            "rw_t" => {
                scale = (0.8, 0.9);
                EFFICIENT_2_RW_T
            }
            size => {
                scale = *SCALES.get(digit(size.strip_prefix('b')?, 4)?)?;
                EFFICIENT_2_BASE
            }
        }
    };
    Some(Network {
        layout,
        width: scale.0,
        depth: scale.1,
        fixed,
        tensorflow: stripped.is_some(),
    })
}

impl Network {
    /// Returns the keys that the network's class reads.
    pub(super) fn keys(&self) -> Value {
        let layout = &self.layout;
        let stages = layout.stages.iter().map(|blocks| blocks.split(' ').collect());
        json!({
            "model_type": BLOCKS,
            "architectures": [BLOCKS],
            "block_args": stages.collect::<Vec<Vec<&str>>>(),
            "stem_size": layout.stem,
            "fix_stem": self.fixed,
            // `MobileNet` v3 and `TinyNet` have no stages of fixed depth.
            "fix_first_last": self.fixed && !layout.late_head && !layout.nearest_depth,
            "depth_trunc": if layout.nearest_depth { "round" } else { "ceil" },
            "num_features": layout.features,
            "scale_features": layout.grows && !self.fixed,
            "whole_squeezes": layout.whole_squeezes,
            "channel_multiplier": self.width,
            "depth_multiplier": self.depth,
            "round_limit": layout.round_limit,
            "late_head": layout.late_head,
            "head_norm": layout.head_norm,
            "hidden_act": layout.activation,
            "tf_padding": self.tensorflow,
            "batch_norm_eps": if self.tensorflow { 1e-3 } else { 1e-5 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_width_and_depth() {
        let found =
            |name: &str| of_name(name).map(|network| (network.layout.features, network.width, network.depth));
        assert_eq!(found("mobilenetv3_small_100"), Some((1024, 1.0, 1.0)));
        assert_eq!(found("tf_mobilenetv3_large_minimal_100"), Some((1280, 1.0, 1.0)));
        assert_eq!(found("mobilenetv4_conv_small_050"), Some((1280, 0.5, 1.0)));
        assert_eq!(found("mobilenetv4_conv_large"), Some((1280, 1.0, 1.0)));
        assert_eq!(found("mobilenetv2_120d"), Some((1280, 1.2, 1.4)));
        assert_eq!(found("tf_efficientnet_lite4"), Some((1280, 1.4, 1.8)));
        assert_eq!(found("efficientnet_b8"), Some((1280, 2.2, 3.6)));
        assert_eq!(found("efficientnetv2_rw_t"), Some((1024, 0.8, 0.9)));
        assert_eq!(found("tf_efficientnetv2_b3"), Some((1280, 1.2, 1.4)));
        assert_eq!(found("tf_efficientnet_el"), Some((1280, 1.2, 1.4)));
        assert_eq!(found("tinynet_e"), Some((1280, 0.51, 0.6)));
        assert_eq!(found("lcnet_150"), Some((1280, 1.5, 1.0)));
        assert_eq!(found("mobilenetv1_125"), Some((0, 1.25, 1.0)));
        assert_eq!(found("fbnetc_100"), Some((1984, 1.0, 1.0)));
        for other in [
            "mobilenetv3_rw",
            "mobilenetv4_hybrid_medium",
            "tf_mobilenetv4_conv_small",
            "mobilenetv3_large_150d",
            "efficientnet_b0_gn",
            "efficientnet_lite5",
            "efficientnetv2_b4",
            "efficientnet_es_pruned",
            "mixnet_s",
            "fbnetc_050",
            "tinynet_ab",
            "tf_lcnet_100",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
