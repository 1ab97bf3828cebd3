//! How much more the counts of requests vary than those of independent requests: the design effect (Kish, Survey Sampling, 1965,
//! section 8.2).
//!
//! Requests of one user, frames of one video and repeated requests resemble each other. The tests would take each for evidence of its
//! own, and find drifts in traffic that has none. Their evidence is therefore divided by the design effect, as if a cluster of `d` equal
//! requests were one. Of independent requests the design effect is 1, and the wealth to a power below 1 is still a supermartingale.
//!
//! The design effect is measured on the traffic itself: successive blocks of requests are compared by the chi-squared statistic of
//! homogeneity, at several sizes of blocks, because blocks shorter than a cluster do not show all of it. Successive blocks, and not the
//! whole past, so that a change of the inputs is in two comparisons at most; the largest two in a row are left out. The latest
//! comparisons count, because traffic may begin to have clusters.
//!
//! An estimate comes too late for the first large cluster. The evidence of a batch is therefore also divided by how much the batch itself
//! differs from the one before, as far as it is evidence for a finding.

use std::collections::VecDeque;

/// Requests per block, ascending.
const SIZES: [u64; 4] = [32, 128, 512, 2048];

/// Comparisons of blocks of a size before their mean counts.
const COMPARISONS: usize = 6;

/// From this size on, two blocks of one and the same category are no cluster, and count as independent requests. Shorter ones say nothing.
const NO_CLUSTER: u64 = 512;

/// The last comparisons of a size that count.
const LATEST: usize = 64;

/// From this statistic on, two batches do not differ by chance.
const BEYOND_CHANCE: f64 = 8.0;

/// Comparisons of independent requests that every mean contains, against the noise of few.
const PRIOR: f64 = 2.0;

/// From this ratio of the means of two sizes on, clusters are longer than the larger size.
const GROWS: f64 = 2.0;

/// Factor of the effect beyond 1: clusters have different sizes, and a large one weighs more than the mean says.
const MARGIN: f64 = 2.0;

/// Measures the design effect of a stream of results.
#[derive(Debug, Clone, Default)]
pub(super) struct DesignEffect {
    scales: [Scale; SIZES.len()],
    /// Counts of the last batch that had any.
    last: Vec<u64>,
}

/// Blocks of one size.
#[derive(Debug, Clone, Default)]
struct Scale {
    /// Counts by category of the block that is not full yet.
    block: Vec<u64>,
    /// Those of the block before.
    before: Option<Vec<u64>>,
    /// The statistics of the latest comparisons, each divided by its degrees of freedom.
    compared: VecDeque<f64>,
}

impl DesignEffect {
    /// Takes a batch of results, counted by category.
    pub(super) fn take(&mut self, counts: &[u64]) {
        for (scale, size) in self.scales.iter_mut().zip(SIZES) {
            scale.take(counts, size);
        }
        if counts.iter().any(|count| *count > 0) {
            counts.clone_into(&mut self.last);
        }
    }

    /// Returns how much a batch differs from the last one, beside two of independent results; 1 unless they differ by more than chance.
    pub(super) fn of_batch(&self, counts: &[u64]) -> f64 {
        compared(&self.last, counts)
            .filter(|statistic| *statistic > BEYOND_CHANCE)
            .unwrap_or(1.0)
    }

    /// Returns the design effect of the results so far, at least 1; `None` while there are too few to tell.
    ///
    /// If it still grows with the size of the blocks, clusters are longer than those that were compared, and it is taken to grow once more.
    pub(super) fn estimate(&self) -> Option<f64> {
        let means: Vec<f64> = self.scales.iter().filter_map(Scale::mean).collect();
        let largest = means.iter().copied().reduce(f64::max)?;
        let growth = match means.as_slice() {
            [.., before, last] => last / before,
            [only] => only.sqrt(),
            [] => 1.0,
        };
        let is_longer = growth > GROWS && largest > GROWS * GROWS;
        let effect = if is_longer { largest * growth } else { largest };
        Some(1.0 + MARGIN * (effect - 1.0).max(0.0))
    }
}

impl Scale {
    fn take(&mut self, counts: &[u64], size: u64) {
        if self.block.len() < counts.len() {
            self.block.resize(counts.len(), 0);
        }
        for (sum, count) in self.block.iter_mut().zip(counts) {
            *sum = sum.saturating_add(*count);
        }
        if self.block.iter().sum::<u64>() < size {
            return;
        }
        let block = std::mem::take(&mut self.block);
        let statistic = self.before.as_ref().and_then(|before| compared(before, &block));
        if let Some(statistic) = statistic.or((size >= NO_CLUSTER && self.before.is_some()).then_some(1.0)) {
            if self.compared.len() == LATEST {
                self.compared.pop_front();
            }
            self.compared.push_back(statistic);
        }
        self.before = Some(block);
    }

    /// Returns the mean of the comparisons without the two successive ones that a change of the inputs would explain best.
    fn mean(&self) -> Option<f64> {
        if self.compared.len() < COMPARISONS {
            return None;
        }
        let pairs = self.compared.iter().zip(self.compared.iter().skip(1));
        let change = pairs.map(|(one, next)| one + next).fold(0.0, f64::max);
        let others: f64 = self.compared.iter().sum::<f64>() - change;
        Some((others + PRIOR) / (self.compared.len() as f64 - 2.0 + PRIOR))
    }
}

/// Returns the chi-squared statistic of homogeneity of two blocks, divided by its degrees of freedom: 1 in the mean if all results are
/// independent. `None` if only one category occurs, or one block is empty.
fn compared(one: &[u64], other: &[u64]) -> Option<f64> {
    let sums = [one, other].map(|counts| counts.iter().sum::<u64>() as f64);
    let all = sums[0] + sums[1];
    if sums.contains(&0.0) {
        return None;
    }
    let (mut statistic, mut categories) = (0.0, 0_u32);
    for category in 0..one.len().max(other.len()) {
        let count = |counts: &[u64]| counts.get(category).copied().unwrap_or(0) as f64;
        let both = count(one) + count(other);
        if both == 0.0 {
            continue;
        }
        categories += 1;
        for (counts, sum) in [one, other].into_iter().zip(sums) {
            let expected = both * sum / all;
            statistic += (count(counts) - expected).powi(2) / expected;
        }
    }
    (categories > 1).then(|| statistic / f64::from(categories - 1))
}

#[cfg(test)]
mod tests;
