//! Descriptions of ViT and similar models: ViT-MSN, DeiT, `DINOv2`, `BEiT`, EVA-02, and the image encoders of CLIP and
//! `SigLIP`.

use super::patches::Patches;
use crate::architectures::dual::clip;
use crate::architectures::encoder::{BlockNames, EncoderConfig, SplitBiases, activation, epsilon};
use crate::checkpoint::timm::{BARE_TOKENS, INNER_NORM, NORM_FIRST, PACKED, SCALED};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;
use crate::runtime::partitioning::Partitioning;

const BLOCK_NAMES: BlockNames = BlockNames {
    projections: &[
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ],
    attention_norm: "layernorm_before",
    feed_forward_norm: "layernorm_after",
    ..BlockNames::BERT
};

const PACKED_NAMES: BlockNames = BlockNames {
    projections: &["attention.qkv"],
    ..BLOCK_NAMES
};

const DINO_NAMES: BlockNames = BlockNames {
    attention_norm: "norm1",
    feed_forward_norm: "norm2",
    up: &["mlp.fc1"],
    down: "mlp.fc2",
    scales: Some(["layer_scale1.lambda1", "layer_scale2.lambda1"]),
    ..BLOCK_NAMES
};
const DINO_GATED_NAMES: BlockNames = BlockNames {
    up: &["mlp.weights_in"],
    down: "mlp.weights_out",
    ..DINO_NAMES
};

const ROTARY_NAMES: BlockNames = BlockNames {
    projections: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    output: "attention.o_proj",
    up: &["mlp.up_proj"],
    down: "mlp.down_proj",
    ..DINO_NAMES
};
const ROTARY_GATED_NAMES: BlockNames = BlockNames {
    up: &["mlp.gate_proj", "mlp.up_proj"],
    ..ROTARY_NAMES
};

/// Separate biases of the fused projection in timm's `BEiT`.
const BEIT_BIASES: SplitBiases = SplitBiases {
    names: ["attention.q_bias", "attention.v_bias"],
    by_head: false,
};
const BEIT_NAMES: BlockNames = BlockNames {
    scales: Some(["lambda_1", "lambda_2"]),
    ..BLOCK_NAMES
};

/// Names in EVA-02 with fused projections.
const EVA_NAMES: BlockNames = BlockNames {
    projections: &["attn.qkv"],
    split_biases: Some(SplitBiases {
        names: ["attn.q_bias", "attn.v_bias"],
        by_head: false,
    }),
    output: "attn.proj",
    scales: None,
    ..DINO_NAMES
};
/// Names in EVA-02 with inner norms.
const EVA_NORMALISED_NAMES: BlockNames = BlockNames {
    up: &["mlp.fc1_g", "mlp.fc1_x"],
    inner_norm: Some("mlp.norm"),
    ..EVA_NAMES
};

/// Defaults of an image encoder in a dual encoder class.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct ClipDefaults {
    /// Default patch size, pixels.
    patch: usize,
    activation: &'static str,
    epsilon: f64,
}

/// Description of an architecture.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct VitConfig {
    /// Prefix of the base model's tensors.
    pub base: &'static str,
    /// Names of the tokens before the patches.
    pub tokens: &'static [&'static str],
    /// Name of the register tokens between these and the patches, which have no positions.
    pub registers: Option<&'static str>,
    /// Classification head or pooling.
    pub head: ImageHead,
    /// Kind of settings and blocks.
    pub kind: Kind,
    /// Prefix of the numbered blocks, relative to the base model.
    pub blocks: &'static str,
    /// Name of the patch projection, relative to the embeddings.
    pub projection: &'static str,
    /// Whether the patch projection has a bias.
    pub biased: bool,
    /// Name of the norm before the first block.
    pub input_norm: Option<&'static str>,
    /// Whether the tokens before the patches have positions if patches do.
    pub token_positions: bool,
    /// Defaults, if settings are in `vision_config` with the key names of CLIP.
    pub clip: Option<ClipDefaults>,
    /// Whether there are position embeddings.
    pub positions: bool,
}

/// Kind of settings and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum Kind {
    /// ViT.
    Vit,
    /// `DINOv2`.
    Dino,
    /// `DINOv3`, with rotary positions of patches.
    Rotary,
    /// `BEiT`.
    Beit,
    /// EVA-02, with rotary positions of patches besides those of a table.
    Eva,
}

/// Relative position biases of a `BEiT` model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::architectures) struct RelativePositions {
    /// One table shared by all blocks.
    pub shared: bool,
    /// One table per block.
    pub by_block: bool,
}

