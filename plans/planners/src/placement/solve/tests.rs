use proptest::prelude::*;

use super::super::exhaustive;
use super::super::problem::{Cluster, Costs, Device, InstanceClass, Pair};
use super::*;

/// Devices of 10 bytes and a whole second per second, this many on each host.
fn cluster(devices: usize, on_each_host: usize) -> Cluster {
    let device = |number: usize| Device {
        host: number / on_each_host,
        memory: 10.0,
        work: 1.0,
    };
    Cluster {
        devices: (0..devices).map(device).collect(),
        hosts: devices.div_ceil(on_each_host),
    }
}

const COSTS: Costs = Costs {
    device: 0.0,
    host: 1.0,
    network: 10.0,
};

fn times(costs: Costs, by: f64) -> Costs {
    Costs {
        device: costs.device * by,
        host: costs.host * by,
        network: costs.network * by,
    }
}

/// A model: copies, partitions, bytes and work of each instance.
type Model = (u32, u32, f64, f64);

/// A chain of models, each sending to the next, and the first to the third as well.
fn problem<'a>(cluster: &'a Cluster, models: &[Model]) -> Problem<'a> {
    let mut kinds = Vec::new();
    let mut ends = Vec::new();
    for (model, (copies, partitions, memory, work)) in models.iter().enumerate() {
        ends.push((kinds.len(), kinds.len() + *partitions as usize - 1));
        kinds.extend((0..*partitions).map(|part| InstanceClass {
            model,
            part,
            copies: *copies,
            memory: *memory,
            work: *work,
        }));
    }
    let ways = [(0, 1, 1.0), (1, 2, 0.5), (0, 2, 0.3)];
    let pairs = ways.iter().filter_map(|(from, to, share)| {
        let (from, to) = (ends.get(*from)?.1, ends.get(*to)?.0);
        let links = f64::from(kinds[from].copies * kinds[to].copies);
        Some(Pair {
            from,
            to,
            costs: times(COSTS, share / links),
        })
    });
    let pairs = pairs.collect();
    let chains = models
        .iter()
        .map(|(copies, ..)| times(COSTS, 2.0 / f64::from(*copies)));
    let chains = chains.collect();
    Problem::new(cluster, kinds, pairs, chains)
}

fn solved(problem: &Problem<'_>, limits: &SearchLimits) -> Attempt {
    let mut attempt = first(problem);
    refine(problem, &mut attempt, limits.moves, 1);
    prove(problem, &mut attempt, limits);
    attempt
}

fn small() -> SearchLimits {
    SearchLimits {
        moves: 4_000,
        ..SearchLimits::default()
    }
}

#[test]
fn what_talks_shares_a_device_as_far_as_memory_goes() {
    let cluster = cluster(2, 1);
    // Three models of 5 bytes: two of them share a device, and the way of least traffic is cut.
    let problem = problem(&cluster, &[(1, 1, 5.0, 0.1), (1, 1, 5.0, 0.1), (1, 1, 5.0, 0.1)]);
    let attempt = solved(&problem, &small());
    let best = attempt.best.clone().unwrap();
    assert!((best.overhead - 8.0).abs() < 1e-9, "{best:?}");
    assert_eq!(best.placed[0], best.placed[1]);
    assert!(attempt.is_settled());
}

#[test]
fn utilisation_parts_what_memory_would_not() {
    let cluster = cluster(2, 1);
    let alone = problem(&cluster, &[(1, 1, 1.0, 0.6), (1, 1, 1.0, 0.6)]);
    let best = solved(&alone, &small()).best.unwrap();
    assert_ne!(best.placed[0], best.placed[1]);
    let together = problem(&cluster, &[(1, 1, 1.0, 0.5), (1, 1, 1.0, 0.5)]);
    let best = solved(&together, &small()).best.unwrap();
    assert!(best.overhead < 1e-12);
}

#[test]
fn what_fits_nowhere_is_known_not_to() {
    let cluster = cluster(2, 1);
    // In sum they fit; three of 6 bytes on two devices of 10 do not.
    let problem = problem(&cluster, &[(3, 1, 6.0, 0.1)]);
    let attempt = solved(&problem, &small());
    assert_eq!(attempt.best, None);
    assert!(attempt.lower.is_infinite() && attempt.is_settled());
}

