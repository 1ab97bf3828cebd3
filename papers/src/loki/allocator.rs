//! The allocator and the balancer themselves: optimality (§4.1) and speed (§6.5).

use std::time::Instant;

use kaskade_app::report::progress::Progress;
use kaskade_app::report::units;
use kaskade_planners::allocate::{AllocateOptions, Allocator, Scaling};
use kaskade_planners::balance::Balancer;
use kaskade_planners::lp::Solver;
use kaskade_planners::reference::{exact_accuracy, flow_accuracy};
use kaskade_policy::pipeline::Pipeline;
use kaskade_stated::thinned::thinned;

use super::Args;
use super::capacity::Phases;
use crate::reproduction::{Claim, Reproduction};

/// Demands from well within hardware scaling's reach to beyond what is served at all, as shares of the latter.
const DEMANDS: u32 = 36;

/// Demands that are solved to the end.
const SOLVED: u32 = 4;

/// The paper's own times, seconds.
const PAPER_ALLOCATOR_S: f64 = 0.5;
const PAPER_BALANCER_S: f64 = 150e-6;

/// Two optima are the same up to this.
const SAME: f64 = 1e-5;

/// Measures and claims.
///
/// # Errors
/// When the pipeline cannot be planned.
pub(super) fn compare(pipeline: &Pipeline, args: &Args, found: &mut Reproduction) -> anyhow::Result<()> {
    let (claim, assumed) = optimality(pipeline, args)?;
    found.claims.push(claim);
    found.assumptions.push(assumed);
    let phases = Phases::new(pipeline, args.workers)?;
    found.claims.extend(planner(pipeline, &phases, args.workers)?);
    found.claims.push(balancer(pipeline, &phases, args.workers)?);
    Ok(())
}

/// The published program solved to the end, if there is a solver for it, or else one of the same shape.
fn instance(pipeline: &Pipeline) -> (Pipeline, Solver, String) {
    if cfg!(feature = "highs") {
        let what = "F1 and F2 are solved to the end by HiGHS, on the whole pipeline".to_owned();
        return (pipeline.clone(), Solver::Highs, what);
    }
    let small = thinned(pipeline, 3, &[1, 4, 16]);
    let what = "F1 and F2 are solved to the end by the embedded solver, on the pipeline with three variants per task and batches of 1, 4 and 16; \
                built with the feature `highs`, on the whole of it"
        .to_owned();
    (small, Solver::Embedded, what)
}

/// F2 with one batch size per variant is F1, and the planner is near both and under its bound.
fn optimality(pipeline: &Pipeline, args: &Args) -> anyhow::Result<(Claim, String)> {
    let (small, solver, assumed) = instance(pipeline);
    let phases = Phases::new(&small, args.workers)?;
    let options = AllocateOptions {
        solver,
        ..AllocateOptions::default()
    };
    let exact = Allocator::new(small.clone(), options)?;
    let quick = Allocator::new(small, AllocateOptions::default())?;
    let (from, to) = (phases.hardware.served_qps, phases.max_qps());
    let mut progress = Progress::begin("F1 and F2", u64::from(SOLVED), args.json);
    let (mut apart, mut several, mut behind, mut beyond) = (0.0_f64, 0.0_f64, 0.0_f64, 0);
    for step in 1..=SOLVED {
        let demand = from + (to - from) * f64::from(step) / f64::from(SOLVED + 1);
        let paper = exact_accuracy(&exact, demand, args.workers)?;
        let single = flow_accuracy(&exact, demand, args.workers, true)?;
        let mixed = flow_accuracy(&exact, demand, args.workers, false)?;
        let ours = quick.allocate(demand, args.workers)?;
        apart = apart.max((paper - single).abs());
        several = several.max(mixed - single);
        behind = behind.max(paper - ours.accuracy);
        beyond += u32::from(ours.accuracy > ours.bound + SAME || paper > ours.bound + SAME);
        progress.advance(1);
    }
    progress.end("solved to the end");
    let met = apart <= SAME && beyond == 0;
    let claim = Claim {
        name: "optimality: F2 with one batch size per variant equals F1, and no plan exceeds its bound"
            .to_owned(),
        paper: "the program's optimum is the best allocation".to_owned(),
        ours: format!(
            "largest difference {apart:.0e} over {SOLVED} demands; several batch sizes would add up to {:.2} points; the planner is up to {:.2} \
             points behind",
            100.0 * several,
            100.0 * behind.max(0.0)
        ),
        met,
        note: if met {
            String::new()
        } else {
            format!("{beyond} plans or optima exceed their bound; the formulations differ by {apart}")
        },
    };
    Ok((claim, assumed))
}

/// Times and gaps over a sweep of demands.
fn planner(pipeline: &Pipeline, phases: &Phases, workers: u32) -> anyhow::Result<[Claim; 2]> {
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default())?;
    let (mut times, mut gaps, mut above) = (Vec::new(), Vec::new(), 0);
    for step in 1..=DEMANDS {
        let demand = phases.max_qps() * f64::from(step) / f64::from(DEMANDS);
        let begun = Instant::now();
        let allocation = allocator.allocate(demand, workers)?;
        times.push(begun.elapsed().as_secs_f64());
        if allocation.scaling == Scaling::Accuracy {
            gaps.push(allocation.gap());
        }
        above += u32::from(allocation.accuracy > allocation.bound + 1e-9);
    }
    let (mean, worst) = mean_and_worst(&times);
    let (mean_gap, worst_gap) = mean_and_worst(&gaps);
    let fast = mean < PAPER_ALLOCATOR_S;
    Ok([
        Claim {
            name: "allocator: every plan has a proven bound".to_owned(),
            paper: "-".to_owned(),
            ours: format!(
                "{above} of {DEMANDS} plans above it; gap {} on average, {} at worst",
                units::percent(mean_gap),
                units::percent(worst_gap)
            ),
            met: above == 0,
            note: if above == 0 {
                "the bound is what fractions of workers could reach, which whole ones mostly cannot"
                    .to_owned()
            } else {
                "a plan promises more than can be proven".to_owned()
            },
        },
        Claim {
            name: "allocator: time for one plan".to_owned(),
            paper: "about 500 ms".to_owned(),
            ours: format!(
                "{} on average, {} at worst over {DEMANDS} demands",
                units::seconds(mean),
                units::seconds(worst)
            ),
            met: fast,
            note: if fast {
                String::new()
            } else {
                "slower than the paper's; the machine may be busy".to_owned()
            },
        },
    ])
}

fn balancer(pipeline: &Pipeline, phases: &Phases, workers: u32) -> anyhow::Result<Claim> {
    const ROUNDS: u32 = 10_000;
    let allocator = Allocator::new(pipeline.clone(), AllocateOptions::default())?;
    let demand = f64::midpoint(phases.hardware.served_qps, phases.max_qps());
    let allocation = allocator.allocate(demand, workers)?;
    let balancer = Balancer::new(pipeline, &allocation.instances);
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let qps = demand * (0.9 + f64::from(round % 7) / 70.0);
        std::hint::black_box(balancer.balance(std::hint::black_box(qps)));
    }
    let each = begun.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let fast = each < PAPER_BALANCER_S;
    Ok(Claim {
        name: "balancer: time for all routing tables".to_owned(),
        paper: "about 0.15 ms".to_owned(),
        ours: units::seconds(each),
        met: fast,
        note: if fast {
            "it runs per variant and not per worker".to_owned()
        } else {
            "slower than the paper's; the machine may be busy".to_owned()
        },
    })
}

fn mean_and_worst(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    (mean, values.iter().copied().fold(0.0, f64::max))
}
