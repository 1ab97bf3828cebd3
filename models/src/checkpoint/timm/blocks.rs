//! The names of timm's networks of mobile blocks, and the blocks that they state.

use serde_json::{Value, json};

/// `model_type` and class of these networks.
pub(crate) const BLOCKS: &str = "timm-blocks";

/// The names, for errors.
pub(super) const SUPPORTED: &str = "mobilenetv4_conv_SIZE, mobilenetv2_NNN, mobilenetv3_small_NNN and mobilenetv3_large_NNN, efficientnet_bN, \
    efficientnet_liteN, efficientnetv2_s, m, l, xl, bN, rw_s and rw_t, also with the prefix tf_,";

/// A network with the factors of its width and depth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    layout: Layout,
    width: f64,
    depth: f64,
    /// Whether stem and head keep their sizes.
    fixed: bool,
    /// Whether the borders and the norms are those of TensorFlow.
    tensorflow: bool,
}

/// What networks of several sizes share.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Layout {
    /// The blocks of every stage, apart by spaces.
    stages: &'static [&'static str],
    stem: usize,
    features: usize,
    /// Whether `features` grow with the width.
    grows: bool,
    activation: &'static str,
    /// Share of a number of channels that rounding must keep.
    round_limit: f64,
    late_head: bool,
    /// Whether the last convolution has a norm.
    head_norm: bool,
}

