//! The Pareto front under construction.

/// Energies that differ by less are the same sum in another order.
const SAME: f64 = 1.0 - 1e-12;

/// For every number of right answers, the least energy of a cascade with at least as many.
///
/// Accuracy is a whole number of samples, so the frontier has at most one point per number, and "is this cascade beaten?"
/// is one comparison.
pub(super) struct ParetoFront {
    least: Vec<Least>,
    gates: usize,
    /// [`Kept`] of all cascades that were ever on the front, one after the other.
    kept: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Least {
    energy: f64,
    owner: usize,
}

/// A cascade on the front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept<'a> {
    /// Right answers.
    pub(super) right: u32,
    /// Number of positions from the bottom that each gate forwards.
    pub(super) cuts: &'a [u32],
    /// Number of samples that each gate forwards.
    pub(super) forwarded: &'a [u32],
}

impl ParetoFront {
    pub(super) fn new(samples: usize, gates: usize) -> Self {
        let none = Least {
            energy: f64::INFINITY,
            owner: usize::MAX,
        };
        Self {
            least: vec![none; samples + 1],
            gates,
            kept: Vec::new(),
        }
    }

    /// Whether a cascade with this many right answers and at least this energy is beaten already.
    #[inline]
    pub(super) fn beats(&self, right: u32, energy: f64) -> bool {
        self.least
            .get(right as usize)
            .is_some_and(|least| energy >= least.energy * SAME)
    }

    /// Adds the cascade if no other beats it. There are as many cuts and forwarded samples as gates.
    #[inline]
    pub(super) fn offer(&mut self, energy: f64, cascade: Kept<'_>) {
        if !self.beats(cascade.right, energy) {
            self.insert(energy, cascade);
        }
    }

    fn insert(&mut self, energy: f64, cascade: Kept<'_>) {
        let owner = self.kept.len() / self.stride();
        self.kept.push(cascade.right);
        self.kept.extend_from_slice(cascade.cuts);
        self.kept.extend_from_slice(cascade.forwarded);
        for least in self.least.iter_mut().take(cascade.right as usize + 1).rev() {
            // At equal energy the more accurate point is kept.
            if energy > least.energy / SAME {
                break;
            }
            *least = Least { energy, owner };
        }
    }

    fn stride(&self) -> usize {
        1 + 2 * self.gates
    }

    /// The owners of frontier points, ascending in accuracy and energy.
    pub(super) fn owners(&self) -> Vec<usize> {
        let mut owners: Vec<usize> = self.least.iter().map(|least| least.owner).collect();
        owners.dedup();
        owners.retain(|owner| *owner != usize::MAX);
        owners
    }

    pub(super) fn of_owner(&self, owner: usize) -> Option<Kept<'_>> {
        let begin = owner.checked_mul(self.stride())?;
        let row = self.kept.get(begin..begin.checked_add(self.stride())?)?;
        let (right, row) = row.split_first()?;
        let (cuts, forwarded) = row.split_at_checked(self.gates)?;
        Some(Kept {
            right: *right,
            cuts,
            forwarded,
        })
    }

    /// The frontier's cascades, ascending in accuracy and energy.
    pub(super) fn cascades(&self) -> impl Iterator<Item = Kept<'_>> {
        self.owners().into_iter().filter_map(|owner| self.of_owner(owner))
    }
}
