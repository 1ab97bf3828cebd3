//! Rounds fractions of workers to whole ones: the best mix of two columns.
//!
//! The mix moves from one column to the other, and the number of whole workers only changes where one configuration's need passes
//! a whole number. So for each pair only those breakpoints are examined, downwards from the fractional optimum.

use super::columns::Column;

/// Needs this close above a whole number are that number.
pub(super) const WHOLE: f64 = 1e-6;

/// Breakpoints of one pair that are examined.
const STEPS: usize = 64;

/// Columns and their shares, which fit into the available workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rounded {
    pub(super) accuracy: f64,
    /// Places of columns, and their shares, which sum to 1.
    pub(super) shares: Vec<(usize, f64)>,
}

/// Whole workers for a need.
pub(super) fn whole(need: f64) -> f64 {
    (need - WHOLE).ceil().max(0.0)
}

/// The best mix of at most two columns that fits into the workers, or the first with accuracy `goal`. With `variants`, which
/// numbers the variants of the configurations, every variant has one batch size only. `None` if none fits.
pub(super) fn rounded(
    columns: &[Column],
    demand: f64,
    workers: f64,
    variants: Option<&[usize]>,
    goal: f64,
) -> Option<Rounded> {
    let mut best: Option<Rounded> = None;
    for (place, column) in columns.iter().enumerate() {
        let needed: f64 = column.loads.iter().map(|load| whole(load * demand)).sum();
        if needed <= workers && best.as_ref().is_none_or(|best| column.accuracy > best.accuracy) {
            best = Some(Rounded {
                accuracy: column.accuracy,
                shares: vec![(place, 1.0)],
            });
        }
    }
    for (low_place, low) in columns.iter().enumerate() {
        for (high_place, high) in columns.iter().enumerate() {
            let beaten = best.as_ref().map_or(f64::NEG_INFINITY, |best| best.accuracy);
            if beaten >= goal {
                return best;
            }
            if high.accuracy <= beaten || low.accuracy >= high.accuracy || low.load() * demand > workers {
                continue;
            }
            if variants.is_some_and(|variants| conflict(low, high, variants)) {
                continue;
            }
            let pair = Pair::new(low, high, demand);
            if let Some(share) =
                pair.largest(workers, (beaten - low.accuracy) / (high.accuracy - low.accuracy))
            {
                best = Some(Rounded {
                    accuracy: low.accuracy + share * (high.accuracy - low.accuracy),
                    shares: vec![(low_place, 1.0 - share), (high_place, share)],
                });
            }
        }
    }
    best
}

/// Whether two columns run one variant in batches of different sizes; `variants` by configuration, numbered over all tasks.
fn conflict(one: &Column, other: &Column, variants: &[usize]) -> bool {
    let pairs = one.configs.iter().zip(&other.configs);
    let mut pairs = pairs.filter(|(one, other)| one != other);
    pairs.any(|(one, other)| variants.get(*one) == variants.get(*other))
}

/// Needs of the configurations of two columns, as they move from the first to the second.
struct Pair {
    /// Workers needed at the first and at the second.
    needs: Vec<(f64, f64)>,
}

impl Pair {
    fn new(low: &Column, high: &Column, demand: f64) -> Self {
        let mut needs = Vec::with_capacity(2 * low.configs.len());
        let ends = low
            .configs
            .iter()
            .zip(&low.loads)
            .zip(high.configs.iter().zip(&high.loads));
        for ((low_config, low), (high_config, high)) in ends {
            if low_config == high_config {
                needs.push((low * demand, high * demand));
            } else {
                needs.extend([(low * demand, 0.0), (0.0, high * demand)]);
            }
        }
        Self { needs }
    }

    /// The largest share of the second column, above `least`, that fits into the workers.
    fn largest(&self, workers: f64, least: f64) -> Option<f64> {
        let (low, high) = self
            .needs
            .iter()
            .fold((0.0, 0.0), |sum, need| (sum.0 + need.0, sum.1 + need.1));
        let fits = if high > low {
            (workers - low) / (high - low)
        } else {
            1.0
        };
        let mut share = fits.min(1.0);
        for _ in 0..STEPS {
            if share <= least.max(0.0) {
                return None;
            }
            let needed = |need: &(f64, f64)| whole(need.0 + share * (need.1 - need.0));
            if self.needs.iter().map(needed).sum::<f64>() <= workers {
                return Some(share);
            }
            share = self.next(share)?;
        }
        None
    }

    /// The next smaller share at which a configuration needs one worker less.
    fn next(&self, share: f64) -> Option<f64> {
        let breakpoint = |(low, high): &(f64, f64)| {
            let rise = high - low;
            if rise <= 0.0 {
                return None;
            }
            let fewer = whole(low + share * rise) - 1.0;
            let at = (fewer - low) / rise;
            (at < share).then_some(at)
        };
        let next = self
            .needs
            .iter()
            .filter_map(breakpoint)
            .fold(f64::NEG_INFINITY, f64::max);
        next.is_finite().then_some(next)
    }
}
