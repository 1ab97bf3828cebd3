//! Finds the highest load that devices carry, and the combination that carries it.
//!
//! The load that a combination carries if work could be divided arbitrarily is known at once: the available time divided by its work. The
//! load that it carries with whole instances is a packing problem: the largest instances are placed first, each where there is least work
//! (and memory). The best of these placements are annealed at higher and higher loads.

use super::anneal;
use super::inputs::{Case, FeasiblePartition};
use super::layout::Layout;
use super::problem::{Cluster, Problem, excess};
use super::shapes::{ReplicaPartition, cuts};
use super::solve::Solved;

/// Choices of partitions that are examined, and combinations of all of them, as [`super::shapes::Models::line`] counts them: with few
/// choices, more of each, so that no number of copies is skipped.
const CUTS: u64 = 512;
const LOOKED: usize = 4_096;

/// Combinations that are packed: those that carry most by a guess, and how finely that is guessed.
const PACKED: usize = 192;
const GUESSES: usize = 12;

/// Combinations that are annealed, at how many loads each, and by how many moves.
const ANNEALED: usize = 6;
const LOADS: usize = 6;
const MOVES: u64 = 20_000;

/// Shares of the load that the devices would carry if work could be divided arbitrarily, at which the search starts: the next one is used
/// if no combination can be packed at the one before.
const FROM: [f64; 4] = [0.5, 0.2, 0.05, 0.005];

/// A combination, the load that it would carry if work could be divided arbitrarily, and the load that it carries as packed.
struct Packed {
    shape: ReplicaPartition,
    fluid_bound: f64,
    qps: f64,
    placed: Vec<usize>,
}

/// The highest load that the devices carry in a found placement, requests/s, and the combination that carries it.
pub(super) fn max_throughput(case: &Case<'_>, cluster: &Cluster) -> Option<(f64, FeasiblePartition)> {
    let high = cluster.work() / case.models.least_kernel();
    let mut packed = FROM
        .into_iter()
        .map(|from| packed(case, cluster, high * from))
        .find(|packed| !packed.is_empty())?;
    packed.truncate(ANNEALED);
    let mut best: Option<(f64, FeasiblePartition)> = None;
    for one in packed {
        let least = best.as_ref().map_or(0.0, |(qps, _)| *qps);
        let found = climb(case, cluster, one, least);
        best = best.into_iter().chain(found).max_by(|a, b| a.0.total_cmp(&b.0));
    }
    best
}

/// A combination that carries a load, with its placement.
pub(super) fn carries(case: &Case<'_>, cluster: &Cluster, qps: f64) -> Option<FeasiblePartition> {
    let packed = packed(case, cluster, qps);
    if let Some(first) = packed.first().filter(|first| first.qps >= qps) {
        let problem = problem(case, cluster, &first.shape, qps);
        return seen(&problem, first.shape.clone(), first.placed.clone());
    }
    packed.into_iter().take(ANNEALED).find_map(|one| {
        let problem = problem(case, cluster, &one.shape, qps);
        let placed = anneal::improve(start(&problem, &one.placed), &problem, MOVES, case.options.seed);
        seen(&problem, one.shape, placed)
    })
}

/// Higher and higher loads, beginning with what the packing carries.
fn climb(case: &Case<'_>, cluster: &Cluster, packed: Packed, least: f64) -> Option<(f64, FeasiblePartition)> {
    let Packed {
        shape,
        fluid_bound,
        qps,
        placed,
    } = packed;
    let (mut low, mut high) = (qps, fluid_bound);
    let first = problem(case, cluster, &shape, low);
    let mut best = seen(&first, shape.clone(), placed.clone()).map(|seen| (low, seen));
    for _ in 0..LOADS {
        if high <= least {
            return best;
        }
        let middle = f64::midpoint(low, high);
        let problem = problem(case, cluster, &shape, middle);
        let from = best.as_ref().map_or(&placed, |(_, (_, solved))| &solved.placed);
        let found = anneal::improve(start(&problem, from), &problem, MOVES, case.options.seed);
        match seen(&problem, shape.clone(), found) {
            Some(seen) => {
                best = Some((middle, seen));
                low = middle;
            }
            None => high = middle,
        }
    }
    best
}

