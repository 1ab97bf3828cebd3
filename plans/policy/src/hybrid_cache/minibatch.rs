//! Packing requests into mini-batches (HybridServe KAIST §4.3.3, equations 12 and 13).
//!
//! A layer is computed mini-batch by mini-batch, and while one is computed the next one's blocks are loaded, so a mini-batch must fit
//! the buffers and should keep link and device busy equally long.

use super::BlockCounts;
use super::cost::{self, Costs};

/// Demand of a request on a mini-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// Blocks that the link brings into the buffers.
    pub loaded: BlockCounts,
    /// ACT blocks that lie on the device and are computed from there.
    pub on_device: usize,
}

impl Demand {
    fn and(self, other: Self) -> Self {
        Self {
            loaded: self.loaded + other.loaded,
            on_device: self.on_device + other.on_device,
        }
    }
}

/// `F_b = max(balance, 1 / balance)` of a mini-batch: 1 is best, infinite where only one side works.
///
/// The paper's `balance` is `T_kv_gen / T_load_kv`. The load of ACT blocks counts here too. A mini-batch that needs neither is in
/// balance.
pub(crate) fn imbalance(demand: &Demand, costs: &Costs) -> f64 {
    let compute = cost::seconds(&costs.kv_gen, demand.loaded.act + demand.on_device);
    let load =
        cost::seconds(&costs.load_kv, demand.loaded.kv) + cost::seconds(&costs.load_act, demand.loaded.act);
    if compute <= 0.0 && load <= 0.0 {
        return 1.0;
    }
    let balance = compute / load;
    balance.max(1.0 / balance)
}

/// Packs requests into mini-batches that stay within `bounds` (`#ACT_max`, `#KV_max`): positions in `demands`, each in one
/// mini-batch, at most `largest` (at least 1) in one.
///
/// Greedy: a mini-batch begins with the first request that is left and takes, as long as one fits, the one that leaves it best
/// balanced. The paper takes a request only if it lowers `F_b`; where all requests have the same ratio none does, and every
/// mini-batch would hold one. A request that exceeds the bounds by itself gets a separate mini-batch; admission decides whether
/// it can run.
pub fn pack(demands: &[Demand], bounds: BlockCounts, largest: usize, costs: &Costs) -> Vec<Vec<usize>> {
    let mut left: Vec<(usize, Demand)> = demands.iter().copied().enumerate().collect();
    let mut batches = Vec::new();
    while !left.is_empty() {
        let (first, mut sum) = left.remove(0);
        let mut batch = vec![first];
        while batch.len() < largest.max(1) {
            let Some(best) = best_of(&left, &sum, bounds, costs) else {
                break;
            };
            let (position, demand) = left.remove(best);
            sum = sum.and(demand);
            batch.push(position);
        }
        batch.sort_unstable();
        batches.push(batch);
    }
    batches
}

/// Requests one after the other, as long as their tokens stay within what a mini-batch takes: for prompts, which load nothing.
/// A request that exceeds them alone gets a separate mini-batch. Positions in `tokens`.
pub fn in_order(tokens: &[usize], most: usize, largest: usize) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut sum = 0;
    for (index, count) in tokens.iter().enumerate() {
        sum += count;
        match batches.last_mut() {
            Some(batch) if sum <= most && batch.len() < largest.max(1) => batch.push(index),
            _ => {
                batches.push(vec![index]);
                sum = *count;
            }
        }
    }
    batches
}

