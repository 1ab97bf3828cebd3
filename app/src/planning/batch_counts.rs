//! Computes the batches that variants ran since the last observation, from the totals in heartbeats.

use std::collections::BTreeMap;

use kaskade_actors::wire::Runs;
use kaskade_policy::demand::RunCounts;

/// Last totals by worker and variant.
#[derive(Debug, Default)]
pub(super) struct RunTotals(BTreeMap<(String, String), Runs>);

impl RunTotals {
    /// Returns the counts since the last call for each worker, by variant. A total that falls means that its worker
    /// restarted. Workers missing from a report are forgotten, unless the report is empty.
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

    /// Regression: totals of every worker ever seen were kept.
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
