//! How requests end, and the branches of a pipeline's requests.
//!
//! A request of a cascade or an ensemble ends with the first copy that is lost. A pipeline's request ends when every branch
//! has: a lost branch is that branch's failure and the others are answered, so that the request is answered if all of them
//! are, and otherwise has the outcome of the branch that was lost first.

use super::{Engine, NEVER};
use crate::branches::{NO_COPY, TaskPath};
use crate::events::Task;
use crate::in_flight::Flight;
use crate::observer::{Answered, Loss, Lost, Observer, Sink};

impl<O: Observer> Engine<'_, O> {
    /// One copy has its reply. With the last one the request is answered.
    #[inline(always)]
    pub(super) fn reply(&mut self, task: Task, variant: u32, right: bool) {
        if task.copy != NO_COPY {
            self.branch_answered(task, variant);
        }
        if let Some(flight) = self.flights.get_mut(task.flight) {
            flight.right &= right;
            flight.open = flight.open.saturating_sub(1);
            if flight.open == 0 {
                flight.done = true;
                let flight = *flight;
                if task.copy == NO_COPY {
                    self.answer(&flight, variant, None);
                } else {
                    self.all_branches_ended(&flight, task, variant);
                }
            }
        }
        self.drop_copy(task);
    }

    /// A copy is lost. With it, a pipeline's request loses this branch and any other request ends, unless it has its outcome or a
    /// newer attempt.
    #[cold]
    pub(super) fn lose(&mut self, task: Task, loss: Loss) {
        if let Some(flight) = self.flights.get_mut(task.flight)
            && !flight.done
            && flight.attempt == task.attempt
        {
            if task.copy == NO_COPY {
                flight.done = true;
                let flight = *flight;
                self.ends_without_answer(&flight, loss);
            } else {
                self.report.branches.count(loss);
                self.branches.note_loss(task.flight, loss);
                flight.open = flight.open.saturating_sub(1);
                if flight.open == 0 {
                    flight.done = true;
                    let flight = *flight;
                    self.all_branches_ended(&flight, task, 0);
                }
            }
        }
        self.drop_copy(task);
    }

    /// Every branch of a pipeline's request has ended.
    #[inline(never)]
    fn all_branches_ended(&mut self, flight: &Flight, task: Task, variant: u32) {
        let tally = self.branches.tally(task.flight);
        match tally.loss {
            None => self.answer(flight, variant, tally.mean()),
            Some(loss) => self.ends_without_answer(flight, loss),
        }
    }

    /// Every copy of a request has its reply. The accuracy of a pipeline's request is the mean over the paths that its copies took.
    #[inline(always)]
    fn answer(&mut self, flight: &Flight, variant: u32, path_accuracy: Option<f64>) {
        let at_us = self.now.saturating_add(self.drawn_hop(self.back_us));
        // The ingress replies with an error at the deadline, and the answer that comes later is dropped.
        if at_us >= flight.deadline {
            self.report.duration_us = self.report.duration_us.max(at_us);
            return self.ends_without_answer(flight, Loss::Expired);
        }
        self.in_flight -= 1;
        self.report.duration_us = self.report.duration_us.max(at_us);
        if let Some(admission) = &mut self.admission {
            admission.completed(self.now, self.now.saturating_sub(flight.arrived));
        }
        let gear = self.epochs.get(flight.epoch);
        let gear = gear.and_then(|epoch| epoch.plan.gears.get(flight.gear as usize));
        let ballot = gear.and_then(|gear| gear.vote.as_ref()?.get(flight.sample as usize));
        let (variant, right) =
            ballot.map_or((variant, flight.right), |ballot| (ballot.variant, ballot.right));
        let latency_us = at_us - flight.arrived;
        let late = self.config.slo_us.is_some_and(|slo| latency_us > slo);
        self.report.answered += 1;
        self.report.late += u64::from(late);
        self.report.right += u64::from(right);
        self.report.latency.record(latency_us);
        if let Some(variant) = self.report.variants.get_mut(variant as usize) {
            variant.answered += 1;
        }
        if let Some(accuracy) = path_accuracy {
            self.report.graded += 1;
            self.report.grades += accuracy;
        }
        self.observer.answered(&Answered {
            at_us,
            latency_us,
            gear: flight.gear,
            variant,
            right,
            hops: flight.hops,
            late,
            path_accuracy,
        });
    }

    #[cold]
    fn ends_without_answer(&mut self, flight: &Flight, loss: Loss) {
        self.in_flight -= 1;
        let budget = self.config.budget_us.unwrap_or(NEVER);
        match &mut self.admission {
            Some(admission) if loss == Loss::Expired && flight.losses == 0 => {
                admission.expired(self.now, budget);
            }
            Some(admission) => admission.ended(),
            None => {}
        }
        self.report.duration_us = self.report.duration_us.max(self.now);
        self.count_loss(loss, flight.arrived);
    }

    pub(super) fn count_loss(&mut self, loss: Loss, arrived_us: u64) {
        self.report.count(loss);
        self.observer.lost(&Lost {
            at_us: self.now,
            arrived_us,
            loss,
        });
    }

    /// A branch has its reply.
    #[inline(never)]
    fn branch_answered(&mut self, task: Task, variant: u32) {
        let back_us = self.drawn_hop(self.back_us);
        let Some(flight) = self.flights.get(task.flight) else {
            return;
        };
        let at_us = self.now.saturating_add(back_us);
        let latency_us = at_us.saturating_sub(flight.arrived);
        if at_us >= flight.deadline {
            self.report.branches.count(Loss::Expired);
            return self.branches.note_loss(task.flight, Loss::Expired);
        }
        let late = self.config.slo_us.is_some_and(|slo| latency_us > slo);
        let (path, sink) = self.path_on(task, variant);
        let Some(taken) = self.paths.get(path) else {
            return;
        };
        let accuracy = (sink && !taken.accuracy.is_nan()).then_some(taken.accuracy);
        self.observer.sink(&Sink {
            at_us,
            latency_us,
            late,
            path: &taken.steps,
            accuracy,
        });
        self.paths.answered(path);
        self.report.branches.answered(late, accuracy);
        if let (Some(accuracy), Some(tally)) = (accuracy, self.branches.tally_mut(task.flight)) {
            tally.sinks += 1;
            tally.accuracy += accuracy;
        }
    }

    /// The path of a pipeline's copy including the stage that has just run it, and whether that stage is a sink.
    pub(super) fn path_on(&mut self, task: Task, variant: u32) -> (u32, bool) {
        let before = self.branches.get(task.copy).path;
        let flight = self.flights.get(task.flight);
        let epoch = flight.and_then(|flight| self.epochs.get(flight.epoch));
        let Some(stage) = epoch.and_then(|epoch| epoch.plan.stages.get(usize::from(task.stage))) else {
            return (before, false);
        };
        let (task, last, accuracy) = (stage.task, stage.last, stage.accuracy);
        let known = self.paths.find(before, task, variant);
        let path = known.unwrap_or_else(|| self.new_path(before, task, variant, accuracy));
        (path, last)
    }

    /// The accuracy of a new path is the profiled end-to-end accuracy, or the product of its variants'
    /// accuracies.
    fn new_path(&mut self, before: u32, task: u32, variant: u32, accuracy: f64) -> u32 {
        let (mut steps, product) = match self.paths.get(before) {
            Some(path) => (path.steps.clone(), path.product * accuracy),
            None => (Vec::new(), f64::NAN),
        };
        steps.push((task, variant));
        let profiled = self.config.path_accuracies.get(&self.tables.path_names(&steps));
        let path = TaskPath {
            steps,
            product,
            accuracy: profiled.copied().unwrap_or(product),
            answered: 0,
        };
        self.paths.add(before, path)
    }
}