const SMALL_3: Layout = Layout {
    stages: &[
        "ds_r1_k3_s2_e1_c16_se0.25_nre",
        "ir_r1_k3_s2_e4.5_c24_nre ir_r1_k3_s1_e3.67_c24_nre",
        "ir_r1_k5_s2_e4_c40_se0.25 ir_r2_k5_s1_e6_c40_se0.25",
        "ir_r2_k5_s1_e3_c48_se0.25",
        "ir_r3_k5_s2_e6_c96_se0.25",
        "cn_r1_k1_s1_c576",
    ],
    stem: 16,
    features: 1024,
    grows: false,
    activation: "hard_swish",
    round_limit: 0.9,
    late_head: true,
    head_norm: false,
};
const LARGE_3: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_e1_c16_nre",
        "ir_r1_k3_s2_e4_c24_nre ir_r1_k3_s1_e3_c24_nre",
        "ir_r3_k5_s2_e3_c40_se0.25_nre",
        "ir_r1_k3_s2_e6_c80 ir_r1_k3_s1_e2.5_c80 ir_r2_k3_s1_e2.3_c80",
        "ir_r2_k3_s1_e6_c112_se0.25",
        "ir_r3_k5_s2_e6_c160_se0.25",
        "cn_r1_k1_s1_c960",
    ],
    features: 1280,
    ..SMALL_3
};
const SMALL_3_MINIMAL: Layout = Layout {
    stages: &[
        "ds_r1_k3_s2_e1_c16",
        "ir_r1_k3_s2_e4.5_c24 ir_r1_k3_s1_e3.67_c24",
        "ir_r1_k3_s2_e4_c40 ir_r2_k3_s1_e6_c40",
        "ir_r2_k3_s1_e3_c48",
        "ir_r3_k3_s2_e6_c96",
        "cn_r1_k1_s1_c576",
    ],
    activation: "relu",
    ..SMALL_3
};
const LARGE_3_MINIMAL: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_e1_c16",
        "ir_r1_k3_s2_e4_c24 ir_r1_k3_s1_e3_c24",
        "ir_r3_k3_s2_e3_c40",
        "ir_r1_k3_s2_e6_c80 ir_r1_k3_s1_e2.5_c80 ir_r2_k3_s1_e2.3_c80",
        "ir_r2_k3_s1_e6_c112",
        "ir_r3_k3_s2_e6_c160",
        "cn_r1_k1_s1_c960",
    ],
    activation: "relu",
    ..LARGE_3
};
const SMALL_4: Layout = Layout {
    stages: &[
        "cn_r1_k3_s2_e1_c32 cn_r1_k1_s1_e1_c32",
        "cn_r1_k3_s2_e1_c96 cn_r1_k1_s1_e1_c64",
        "uir_r1_a5_k5_s2_e3_c96 uir_r4_a0_k3_s1_e2_c96 uir_r1_a3_k0_s1_e4_c96",
        "uir_r1_a3_k3_s2_e6_c128 uir_r1_a5_k5_s1_e4_c128 uir_r1_a0_k5_s1_e4_c128 uir_r1_a0_k5_s1_e3_c128 uir_r2_a0_k3_s1_e4_c128",
        "cn_r1_k1_s1_c960",
    ],
    stem: 32,
    features: 1280,
    activation: "relu",
    head_norm: true,
    ..SMALL_3
};
const MEDIUM_4: Layout = Layout {
    stages: &[
        "er_r1_k3_s2_e4_c48",
        "uir_r1_a3_k5_s2_e4_c80 uir_r1_a3_k3_s1_e2_c80",
        "uir_r1_a3_k5_s2_e6_c160 uir_r2_a3_k3_s1_e4_c160 uir_r1_a3_k5_s1_e4_c160 uir_r1_a3_k3_s1_e4_c160 uir_r1_a3_k0_s1_e4_c160 uir_r1_a0_k0_s1_e2_c160 uir_r1_a3_k0_s1_e4_c160",
        "uir_r1_a5_k5_s2_e6_c256 uir_r1_a5_k5_s1_e4_c256 uir_r2_a3_k5_s1_e4_c256 uir_r1_a0_k0_s1_e4_c256 uir_r1_a3_k0_s1_e4_c256 uir_r1_a3_k5_s1_e2_c256 uir_r1_a5_k5_s1_e4_c256 uir_r2_a0_k0_s1_e4_c256 uir_r1_a5_k0_s1_e2_c256",
        "cn_r1_k1_s1_c960",
    ],
    stem: 32,
    ..SMALL_4
};
const LARGE_4: Layout = Layout {
    stages: &[
        "er_r1_k3_s2_e4_c48",
        "uir_r1_a3_k5_s2_e4_c96 uir_r1_a3_k3_s1_e4_c96",
        "uir_r1_a3_k5_s2_e4_c192 uir_r3_a3_k3_s1_e4_c192 uir_r1_a3_k5_s1_e4_c192 uir_r5_a5_k3_s1_e4_c192 uir_r1_a3_k0_s1_e4_c192",
        "uir_r4_a5_k5_s2_e4_c512 uir_r1_a5_k0_s1_e4_c512 uir_r1_a5_k3_s1_e4_c512 uir_r2_a5_k0_s1_e4_c512 uir_r1_a5_k3_s1_e4_c512 uir_r1_a5_k5_s1_e4_c512 uir_r3_a5_k0_s1_e4_c512",
        "cn_r1_k1_s1_c960",
    ],
    stem: 24,
    ..SMALL_4
};
const MOBILE_2: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_c16",
        "ir_r2_k3_s2_e6_c24",
        "ir_r3_k3_s2_e6_c32",
        "ir_r4_k3_s2_e6_c64",
        "ir_r3_k3_s1_e6_c96",
        "ir_r3_k3_s2_e6_c160",
        "ir_r1_k3_s1_e6_c320",
    ],
    stem: 32,
    features: 1280,
    grows: true,
    activation: "relu6",
    round_limit: 0.9,
    late_head: false,
    head_norm: false,
};
const EFFICIENT: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_e1_c16_se0.25",
        "ir_r2_k3_s2_e6_c24_se0.25",
        "ir_r2_k5_s2_e6_c40_se0.25",
        "ir_r3_k3_s2_e6_c80_se0.25",
        "ir_r3_k5_s1_e6_c112_se0.25",
        "ir_r4_k5_s2_e6_c192_se0.25",
        "ir_r1_k3_s1_e6_c320_se0.25",
    ],
    activation: "silu",
    ..MOBILE_2
};
const LITE: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_e1_c16",
        "ir_r2_k3_s2_e6_c24",
        "ir_r2_k5_s2_e6_c40",
        "ir_r3_k3_s2_e6_c80",
        "ir_r3_k5_s1_e6_c112",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320",
    ],
    ..MOBILE_2
};
const EFFICIENT_2_BASE: Layout = Layout {
    stages: &[
        "cn_r1_k3_s1_e1_c16_skip",
        "er_r2_k3_s2_e4_c32",
        "er_r2_k3_s2_e4_c48",
        "ir_r3_k3_s2_e4_c96_se0.25",
        "ir_r5_k3_s1_e6_c112_se0.25",
        "ir_r8_k3_s2_e6_c192_se0.25",
    ],
    round_limit: 0.0,
    ..EFFICIENT
};
const EFFICIENT_2_S: Layout = Layout {
    stages: &[
        "cn_r2_k3_s1_e1_c24_skip",
        "er_r4_k3_s2_e4_c48",
        "er_r4_k3_s2_e4_c64",
        "ir_r6_k3_s2_e4_c128_se0.25",
        "ir_r9_k3_s1_e6_c160_se0.25",
        "ir_r15_k3_s2_e6_c256_se0.25",
    ],
    stem: 24,
    ..EFFICIENT
};
const EFFICIENT_2_M: Layout = Layout {
    stages: &[
        "cn_r3_k3_s1_e1_c24_skip",
        "er_r5_k3_s2_e4_c48",
        "er_r5_k3_s2_e4_c80",
        "ir_r7_k3_s2_e4_c160_se0.25",
        "ir_r14_k3_s1_e6_c176_se0.25",
        "ir_r18_k3_s2_e6_c304_se0.25",
        "ir_r5_k3_s1_e6_c512_se0.25",
    ],
    ..EFFICIENT_2_S
};
const EFFICIENT_2_L: Layout = Layout {
    stages: &[
        "cn_r4_k3_s1_e1_c32_skip",
        "er_r7_k3_s2_e4_c64",
        "er_r7_k3_s2_e4_c96",
        "ir_r10_k3_s2_e4_c192_se0.25",
        "ir_r19_k3_s1_e6_c224_se0.25",
        "ir_r25_k3_s2_e6_c384_se0.25",
        "ir_r7_k3_s1_e6_c640_se0.25",
    ],
    stem: 32,
    ..EFFICIENT_2_S
};
const EFFICIENT_2_XL: Layout = Layout {
    stages: &[
        "cn_r4_k3_s1_e1_c32_skip",
        "er_r8_k3_s2_e4_c64",
        "er_r8_k3_s2_e4_c96",
        "ir_r16_k3_s2_e4_c192_se0.25",
        "ir_r24_k3_s1_e6_c256_se0.25",
        "ir_r32_k3_s2_e6_c512_se0.25",
        "ir_r8_k3_s1_e6_c640_se0.25",
    ],
    ..EFFICIENT_2_L
};
const EFFICIENT_2_RW: Layout = Layout {
    stages: &[
        "er_r2_k3_s1_e1_c24",
        "er_r4_k3_s2_e4_c48",
        "er_r4_k3_s2_e4_c64",
        "ir_r6_k3_s2_e4_c128_se0.25",
        "ir_r9_k3_s1_e6_c160_se0.25",
        "ir_r15_k3_s2_e6_c272_se0.25",
    ],
    features: 1792,
    ..EFFICIENT_2_S
};
const EFFICIENT_2_RW_T: Layout = Layout {
    features: 1024,
    grows: false,
    ..EFFICIENT_2_S
};

/// Factors of width and depth of `EfficientNet` b0 to b8; the light ones have those of the first five.
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

/// Returns the network that a name states.
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
    let layout = if let Some(size) = name.strip_prefix("mobilenetv4_conv_") {
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
            // `MobileNet` 3 has no stages whose depth is fixed.
            "fix_first_last": self.fixed && !layout.late_head,
            "num_features": layout.features,
            "scale_features": layout.grows && !self.fixed,
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
        for other in [
            "mobilenetv3_rw",
            "mobilenetv4_hybrid_medium",
            "tf_mobilenetv4_conv_small",
            "mobilenetv3_large_150d",
            "efficientnet_b0_gn",
            "efficientnet_lite5",
            "efficientnetv2_b4",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
