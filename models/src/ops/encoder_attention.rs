//! How the tokens of an encoder attend to each other.

/// Self-attention of an encoder: [`Ops::attend_sequences`](super::Ops::attend_sequences).
#[derive(Debug)]
pub struct EncoderAttention<'a, X> {
    /// Number of heads.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Largest distance between a token and those that it attends to; `None` without a limit.
    pub window: Option<usize>,
    /// Number of first tokens of every sequence that all its tokens attend to, also beyond the window; `None`: none.
    pub leading: Option<&'a [usize]>,
    /// Table of a [`RelativeBias`](super::RelativeBias), added to the scores.
    pub position_bias: Option<&'a X>,
    /// Scores between tokens and distances, added to the scores.
    pub distances: Option<&'a DistanceScores<X>>,
    /// Scores of all pairs of tokens, added to the scores.
    pub pairs: Option<PairScores<'a, X>>,
    /// Scores of tokens and those of another kind, added to the scores.
    pub kinds: Option<KindScores<'a, X>>,
}

/// Scores by query, for the keys of another kind than its own (Yang et al. 2019, "`XLNet`", section 2.5).
#[derive(Debug)]
pub struct KindScores<'a, X> {
    /// `[tokens, heads]`: the rows are those of the projections.
    pub values: &'a X,
    /// Kinds of the tokens of every sequence.
    pub kinds: &'a [&'a [i64]],
}

/// Scores by query and key, for sequences of equal length.
#[derive(Debug)]
pub struct PairScores<'a, X> {
    /// `[kinds * heads, tokens * tokens]`: for every query, those of all keys.
    pub values: &'a X,
    /// Kind of every sequence.
    pub kinds: &'a [usize],
    /// Length of a sequence.
    pub tokens: usize,
}

impl<X> EncoderAttention<'_, X> {
    /// Every token attends to all visible ones; scores are divided by the square root of the size of a head.
    pub fn plain(heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            leading: None,
            position_bias: None,
            distances: None,
            pairs: None,
            kinds: None,
        }
    }

    /// Returns how many first tokens of a sequence all its tokens attend to.
    pub(super) fn leading_of(&self, sequence: usize) -> usize {
        let leading = self.leading.and_then(|leading| leading.get(sequence));
        leading.copied().unwrap_or_default()
    }

    /// Whether scores depend on the distance of tokens.
    pub(super) fn depends_on_distance(&self) -> bool {
        self.window.is_some() || self.position_bias.is_some() || self.distances.is_some()
    }
}

/// Disentangled attention (He et al. 2021, "DeBERTa", section 3.1): distances have keys and queries of their own.
#[derive(Debug)]
pub struct DistanceScores<X> {
    /// Row of the matrices by distance of query and key.
    pub rows: DistanceRows,
    /// Keys of the distances `[rows, heads * head_dim]`, with which queries are multiplied.
    pub keys: Option<X>,
    /// Queries of the distances `[rows, heads * head_dim]`, with which keys are multiplied.
    pub queries: Option<X>,
}

/// Row of a table by the distance of a query from its key; the row does not decrease with the distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistanceRows {
    /// Rows of the distances from `-longest` to `longest`; its length is `2 * longest + 1`.
    rows: Vec<usize>,
}

impl DistanceRows {
    /// Creates the table for distances up to `longest`, in tokens; `row` returns the row of a distance.
    pub fn new(longest: usize, row: impl Fn(isize) -> usize) -> Self {
        let longest = isize::try_from(longest).unwrap_or(isize::MAX / 2);
        Self {
            rows: (-longest..=longest).map(row).collect(),
        }
    }

    /// Returns the row of a query and a key by their positions.
    pub fn row(&self, query: usize, key: usize) -> usize {
        let longest = self.rows.len() / 2;
        let place = (longest + query).saturating_sub(key).min(2 * longest);
        self.rows.get(place).copied().unwrap_or_default()
    }

    /// Number of distances.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the first and the last row that a sequence of this length uses.
    pub(super) fn range(&self, length: usize) -> (usize, usize) {
        let farthest = length.saturating_sub(1);
        (self.row(0, farthest), self.row(farthest, 0))
    }
}
