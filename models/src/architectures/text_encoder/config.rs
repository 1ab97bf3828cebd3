//! Description of a text encoder: its architecture file reads it from `config.json`, and [`TextEncoder`](super) loads
//! and runs it.

use crate::architectures::encoder::bottleneck::BottleneckConfig;
pub(in crate::architectures) use crate::architectures::encoder::position_bias::PositionBias;
use crate::architectures::encoder::{BlockConfig, BlockNames, EncoderConfig};
use crate::architectures::text::TokenLimits;
use crate::architectures::text::last_token::TextEnd;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows, Rotary};
use crate::runtime::partitioning::Partitioning;
use crate::tasks::embedding::Pooling;

/// Description of a text encoder. Tensor names are relative to the base model; those of heads are full names.
pub(in crate::architectures) struct TextEncoderConfig {
    /// Prefix of the base model's tensors, which a checkpoint of the base model alone omits.
    pub base: &'static str,
    /// Dimensions and computation of the blocks.
    pub encoder: EncoderConfig,
    /// Blocks in order.
    pub blocks: Vec<BlockConfig>,
    /// Tensor names in a block.
    pub names: BlockNames,
    /// Function that renames the file's tensors, if the number of a block is not in the prefix of its tensors.
    pub renamed: Option<fn(&str) -> String>,
    /// Dimensions of bottleneck blocks, if blocks are narrower than the hidden states.
    pub bottleneck: Option<BottleneckConfig>,
    /// Embeddings before the blocks.
    pub embeddings: Embeddings,
    /// Name of the norm after the blocks.
    pub final_norm: Option<&'static str>,
    /// Name suffixes of buffers in files that are recomputed here.
    pub buffers: &'static [&'static str],
    /// Position bias shared by all blocks.
    pub position_bias: Option<PositionBias>,
    /// Distance embeddings shared by all blocks.
    pub distances: Option<RelativePositionConfig>,
    /// Segments on which attention depends; partitions pass them on.
    pub segments: Segments,
    /// Head of a sequence classifier.
    pub classifier: TextHeadConfig,
    /// Head of a question answering model.
    pub spans: TextHeadConfig,
    /// Head of a token classifier.
    pub tokens: TextHeadConfig,
    /// Settings of an embedding model.
    pub vector: EmbeddingConfig,
}

impl TextEncoderConfig {
    /// Returns how a checkpoint of this encoder can be split.
    pub(in crate::architectures) fn partitioning(&self) -> Partitioning {
        Partitioning {
            layers: self.blocks.len(),
            width: self.encoder.width,
            tokens: Some(self.embeddings.limits.context),
        }
    }
}

/// Settings of a text embedding besides the pooling.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::architectures) struct EmbeddingConfig {
    /// End of a sequence.
    pub end: TextEnd,
    /// Projection after the pooling.
    pub projection: Option<ProjectionConfig>,
}

/// Projection from the text embedding to a space shared with other encoders.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct ProjectionConfig {
    /// Full name of the layer.
    pub name: &'static str,
    /// Number of outputs.
    pub width: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
}

