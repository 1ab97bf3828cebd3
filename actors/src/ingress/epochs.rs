//! The epochs in use at an ingress.

/// Epochs in use at an ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epochs {
    /// Epoch under which the ingress admits requests; 0 before the first.
    pub(super) admits: u64,
    /// Oldest epoch of the requests in flight; `admits` if there are none.
    pub(super) oldest: u64,
}
