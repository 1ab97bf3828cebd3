//! Isotonic regression: the non-decreasing function of the confidence that is nearest to right and wrong, by pooling adjacent
//! violators.

use kaskade_policy::confidence::deferral::Knot;

use super::samples::Rows;

/// A run of samples with one fitted value.
struct Block {
    weight: f64,
    /// Weighted sums of confidence and of right answers.
    confidence: f64,
    right: f64,
}

impl Block {
    fn value(&self) -> f64 {
        self.right / self.weight
    }
}

/// Fits the probability of being right. Returns the knots by rising confidence, each in the middle of a block of equal values; `None`
/// without samples.
pub(super) fn fit(rows: &Rows<'_>) -> Option<Vec<Knot>> {
    let mut samples: Vec<(f64, f64, f64)> = rows
        .iter()
        .filter(|row| row.weight > 0.0)
        .map(|row| (row.confidence, row.weight, f64::from(u8::from(row.right))))
        .collect();
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut blocks: Vec<Block> = Vec::new();
    // Equal confidences have one value, so they are summed before blocks are compared.
    for equal in samples.chunk_by(|a, b| a.0 >= b.0) {
        let sum = |of: fn(&(f64, f64, f64)) -> f64| equal.iter().map(of).sum();
        blocks.push(Block {
            weight: sum(|one| one.1),
            confidence: sum(|one| one.0 * one.1),
            right: sum(|one| one.1 * one.2),
        });
        while let [.., lower, upper] = blocks.as_slice()
            && lower.value() >= upper.value()
        {
            if let (Some(upper), Some(lower)) = (blocks.pop(), blocks.last_mut()) {
                lower.add(&upper);
            }
        }
    }
    let knots = blocks.iter().map(|block| Knot {
        confidence: block.confidence / block.weight,
        right: block.value(),
    });
    let mut knots: Vec<Knot> = knots.collect();
    // Means of neighbouring blocks can round to one number.
    knots.dedup_by(|next, last| next.confidence <= last.confidence);
    (!knots.is_empty()).then_some(knots)
}

impl Block {
    fn add(&mut self, other: &Self) {
        self.weight += other.weight;
        self.confidence += other.confidence;
        self.right += other.right;
    }
}
