//! Attention between the tokens of an encoder.

/// Self-attention of an encoder; see [`Ops::attend_sequences`](super::Ops::attend_sequences).
#[derive(Debug)]
pub struct EncoderAttention<'a, X> {
    /// Number of heads.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Maximum distance between a token and those it attends to; `None` without a limit.
    pub window: Option<usize>,
    /// Number of leading tokens per sequence that all its tokens attend to, even outside the window; `None`: none.
    pub leading: Option<&'a [usize]>,
    /// Table of a [`RelativeBias`](super::RelativeBias) to add to the scores.
    pub position_bias: Option<&'a X>,
    /// Scores between tokens and distances to add.
    pub distances: Option<&'a DistanceScores<X>>,
    /// Scores of all token pairs to add.
    pub pairs: Option<PairScores<'a, X>>,
    /// Scores of token pairs of different kinds to add.
    pub kinds: Option<SegmentScores<'a, X>>,
}

/// Scores per query, for keys of another kind (segment) than the query's (Yang et al. 2019, "`XLNet`", section 2.5).
#[derive(Debug)]
pub struct SegmentScores<'a, X> {
    /// `[tokens, heads]`; rows correspond to those of the projections.
    pub values: &'a X,
    /// Kind of each token, per sequence.
    pub kinds: &'a [&'a [i64]],
}

/// Scores per query and key, for sequences of equal length.
#[derive(Debug)]
pub struct PairScores<'a, X> {
    /// `[kinds * heads, tokens * tokens]`, with all keys of a query contiguous.
    pub values: &'a X,
    /// Kind of each sequence.
    pub kinds: &'a [usize],
    /// Length of a sequence.
    pub tokens: usize,
}

impl<X> EncoderAttention<'_, X> {
    /// Creates attention in which every token attends to all visible ones; scores are divided by the square root of
    /// the head size.
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

    /// Returns the number of leading tokens of a sequence that all its tokens attend to.
    pub(super) fn leading_of(&self, sequence: usize) -> usize {
        let leading = self.leading.and_then(|leading| leading.get(sequence));
        leading.copied().unwrap_or_default()
    }

    /// Returns whether scores depend on the distance of tokens.
    pub(super) fn depends_on_distance(&self) -> bool {
        self.window.is_some() || self.position_bias.is_some() || self.distances.is_some()
    }
}

/// Disentangled attention (He et al. 2021, "DeBERTa", section 3.1): distances have their own keys and queries.
#[derive(Debug)]
pub struct DistanceScores<X> {
    /// Row of the matrices for each distance of query and key.
    pub rows: DistanceRows,
    /// Keys of the distances `[rows, heads * head_dim]`, multiplied with queries.
    pub keys: Option<X>,
    /// Queries of the distances `[rows, heads * head_dim]`, multiplied with keys.
    pub queries: Option<X>,
}

/// Row of a table for each distance of a query from its key; rows do not decrease with the distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistanceRows {
    /// Rows for the distances from `-longest` to `longest`; the length is `2 * longest + 1`.
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

    /// Returns the row for a query and a key by their positions.
    pub fn row(&self, query: usize, key: usize) -> usize {
        let longest = self.rows.len() / 2;
        let place = (longest + query).saturating_sub(key).min(2 * longest);
        self.rows.get(place).copied().unwrap_or_default()
    }

    /// Returns the number of distances.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the first and the last row that a sequence of this length uses.
    pub(super) fn range(&self, length: usize) -> (usize, usize) {
        let farthest = length.saturating_sub(1);
        (self.row(0, farthest), self.row(farthest, 0))
    }
}
