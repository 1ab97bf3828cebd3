//! Outcomes of a run, by parts of it.

/// Number of parts into which a run is divided for evaluation.
pub(super) const PARTS: usize = 12;

/// Index of the part that holds a time, seconds after the beginning of a run of this many seconds.
pub(super) fn part_at(after_s: f64, seconds: usize) -> usize {
    let share = after_s / seconds.max(1) as f64;
    ((share * PARTS as f64) as usize).min(PARTS - 1)
}

/// Outcomes of a run, by parts of it.
pub(super) struct Run {
    pub(super) parts: Vec<Part>,
    /// Mean number of workers in use.
    pub(super) workers: f64,
}

/// Outcomes of the requests that arrived in one part of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) requests: u64,
    pub(super) violations: u64,
    /// Sum of the branches' accuracies, and their number: of a live run the two sides of F1.
    pub(super) worth: f64,
    pub(super) judged: f64,
    /// Workers in use, summed over the times they were counted.
    pub(super) workers: f64,
    pub(super) counted: f64,
}

impl Part {
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.violations += other.violations;
        self.worth += other.worth;
        self.judged += other.judged;
        self.workers += other.workers;
        self.counted += other.counted;
    }

    pub(super) fn accuracy(&self) -> f64 {
        self.worth / self.judged
    }

    pub(super) fn violation_ratio(&self) -> f64 {
        self.violations as f64 / self.requests.max(1) as f64
    }
}

impl Run {
    pub(super) fn of(parts: Vec<Part>) -> Self {
        let mut run = Self { parts, workers: 0.0 };
        let total = run.total();
        run.workers = total.workers / total.counted.max(1.0);
        run
    }

    pub(super) fn total(&self) -> Part {
        let mut total = Part::default();
        for part in &self.parts {
            total.add(part);
        }
        total
    }
}
