//! Cache of recent uploads for the layers of a forward pass, which share positions, rows and masks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Int, Tensor};

use super::layout::{Extents, Layout};
use crate::ops::Rotary;

/// Entries per kind. A pass needs those of local and of global layers, for a few mini-batches.
const KEPT: usize = 8;

/// A small cache, most recent entry first.
#[derive(Debug)]
struct Recent<K, V>(Mutex<VecDeque<(K, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone, V: Clone> Recent<K, V> {
    fn get<Q: ?Sized>(
        &self,
        key: &Q,
        same: impl Fn(&K, &Q) -> bool,
        owned: impl FnOnce(&Q) -> K,
        make: impl FnOnce() -> V,
    ) -> V {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = entries.iter().find(|(known, _)| same(known, key)) {
            return value.clone();
        }
        let value = make();
        entries.truncate(KEPT - 1);
        entries.push_front((owned(key), value.clone()));
        value
    }
}

/// Sines and cosines of positions, each `[rows, 1, pairs]`.
pub(super) type Angles = (Tensor<3>, Tensor<3>);

/// Recent uploads of a device.
#[derive(Debug, Clone, Default)]
pub(super) struct Uploads(Arc<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    layouts: Recent<Extents, Arc<Layout>>,
    angles: Recent<(Rotary, Vec<usize>), Angles>,
    pairs: Recent<Vec<(usize, usize)>, [Tensor<1, Int>; 2]>,
}

impl Uploads {
    pub(super) fn layout(&self, extents: &Extents, make: impl FnOnce() -> Layout) -> Arc<Layout> {
        self.0
            .layouts
            .get(extents, PartialEq::eq, Extents::clone, || Arc::new(make()))
    }

    pub(super) fn angles(
        &self,
        rotary: &Rotary,
        positions: &[usize],
        make: impl FnOnce() -> Angles,
    ) -> Angles {
        let same = |known: &(Rotary, Vec<usize>), key: &(&Rotary, &[usize])| {
            let (known_rotary, known_positions) = known;
            known_rotary == key.0 && known_positions == key.1
        };
        let owned = |key: &(&Rotary, &[usize])| (key.0.clone(), key.1.to_vec());
        self.0.angles.get(&(rotary, positions), same, owned, make)
    }

    pub(super) fn pairs(
        &self,
        rows: &[(usize, usize)],
        make: impl FnOnce() -> [Tensor<1, Int>; 2],
    ) -> [Tensor<1, Int>; 2] {
        let same = |known: &Vec<(usize, usize)>, key: &[(usize, usize)]| known == key;
        self.0.pairs.get(rows, same, <[_]>::to_vec, make)
    }
}
