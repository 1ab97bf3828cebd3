//! Independent pieces of work on all cores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Returns the results of `work` for every item, in their order, computed in parallel.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Sets the number of compute threads of models on the CPU, for the whole process; the default is one per core. Returns
/// false without effect if models have computed already, or rayon's global pool exists.
pub(super) fn compute_threads(threads: NonZeroUsize) -> bool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.get());
    pool.build_global().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        // The first ones take longest.
        let slow = |item: &u64| (0..(100 - item) * 1_000).fold(*item, |sum, _| std::hint::black_box(sum));
        assert_eq!(in_parallel(&items, slow), items);
        assert!(in_parallel(&[], |item: &u64| *item).is_empty());
    }
}