/// Input of the classifier.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) enum ImageHead {
    /// Each of the first tokens, with the layer of this name; the logits of several are averaged.
    Tokens(&'static [&'static str]),
    /// The first token, concatenated with the mean of the patches.
    FirstAndMean,
    /// The mean of the patches, normalised afterwards.
    Mean,
    /// The mean of the patches, normalised before with the norm of this name, if there is one.
    MeanOf(Option<&'static str>),
    /// No classifier: the output is the first token, normalised.
    Features {
        /// Name of the norm.
        norm: &'static str,
        /// Full name of a projection of the output without a bias, if there is one.
        projection: Option<&'static str>,
    },
    /// No classifier: the output is the attention pooling of the patches (`SigLIP`).
    Probe {
        /// Name of the norm of the patches.
        norm: &'static str,
        /// Full prefix of the tensors.
        prefix: &'static str,
    },
}

impl VitConfig {
    /// `ViTForImageClassification` and `ViTMSNForImageClassification`.
    pub(in crate::architectures) const VIT: Self = Self {
        base: "vit",
        tokens: &["cls_token"],
        registers: None,
        head: ImageHead::Tokens(&["classifier"]),
        kind: Kind::Vit,
        blocks: "encoder.layer",
        projection: "patch_embeddings.projection",
        biased: true,
        input_norm: None,
        token_positions: true,
        clip: None,
        positions: true,
    };
    /// `IJepaForImageClassification`: has only patches, whose mean is classified.
    pub(in crate::architectures) const IJEPA: Self = Self {
        base: "ijepa",
        tokens: &[],
        head: ImageHead::MeanOf(Some("layernorm")),
        ..Self::VIT
    };
    /// `CLIPForImageClassification`.
    pub(in crate::architectures) const CLIP: Self = Self {
        base: "vision_model",
        tokens: &["class_embedding"],
        head: ImageHead::MeanOf(None),
        blocks: "encoder.layers",
        projection: "patch_embedding",
        biased: false,
        // Misspelt by its authors.
        input_norm: Some("pre_layrnorm"),
        clip: Some(ClipDefaults {
            patch: 32,
            activation: "quick_gelu",
            epsilon: 1e-5,
        }),
        ..Self::VIT
    };
    /// `SiglipForImageClassification`.
    pub(in crate::architectures) const SIGLIP: Self = Self {
        base: "vision_model",
        tokens: &[],
        head: ImageHead::MeanOf(Some("post_layernorm")),
        blocks: "encoder.layers",
        projection: "patch_embedding",
        clip: Some(ClipDefaults {
            patch: 16,
            activation: "gelu_pytorch_tanh",
            epsilon: 1e-6,
        }),
        ..Self::VIT
    };
    /// `CLIPVisionModel`, whose first token is the image embedding.
    pub(in crate::architectures) const CLIP_FEATURES: Self = Self::CLIP.with_norm("post_layernorm");
    /// `CLIPVisionModelWithProjection`, and the image encoder of `CLIPModel`.
    pub(in crate::architectures) const CLIP_PROJECTED: Self = Self {
        head: ImageHead::Features {
            norm: "post_layernorm",
            projection: Some("visual_projection"),
        },
        ..Self::CLIP
    };
    /// `SiglipVisionModel`, and the image encoder of `SiglipModel`.
    pub(in crate::architectures) const SIGLIP_FEATURES: Self = Self {
        head: ImageHead::Probe {
            norm: "post_layernorm",
            prefix: "vision_model.head",
        },
        ..Self::SIGLIP
    };
    /// `BeitForImageClassification`.
    pub(in crate::architectures) const BEIT: Self = Self {
        base: "beit",
        kind: Kind::Beit,
        ..Self::VIT
    };
    /// EVA-02 of timm.
    pub(in crate::architectures) const EVA: Self = Self {
        base: "eva",
        head: ImageHead::Mean,
        kind: Kind::Eva,
        blocks: "blocks",
        ..Self::VIT
    };
    /// `Data2VecVisionForImageClassification`: `BEiT` with a different training.
    pub(in crate::architectures) const DATA2VEC: Self = Self {
        base: "data2vec_vision",
        ..Self::BEIT
    };
    /// `DeiTForImageClassification`.
    pub(in crate::architectures) const DEIT: Self = Self {
        base: "deit",
        tokens: &["cls_token", "distillation_token"],
        ..Self::VIT
    };
    /// `DeiTForImageClassificationWithTeacher`.
    pub(in crate::architectures) const DEIT_WITH_TEACHER: Self = Self {
        head: ImageHead::Tokens(&["cls_classifier", "distillation_classifier"]),
        ..Self::DEIT
    };
    /// `Dinov2ForImageClassification`.
    pub(in crate::architectures) const DINO: Self = Self {
        base: "dinov2",
        head: ImageHead::FirstAndMean,
        kind: Kind::Dino,
        ..Self::VIT
    };
    /// `DINOv3ViTModel`.
    pub(in crate::architectures) const DINO_ROTARY: Self = Self {
        base: "model",
        registers: Some("register_tokens"),
        kind: Kind::Rotary,
        blocks: "layer",
        projection: "patch_embeddings",
        positions: false,
        ..Self::VIT
    }
    .with_norm("norm");
    /// `Dinov2WithRegistersForImageClassification`.
    pub(in crate::architectures) const DINO_WITH_REGISTERS: Self = Self {
        base: "dinov2_with_registers",
        registers: Some("register_tokens"),
        ..Self::DINO
    };

