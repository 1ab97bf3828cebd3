//! How much a cluster serves, at which accuracy (Loki Figure 1, §6.2).

use anyhow::Context as _;
use kaskade_app::charts::panels::{self, Panel, Panels, Series, Shape};
use kaskade_app::report::{self, units};
use kaskade_planners::allocate::{AllocateOptions, Allocation, AllocationPolicy, Allocator, Scaling};
use kaskade_policy::pipeline::{Pipeline, Task, TaskVariant};
use kaskade_simulator::trace::Trace;

use super::Args;
use super::field::{Contestant, Field};
use crate::parallel::in_parallel;
use crate::peers::pipelines::PipelinePeer;
use crate::reproduction::{Claim, Reproduction};

/// More than any cluster serves, requests/s.
const BEYOND: f64 = 1e9;

/// The paper's capacities at the ends of its three phases, requests/s.
const PAPER: [f64; 3] = [560.0, 1550.0, 1765.0];

/// The drop of accuracy that the paper gives beside its ratio.
const DROP: f64 = 0.13;

/// Requests that may miss their objective where a load counts as served.
const MISSES: f64 = 0.05;

/// Duration of an even load in the simulation, seconds.
const EVEN_S: usize = 60;

/// The capacity of a cluster at the ends of the phases of Figure 1.
#[derive(Debug, Clone)]
pub(super) struct Phases {
    /// Capacity with the most accurate variants.
    pub(super) hardware: Capacity,
    /// Capacity with the most accurate variant of the first task.
    first_kept: Capacity,
    /// Capacity at any accuracy.
    most: Capacity,
}

/// The capacity of a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    /// Requests/s at the root.
    pub(super) served_qps: f64,
    /// Accuracy at that load, in [0, 1].
    pub(super) accuracy: f64,
    /// Upper bound that not even fractions of workers exceed, requests/s.
    bound_qps: f64,
}

impl Phases {
    /// Computes the capacities of a pipeline on this many workers.
    ///
    /// # Errors
    /// An error if a capacity cannot be planned.
    pub(super) fn new(pipeline: &Pipeline, workers: u32) -> anyhow::Result<Self> {
        Ok(Self {
            hardware: capacity(pipeline, AllocationPolicy::HardwareOnly, workers)?,
            first_kept: capacity(&first_kept(pipeline)?, AllocationPolicy::Loki, workers)?,
            most: capacity(pipeline, AllocationPolicy::Loki, workers)?,
        })
    }

    /// Returns the capacity at any accuracy, requests/s.
    pub(super) fn max_qps(&self) -> f64 {
        self.most.served_qps
    }

    /// Returns the factor of a capacity over that of hardware scaling.
    fn times(&self, capacity: Capacity) -> f64 {
        capacity.served_qps / self.hardware.served_qps
    }
}

fn allocator(pipeline: &Pipeline, policy: AllocationPolicy) -> anyhow::Result<Allocator> {
    let options = AllocateOptions {
        policy,
        ..AllocateOptions::default()
    };
    Ok(Allocator::new(pipeline.clone(), options)?)
}

fn capacity(pipeline: &Pipeline, policy: AllocationPolicy, workers: u32) -> anyhow::Result<Capacity> {
    let allocator = allocator(pipeline, policy)?;
    let allocation = allocator.allocate(BEYOND, workers)?;
    Ok(Capacity {
        served_qps: allocation.served_qps,
        accuracy: allocation.accuracy,
        bound_qps: allocator.max_qps(workers),
    })
}

fn root(pipeline: &Pipeline) -> anyhow::Result<&Task> {
    let is_child = |name: &String| pipeline.tasks.iter().any(|task| task.children.contains(name));
    let root = pipeline.tasks.iter().find(|task| !is_child(&task.name));
    root.context("the pipeline has no root")
}

/// The pipeline with the most accurate variant of its first task only.
fn first_kept(pipeline: &Pipeline) -> anyhow::Result<Pipeline> {
    let (name, variant) = best_first(pipeline)?;
    let mut kept = pipeline.clone();
    for task in kept.tasks.iter_mut().filter(|task| task.name == name) {
        task.variants = vec![variant.clone()];
    }
    Ok(kept)
}

