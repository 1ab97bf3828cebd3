//! Batches that variants have run since the last observation, from the totals in workers' heartbeats.

use std::collections::BTreeMap;

use kaskade_actors::wire::Runs;
use kaskade_policy::demand::RunCounts;

/// The last totals of every worker and variant.
#[derive(Debug, Default)]
pub(super) struct RunTotals(BTreeMap<(String, String), Runs>);

impl RunTotals {
    /// Returns what each variant of each worker has run since the last call, by variant. A total that falls is that of a worker that
    /// restarted. Workers that a report leaves out are forgotten; one without any worker says nothing.
    pub(super) fn since<'a>(
        &mut self,
        runs: &'a BTreeMap<String, BTreeMap<String, Runs>>,
    ) -> Vec<(&'a str, RunCounts)> {
        if !runs.is_empty() {
            self.0.retain(|(worker, _), _| runs.contains_key(worker));
        }
        let mut news = Vec::new();
        for (worker, variants) in runs {
            for (variant, now) in variants {
                let old = self.0.insert((worker.clone(), variant.clone()), *now);
                let old = old.filter(|old| old.batches <= now.batches).unwrap_or_default();
                let ran = RunCounts {
                    batches: now.batches - old.batches,
                    requests: now.requests.saturating_sub(old.requests),
                    busy_us: now.busy_us.saturating_sub(old.busy_us),
                };
                news.push((variant.as_str(), ran));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(batches: u64) -> BTreeMap<String, BTreeMap<String, Runs>> {
        let runs = Runs {
            batches,
            requests: 2 * batches,
            busy_us: 100 * batches,
        };
        BTreeMap::from([("w".to_owned(), BTreeMap::from([("small".to_owned(), runs)]))])
    }

    /// Totals of every worker ever seen were kept.
    #[test]
    fn workers_that_are_gone_are_forgotten() {
        let mut totals = RunTotals::default();
        totals.since(&told(10));
        assert!(totals.since(&BTreeMap::new()).is_empty());
        assert_eq!(totals.0.len(), 1, "a request without reports says nothing");
        let other: BTreeMap<_, _> = told(3).into_values().map(|runs| ("v".to_owned(), runs)).collect();
        totals.since(&other);
        assert_eq!(
            totals
                .0
                .keys()
                .map(|(worker, _)| worker.as_str())
                .collect::<Vec<_>>(),
            ["v"]
        );
    }

    #[test]
    fn totals_become_differences_and_a_restart_counts_from_nothing() {
        let mut totals = RunTotals::default();
        let batches = [10, 10, 25, 4].map(|batches| {
            let told = told(batches);
            let news = totals.since(&told);
            assert!(news.iter().all(|(variant, ran)| {
                *variant == "small" && (ran.requests, ran.busy_us) == (2 * ran.batches, 100 * ran.batches)
            }));
            news.iter().map(|(_, ran)| ran.batches).sum::<u64>()
        });
        assert_eq!(batches, [10, 0, 15, 4]);
    }
}