/// Packs the combinations that carry the load if work could be divided arbitrarily; returns them by the load that they carry, highest
/// first.
fn packed(case: &Case<'_>, cluster: &Cluster, qps: f64) -> Vec<Packed> {
    let models = &case.models;
    let Ok(fewest) = case.fits_at_all(cluster) else {
        return Vec::new();
    };
    let largest: Vec<u32> = (0..fewest.len())
        .map(|model| case.partitions(cluster, model))
        .collect();
    let (cuts, _) = cuts(&fewest, &largest, CUTS);
    let of_each = LOOKED / cuts.len().max(1);
    let mut shapes: Vec<(f64, f64, ReplicaPartition)> = cuts
        .iter()
        .flat_map(|cut| {
            models
                .line(cut, models.batch / qps, cluster, of_each, |_| {})
                .shapes
        })
        .map(|shape| {
            let fluid_bound = models.fluid_bound(&shape, cluster);
            (guess(case, cluster, &shape, fluid_bound), fluid_bound, shape)
        })
        .collect();
    shapes.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.2.cmp(&b.2)));
    shapes.truncate(PACKED);
    let packed = shapes.into_iter().filter_map(|(_, fluid_bound, shape)| {
        // Work per request and second, so that loads are what comes out.
        let problem = problem(case, cluster, &shape, 1.0);
        let (placed, qps) = pack(&problem)?;
        Some(Packed {
            shape,
            fluid_bound,
            qps,
            placed,
        })
    });
    let mut packed: Vec<Packed> = packed.collect();
    packed.sort_by(|a, b| b.qps.total_cmp(&a.qps));
    packed
}

/// Estimates the load of a packed combination: two instances of more than half a device cannot share one, and small ones fill the rest.
fn guess(case: &Case<'_>, cluster: &Cluster, shape: &ReplicaPartition, fluid_bound: f64) -> f64 {
    let models = &case.models;
    let parts = models.parts(shape, models.batch);
    let (memory, work) = (cluster.largest_memory(), cluster.most_work());
    let fits = |qps: f64| {
        let (mut large, mut spare, mut small) = (0.0, 0.0, 0.0);
        for kind in &parts.kinds {
            let size = (kind.work * qps / work).max(kind.memory / memory);
            let copies = f64::from(kind.copies);
            if size > 0.5 {
                large += copies;
                spare += copies * (1.0 - size);
            } else {
                small += copies * size;
            }
        }
        large + f64::max(small - spare, 0.0) <= cluster.devices.len() as f64
    };
    let (mut low, mut high) = (0.0, fluid_bound);
    for _ in 0..GUESSES {
        let middle = f64::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The largest instances first, each where there is least to do, in proportion to what can be done there; and the load that this carries.
fn pack(problem: &Problem<'_>) -> Option<(Vec<usize>, f64)> {
    let cluster = problem.cluster;
    let size = |instance: &usize| {
        let kind = problem.kind_of(*instance);
        kind.map_or((0.0, 0.0), |kind| (kind.work, kind.memory))
    };
    // Instances that take most of a device's memory are placed first.
    let bulky = |instance: &usize| size(instance).1 * 2.0 > cluster.largest_memory();
    let mut order: Vec<usize> = (0..problem.instances.len()).collect();
    order.sort_by(|a, b| {
        let bulk = bulky(b).cmp(&bulky(a));
        let (one, other) = (size(a), size(b));
        bulk.then(other.0.total_cmp(&one.0))
            .then(other.1.total_cmp(&one.1))
    });
    let mut used = vec![(0.0, 0.0); cluster.devices.len()];
    let mut placed = vec![0; problem.instances.len()];
    for instance in order {
        let (work, memory) = size(&instance);
        let devices = cluster.devices.iter().zip(&used).enumerate();
        let fits = devices.filter(|(_, (device, used))| excess(used.1 + memory, device.memory) <= 0.0);
        let busy = |(_, (device, used)): &(usize, (&super::problem::Device, &(f64, f64)))| {
            (used.0 + work) / device.work
        };
        let (chosen, _) = fits.min_by(|a, b| busy(a).total_cmp(&busy(b)))?;
        if let (Some(used), Some(place)) = (used.get_mut(chosen), placed.get_mut(instance)) {
            used.0 += work;
            used.1 += memory;
            *place = chosen;
        }
    }
    let loads = used
        .iter()
        .zip(&cluster.devices)
        .map(|(used, device)| device.work / used.0);
    let qps = loads.fold(f64::INFINITY, f64::min);
    qps.is_finite().then_some((placed, qps))
}

fn problem<'c>(case: &Case<'_>, cluster: &'c Cluster, shape: &ReplicaPartition, qps: f64) -> Problem<'c> {
    let parts = case.models.parts(shape, case.models.batch / qps);
    Problem::new(cluster, parts.kinds, parts.pairs, parts.chains)
}

fn start<'p>(problem: &'p Problem<'p>, placed: &[usize]) -> Layout<'p> {
    let mut layout = Layout::new(problem);
    for (instance, device) in placed.iter().enumerate() {
        layout.put(instance, *device);
    }
    layout
}

/// A placement, if it meets equations 3 and 4.
fn seen(problem: &Problem<'_>, shape: ReplicaPartition, placed: Vec<usize>) -> Option<FeasiblePartition> {
    (problem.overload(&placed) <= 0.0).then(|| {
        let overhead = problem.overhead(&placed);
        (shape, Solved { placed, overhead })
    })
}
