//! Which epochs an ingress uses.

/// The epochs that an ingress uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Epochs {
    /// The epoch under which it admits requests; 0 before the first.
    pub(super) admits: u64,
    /// The oldest epoch of its requests in flight; `admits` if it has none.
    pub(super) oldest: u64,
}
