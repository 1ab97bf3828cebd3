//! Description of a text encoder: what its architecture file reads from `config.json`, and what
//! [`TextEncoder`](super) needs to load and run it.

use crate::architectures::encoder::bottleneck::BottleneckConfig;
pub(in crate::architectures) use crate::architectures::encoder::position_bias::PositionBias;
use crate::architectures::encoder::{BlockConfig, BlockNames, EncoderConfig};
use crate::architectures::text::TokenLimits;
use crate::architectures::text::last_token::TextEnd;
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, DistanceRows, Rotary};
use crate::runtime::partitioning::Partitioning;
use crate::tasks::embedding::Pooling;

/// A text encoder. Names of tensors are relative to the base model; those of heads are whole.
pub(in crate::architectures) struct TextEncoderConfig {
    /// Prefix of the base model's tensors; a checkpoint of the base model alone has none.
    pub base: &'static str,
    /// Sizes of the blocks, and how they are computed.
    pub encoder: EncoderConfig,
    /// Blocks in order.
    pub blocks: Vec<BlockConfig>,
    /// Names in a block.
    pub names: BlockNames,
    /// Sizes of the blocks if they are narrower than the vectors between them.
    pub bottleneck: Option<BottleneckConfig>,
    /// What becomes of tokens before the blocks.
    pub embeddings: Embeddings,
    /// Norm after the blocks.
    pub final_norm: Option<&'static str>,
    /// Ends of the names of tensors that files have and that are computed here.
    pub buffers: &'static [&'static str],
    /// Position bias that the blocks share.
    pub position_bias: Option<PositionBias>,
    /// Vectors of distances that the blocks share.
    pub distances: Option<RelativePositionConfig>,
    /// Segments of tokens on which attention depends; partitions hand them on.
    pub segments: Segments,
    /// Head of a sequence classifier.
    pub classifier: TextHeadConfig,
    /// Head of a question answering model.
    pub spans: TextHeadConfig,
    /// Head of a token classifier.
    pub tokens: TextHeadConfig,
    /// Vector of an embedding model.
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

/// What the vector of a text is made of, beside the pooling.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::architectures) struct EmbeddingConfig {
    /// Where a sequence ends.
    pub end: TextEnd,
    /// Layer after the pooling.
    pub projection: Option<ProjectionConfig>,
}

/// A layer from the vector of a text to one that other encoders share.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct ProjectionConfig {
    /// Its whole name.
    pub name: &'static str,
    /// Size of its results.
    pub width: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

/// Sum of a token's, its position's and its type's vector, normalised.
pub(in crate::architectures) struct Embeddings {
    /// Limits of token ids; `types` is 0 without token types, which are then ignored.
    pub limits: TokenLimits,
    /// Size of the vectors; those of the blocks may be larger.
    pub width: usize,
    /// Table of the tokens.
    pub words: &'static str,
    /// Table of the positions, and its number of rows.
    pub positions: Option<(&'static str, usize)>,
    /// Position of the tokens.
    pub scheme: PositionScheme,
    /// Table of the token types, if there are any; empty if they are not added.
    pub types: &'static str,
    /// Table whose first row is added to every token, and its number of rows.
    pub constant: Option<(&'static str, usize)>,
    /// Factor of the tokens' vectors.
    pub scale: f32,
    /// How the vectors of masked-out words are dropped, in models of proteins.
    pub dropout: Option<MaskDropout>,
    /// Norm of the sum, if there is one.
    pub norm: Option<&'static str>,
    /// Layer from these vectors to those of the blocks.
    pub projection: Option<Projection>,
}

/// In training, the vectors of `<mask>` were zeros, and the others were not scaled up for it. A text has no or few masks, so
/// its vectors are scaled to the same mean: by the share that was shown in training over the share that is shown now.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct MaskDropout {
    /// Token id of `<mask>`.
    pub mask: i64,
    /// Share of the tokens that training showed.
    pub shown: f32,
}

/// A layer between embeddings and blocks of different widths.
pub(in crate::architectures) enum Projection {
    /// After the norm, with a bias.
    AfterNorm(&'static str),
    /// Before the norm, without a bias.
    BeforeNorm(&'static str),
    /// Over every token with its neighbours, before positions and types are added; the norm is a factor and a shift.
    Trigrams(&'static str),
}

/// Position of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum PositionScheme {
    /// 0, 1, 2, ...
    FromZero,
    /// `pad + 1`, `pad + 2`, ...; padding tokens have the position `pad` and are not counted.
    AfterPadding {
        /// Token id of the padding.
        pad: usize,
    },
}

/// Segments of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::architectures) enum Segments {
    /// Attention does not depend on them.
    Ignored,
    /// The types of the tokens.
    Types,
    /// Of question answering: 1 for the tokens before the first of this id, which are those of the question, 0 for the others.
    Question(i64),
    /// Likewise, with the token of this id. Types that are not given are 0 for the question and 1 for the others, and no span is in
    /// the question, the first token excepted (`BigBird`).
    Asked(i64),
}

impl Segments {
    /// Returns the segments of tokens, by their ids and types.
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

