//! The combinations that fit in total, with their bounds, and a bound for those that are not examined.

use super::bound;
use super::error::PlacementError;
use super::inputs::Case;
use super::outcome::Shapes;
use super::problem::{Cluster, Problem};
use super::shapes::{Breaks, Parts, ReplicaPartition, cuts};
use super::solve::Attempt;

/// Most choices of partitions that are all examined.
const MAX_CUTS: u64 = 4_096;

/// A combination whose sums fit.
pub(super) struct Candidate {
    pub(super) shape: ReplicaPartition,
    pub(super) parts: Parts,
    pub(super) attempt: Attempt,
    pub(super) instances: u64,
    pub(super) tried: bool,
}

impl Candidate {
    /// The combination on a cluster.
    pub(super) fn problem<'c>(&self, cluster: &'c Cluster) -> Problem<'c> {
        let Parts { kinds, pairs, chains } = self.parts.clone();
        Problem::new(cluster, kinds, pairs, chains)
    }
}

/// The combinations that fit in total.
pub(super) struct Candidates {
    pub(super) list: Vec<Candidate>,
    pub(super) shapes: Shapes,
    /// A lower bound for all combinations that are not examined.
    pub(super) unseen: f64,
}

impl Case<'_> {
    /// The combinations that carry the load and fit in total.
    pub(super) fn candidates(
        &self,
        cluster: &Cluster,
        qps: f64,
        most: u64,
    ) -> Result<Candidates, PlacementError> {
        let period_s = self.models.batch / qps;
        let fewest = self.fits_at_all(cluster)?;
        let largest: Vec<u32> = (0..fewest.len())
            .map(|model| self.partitions(cluster, model))
            .collect();
        let (cuts, all) = cuts(&fewest, &largest, MAX_CUTS.min(most));
        let mut shapes = Shapes {
            cuts: all,
            cuts_examined: cuts.len() as u64,
            all: cuts.len() as f64 >= all,
            ..Shapes::default()
        };
        let each = usize::try_from(most / (cuts.len() as u64).max(1)).unwrap_or(usize::MAX);
        let mut candidates = Vec::new();
        let floor = self.floor(cluster, fewest, period_s);
        let mut unseen = if shapes.all { f64::INFINITY } else { floor };
        for cut in &cuts {
            let line = self.models.line(cut, period_s, cluster, each.max(4), |why| {
                shapes.examined += 1;
                match why {
                    Breaks::Memory => shapes.memory += 1,
                    Breaks::Work => shapes.utilisation += 1,
                }
            });
            shapes.examined += line.shapes.len() as u64;
            if let Some(last) = &line.skipped_after {
                unseen = unseen.min(self.nearest(last, period_s).max(floor));
                shapes.all = false;
            }
            candidates.extend(
                line.shapes
                    .into_iter()
                    .map(|shape| self.candidate(cluster, shape, period_s)),
            );
        }
        Ok(Candidates {
            list: candidates,
            shapes,
            unseen,
        })
    }

    /// Lower bound of all combinations: one copy of every model on one device, except models that no device holds.
    fn floor(&self, cluster: &Cluster, fewest: Vec<u32>, period_s: f64) -> f64 {
        let replicas = vec![1; fewest.len()];
        let cut: f64 = (0..fewest.len())
            .map(|model| self.models.least_cut(model, cluster))
            .sum();
        let partitions = fewest;
        self.nearest(&ReplicaPartition { replicas, partitions }, period_s) + cut
    }

    /// Cost of a combination if all instances are on one device. No combination with more copies or partitions costs less.
    fn nearest(&self, shape: &ReplicaPartition, period_s: f64) -> f64 {
        let parts = self.models.parts(shape, period_s);
        bound::nearest(&parts.kinds, &parts.pairs, &parts.chains)
    }

    /// A combination with its bound.
    pub(super) fn candidate(&self, cluster: &Cluster, shape: ReplicaPartition, period_s: f64) -> Candidate {
        let parts = self.models.parts(&shape, period_s);
        Candidate {
            attempt: Attempt {
                best: None,
                lower: bound::overhead(cluster, &parts.kinds, &parts.pairs, &parts.chains),
            },
            instances: shape.instances(),
            tried: false,
            shape,
            parts,
        }
    }
}
