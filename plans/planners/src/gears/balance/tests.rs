use proptest::prelude::*;

use super::*;

fn group(speed: f64, hosted: &[usize], devices: std::ops::Range<usize>) -> Group {
    Group {
        speed,
        memory_bytes: 0,
        hosted: hosted.iter().copied().collect(),
        devices: devices.collect(),
    }
}

fn demands(work: &[f64]) -> Vec<Demand> {
    let demand = |(model, work): (usize, &f64)| Demand { model, work: *work };
    work.iter().enumerate().map(demand).collect()
}

/// Utilisation of every group under some shares, and the sum of shares of every model.
fn outcome(demands: &[Demand], groups: &[Group], balance: &Balance) -> (Vec<f64>, Vec<f64>) {
    let mut busy = vec![0.0; groups.len()];
    let mut served = vec![0.0; demands.len()];
    for (model, at, share) in &balance.shares {
        assert!(groups[*at].hosted.contains(*model) && *share > 0.0);
        let place = demands.iter().position(|demand| demand.model == *model).unwrap();
        served[place] += share * groups[*at].devices.len() as f64;
        busy[*at] += share * demands[place].work / groups[*at].speed;
    }
    (busy, served)
}

#[test]
fn equal_devices_get_equal_shares() {
    let groups = [group(1.0, &[0, 1], 0..4)];
    let balance = balance(&demands(&[1.0, 1.0]), &groups).unwrap();
    assert!((balance.utilisation - 0.5).abs() < 1e-9);
    assert!(
        balance
            .shares
            .iter()
            .all(|(.., share)| (share - 0.25).abs() < 1e-9)
    );
}

#[test]
fn the_models_that_bind_are_named() {
    let groups = [
        group(1.0, &[0], 0..1),
        group(1.0, &[0, 1], 1..2),
        group(2.0, &[1], 2..3),
    ];
    let load = HallBounds::new(demands(&[1.8, 0.4]), &groups).load();
    assert!((load.utilisation - 0.9).abs() < 1e-9);
    assert_eq!(load.binding.iter().collect::<Vec<_>>(), [0]);
}

#[test]
fn what_does_not_bind_is_balanced_too() {
    // Model 0 binds its one device; model 1 has three for itself, and uses them alike.
    let groups = [
        group(1.0, &[0], 0..1),
        group(1.0, &[1], 1..2),
        group(0.5, &[1], 2..4),
    ];
    let asked = demands(&[0.9, 0.4]);
    let (busy, _) = outcome(&asked, &groups, &balance(&asked, &groups).unwrap());
    for (found, expected) in busy.iter().zip([0.9, 0.2, 0.2]) {
        assert!((found - expected).abs() < 1e-9, "{busy:?}");
    }
}

#[test]
fn a_model_without_a_replica_is_an_error() {
    let groups = [group(1.0, &[0], 0..1)];
    assert_eq!(balance(&demands(&[0.1, 0.1]), &groups), Err(LpError::Infeasible));
    assert!(
        HallBounds::new(demands(&[0.1, 0.1]), &groups)
            .load()
            .utilisation
            .is_infinite()
    );
}

#[test]
fn no_work_goes_anywhere() {
    let groups = [group(1.0, &[0], 0..2)];
    let balance = balance(&demands(&[0.0]), &groups).unwrap();
    assert!(balance.utilisation <= 0.0);
    let whole: f64 = balance.shares.iter().map(|(_, _, share)| share * 2.0).sum();
    assert!((whole - 1.0).abs() < 1e-9);
}

