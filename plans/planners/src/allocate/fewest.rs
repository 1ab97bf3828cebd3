//! Allocations of whole columns only: hardware scaling, and the most that a cluster can serve.

use super::columns::Column;
use super::paths::Paths;
use super::round::whole;

/// The column that serves a demand with the fewest workers, and how many those are. With one variant per task, this is hardware
/// scaling (eqs. 8 to 11): a choice of batch sizes, of which there are few enough to examine all.
pub(super) fn fewest(paths: &Paths, demand: f64) -> Option<(Column, f64)> {
    let mut search = Search {
        paths,
        demand,
        picked: vec![usize::MAX; paths.levels.len()],
        best: None,
    };
    search.task(0, 0.0);
    let (picked, workers) = search.best?;
    Some((Column::new(paths, picked), workers))
}

struct Search<'a> {
    paths: &'a Paths,
    demand: f64,
    picked: Vec<usize>,
    best: Option<(Vec<usize>, f64)>,
}

impl Search<'_> {
    fn task(&mut self, place: usize, used: f64) {
        let order = &self.paths.tree.order;
        let Some(task) = order.get(place).copied() else {
            self.best = Some((self.picked.clone(), used));
            return;
        };
        let parent = self.paths.tree.parent(task);
        let parent = parent
            .and_then(|parent| self.picked.get(parent).copied())
            .unwrap_or(0);
        let left = (order.len() - place - 1) as f64;
        // Larger batches, which come last, mostly need fewer workers.
        for path in self.paths.continuing(task, parent).rev() {
            let load = self.paths.path(task, path).map_or(0.0, |path| path.load);
            let now = used + whole(load * self.demand).max(1.0);
            // The tasks that are left need a worker each.
            if self.best.as_ref().is_some_and(|(_, best)| now + left >= *best) {
                continue;
            }
            if let Some(slot) = self.picked.get_mut(task) {
                *slot = path;
            }
            self.task(place + 1, now);
        }
    }
}

/// The most that these workers can serve by one of these columns: its place and the requests/s. `None` if there are too few
/// workers for the tasks.
pub(super) fn max_throughput(columns: &[Column], workers: f64) -> Option<(usize, f64)> {
    let served = columns.iter().enumerate();
    let served = served.filter_map(|(place, column)| Some((place, capacity(column, workers)?)));
    served.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Demand that whole workers can serve by one column: each time, the task that is shortest gets one more.
fn capacity(column: &Column, workers: f64) -> Option<f64> {
    let asked: Vec<f64> = column.loads.iter().copied().filter(|load| *load > 0.0).collect();
    if asked.is_empty() || workers < asked.len() as f64 {
        return None;
    }
    let fits = |demand: f64| {
        asked
            .iter()
            .map(|load| whole(load * demand).max(1.0))
            .sum::<f64>()
            <= workers
    };
    let (mut low, mut high) = (0.0, workers / asked.iter().sum::<f64>());
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}