/// Embedding of tokens: the normalised sum of token, position and type embeddings.
pub(in crate::architectures) struct Embeddings {
    /// Limits of token ids; if `types` is 0, token types are ignored.
    pub limits: TokenLimits,
    /// Width of the embeddings; the blocks may be wider.
    pub width: usize,
    /// Name of the token table.
    pub words: &'static str,
    /// Name of the position table, and its number of rows.
    pub positions: Option<(&'static str, usize)>,
    /// Numbering of positions.
    pub scheme: PositionScheme,
    /// Name of the token type table; empty if types are not added.
    pub types: &'static str,
    /// Tables whose first row is added to every token: name, number of rows, and factor.
    pub constants: Vec<(&'static str, usize, f32)>,
    /// Factor of the token embeddings.
    pub scale: f32,
    /// Compensation for mask dropout in training, in protein models.
    pub dropout: Option<MaskDropout>,
    /// Name of the norm of the sum, if there is one.
    pub norm: Option<&'static str>,
    /// Projection from embeddings to the width of the blocks.
    pub projection: Option<Projection>,
}

/// Compensation for mask dropout. In training, the embeddings of `<mask>` were zero, and the others were not scaled
/// up. A text has few masks or none, so its embeddings are scaled to the same mean: by the unmasked fraction in
/// training over the unmasked fraction of the text.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct MaskDropout {
    /// Token id of `<mask>`.
    pub mask: i64,
    /// Fraction of unmasked tokens in training.
    pub shown: f32,
}

/// Projection between embeddings and blocks of different widths.
pub(in crate::architectures) enum Projection {
    /// After the norm, with a bias.
    AfterNorm(&'static str),
    /// Before the norm, without a bias.
    BeforeNorm(&'static str),
    /// Over each token with its neighbours, before positions and types are added; the norm is a scale and a shift.
    Trigrams(&'static str),
}

/// Numbering of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum PositionScheme {
    /// 0, 1, 2, ...
    FromZero,
    /// `pad + 1`, `pad + 2`, ...; padding tokens have the position `pad` and are not counted.
    AfterPadding {
        /// Padding token id.
        pad: usize,
    },
}

/// Segments of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum Segments {
    /// Attention does not depend on segments.
    Ignored,
    /// Token types.
    Types,
    /// Segments for question answering: 1 for the question, which are the tokens before the first one with this id, 0
    /// for the others.
    Question(i64),
    /// Like `Question`, but including the token with this id. Default token types are 0 for the question and 1 for the
    /// others, and no span is in the question, except at the first token (`BigBird`).
    Asked(i64),
}

impl Segments {
    /// Returns the segments of tokens, given their ids and types.
    pub(in crate::architectures) fn of(self, ids: &[i64], types: &[i64]) -> Vec<i64> {
        match self {
            Self::Ignored => Vec::new(),
            Self::Types => types.to_vec(),
            Self::Question(end) | Self::Asked(end) => {
                let question = ids.iter().position(|id| *id == end).unwrap_or_default();
                let question = question + usize::from(matches!(self, Self::Asked(_)));
                let segments = (0..ids.len()).map(|place| i64::from(place < question));
                segments.collect()
            }
        }
    }

    /// Returns whether only question answering uses the segments.
    pub(in crate::architectures) fn is_of_questions(self) -> bool {
        matches!(self, Self::Question(_) | Self::Asked(_))
    }
}

/// Distance embeddings for disentangled attention.
pub(in crate::architectures) struct RelativePositionConfig {
    /// Source of the embeddings.
    pub vectors: DistanceVectors,
    /// Row of each distance.
    pub rows: DistanceRows,
    /// Name of the layer in a block that computes the keys of distances.
    pub keys: Option<&'static str>,
    /// Whether the key layer has a bias.
    pub key_bias: bool,
    /// Name of the layer in a block that computes the queries of distances.
    pub queries: Option<&'static str>,
}

/// Source of distance embeddings.
pub(in crate::architectures) enum DistanceVectors {
    /// A table in the file.
    Table {
        /// Name of the table.
        name: &'static str,
        /// Number of rows.
        count: usize,
        /// Name of the norm of the embeddings.
        norm: Option<&'static str>,
    },
    /// Sines and cosines of distances up to the first number, in tokens; larger distances than the second number are
    /// clamped to it.
    Sinusoidal(usize, usize),
}

/// Returns a row of `width` for each distance from `-longest` to `longest`: sines, then cosines, at falling
/// frequencies. Distances beyond `clamp` are clamped to it.
pub(in crate::architectures) fn sinusoids(longest: usize, clamp: usize, width: usize) -> Vec<f32> {
    let frequency = |pair: usize| (1e4_f32).powf((2 * pair) as f32 / width as f32).recip();
    let frequencies: Vec<f32> = (0..width / 2).map(frequency).collect();
    let row = |place: usize| {
        let distance = place.abs_diff(longest).min(clamp) as f32;
        let angle = move |frequency: &f32| {
            let angle = distance * frequency;
            if place < longest { -angle } else { angle }
        };
        let angles: Vec<f32> = frequencies.iter().map(angle).collect();
        let sines = angles.iter().map(|angle| angle.sin());
        sines
            .chain(angles.iter().map(|angle| angle.cos()))
            .collect::<Vec<f32>>()
    };
    (0..=2 * longest).flat_map(row).collect()
}

/// Returns a rotary embedding over the halves of a head; `None` if `theta` is not positive or the head size is odd.
pub(in crate::architectures) fn rotation(theta: f64, head_dim: usize) -> Option<Rotary> {
    if !(theta.is_finite() && theta > 0.0) || head_dim % 2 == 1 {
        return None;
    }
    let frequency = |pair: usize| theta.powf(-((2 * pair) as f64) / head_dim as f64) as f32;
    Some(Rotary {
        frequencies: (0..head_dim / 2).map(frequency).collect(),
        neighbours: false,
        scale: 1.0,
    })
}

/// Head that computes the answer from hidden states.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct TextHeadConfig {
    /// Pooling before classification.
    pub pooling: Pooling,
    /// Whether the dense layer is applied before the pooling.
    pub late: bool,
    /// Dense layer before the output layer.
    pub dense: Option<DenseConfig>,
    /// Feed-forward before the output layer, with a residual connection and a norm.
    pub block: Option<HeadBlock>,
    /// Name of the output layer.
    pub output: &'static str,
}

/// A feed-forward before an output layer, with the size of those in the blocks.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct HeadBlock {
    /// Name of the first layer.
    pub up: &'static str,
    /// Name of the second layer.
    pub down: &'static str,
    /// Name of the norm.
    pub norm: &'static str,
}