    /// Whether only question answering has them.
    pub(in crate::architectures) fn is_of_questions(self) -> bool {
        matches!(self, Self::Question(_) | Self::Asked(_))
    }
}

/// Vectors of distances for disentangled attention.
pub(in crate::architectures) struct RelativePositionConfig {
    /// The vectors.
    pub vectors: DistanceVectors,
    /// Row of a distance.
    pub rows: DistanceRows,
    /// Layer in a block that gives the keys of distances.
    pub keys: Option<&'static str>,
    /// Whether that layer has a bias.
    pub key_bias: bool,
    /// Layer in a block that gives their queries.
    pub queries: Option<&'static str>,
}

/// Where the vectors of distances are from.
pub(in crate::architectures) enum DistanceVectors {
    /// A table of the file.
    Table {
        /// Its name.
        name: &'static str,
        /// Number of its rows.
        count: usize,
        /// Norm of the vectors.
        norm: Option<&'static str>,
    },
    /// Sines and cosines of distances up to this one, in tokens; those beyond the second number count as that.
    Waves(usize, usize),
}

/// Returns the sines, and after them the cosines, of the distances from `-longest` to `longest` at falling frequencies, a row of
/// `width` for each; distances beyond `clamp` count as that.
pub(in crate::architectures) fn waves(longest: usize, clamp: usize, width: usize) -> Vec<f32> {
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

/// Returns a rotation of queries and keys by the halves of a head; `None` if `theta` is not positive or a head has no halves.
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

/// What computes the answer from the vectors of the tokens.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct TextHeadConfig {
    /// Vector that is classified.
    pub pooling: Pooling,
    /// Whether the layer before the output layer comes before the pooling.
    pub late: bool,
    /// Layer before the output layer.
    pub dense: Option<DenseConfig>,
    /// Feed-forward layer before the output layer, whose sum with its input is normalised.
    pub block: Option<HeadBlock>,
    /// Output layer.
    pub output: &'static str,
}

/// A feed-forward layer before an output layer, as large as those of the blocks.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct HeadBlock {
    /// Its first layer.
    pub up: &'static str,
    /// Its second layer.
    pub down: &'static str,
    /// Norm of the sum.
    pub norm: &'static str,
}

/// A layer before an output layer.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct DenseConfig {
    /// Its name.
    pub name: &'static str,
    /// Its activation.
    pub activation: Activation,
    /// Whether it has a bias.
    pub bias: bool,
    /// Norm after the activation.
    pub norm: Option<&'static str>,
}

impl DenseConfig {
    /// A layer with a bias and without a norm.
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
    /// Classifies the first token by two layers.
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

    /// Head of most question answering models: one layer.
    pub(in crate::architectures) const SPANS: Self = Self {
        pooling: Pooling::First,
        late: false,
        dense: None,
        block: None,
        output: "qa_outputs",
    };

    /// Head of most token classifiers: one layer.
    pub(in crate::architectures) const TOKENS: Self = Self {
        output: "classifier",
        ..Self::SPANS
    };
}

impl Embeddings {
    /// Embeddings of tokens alone, by the table `words` of vectors of size `width`, without a norm.
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
            constant: None,
            scale: 1.0,
            dropout: None,
            norm: None,
            projection: None,
        }
    }
}

impl TextEncoderConfig {
    /// Describes an encoder with the prefix `base` and the usual heads; `classifier` is that of a sequence classifier.
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

    /// Describes an architecture that follows BERT, with the prefix `base`; `classifier` is its head.
    ///
    /// # Errors
    /// [`LoadError`] for a key that is missing, invalid or asks for something that is not supported.
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
        // Files of old versions of transformers leave out what was the default of the class.
        let config = &config.with_defaults(&[
            ("hidden_act", "gelu".into()),
            ("layer_norm_eps", 1e-12.into()),
            ("type_vocab_size", 2.into()),
        ]);
        Self::around(config, base, EncoderConfig::read(config)?, classifier)
    }

    /// Describes an architecture whose embeddings are those of BERT, around an encoder, with the prefix `base`; `classifier` is its
    /// head.
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

    /// Makes the embeddings as narrow as `embedding_size` says, with a layer to the width of the blocks, as in ELECTRA.
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

    /// Makes positions count from the padding's token id on, as in RoBERTa.
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
