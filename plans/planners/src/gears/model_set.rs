//! Sets of models, by their place in the profile.

/// A set of variants, by their index in the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Most variants in a set.
    pub const MAX_VARIANTS: usize = 64;

    /// Whether a model is in it.
    pub fn contains(self, model: usize) -> bool {
        self.0 >> model & 1 == 1
    }

    /// The set and one model more.
    #[must_use]
    pub fn with(self, model: usize) -> Self {
        Self(self.0 | 1 << model)
    }

    /// The set without one model.
    #[must_use]
    pub fn without(self, model: usize) -> Self {
        Self(self.0 & !(1 << model))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the models of the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MAX_VARIANTS).filter(move |model| self.contains(*model))
    }
}

impl FromIterator<usize> for ModelSet {
    fn from_iter<I: IntoIterator<Item = usize>>(models: I) -> Self {
        models.into_iter().fold(Self::default(), Self::with)
    }
}