    /// Returns the base model of a classifier, whose first token is the image embedding.
    pub(in crate::architectures) const fn features(self) -> Self {
        self.with_norm("layernorm")
    }

    /// Same as [`Self::features`], with the norm of this name.
    const fn with_norm(self, norm: &'static str) -> Self {
        Self {
            head: ImageHead::Features {
                norm,
                projection: None,
            },
            ..self
        }
    }

    /// Returns the configuration of the image encoder: that of the checkpoint, or its `vision_config`, completed by
    /// defaults that files omit.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if `vision_config` is not an object.
    pub(in crate::architectures) fn settings(self, config: &Config) -> Result<Config, LoadError> {
        let Some(clip) = self.clip else {
            return Ok(config.clone());
        };
        if matches!(self.head, ImageHead::Probe { .. }) {
            let section = clip::section(config, "vision_config", &[])?;
            if !section.optional("vision_use_head")?.unwrap_or(true) {
                return Err(
                    section.invalid_value("vision_use_head", "only encoders with a head are supported")
                );
            }
        }
        let defaults = [
            ("hidden_size", 768.into()),
            ("intermediate_size", 3072.into()),
            ("num_hidden_layers", 12.into()),
            ("num_attention_heads", 12.into()),
            ("num_channels", 3.into()),
            ("image_size", 224.into()),
            ("patch_size", clip.patch.into()),
            ("hidden_act", clip.activation.into()),
            ("layer_norm_eps", clip.epsilon.into()),
        ];
        clip::section(config, "vision_config", &defaults)
    }

    /// Returns whether images may have another size than in training.
    pub(in crate::architectures) fn resizes(&self) -> bool {
        matches!(self.kind, Kind::Dino | Kind::Rotary)
    }

    /// Returns the prefix of the numbered blocks.
    pub(in crate::architectures) fn block_prefix(self) -> String {
        format!("{}.{}", self.base, self.blocks)
    }

