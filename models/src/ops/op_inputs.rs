//! Parameters of operations besides tensors.

/// Attention heads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Heads {
    /// Number of query heads.
    pub queries: usize,
    /// Number of key and value heads; divides `queries`. Each is shared by `queries / keys` query heads.
    pub keys: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Heads {
    /// Returns the width of a query over all heads.
    pub(crate) fn query_width(&self) -> usize {
        self.queries * self.head_dim
    }

    /// Returns the width of a key, which equals that of a value, over all heads.
    pub(crate) fn key_width(&self) -> usize {
        self.keys * self.head_dim
    }
}

/// Rotary position embedding (Su et al. 2021, "RoFormer", section 3.4).
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Angle per position for each pair of elements, radians; elements beyond them are not rotated.
    pub frequencies: Vec<f32>,
    /// Whether pairs are adjacent elements (GPT-J) instead of one element from each half (Llama).
    pub neighbours: bool,
    /// Factor of the rotated elements; 1 unless position scaling has one (the attention factor of `YaRN`).
    pub scale: f32,
}

impl Rotary {
    /// Returns the indices of the two elements of a pair in a head.
    pub fn pair(&self, index: usize) -> (usize, usize) {
        if self.neighbours {
            (2 * index, 2 * index + 1)
        } else {
            (index, index + self.frequencies.len())
        }
    }
}

/// Relative position bias (Raffel et al. 2020, "T5", section 2.1): added to a score by the distance between key and
/// query.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeBias {
    /// Maximum distance with its own value, in both directions; larger distances use this value.
    pub max_distance: usize,
    /// `[heads, 2 * max_distance + 1]`, from a key `max_distance` tokens before its query to one as far after it.
    pub values: Vec<f32>,
}

impl RelativeBias {
    /// Returns the number of distances, including both directions and zero.
    pub fn width(&self) -> usize {
        2 * self.max_distance + 1
    }
}

/// A range of rows of a matrix.
#[derive(Debug)]
pub struct Span<'a, X> {
    /// The matrix.
    pub matrix: &'a X,
    /// First row.
    pub from: usize,
    /// Number of rows.
    pub count: usize,
}

impl<X> Clone for Span<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Span<'_, X> {}

/// Keys and values that a request's queries attend to.
pub struct AttentionSpans<'a, X> {
    /// Number of queries.
    pub queries: usize,
    /// Keys and values that all queries attend to, in order: all, or those of cached tokens; rows are `[keys | values]`.
    pub cached: Vec<Span<'a, X>>,
    /// Keys and values of the queries' own tokens, under a causal mask. `None` if all queries attend to the same tokens:
    /// in an encoder, where the first query has the position of the first key, and in cross-attention.
    pub new_kv: Option<Span<'a, X>>,
}

/// Rules that modify attention scores and their visibility.
#[derive(Debug)]
pub struct ScoreRules<'a, X> {
    /// Table of a [`RelativeBias`] to add to the scores.
    pub position_bias: Option<&'a X>,
    /// Sliding window: number of last tokens that a token attends to, itself included; in bidirectional attention, the
    /// maximum distance. `None`: all.
    pub window: Option<usize>,
    /// Chunked attention: size of the chunks; a token attends only to its own chunk. `None`: all.
    pub chunk: Option<usize>,
    /// Logit soft cap: a score `s` becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Attention sinks: one score per query head, `[heads, 1]`, that takes part in the softmax without a value
    /// (gpt-oss).
    pub sinks: Option<&'a X>,
}

impl<X> Default for ScoreRules<'_, X> {
    fn default() -> Self {
        Self {
            position_bias: None,
            window: None,
            chunk: None,
            softcap: None,
            sinks: None,
        }
    }
}

impl<X> ScoreRules<'_, X> {
    /// Returns the position of the first token that a token at `position` attends to.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        let chunk = self.chunk.unwrap_or(usize::MAX).max(1);
        let last = (position + 1).saturating_sub(window);
        last.max(position - position % chunk)
    }

    /// Returns the range of `count` tokens that a token at `position` attends to in bidirectional attention.
    pub(crate) fn visible_around(&self, position: usize, count: usize) -> std::ops::Range<usize> {
        let window = self.window.unwrap_or(usize::MAX);
        let end = position.saturating_add(window).saturating_add(1).min(count);
        position.saturating_sub(window).min(end)..end
    }
}

impl<X> Clone for ScoreRules<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for ScoreRules<'_, X> {}

/// Images in a matrix `[batch * height * width, channels]`, and the square window of a convolution over them. Padding
/// is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Height of an image, pixels.
    pub height: usize,
    /// Width of an image, pixels.
    pub width: usize,
    /// Number of channels.
    pub channels: usize,
    /// Side of the window (kernel size), pixels; at least 1.
    pub kernel: usize,
    /// Stride in both directions, pixels; at least 1.
    pub stride: usize,
    /// Padding, pixels: above, left, below, right.
    pub border: [usize; 4],
}

impl Convolution {
    /// Creates a convolution whose window is centred on every pixel, with padding of half the window.
    pub(crate) fn centred([height, width, channels]: [usize; 3], kernel: usize, stride: usize) -> Self {
        Self {
            height,
            width,
            channels,
            kernel,
            stride,
            border: [kernel / 2; 4],
        }
    }

    /// Returns height and width of the result; 0 if no window fits.
    pub fn result(&self) -> [usize; 2] {
        let [top, left, bottom, right] = self.border;
        let windows = |side: usize| match side.checked_sub(self.kernel) {
            Some(rest) => rest / self.stride.max(1) + 1,
            None => 0,
        };
        [
            windows(self.height + top + bottom),
            windows(self.width + left + right),
        ]
    }

    /// Returns the number of values in a window.
    pub(crate) fn window(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    /// Returns whether the convolution is pointwise: one pixel per window, with stride 1 and no padding.
    pub(crate) fn is_by_pixel(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.border == [0; 4]
    }
}