/// Returns the demand that fits and leaves the mini-batch best balanced, the earliest of several.
fn best_of(left: &[(usize, Demand)], sum: &Demand, bounds: BlockCounts, costs: &Costs) -> Option<usize> {
    left.iter()
        .map(|(_, demand)| sum.and(*demand))
        .enumerate()
        .filter(|(_, together)| together.loaded.within(bounds))
        .map(|(index, together)| (index, imbalance(&together, costs)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::linear_fit::LinearFit;

    fn costs(kv_gen: f64, load_kv: f64) -> Costs {
        let line = |slope| LinearFit {
            intercept: 0.0,
            slope,
            r2: 1.0,
        };
        Costs {
            load_weights_s: 0.0,
            kv_gen: line(kv_gen),
            load_kv: line(load_kv),
            load_act: line(0.0),
            forward: line(0.0),
            head_s: 0.0,
        }
    }

    fn demand(act: usize, kv: usize) -> Demand {
        Demand {
            loaded: BlockCounts { act, kv },
            on_device: 0,
        }
    }

    const BOUNDS: BlockCounts = BlockCounts { act: 8, kv: 8 };

    #[test]
    fn opposites_meet() {
        let demands = [demand(4, 0), demand(4, 0), demand(0, 4), demand(0, 4)];
        let batches = pack(&demands, BlockCounts { act: 4, kv: 4 }, 9, &costs(1.0, 1.0));
        assert_eq!(batches, [[0, 2], [1, 3]]);
        for batch in batches {
            let sum = batch
                .iter()
                .fold(Demand::default(), |sum, index| sum.and(demands[*index]));
            assert!((imbalance(&sum, &costs(1.0, 1.0)) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn equal_requests_fill_the_buffers() {
        let batches = pack(&[demand(2, 2); 10], BOUNDS, 99, &costs(1.0, 3.0));
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        let pairs = pack(&[demand(2, 2); 10], BOUNDS, 2, &costs(1.0, 3.0));
        assert!(pairs.iter().all(|batch| batch.len() == 2));
    }

    #[test]
    fn prompts_keep_their_order() {
        assert_eq!(
            in_order(&[3, 3, 3, 9, 1], 6, 9),
            [vec![0, 1], vec![2], vec![3], vec![4]]
        );
        assert_eq!(in_order(&[1; 5], 6, 2), [vec![0, 1], vec![2, 3], vec![4]]);
        assert!(in_order(&[], 6, 2).is_empty());
    }

    #[test]
    fn imbalance_has_its_ends() {
        assert!((imbalance(&demand(2, 1), &costs(1.0, 1.0)) - 2.0).abs() < 1e-12);
        assert!((imbalance(&demand(1, 2), &costs(1.0, 1.0)) - 2.0).abs() < 1e-12);
        assert!(imbalance(&demand(1, 0), &costs(1.0, 1.0)).is_infinite());
        assert!((imbalance(&Demand::default(), &costs(1.0, 1.0)) - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn all_are_packed_once_and_within_bounds(
            sizes in prop::collection::vec((0..12_usize, 0..12_usize, 0..4_usize), 0..60),
            largest in 1..20_usize,
            gen_s in 0.1..5.0_f64,
            load in 0.1..5.0_f64,
        ) {
            let demands: Vec<Demand> = sizes.iter().map(|(act, kv, on_device)| Demand { on_device: *on_device, ..demand(*act, *kv) }).collect();
            let batches = pack(&demands, BOUNDS, largest, &costs(gen_s, load));
            let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..demands.len()).collect::<Vec<_>>());
            let sums: Vec<Demand> = batches.iter().map(|batch| batch.iter().fold(Demand::default(), |sum, index| sum.and(demands[*index]))).collect();
            for (batch, sum) in batches.iter().zip(&sums) {
                prop_assert!(batch.len() <= largest);
                prop_assert!(batch.len() == 1 || sum.loaded.within(BOUNDS));
            }
            // No mini-batch could have taken all of a later one: there are not needlessly many.
            for (index, sum) in sums.iter().enumerate() {
                for (later, other) in sums.iter().enumerate().skip(index + 1) {
                    let roomy = batches[index].len() + batches[later].len() <= largest;
                    prop_assert!(!(roomy && sum.and(*other).loaded.within(BOUNDS)), "{batches:?}");
                }
            }
        }
    }
}
