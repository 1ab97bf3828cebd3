//! Helpers shared by the recurrences with heads.

/// Number of heads, elements of a head's state, and elements of a head's result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heads {
    pub(super) count: usize,
    pub(super) state: usize,
    pub(super) size: usize,
}

/// `ln(1 + exp(x))`; propagates NaN.
#[inline]
pub(super) fn softplus(x: f32) -> f32 {
    // Beyond 20 the result equals x within f32 precision, as in torch.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