    /// Returns the description after applying the settings of a checkpoint, with its relative position biases.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn configured(
        mut self,
        config: &Config,
    ) -> Result<(Self, RelativePositions), LoadError> {
        if self.kind == Kind::Vit && self.clip.is_none() {
            if config.optional(NORM_FIRST)?.unwrap_or(false) {
                (self.input_norm, self.biased) = (Some("embeddings.norm_pre"), false);
            }
            if config.optional::<usize>("num_register_tokens")?.unwrap_or(0) > 0 {
                self.registers = Some("register_tokens");
            }
            self.token_positions = !config.optional(BARE_TOKENS)?.unwrap_or(false);
        }
        if self.kind != Kind::Beit {
            return Ok((self, RelativePositions::default()));
        }
        let is_set = |key: &str, default| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(default));
        self.positions = is_set("use_absolute_position_embeddings", false)?;
        if is_set("use_mean_pooling", true)? {
            self.head = ImageHead::Mean;
        }
        let relative = RelativePositions {
            shared: is_set("use_shared_relative_position_bias", false)?,
            by_block: is_set("use_relative_position_bias", false)?,
        };
        Ok((self, relative))
    }

    /// Reads the number of register tokens.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn register_count(self, settings: &Config) -> Result<usize, LoadError> {
        Ok(match self.registers {
            Some(_) if self.kind == Kind::Rotary => settings.optional("num_register_tokens")?.unwrap_or(0),
            Some(_) => settings.optional_size("num_register_tokens")?.unwrap_or(4),
            None => 0,
        })
    }

    /// Returns how a checkpoint with this configuration can be split.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn partitioning(self, config: &Config) -> Result<Partitioning, LoadError> {
        let settings = self.settings(config)?;
        let (vit, _) = self.configured(&settings)?;
        let (blocks, _) = vit.blocks(&settings)?;
        let beside = vit.tokens.len() + vit.register_count(&settings)?;
        Ok(Partitioning {
            layers: blocks.blocks,
            width: blocks.width,
            tokens: Some(Patches::read(&settings)?.count().saturating_add(beside)),
        })
    }

    /// Reads dimensions and names of the blocks.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn blocks(
        self,
        config: &Config,
    ) -> Result<(EncoderConfig, BlockNames), LoadError> {
        if self.kind == Kind::Beit {
            let mut read = EncoderConfig::read(config)?;
            read.key_bias = false;
            let scaled = config.optional("layer_scale_init_value")?.unwrap_or(0.1) > 0.0;
            let mut names = if scaled { BEIT_NAMES } else { BLOCK_NAMES };
            if config.optional(PACKED)?.unwrap_or(false) {
                names.projections = PACKED_NAMES.projections;
                names.split_biases = Some(BEIT_BIASES);
            }
            return Ok((read, names));
        }
        if self.kind == Kind::Rotary {
            return rotary_blocks(config);
        }
        if self.kind == Kind::Eva {
            return eva_blocks(config);
        }
        if self.kind == Kind::Vit {
            let mut names = if self.clip.is_some() {
                clip::NAMES
            } else if config.optional(PACKED)?.unwrap_or(false) {
                PACKED_NAMES
            } else {
                BLOCK_NAMES
            };
            if self.clip.is_none() && config.optional(SCALED)?.unwrap_or(false) {
                names.scales = DINO_NAMES.scales;
            }
            return Ok((EncoderConfig::read(config)?, names));
        }
        let keys = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_size",
        ];
        let mut read = EncoderConfig::sized_with(config, keys, activation(config, "hidden_act")?)?;
        read.epsilon = epsilon(config, "layer_norm_eps")?;
        read.projection_bias = config.optional("qkv_bias")?.unwrap_or(true);
        read.intermediate_size = read.width * config.optional_size("mlp_ratio")?.unwrap_or(4);
        if config.optional("use_swiglu_ffn")?.unwrap_or(false) {
            // Two thirds, rounded up to a multiple of 8.
            read.intermediate_size = (read.intermediate_size * 2 / 3).next_multiple_of(8);
            (read.gated, read.activation) = (true, Activation::Silu);
            return Ok((read, DINO_GATED_NAMES));
        }
        Ok((read, DINO_NAMES))
    }
}

/// Reads dimensions and names of the blocks of `DINOv3`.
fn rotary_blocks(config: &Config) -> Result<(EncoderConfig, BlockNames), LoadError> {
    let is_set = |key: &str, default| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(default));
    let mut read = EncoderConfig::read(config)?;
    read.projection_bias = is_set("query_bias", true)?;
    if is_set("value_bias", true)? != read.projection_bias {
        return Err(config.invalid_value("value_bias", "it must be equal to query_bias"));
    }
    read.key_bias = is_set("key_bias", false)?;
    if read.key_bias && !read.projection_bias {
        return Err(config.invalid_value("key_bias", "keys alone cannot have a bias"));
    }
    read.output_bias = is_set("proj_bias", true)?;
    read.feed_forward_bias = is_set("mlp_bias", true)?;
    read.gated = is_set("use_gated_mlp", false)?;
    let names = if read.gated {
        ROTARY_GATED_NAMES
    } else {
        ROTARY_NAMES
    };
    Ok((read, names))
}

/// Reads dimensions and names of the blocks of EVA-02.
fn eva_blocks(config: &Config) -> Result<(EncoderConfig, BlockNames), LoadError> {
    let mut read = EncoderConfig::read(config)?;
    (read.gated, read.key_bias) = (true, false);
    let mut names = if config.optional(INNER_NORM)?.unwrap_or(false) {
        EVA_NORMALISED_NAMES
    } else {
        EVA_NAMES
    };
    if !config.optional(PACKED)?.unwrap_or(false) {
        (names.projections, names.split_biases) = (&["attn.q_proj", "attn.k_proj", "attn.v_proj"], None);
    }
    Ok((read, names))
}
