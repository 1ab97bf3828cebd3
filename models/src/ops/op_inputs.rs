//! What operations take beside tensors.

/// Attention heads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Heads {
    /// Number of query heads.
    pub queries: usize,
    /// Number of key and value heads; divides `queries`, and each is shared by `queries / keys` query heads.
    pub keys: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Heads {
    /// Size of a query.
    pub(crate) fn query_width(&self) -> usize {
        self.queries * self.head_dim
    }

    /// Size of a key, and of a value.
    pub(crate) fn key_width(&self) -> usize {
        self.keys * self.head_dim
    }
}

/// Rotary position embedding (Su et al. 2021, "RoFormer", section 3.4).
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Angle per position of every pair of elements, radians; further elements are not rotated.
    pub frequencies: Vec<f32>,
    /// Whether pairs are adjacent elements (GPT-J) instead of one element of each half (Llama).
    pub neighbours: bool,
    /// Factor of the rotated elements, 1 unless the scaling of the positions has one (the attention factor of `YaRN`).
    pub scale: f32,
}

impl Rotary {
    /// Indices of the two elements of a pair within a head.
    pub fn pair(&self, index: usize) -> (usize, usize) {
        if self.neighbours {
            (2 * index, 2 * index + 1)
        } else {
            (index, index + self.frequencies.len())
        }
    }
}

/// Relative position bias (Raffel et al. 2020, "T5", section 2.1): added to a score by the distance of key and query.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeBias {
    /// Largest distance with its own value, on either side; larger distances use the value of this one.
    pub max_distance: usize,
    /// `[heads, 2 * max_distance + 1]`, from a key `max_distance` tokens before its query to one as far after it.
    pub values: Vec<f32>,
}

impl RelativeBias {
    /// Number of distances: both sides, and zero.
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
    /// Keys and values visible to all queries, in order; rows `[keys | values]`. Those of cached tokens, or all.
    pub cached: Vec<Span<'a, X>>,
    /// Keys and values of the queries' own tokens; each sees itself and earlier ones. `None` if every query sees the
    /// same: in an encoder, where the first query has the position of the first key, and in cross-attention.
    pub new_kv: Option<Span<'a, X>>,
}

/// How scores of an attention are computed beyond the scaled product of query and key.
#[derive(Debug)]
pub struct ScoreRules<'a, X> {
    /// Table of a [`RelativeBias`], added to the scores.
    pub position_bias: Option<&'a X>,
    /// Number of last tokens that a token sees, itself included; where tokens see later ones too, the distance up to which they
    /// see each other. `None`: all.
    pub window: Option<usize>,
    /// Size of the chunks of tokens, of which a token sees its own only; `None`: all.
    pub chunk: Option<usize>,
    /// Soft cap: a score `s` becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// One score per query head, `[heads, 1]`, that takes part in the softmax without a value (gpt-oss).
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
    /// Returns the position of the first token that the one at `position` sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        let window = self.window.unwrap_or(usize::MAX);
        let chunk = self.chunk.unwrap_or(usize::MAX).max(1);
        let last = (position + 1).saturating_sub(window);
        last.max(position - position % chunk)
    }

    /// Returns the tokens, of `count`, that the one at `position` sees if it sees later ones too.
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

/// Images in a matrix `[batch * height * width, channels]`, and the square window that a convolution moves over them.
/// Around the images are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Rows of an image.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Values of a pixel.
    pub channels: usize,
    /// Side of the window, pixels; at least 1.
    pub kernel: usize,
    /// Pixels from one window to the next, in both directions; at least 1.
    pub stride: usize,
    /// Pixels around an image that windows may cover: above, left, below, right.
    pub border: [usize; 4],
}

impl Convolution {
    /// A window whose centre moves over all pixels of images, with a border of half the window.
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

    /// Height and width of the result; 0 if no window fits.
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

    /// Number of values in a window.
    pub(crate) fn window(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    /// Whether a window is one pixel, and every pixel has one.
    pub(crate) fn is_by_pixel(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.border == [0; 4]
    }
}