#[test]
fn partitions_of_a_copy_stay_together_and_copies_apart() {
    let cluster = cluster(4, 2);
    let problem = problem(&cluster, &[(2, 2, 8.0, 0.1)]);
    let best = solved(&problem, &small()).best.unwrap();
    // Each copy on one host, a partition on each of its devices.
    assert!((best.overhead - 2.0).abs() < 1e-9, "{best:?}");
}

#[test]
fn the_same_seed_finds_the_same_placement() {
    let cluster = cluster(6, 2);
    let problem = problem(&cluster, &[(4, 1, 3.0, 0.3), (3, 1, 4.0, 0.4), (2, 2, 6.0, 0.2)]);
    let once = |seed| {
        let mut attempt = first(&problem);
        refine(&problem, &mut attempt, 20_000, seed);
        attempt.best.unwrap().placed
    };
    assert_eq!(once(7), once(7));
}

#[test]
fn the_bookkeeping_of_moves_is_that_of_the_whole() {
    let cluster = cluster(6, 2);
    let problem = problem(&cluster, &[(4, 1, 3.0, 0.3), (3, 1, 4.0, 0.4), (2, 2, 6.0, 0.2)]);
    let mut layout = Layout::new(&problem);
    let mut placed = Vec::new();
    for instance in 0..problem.instances.len() {
        placed.push(instance * 5 % 6);
        layout.put(instance, placed[instance]);
    }
    for (instance, to) in [(0, 3), (5, 1), (7, 2), (10, 0), (0, 5), (3, 3)] {
        let from = placed[instance];
        layout.take(instance);
        let change = layout.cost(instance, to) - layout.cost(instance, from);
        let before = problem.overhead(&placed);
        placed[instance] = to;
        layout.put(instance, to);
        assert!((problem.overhead(&placed) - before - change).abs() < 1e-9);
        assert_eq!(layout.placed(), placed);
    }
    let used = (0..6).filter(|device| placed.contains(device)).count();
    assert_eq!(layout.used(), used);
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    let model = (1..3_u32, 1..3_u32, 1.0..7.0_f64, 0.05..0.7_f64);
    prop::collection::vec(model, 1..4).prop_filter("at most six instances", |models| {
        models
            .iter()
            .map(|(copies, partitions, ..)| copies * partitions)
            .sum::<u32>()
            <= 6
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn small_problems_are_solved_as_well_as_by_trying_everything(
        models in models(),
        devices in 1..5_usize,
        on_each_host in 1..3_usize,
    ) {
        let cluster = cluster(devices, on_each_host);
        let problem = problem(&cluster, &models);
        let attempt = solved(&problem, &small());
        match (exhaustive::best(&problem), &attempt.best) {
            (Some(best), Some(found)) => {
                prop_assert!(found.overhead <= best.overhead + 1e-9, "{} {}", found.overhead, best.overhead);
                prop_assert!(attempt.lower <= best.overhead + 1e-6, "{} {}", attempt.lower, best.overhead);
                prop_assert!((problem.overhead(&found.placed) - found.overhead).abs() < 1e-9);
            }
            (None, None) => {}
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn no_placement_is_below_its_bound(
        models in models(),
        devices in 1..4_usize,
        on_each_host in 1..3_usize,
    ) {
        let cluster = cluster(devices, on_each_host);
        let problem = problem(&cluster, &models);
        let lower = bound::overhead(&cluster, &problem.kinds, &problem.pairs, &problem.chains);
        if let Some(best) = exhaustive::best(&problem) {
            prop_assert!(lower <= best.overhead + 1e-9, "{lower} {}", best.overhead);
        }
    }

    #[test]
    fn the_program_and_the_problem_agree(
        models in models(),
        devices in 2..4_usize,
    ) {
        let cluster = cluster(devices, 2);
        let problem = problem(&cluster, &models);
        prop_assume!(problem.instances.len() * devices <= 12);
        let limits = Limits { nodes: Some(20_000), ..Limits::NONE };
        match (exhaustive::best(&problem), Placing::new(&problem).solve(None, Solver::Embedded, &limits)) {
            (Some(best), Ok(found)) => {
                let overhead = problem.overhead(&found.placed);
                prop_assert!(!found.proven || (overhead - best.overhead).abs() < 1e-6, "{overhead} {}", best.overhead);
            }
            (None, Err(LpError::Infeasible)) | (_, Err(LpError::Interrupted)) => {}
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
