//! The family: size of each variant, and how it is trained.

/// One variant.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// Its extents.
    pub shape: Shape,
    /// How it is trained.
    pub training: Training,
}

/// Extents of a BERT. Its feed-forward layers are twice as wide as its tokens' vectors, half of what is usual: so the
/// family stays small enough to be committed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Number of blocks.
    pub layers: usize,
    /// Extent of a token's vector.
    pub width: usize,
    /// Attention heads per block.
    pub heads: usize,
}

/// How a network is trained. All rates of dropping are shares of what there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Training {
    /// Passes over the sentences, with their labels.
    pub epochs: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Elements of vectors that are dropped, in every layer.
    pub dropout: f64,
    /// Tokens whose identity is hidden from the network, drawn again in every pass.
    pub token_dropout: f64,
}

impl Shape {
    /// Width of the feed-forward layers.
    pub(crate) fn inner(&self) -> usize {
        2 * self.width
    }
}

/// The variants, smallest to largest: the layers, widths and heads that Turc et al. 2019 ("Well-Read Students Learn
/// Better") call tiny, mini and small, and one below them.
pub(crate) const FAMILY: &[Recipe] = &[
    Recipe {
        name: "sentiment-pico",
        shape: Shape {
            layers: 1,
            width: 64,
            heads: 1,
        },
        training: Training {
            epochs: 10,
            rate: 1e-3,
            dropout: 0.2,
            token_dropout: 0.4,
        },
    },
    Recipe {
        name: "sentiment-tiny",
        shape: Shape {
            layers: 2,
            width: 128,
            heads: 2,
        },
        training: Training {
            epochs: 8,
            rate: 5e-4,
            dropout: 0.3,
            token_dropout: 0.45,
        },
    },
    Recipe {
        name: "sentiment-mini",
        shape: Shape {
            layers: 4,
            width: 256,
            heads: 4,
        },
        training: Training {
            epochs: 6,
            rate: 3e-4,
            dropout: 0.3,
            token_dropout: 0.45,
        },
    },
    Recipe {
        name: "sentiment-small",
        shape: Shape {
            layers: 4,
            width: 512,
            heads: 8,
        },
        training: Training {
            epochs: 4,
            rate: 2e-4,
            dropout: 0.3,
            token_dropout: 0.45,
        },
    },
];
