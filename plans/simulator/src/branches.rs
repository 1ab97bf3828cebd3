//! The copies of a pipeline's requests: when each joined its queue, and the variants that it passed. Other requests have none.

use std::collections::BTreeMap;

use super::observer::Loss;

/// No copy of a pipeline's request.
pub(super) const NO_COPY: u32 = u32::MAX;

/// The path of a copy that has passed no task.
pub(super) const ROOT: u32 = 0;

/// A copy of a pipeline's request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Branch {
    /// When it joined the queue that it is in or came from, microseconds.
    pub(super) joined: u64,
    /// The tasks and variants that it has passed, a place in [`Paths`].
    pub(super) path: u32,
}

/// The results of a pipeline's request so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Copies that were answered at a sink with a known accuracy, and the sum of these accuracies.
    pub(super) sinks: u32,
    pub(super) accuracy: f64,
    /// The outcome of the first copy that was lost.
    pub(super) loss: Option<Loss>,
}

impl Tally {
    /// The mean accuracy of the answered paths; `None` if none is known.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.sinks > 0).then(|| self.accuracy / f64::from(self.sinks))
    }
}

/// The copies of a pipeline's requests, in places that are used again.
#[derive(Debug, Default)]
pub(super) struct Branches {
    copies: Vec<Branch>,
    free: Vec<u32>,
    /// Tallies, by the place of the request.
    tallies: Vec<Tally>,
}

impl Branches {
    pub(super) fn add(&mut self, branch: Branch) -> u32 {
        if let Some(place) = self.free.pop() {
            if let Some(free) = self.copies.get_mut(place as usize) {
                *free = branch;
            }
            return place;
        }
        self.copies.push(branch);
        self.copies.len() as u32 - 1
    }

    pub(super) fn get(&self, copy: u32) -> Branch {
        self.copies.get(copy as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn joins(&mut self, copy: u32, now: u64) {
        if let Some(branch) = self.copies.get_mut(copy as usize) {
            branch.joined = now;
        }
    }

    #[inline]
    pub(super) fn free(&mut self, copy: u32) {
        if copy != NO_COPY {
            self.free.push(copy);
        }
    }

    /// Copies that have a place.
    pub(super) fn in_use(&self) -> usize {
        self.copies.len() - self.free.len()
    }

    /// Clears a request's tally.
    pub(super) fn begin(&mut self, flight: u32) {
        let place = flight as usize;
        if self.tallies.len() <= place {
            self.tallies.resize(place + 1, Tally::default());
        }
        if let Some(tally) = self.tallies.get_mut(place) {
            *tally = Tally::default();
        }
    }

    pub(super) fn tally(&self, flight: u32) -> Tally {
        self.tallies.get(flight as usize).copied().unwrap_or_default()
    }

    /// Notes a lost branch: the first one determines the outcome of the request.
    pub(super) fn note_loss(&mut self, flight: u32, loss: Loss) {
        if let Some(tally) = self.tally_mut(flight) {
            tally.loss.get_or_insert(loss);
        }
    }

    pub(super) fn tally_mut(&mut self, flight: u32) -> Option<&mut Tally> {
        self.tallies.get_mut(flight as usize)
    }
}

/// The paths through the tasks that were taken.
#[derive(Debug)]
pub(super) struct Paths {
    paths: Vec<TaskPath>,
    /// Path numbers, by the path so far and the task and variant that extended it.
    numbers: BTreeMap<(u32, u32, u32), u32>,
}

/// A path through the tasks, and its accuracy.
#[derive(Debug, Clone)]
pub(super) struct TaskPath {
    /// Task and variant of each step, from the root on.
    pub(super) steps: Vec<(u32, u32)>,
    /// The product of the stated accuracies; NaN where one is unknown.
    pub(super) product: f64,
    /// End-to-end accuracy, as profiled or as the product; NaN where unknown.
    pub(super) accuracy: f64,
    /// Copies that were answered at its end.
    pub(super) answered: u64,
}

impl Default for Paths {
    fn default() -> Self {
        let root = TaskPath {
            steps: Vec::new(),
            product: 1.0,
            accuracy: f64::NAN,
            answered: 0,
        };
        Self {
            paths: vec![root],
            numbers: BTreeMap::new(),
        }
    }
}

impl Paths {
    /// The path that extends another by a step, if it was taken before.
    pub(super) fn find(&self, before: u32, task: u32, variant: u32) -> Option<u32> {
        self.numbers.get(&(before, task, variant)).copied()
    }

    /// Adds a path that extends another by its last step.
    pub(super) fn add(&mut self, before: u32, path: TaskPath) -> u32 {
        let number = self.paths.len() as u32;
        if let Some((task, variant)) = path.steps.last() {
            self.numbers.insert((before, *task, *variant), number);
        }
        self.paths.push(path);
        number
    }

    pub(super) fn get(&self, path: u32) -> Option<&TaskPath> {
        self.paths.get(path as usize)
    }

    pub(super) fn answered(&mut self, path: u32) {
        if let Some(path) = self.paths.get_mut(path as usize) {
            path.answered += 1;
        }
    }

    /// The paths at whose ends copies were answered.
    pub(super) fn taken(&self) -> impl Iterator<Item = &TaskPath> {
        self.paths.iter().filter(|path| path.answered > 0)
    }
}