/// The paper's way, on a grid: does any split in twentieths of every model over its groups stay below `u`?
fn least_on_a_grid(asked: &[Demand], groups: &[Group], busy: &mut Vec<f64>) -> f64 {
    const STEPS: usize = 20;
    let Some((first, rest)) = asked.split_first() else {
        return busy.iter().copied().fold(0.0, f64::max);
    };
    let hosts: Vec<usize> = (0..groups.len())
        .filter(|at| groups[*at].hosted.contains(first.model))
        .collect();
    let mut best = f64::INFINITY;
    let splits = (STEPS + 1).pow(hosts.len() as u32 - 1);
    for split in 0..splits {
        let mut left = STEPS;
        let mut parts = vec![0; hosts.len()];
        let mut code = split;
        for part in parts.iter_mut().skip(1) {
            *part = code % (STEPS + 1);
            code /= STEPS + 1;
            left = left.wrapping_sub(*part);
        }
        if left > STEPS {
            continue;
        }
        parts[0] = left;
        let add = |busy: &mut Vec<f64>, sign: f64| {
            for (part, at) in parts.iter().zip(&hosts) {
                let speed = groups[*at].speed * groups[*at].devices.len() as f64;
                busy[*at] += sign * first.work * *part as f64 / STEPS as f64 / speed;
            }
        };
        add(busy, 1.0);
        best = best.min(least_on_a_grid(rest, groups, busy));
        add(busy, -1.0);
    }
    best
}

/// Equal but for rounding; infinities are.
fn same(a: f64, b: f64) -> bool {
    (a.is_infinite() && b.is_infinite()) || (a - b).abs() < 1e-9
}

prop_compose! {
    fn fleet(models: usize, most: usize)(
        sets in prop::collection::vec((0..1_usize << models, 1..4_usize, 1..4_u32), 1..=most),
    ) -> Vec<Group> {
        // The first group hosts everything, so that every model has a replica.
        let all = (1 << models) - 1;
        sets.iter().enumerate().map(|(index, (set, devices, speed))| Group {
            speed: f64::from(*speed) / 2.0,
            memory_bytes: 0,
            hosted: (0..models).filter(|model| (if index == 0 { all } else { *set }) >> model & 1 == 1).collect(),
            devices: (0..*devices).map(|device| index * 10 + device).collect(),
        }).collect()
    }
}

proptest! {
    #[test]
    fn shares_are_whole_and_the_bound_is_reached(groups in fleet(4, 6), work in prop::collection::vec(0.0..2.0_f64, 4)) {
        let asked = demands(&work);
        let found = balance(&asked, &groups).unwrap();
        let (busy, served) = outcome(&asked, &groups, &found);
        for served in served {
            prop_assert!((served - 1.0).abs() < 1e-6);
        }
        // Hall's bound cannot be beaten, and the shares reach it: both are optimal.
        let bound = HallBounds::new(asked, &groups).load().utilisation;
        let highest = busy.iter().copied().fold(0.0, f64::max);
        prop_assert!((highest - bound).abs() < 1e-6, "{highest} {bound}");
        prop_assert!((found.utilisation - bound).abs() < 1e-9);
    }

    #[test]
    fn no_split_does_better(groups in fleet(2, 3), work in prop::collection::vec(0.1..2.0_f64, 2)) {
        let asked = demands(&work);
        let bound = HallBounds::new(asked.clone(), &groups).load().utilisation;
        let grid = least_on_a_grid(&asked, &groups, &mut vec![0.0; groups.len()]);
        prop_assert!(bound <= grid + 1e-9, "{bound} {grid}");
        // A twentieth of each model's work is as far as the grid can be from the optimum.
        prop_assert!(grid <= bound + 0.1 * work.iter().sum::<f64>(), "{bound} {grid}");
    }

    #[test]
    fn pruning_is_foreseen(groups in fleet(4, 6), work in prop::collection::vec(0.0..2.0_f64, 4), at in 0..6_usize, model in 0..4_usize) {
        let at = at % groups.len();
        let mut pruned = groups.clone();
        pruned[at].hosted = pruned[at].hosted.without(model);
        let mut bounds = HallBounds::new(demands(&work), &groups);
        let (hosted, speed) = (groups[at].hosted, groups[at].capacity());
        let predicted = bounds.utilisation_without(hosted, model, if hosted.contains(model) { speed } else { 0.0 });
        let actual = HallBounds::new(demands(&work), &pruned).load().utilisation;
        prop_assert!(same(predicted, actual), "{predicted} {actual}");
        if hosted.contains(model) {
            bounds.prune(hosted, model, speed);
        }
        let after = bounds.load().utilisation;
        prop_assert!(same(after, actual), "{after} {actual}");
    }
}
