//! The run in the simulator.

use anyhow::ensure;
use kaskade_app::config::pipeline::PipelinePlannerConfig;
use kaskade_app::planning::allocator;
use kaskade_planners::manager::Manager;
use kaskade_policy::plan::Plan;
use kaskade_simulator::trace::ArrivalProcess;
use kaskade_simulator::{Answered, Controller, Lost, Observation, Observer, SimConfig, Simulator, Sink};

use super::Live;
use super::parts::{PARTS, Part, Run, part_at};

/// Time from the client to the first queue and back, and from the end of a batch to the start of the next, as measured on two cores for the
/// digits: a thousandth of the objective.
const ENTRY_US: u64 = 320;
const TURNAROUND_US: u64 = 260;

/// Simulates the run.
///
/// # Errors
/// When nothing can be planned, or the simulator refuses a plan.
pub(super) fn run(live: &Live, allocator: &PipelinePlannerConfig) -> anyhow::Result<Run> {
    let mut manager = allocator::manager(&live.app, &live.config, allocator)?;
    let plan = manager.first_plan(allocator.demand.min_rate, 0)?;
    let pipeline = &live.measured.pipeline;
    let profile = pipeline.profile();
    let config = SimConfig {
        seed: live.seed,
        entry_hop_us: ENTRY_US,
        hop_us: pipeline.hop_us,
        turnaround_us: TURNAROUND_US,
        // A client does not wait longer than its objective: what cannot be answered by then is not begun.
        budget_us: Some(pipeline.slo_us),
        slo_us: Some(pipeline.slo_us),
        control_interval_us: u64::try_from(allocator::observation_interval(&allocator.demand).as_micros())?,
        copies: live.measured.copies.clone(),
        path_accuracies: pipeline.path_accuracies(),
        ..SimConfig::default()
    };
    let simulator = Simulator::new(&plan, &profile, &config)?;
    let mut seen = Seen {
        live,
        parts: vec![Part::default(); PARTS],
    };
    let arrivals = live.trace.arrivals(ArrivalProcess::Poisson, live.seed);
    let mut counting = Counting {
        used: plan.placement.len(),
        manager,
        counted: Vec::new(),
    };
    let report = simulator.run_controlled(arrivals, &mut seen, &profile, &mut counting);
    ensure!(
        report.refused_plans.is_empty(),
        "the simulator refused a plan: {:?}",
        report.refused_plans
    );
    let mut parts = seen.parts;
    for (at_us, used) in counting.counted {
        if let Some(part) = parts.get_mut(part_at(at_us as f64 / 1e6, live.trace.seconds())) {
            part.workers += used as f64;
            part.counted += 1.0;
        }
    }
    Ok(Run::of(parts))
}

/// A manager, and the number of workers that its plans use, by period.
struct Counting {
    manager: Manager,
    used: usize,
    counted: Vec<(u64, usize)>,
}

impl Controller for Counting {
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan> {
        let plan = self.manager.decide(observation);
        self.used = plan.as_ref().map_or(self.used, |plan| plan.placement.len());
        self.counted.push((observation.at_us, self.used));
        plan
    }
}

/// Notes the outcome of each simulated request.
struct Seen<'a> {
    live: &'a Live,
    parts: Vec<Part>,
}

impl Seen<'_> {
    fn part(&mut self, at_us: u64) -> Option<&mut Part> {
        let at = part_at(at_us as f64 / 1e6, self.live.trace.seconds());
        self.parts.get_mut(at)
    }
}

impl Observer for Seen<'_> {
    fn answered(&mut self, answered: &Answered) {
        if let Some(part) = self.part(answered.at_us.saturating_sub(answered.latency_us)) {
            part.requests += 1;
            part.violations += u64::from(answered.late);
        }
    }

    fn lost(&mut self, lost: &Lost) {
        if let Some(part) = self.part(lost.arrived_us) {
            part.requests += 1;
            part.violations += 1;
        }
    }

    fn sink(&mut self, sink: &Sink<'_>) {
        if let (Some(accuracy), Some(part)) = (
            sink.accuracy,
            self.part(sink.at_us.saturating_sub(sink.latency_us)),
        ) {
            part.worth += accuracy;
            part.judged += 1.0;
        }
    }
}