/// A dense layer before an output layer.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct DenseConfig {
    /// Name of the layer.
    pub name: &'static str,
    /// Activation of the layer.
    pub activation: Activation,
    /// Whether the layer has a bias.
    pub bias: bool,
    /// Name of the norm after the activation.
    pub norm: Option<&'static str>,
}

impl DenseConfig {
    /// Creates a layer with a bias and without a norm.
    pub(in crate::architectures) const fn plain(name: &'static str, activation: Activation) -> Self {
        Self {
            name,
            activation,
            bias: true,
            norm: None,
        }
    }
}

impl TextHeadConfig {
    /// Creates a head that classifies the first token with two layers.
    pub(in crate::architectures) const fn first(
        name: &'static str,
        activation: Activation,
        output: &'static str,
    ) -> Self {
        Self {
            pooling: Pooling::First,
            late: false,
            dense: Some(DenseConfig::plain(name, activation)),
            block: None,
            output,
        }
    }

    /// Head of most question answering models: a single layer.
    pub(in crate::architectures) const SPANS: Self = Self {
        pooling: Pooling::First,
        late: false,
        dense: None,
        block: None,
        output: "qa_outputs",
    };

    /// Head of most token classifiers: a single layer.
    pub(in crate::architectures) const TOKENS: Self = Self {
        output: "classifier",
        ..Self::SPANS
    };
}

impl Embeddings {
    /// Creates embeddings of tokens only, with a table `words` of width `width`, without a norm.
    pub(in crate::architectures) const fn new(
        words: &'static str,
        width: usize,
        limits: TokenLimits,
    ) -> Self {
        Self {
            limits,
            width,
            words,
            positions: None,
            scheme: PositionScheme::FromZero,
            types: "",
            constants: Vec::new(),
            scale: 1.0,
            dropout: None,
            norm: None,
            projection: None,
        }
    }
}

impl TextEncoderConfig {
    /// Creates the description of an encoder with the prefix `base` and the usual heads; `classifier` is its sequence
    /// classification head.
    pub(in crate::architectures) fn new(
        base: &'static str,
        blocks: Vec<BlockConfig>,
        encoder: EncoderConfig,
        names: BlockNames,
        embeddings: Embeddings,
        classifier: TextHeadConfig,
    ) -> Self {
        Self {
            base,
            encoder,
            blocks,
            names,
            renamed: None,
            bottleneck: None,
            embeddings,
            final_norm: None,
            buffers: &[],
            position_bias: None,
            distances: None,
            segments: Segments::Ignored,
            classifier,
            spans: TextHeadConfig::SPANS,
            tokens: TextHeadConfig::TOKENS,
            vector: EmbeddingConfig::default(),
        }
    }