fn best_first(pipeline: &Pipeline) -> anyhow::Result<(String, TaskVariant)> {
    let root = root(pipeline)?;
    let (_, best) = root.most_accurate().context("the first task has no variants")?;
    Ok((root.name.clone(), best.clone()))
}

/// The first task and the first of its children: what the paper's Figure 1 is about.
fn chain(pipeline: &Pipeline) -> anyhow::Result<Pipeline> {
    let mut first = root(pipeline)?.clone();
    first.children.truncate(1);
    let child = first.children.first().cloned();
    for variant in &mut first.variants {
        variant
            .branch_ratios
            .retain(|name, _| child.as_ref() == Some(name));
    }
    let second = pipeline
        .tasks
        .iter()
        .find(|task| Some(&task.name) == child.as_ref());
    let mut second = second.context("the pipeline has only one task")?.clone();
    second.children.clear();
    for variant in &mut second.variants {
        variant.branch_ratios.clear();
    }
    Ok(Pipeline {
        tasks: vec![first, second],
        path_accuracy: kaskade_policy::pipeline::PathAccuracy::Product,
        ..pipeline.clone()
    })
}

/// Plans and simulates, and returns the outcome.
///
/// # Errors
/// When something cannot be planned or simulated, or the picture not be written.
pub(super) fn compare(field: &Field, args: &Args, found: &mut Reproduction) -> anyhow::Result<()> {
    let chain = chain(&field.pipeline)?;
    let (two, all) = (
        Phases::new(&chain, field.workers)?,
        Phases::new(&field.pipeline, field.workers)?,
    );
    found.claims.push(simulated(field, &all)?);
    found
        .claims
        .push(at_a_drop(&field.pipeline, &all, field.workers)?);
    found.claims.push(kept(&two, &all, &chain, field.workers)?);
    found.claims.push(any_accuracy(&two, &all));
    found.claims.push(figure_1(&two, &chain, field.workers)?);
    let file = args.out.join("loki-capacity.svg");
    report::write_file(&file, &panels::svg(&picture(&chain, &two, field.workers)?)?)?;
    found.files.push(file);
    Ok(())
}

/// The largest even load of which at most [`MISSES`] of the requests miss their objective, requests/s.
fn sustained(field: &Field, contestant: Contestant, max_qps: f64) -> anyhow::Result<(f64, f64)> {
    let (mut low, mut high, mut accuracy) = (0.0, max_qps, f64::NAN);
    for _ in 0..8 {
        let middle = f64::midpoint(low, high);
        let run = field.under(Trace::constant(middle, EVEN_S)?).play(contestant)?;
        if run.violations() <= MISSES {
            (low, accuracy) = (middle, run.accuracy());
        } else {
            high = middle;
        }
    }
    Ok((low, accuracy))
}

fn simulated(field: &Field, phases: &Phases) -> anyhow::Result<Claim> {
    let contestants = [
        (Contestant::LOKI, phases.most.served_qps),
        (Contestant::INFERLINE, phases.hardware.served_qps),
    ];
    let reached = in_parallel(&contestants, |(contestant, most)| {
        sustained(field, *contestant, *most)
    });
    let reached = reached.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let [(ours, accuracy), (theirs, _)] = reached.as_slice() else {
        anyhow::bail!("two loads were to be found");
    };
    let times = ours / theirs;
    let met = times >= 2.5;
    Ok(Claim {
        name: "capacity: even load that is served, over hardware scaling".to_owned(),
        paper: "2.5x (traffic) to 2.7x (social)".to_owned(),
        ours: format!(
            "{times:.1}x: {ours:.0}/s at {}, InferLine {theirs:.0}/s; simulated, at most {} % of the requests miss their objective",
            units::percent(*accuracy),
            100.0 * MISSES
        ),
        met,
        note: if met {
            "more than the paper's, because these variants differ by more than its ratio: see the claims below".to_owned()
        } else {
            bound(phases)
        },
    })
}

