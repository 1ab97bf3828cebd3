use super::*;
use crate::gears::planner::plan_gears_with;
use crate::gears::reference::fluid::Fluid;
use kaskade_stated::workloads::{StatedWorkload, bert, llama};

const CASCADES: u32 = 8;

fn workloads() -> [(Profile, GearOptions, Vec<Slo>); 2] {
    let small = |workload: StatedWorkload, qps_max, devices| {
        let profile = StatedWorkload {
            samples: 400,
            ..workload
        }
        .profile();
        let options = GearOptions {
            ranges: 4,
            ..GearOptions::new(Slo::Latency { p95_us: 1 }, qps_max, DeviceSpec::fleet(devices, 1))
        };
        (profile, constrained(&options, CASCADES))
    };
    let slos = |p95_ms: &[u64], accuracies: &[f64]| {
        let latency = p95_ms.iter().map(|ms| Slo::Latency { p95_us: ms * 1_000 });
        latency
            .chain(
                accuracies
                    .iter()
                    .map(|at_least| Slo::Accuracy { at_least: *at_least }),
            )
            .collect()
    };
    let (bert, bert_options) = small(bert(), 7_600.0, 2);
    let (llama, llama_options) = small(llama(), 60.0, 4);
    [
        (
            bert,
            bert_options,
            slos(&[15, 25, 50, 100, 200], &[0.77, 0.79, 0.81, 0.83]),
        ),
        (
            llama,
            llama_options,
            slos(&[150, 400, 1_000, 3_000], &[0.55, 0.58, 0.61, 0.64]),
        ),
    ]
}

#[test]
fn the_planner_is_within_a_hundredth_of_the_best_and_ahead_of_chance() {
    let (mut planned, mut chance, mut compared) = (0.0, 0.0, 0);
    for (profile, options, slos) in workloads() {
        for slo in slos {
            let options = GearOptions {
                slo,
                ..options.clone()
            };
            let landscape = CascadeOutcomes::new(&profile, &options, Fluid::new(&profile)).unwrap();
            let best = landscape.exhaustive().unwrap();
            let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {});
            let (Some(best), Ok(found)) = (&best, &found) else {
                assert!(best.is_none() && found.is_err(), "{slo:?}: {best:?} {found:?}");
                continue;
            };
            let sampled = landscape.random((2 * found.effort.simulations).div_ceil(4), 7);
            // How far from the best, as a share of it.
            let (short, short_by_chance) = match slo {
                Slo::Latency { .. } => (
                    1.0 - found.accuracy / best.accuracy,
                    sampled.map_or(1.0, |sampled| 1.0 - sampled.accuracy / best.accuracy),
                ),
                Slo::Accuracy { .. } => (
                    found.p95_us / best.p95_us - 1.0,
                    sampled.map_or(1.0, |sampled| sampled.p95_us / best.p95_us - 1.0),
                ),
            };
            assert!(
                short <= 0.01,
                "{slo:?}: {} {} against {best:?}",
                found.accuracy,
                found.p95_us
            );
            planned += short.max(0.0);
            chance += short_by_chance;
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared}");
    assert!(planned < chance / 4.0, "{planned} {chance}");
}

#[test]
fn the_best_of_all_is_found() {
    let (profile, options, _) = workloads().into_iter().next().unwrap();
    let options = GearOptions {
        slo: Slo::Latency { p95_us: 50_000 },
        ..options
    };
    let landscape = CascadeOutcomes::new(&profile, &options, Fluid::new(&profile)).unwrap();
    let best = landscape.exhaustive().unwrap().unwrap();
    assert_eq!(landscape.worth(&best.cascades).unwrap(), best);
    let sampled = landscape.random(20_000, 1).unwrap();
    assert!(sampled.accuracy <= best.accuracy && sampled.accuracy > best.accuracy - 0.02);
    assert_eq!(landscape.random(50, 3), landscape.random(50, 3));
    assert_eq!(landscape.worth(&[usize::MAX; 4]), None);
}

#[test]
fn too_many_assignments_are_refused() {
    let (profile, options, _) = workloads().into_iter().next().unwrap();
    let options = GearOptions {
        ranges: 12,
        ..options
    };
    let landscape = CascadeOutcomes::new(&profile, &options, Fluid::new(&profile)).unwrap();
    assert!(matches!(landscape.exhaustive(), Err(GearError::TooMany { .. })));
}
