//! Multiplicative factors from heartbeats (Loki §4.2): every worker reports its requests and the requests that it made of them,
//! and the allocator plans with the sums per variant.

use std::collections::BTreeMap;

use kaskade_policy::pipeline::Pipeline;

/// How observed multiplicative factors replace the profiled ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorOptions {
    /// Requests of a variant before its observed factors replace the profiled ones.
    pub min_requests: u64,
    /// Weight of observations from before the last plan, in [0, 1); below 1, so that factors follow changes over a day.
    pub decay: f64,
    /// Smallest relative change of a factor that is applied.
    pub change: f64,
}

impl Default for FactorOptions {
    fn default() -> Self {
        Self {
            min_requests: 100,
            decay: 0.9,
            change: 0.05,
        }
    }
}

/// The workers' reports.
#[derive(Debug, Clone)]
pub struct FactorEstimator {
    options: FactorOptions,
    /// Variant and last totals of each replica. They are totals, so that the next heartbeat makes up for a lost one.
    replicas: BTreeMap<String, (String, Totals)>,
    /// Counts of each variant since the last time, with the remainder from before.
    variants: BTreeMap<String, Counts>,
}

#[derive(Debug, Clone, Default)]
struct Totals {
    requests: u64,
    made: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default)]
struct Counts {
    requests: f64,
    made: BTreeMap<String, f64>,
}

impl FactorEstimator {
    /// Creates an estimator without measurements.
    pub fn new(options: FactorOptions) -> Self {
        Self {
            options,
            replicas: BTreeMap::new(),
            variants: BTreeMap::new(),
        }
    }

    /// Notes a heartbeat: since its start, `replica` of `variant` was given `requests` and made `made` of them, by child task.
    ///
    /// Totals that fall mean that the replica restarted, or runs another variant: they count from nothing.
    pub fn record(&mut self, replica: &str, variant: &str, requests: u64, made: &BTreeMap<String, u64>) {
        let old = self.replicas.remove(replica);
        let old = old.filter(|(same, old)| same == variant && old.requests <= requests);
        let (_, old) = old.unwrap_or_default();
        let counts = self.variants.entry(variant.to_owned()).or_default();
        counts.requests += (requests - old.requests) as f64;
        for (child, total) in made {
            let before = old.made.get(child).copied().unwrap_or(0);
            *counts.made.entry(child.clone()).or_default() += total.saturating_sub(before) as f64;
        }
        let made = made.clone();
        self.replicas.insert(
            replica.to_owned(),
            (variant.to_owned(), Totals { requests, made }),
        );
    }

    /// Forgets a replica that is no more.
    pub fn forget_replica(&mut self, replica: &str) {
        self.replicas.remove(replica);
    }

    /// Applies the observations to a pipeline, and returns whether any factor changed significantly. Variants with too few requests
    /// keep the factors that they have.
    pub fn apply(&mut self, pipeline: &mut Pipeline) -> bool {
        let mut changed = false;
        for task in &mut pipeline.tasks {
            for variant in &mut task.variants {
                let seen = self.variants.get(&variant.name);
                let Some(seen) = seen.filter(|seen| seen.requests >= self.options.min_requests as f64) else {
                    continue;
                };
                let made = |child: &String| seen.made.get(child).copied().unwrap_or(0.0);
                let all: f64 = task.children.iter().map(made).sum();
                let differs = |child: &String| {
                    let (old, new) = (variant.multiplicity(child), made(child) / seen.requests);
                    (new - old).abs() > self.options.change * old
                };
                if !task.children.iter().any(differs) {
                    continue;
                }
                changed = true;
                variant.multiplicative_factor = all / seen.requests;
                if all > 0.0 {
                    let ratio = |child: &String| (child.clone(), (made(child) / all).min(1.0));
                    variant.branch_ratios = task.children.iter().map(ratio).collect();
                }
            }
        }
        for counts in self.variants.values_mut() {
            counts.requests *= self.options.decay;
            for made in counts.made.values_mut() {
                *made *= self.options.decay;
            }
        }
        changed
    }
}