fn bound(phases: &Phases) -> String {
    format!(
        "with fractions of workers, and at any accuracy, {:.0}/s are the most, {:.2}x",
        phases.most.bound_qps,
        phases.most.bound_qps / phases.hardware.served_qps
    )
}

/// The largest demand at no less than this accuracy, requests/s.
fn demand_at(allocator: &Allocator, phases: &Phases, workers: u32, least: f64) -> anyhow::Result<f64> {
    let (mut low, mut high) = (phases.hardware.served_qps, phases.most.served_qps);
    for _ in 0..20 {
        let middle = f64::midpoint(low, high);
        let allocation = allocator.allocate(middle, workers)?;
        if allocation.scaling != Scaling::Overload && allocation.accuracy >= least {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

fn at_a_drop(pipeline: &Pipeline, phases: &Phases, workers: u32) -> anyhow::Result<Claim> {
    let allocator = allocator(pipeline, AllocationPolicy::Loki)?;
    let least = phases.hardware.accuracy - DROP;
    let demand = demand_at(&allocator, phases, workers, least)?;
    let times = demand / phases.hardware.served_qps;
    let met = times >= 2.5;
    Ok(Claim {
        name: format!("capacity: with {} points less accuracy", 100.0 * DROP),
        paper: "2.7x".to_owned(),
        ours: format!(
            "{times:.1}x: {demand:.0}/s at {}, over {:.0}/s at {}; planned",
            units::percent(least),
            phases.hardware.served_qps,
            units::percent(phases.hardware.accuracy)
        ),
        met,
        note: if met { String::new() } else { bound(phases) },
    })
}

/// The end of phase 2: the second task is as fast as it gets, the first as accurate as it is.
fn kept(two: &Phases, all: &Phases, chain: &Pipeline, workers: u32) -> anyhow::Result<Claim> {
    let times = two.times(two.first_kept);
    let met = times >= 2.5;
    let (_, best) = best_first(chain)?;
    Ok(Claim {
        name: "capacity: with the first task as accurate as ever (end of phase 2)".to_owned(),
        paper: "2.7x".to_owned(),
        ours: format!(
            "{times:.2}x over two tasks, {:.2}x over all: {:.0}/s at {}; planned",
            all.times(all.first_kept),
            two.first_kept.served_qps,
            units::percent(two.first_kept.accuracy)
        ),
        met,
        note: if met {
            String::new()
        } else {
            format!(
                "the profiles forbid it: while every request is first served by `{}`, {:.0}/s are the most that {workers} workers could \
                 serve with fractions of workers, {:.2}x",
                best.name,
                two.first_kept.bound_qps,
                two.first_kept.bound_qps / two.hardware.served_qps
            )
        },
    })
}

fn any_accuracy(two: &Phases, all: &Phases) -> Claim {
    let times = two.times(two.most);
    Claim {
        name: "capacity: at any accuracy".to_owned(),
        paper: "3.2x (1,765 over 560)".to_owned(),
        ours: format!(
            "{times:.1}x over two tasks, {:.1}x over all: {:.0}/s at {}; planned",
            all.times(all.most),
            two.most.served_qps,
            units::percent(two.most.accuracy)
        ),
        met: times >= 3.0,
        note: if times >= 3.0 { String::new() } else { bound(two) },
    }
}

/// Figure 1 as it is printed.
fn figure_1(two: &Phases, chain: &Pipeline, workers: u32) -> anyhow::Result<Claim> {
    let ours = [two.hardware, two.first_kept, two.most].map(|capacity| capacity.served_qps);
    let near = |(ours, paper): (&f64, &f64)| (ours / paper - 1.0).abs() <= 0.1;
    let met = ours.iter().zip(&PAPER).all(near);
    let [hardware, kept, most] = ours;
    let why = why_not_figure_1(chain, two, workers)?;
    Ok(Claim {
        name: "capacity: the throughputs of Figure 1, within a tenth".to_owned(),
        paper: "560, 1,550 and 1,765/s at the ends of the three phases".to_owned(),
        ours: format!("{hardware:.0}, {kept:.0} and {most:.0}/s; planned"),
        met,
        note: if met { String::new() } else { why },
    })
}

/// Explains Figure 1: capacity of the first task alone, and the workers that it leaves to the second.
fn why_not_figure_1(chain: &Pipeline, two: &Phases, workers: u32) -> anyhow::Result<String> {
    let (_, first) = best_first(chain)?;
    let second = chain.tasks.last().context("the chain has no second task")?;
    let (_, second) = second
        .most_accurate()
        .context("the second task has no variants")?;
    let fastest = second.latency_us(1).unwrap_or(0.0);
    // Half of the objective is for queues, and the second task needs its time too.
    let budget = chain.slo_us as f64 / 2.0 - chain.hop_us as f64 - fastest;
    let in_time = first.latency.iter().filter(|sample| sample.us <= budget);
    let rates = in_time.map(|sample| f64::from(sample.batch) / sample.us * 1e6);
    let alone = f64::from(workers) * rates.fold(0.0, f64::max);
    let finds: f64 = first
        .branch_ratios
        .keys()
        .map(|child| first.multiplicity(child))
        .sum();
    let each = second
        .latency
        .iter()
        .filter(|sample| sample.us + first.latency_us(1).unwrap_or(0.0) <= budget + fastest);
    let each = each
        .map(|sample| f64::from(sample.batch) / sample.us * 1e6)
        .fold(0.0, f64::max);
    Ok(format!(
        "it does not follow from these profiles. {workers} workers that did nothing but `{}`, in the largest batches that leave time for a \
         second task, would serve {alone:.0}/s, and the {finds:.1} requests that it makes of each take {:.2} workers per request/s more in the best \
         batches of `{}`, against {:.3} for itself: so hardware scaling ends at {:.0}/s and not at 560. While the first task keeps its \
         variant it can never exceed the {alone:.0}/s, and 1,550 is {:.1} times that",
        first.name,
        finds / each.max(f64::MIN_POSITIVE),
        second.name,
        f64::from(workers) / alone.max(f64::MIN_POSITIVE),
        two.hardware.served_qps,
        PAPER.get(1).copied().unwrap_or(f64::NAN) / alone.max(f64::MIN_POSITIVE),
    ))
}

/// A figure of an allocation that is plotted.
type Figure = fn(&Allocation) -> f64;

/// Accuracy, workers and what is served by demand, over the first two tasks.
fn picture(chain: &Pipeline, phases: &Phases, workers: u32) -> anyhow::Result<Panels> {
    const POINTS: u32 = 160;
    let policies = [
        ("Loki", PipelinePeer::Loki),
        ("InferLine", PipelinePeer::InferLine),
        ("Proteus", PipelinePeer::Proteus),
    ];
    let axes: [(&str, Figure); 3] = [
        ("accuracy (%)", |allocation| 100.0 * allocation.accuracy),
        ("workers", |allocation| f64::from(allocation.used)),
        ("served (requests/s)", |allocation| allocation.served_qps),
    ];
    let mut rows: Vec<Panel> = axes
        .iter()
        .map(|(axis, _)| Panel {
            axis: (*axis).to_owned(),
            moments: vec![phases.hardware.served_qps, phases.first_kept.served_qps],
            ..Panel::default()
        })
        .collect();
    for (name, policy) in policies {
        let allocator = policy.allocator(chain)?;
        let demands =
            (1..=POINTS).map(|point| 1.05 * phases.most.served_qps * f64::from(point) / f64::from(POINTS));
        let curve = demands.map(|demand| Ok((demand, allocator.allocate(demand, workers)?)));
        let curve = curve.collect::<anyhow::Result<Vec<_>>>()?;
        for (row, (_, figure)) in rows.iter_mut().zip(&axes) {
            row.series.push(Series {
                name: name.to_owned(),
                points: curve
                    .iter()
                    .map(|(demand, allocation)| (*demand, figure(allocation)))
                    .collect(),
                shape: Shape::Line,
            });
        }
    }
    Ok(Panels {
        title: format!(
            "{}: as planned by demand; upright: ends of phases 1 and 2",
            chain.name
        ),
        axis: "demand (requests/s)".to_owned(),
        rows,
    })
}