    /// Describes an architecture derived from BERT, with the prefix `base` and the sequence classification head
    /// `classifier`.
    ///
    /// # Errors
    /// [`LoadError`] for a key that is missing, invalid, or requires an unsupported feature.
    pub(in crate::architectures) fn like_bert(
        config: &Config,
        base: &'static str,
        classifier: TextHeadConfig,
    ) -> Result<Self, LoadError> {
        let positions = config.optional::<String>("position_embedding_type")?;
        if positions.is_some_and(|kind| kind != "absolute") {
            return Err(
                config.invalid_value("position_embedding_type", "only absolute positions are supported")
            );
        }
        if config.optional::<bool>("is_decoder")?.unwrap_or(false) {
            return Err(config.invalid_value("is_decoder", "only encoders are supported"));
        }
        // Files of old versions of transformers omit values that equal the class defaults.
        let config = &config.with_defaults(&[
            ("hidden_act", "gelu".into()),
            ("layer_norm_eps", 1e-12.into()),
            ("type_vocab_size", 2.into()),
        ]);
        Self::around(config, base, EncoderConfig::read(config)?, classifier)
    }

    /// Describes an architecture with BERT's embeddings and the given encoder, with the prefix `base` and the sequence
    /// classification head `classifier`.
    ///
    /// # Errors
    /// [`LoadError`] for a key that is missing or invalid.
    pub(in crate::architectures) fn around(
        config: &Config,
        base: &'static str,
        encoder: EncoderConfig,
        classifier: TextHeadConfig,
    ) -> Result<Self, LoadError> {
        let context = config.size("max_position_embeddings")?;
        let limits = TokenLimits {
            vocabulary: config.size("vocab_size")?,
            types: match config.optional("type_vocab_size")? {
                Some(0) => 0,
                _ => config.size("type_vocab_size")?,
            },
            context,
        };
        let embeddings = Embeddings {
            positions: Some(("embeddings.position_embeddings", context)),
            types: "embeddings.token_type_embeddings",
            norm: Some("embeddings.LayerNorm"),
            ..Embeddings::new("embeddings.word_embeddings", encoder.width, limits)
        };
        let blocks = encoder.numbered("encoder.layer");
        Ok(Self::new(
            base,
            blocks,
            encoder,
            BlockNames::BERT,
            embeddings,
            classifier,
        ))
    }

    /// Sets the width of the embeddings to `embedding_size`, with a projection to the width of the blocks, as in
    /// ELECTRA.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] for an invalid size.
    pub(in crate::architectures) fn embed_narrower(&mut self, config: &Config) -> Result<(), LoadError> {
        let own = self.encoder.width;
        let width = config.optional_size("embedding_size")?.unwrap_or(own);
        if width != own {
            self.embeddings.width = width;
            self.embeddings.projection = Some(Projection::AfterNorm("embeddings_project"));
        }
        Ok(())
    }

    /// Numbers positions from the padding token id on, as in RoBERTa.
    ///
    /// # Errors
    /// [`LoadError::BadKey`] if no position is left for text.
    pub(in crate::architectures) fn count_after_padding(&mut self, config: &Config) -> Result<(), LoadError> {
        let pad = config.optional::<usize>("pad_token_id")?.unwrap_or(1);
        let limits = &mut self.embeddings.limits;
        let Some(context @ 1..) = limits.context.checked_sub(pad.saturating_add(1)) else {
            let reason = format!("positions begin after pad_token_id = {pad}");
            return Err(config.invalid_value("max_position_embeddings", reason));
        };
        limits.context = context;
        self.embeddings.scheme = PositionScheme::AfterPadding { pad };
        Ok(())
    }
}
