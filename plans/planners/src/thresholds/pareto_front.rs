//! The Pareto front under construction.

/// Energies that differ by less are the same sum in another order.
const SAME: f64 = 1.0 - 1e-12;

/// For every number of right answers, the least energy of a cascade with at least as many.
///
/// Accuracy is a whole number of samples, so the frontier has at most one point per number, and "is this cascade beaten?"
/// is one comparison.
pub(super) struct ParetoFront {
    least: Vec<Least>,
    cuts: Vec<Vec<u32>>,
}

#[derive(Clone, Copy)]
struct Least {
    energy: f64,
    owner: usize,
}

impl ParetoFront {
    pub(super) fn new(samples: usize) -> Self {
        let none = Least {
            energy: f64::INFINITY,
            owner: usize::MAX,
        };
        Self {
            least: vec![none; samples + 1],
            cuts: Vec::new(),
        }
    }

    /// Whether a cascade with this many right answers and at least this energy is beaten already.
    #[inline]
    pub(super) fn beats(&self, right: u32, energy: f64) -> bool {
        self.least
            .get(right as usize)
            .is_some_and(|least| energy >= least.energy * SAME)
    }

    /// Adds the cascade if no other beats it.
    #[inline]
    pub(super) fn offer(&mut self, right: u32, energy: f64, cuts: &[u32]) {
        if !self.beats(right, energy) {
            self.insert(right, energy, cuts);
        }
    }

    fn insert(&mut self, right: u32, energy: f64, cuts: &[u32]) {
        let owner = self.cuts.len();
        self.cuts.push(cuts.to_vec());
        for least in self.least.iter_mut().take(right as usize + 1).rev() {
            // At equal energy the more accurate point is kept.
            if energy > least.energy / SAME {
                break;
            }
            *least = Least { energy, owner };
        }
    }

    /// The owners of frontier points, ascending in accuracy and energy.
    pub(super) fn owners(&self) -> Vec<usize> {
        let mut owners: Vec<usize> = self.least.iter().map(|least| least.owner).collect();
        owners.dedup();
        owners.retain(|owner| *owner < self.cuts.len());
        owners
    }

    pub(super) fn cuts_of(&self, owner: usize) -> Option<&[u32]> {
        self.cuts.get(owner).map(Vec::as_slice)
    }

    /// The cuts of the frontier's cascades, ascending in accuracy and energy.
    pub(super) fn cuts(&self) -> impl Iterator<Item = &[u32]> {
        self.owners().into_iter().filter_map(|owner| self.cuts_of(owner))
    }
}
