//! Block definitions of timm's networks of mobile blocks, in timm's notation.

/// Definition shared by the sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct Layout {
    /// Blocks of each stage, separated by spaces.
    pub(super) stages: &'static [&'static str],
    pub(super) stem: usize,
    pub(super) features: usize,
    /// Whether `features` scale with the width multiplier.
    pub(super) grows: bool,
    pub(super) activation: &'static str,
    /// Minimum fraction of a channel number that rounding must keep.
    pub(super) round_limit: f64,
    pub(super) late_head: bool,
    /// Whether the last convolution has a norm.
    pub(super) head_norm: bool,
    /// Whether squeeze channels are rounded to integers only, in networks with a late head.
    pub(super) whole_squeezes: bool,
    /// Whether a scaled number of blocks is rounded to the nearest integer instead of up.
    pub(super) nearest_depth: bool,
}

pub(super) const SMALL_3: Layout = Layout {
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
    whole_squeezes: false,
    nearest_depth: false,
};
pub(super) const LARGE_3: Layout = Layout {
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
pub(super) const SMALL_3_MINIMAL: Layout = Layout {
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
pub(super) const LARGE_3_MINIMAL: Layout = Layout {
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
pub(super) const SMALL_4: Layout = Layout {
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
pub(super) const MEDIUM_4: Layout = Layout {
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
pub(super) const LARGE_4: Layout = Layout {
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
pub(super) const MOBILE_2: Layout = Layout {
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
    whole_squeezes: false,
    nearest_depth: false,
};
pub(super) const EFFICIENT: Layout = Layout {
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
pub(super) const LITE: Layout = Layout {
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
pub(super) const EFFICIENT_2_BASE: Layout = Layout {
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
pub(super) const EFFICIENT_2_S: Layout = Layout {
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
pub(super) const EFFICIENT_2_M: Layout = Layout {
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
pub(super) const EFFICIENT_2_L: Layout = Layout {
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
pub(super) const EFFICIENT_2_XL: Layout = Layout {
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
pub(super) const EFFICIENT_2_RW: Layout = Layout {
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
pub(super) const EFFICIENT_2_RW_T: Layout = Layout {
    features: 1024,
    grows: false,
    ..EFFICIENT_2_S
};

pub(super) const MNAS: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_c16_noskip",
        "ir_r3_k3_s2_e3_c24",
        "ir_r3_k5_s2_e3_c40",
        "ir_r3_k5_s2_e6_c80",
        "ir_r2_k3_s1_e6_c96",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320_noskip",
    ],
    grows: false,
    activation: "relu",
    ..MOBILE_2
};
pub(super) const MNAS_SQUEEZING: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_e1_c16_noskip",
        "ir_r2_k3_s2_e6_c24",
        "ir_r3_k5_s2_e3_c40_se0.25",
        "ir_r4_k3_s2_e6_c80",
        "ir_r2_k3_s1_e6_c112_se0.25",
        "ir_r3_k5_s2_e6_c160_se0.25",
        "ir_r1_k3_s1_e6_c320",
    ],
    ..MNAS
};
pub(super) const MNAS_SMALL: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_c8",
        "ir_r1_k3_s2_e3_c16",
        "ir_r2_k3_s2_e6_c16",
        "ir_r4_k5_s2_e6_c32_se0.25",
        "ir_r3_k3_s1_e6_c32_se0.25",
        "ir_r3_k5_s2_e6_c88_se0.25",
        "ir_r1_k3_s1_e6_c144",
    ],
    stem: 8,
    ..MNAS
};
pub(super) const FBNET_C: Layout = Layout {
    stages: &[
        "ir_r1_k3_s1_e1_c16",
        "ir_r1_k3_s2_e6_c24 ir_r2_k3_s1_e1_c24",
        "ir_r1_k5_s2_e6_c32 ir_r1_k5_s1_e3_c32 ir_r1_k5_s1_e6_c32 ir_r1_k3_s1_e6_c32",
        "ir_r1_k5_s2_e6_c64 ir_r1_k5_s1_e3_c64 ir_r2_k5_s1_e6_c64",
        "ir_r3_k5_s1_e6_c112 ir_r1_k5_s1_e3_c112",
        "ir_r4_k5_s2_e6_c184",
        "ir_r1_k3_s1_e6_c352",
    ],
    stem: 16,
    features: 1984,
    ..MNAS
};
pub(super) const SPNAS: Layout = Layout {
    stages: &[
        "ds_r1_k3_s1_c16_noskip",
        "ir_r3_k3_s2_e3_c24",
        "ir_r1_k5_s2_e6_c40 ir_r3_k3_s1_e3_c40",
        "ir_r1_k5_s2_e6_c80 ir_r3_k3_s1_e3_c80",
        "ir_r1_k5_s1_e6_c96 ir_r3_k5_s1_e3_c96",
        "ir_r4_k5_s2_e6_c192",
        "ir_r1_k3_s1_e6_c320_noskip",
    ],
    ..MNAS
};
pub(super) const MOBILE_1: Layout = Layout {
    stages: &[
        "dsa_r1_k3_s1_c64",
        "dsa_r2_k3_s2_c128",
        "dsa_r2_k3_s2_c256",
        "dsa_r6_k3_s2_c512",
        "dsa_r2_k3_s2_c1024",
    ],
    features: 0,
    grows: false,
    ..MOBILE_2
};
pub(super) const MOBILE_1_WITH_HEAD: Layout = Layout {
    features: 1024,
    grows: true,
    ..MOBILE_1
};
pub(super) const EDGE: Layout = Layout {
    stages: &[
        "er_r1_k3_s1_e4_c24_fc24_noskip",
        "er_r2_k3_s2_e8_c32",
        "er_r4_k3_s2_e8_c48",
        "ir_r5_k5_s2_e8_c96",
        "ir_r4_k5_s1_e8_c144",
        "ir_r2_k5_s2_e8_c192",
    ],
    activation: "relu",
    ..MOBILE_2
};
pub(super) const TINY: Layout = Layout {
    nearest_depth: true,
    ..EFFICIENT
};
pub(super) const LC: Layout = Layout {
    stages: &[
        "dsa_r1_k3_s1_c32",
        "dsa_r2_k3_s2_c64",
        "dsa_r2_k3_s2_c128",
        "dsa_r1_k3_s2_c256 dsa_r1_k5_s1_c256",
        "dsa_r4_k5_s1_c256",
        "dsa_r2_k5_s2_c512_se0.25",
    ],
    features: 1280,
    whole_squeezes: true,
    ..SMALL_3
};
pub(super) const TEST: Layout = Layout {
    stages: &[
        "cn_r1_k3_s1_e1_c16_skip",
        "er_r1_k3_s2_e4_c24",
        "er_r1_k3_s2_e4_c32",
        "ir_r1_k3_s2_e4_c48_se0.25",
        "ir_r1_k3_s2_e4_c64_se0.25",
    ],
    features: 256,
    ..EFFICIENT_2_S
};
