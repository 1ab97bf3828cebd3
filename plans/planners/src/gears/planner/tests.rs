use proptest::prelude::*;

use super::*;
use crate::device::DeviceSpec;
use crate::gears::options::{Ablation, BatchLimits, CascadeSearch, OptionError, Prior};
use crate::reference::Fluid;
use kaskade_stated::workloads::{StatedWorkload, bert, llama};

const MS: u64 = 1_000;

fn small(workload: StatedWorkload) -> Profile {
    StatedWorkload {
        samples: 500,
        ..workload
    }
    .profile()
}

fn options(slo: Slo, qps_max: f64, devices: usize) -> GearOptions {
    GearOptions {
        ranges: 6,
        search: CascadeSearch {
            thresholds: 5,
            max_stages: 3,
            max_cascades: 12,
            ..CascadeSearch::default()
        },
        ..GearOptions::new(slo, qps_max, DeviceSpec::fleet(devices, 32_000_000_000))
    }
}

fn within(p95_us: u64) -> Slo {
    Slo::Latency { p95_us }
}

fn accurate(at_least: f64) -> Slo {
    Slo::Accuracy { at_least }
}

fn plan(profile: &Profile, options: &GearOptions) -> Result<GearPlan, GearError> {
    plan_gears_with(profile, options, Fluid::new(profile), |_| {})
}

/// Everything that must be true of any gear plan.
fn check(profile: &Profile, options: &GearOptions, found: &GearPlan) {
    let plan = &found.plan;
    plan.validate().unwrap();
    assert_eq!(
        (plan.sharing, plan.slo),
        (kaskade_policy::plan::Sharing::Exclusive, Some(options.slo))
    );
    assert!(plan.gears.first().unwrap().load.from_qps <= 0.0);
    assert_eq!(plan.gears.last().unwrap().load.to_qps, Some(options.qps_max));
    for pair in plan.gears.windows(2) {
        assert_eq!(pair[0].load.to_qps, Some(pair[1].load.from_qps));
        assert_ne!(pair[0].wiring, pair[1].wiring, "neighbours are merged");
    }
    let shares: f64 = plan
        .gears
        .iter()
        .map(|gear| gear.expected.unwrap().time_share)
        .sum();
    assert!((shares - 1.0).abs() < 1e-9);
    let served = found.served.iter().zip(&found.chosen);
    let accuracy: f64 = served.map(|(share, cascade)| share * cascade.accuracy).sum();
    assert!((accuracy - found.accuracy).abs() < 1e-9);
    let models = Models::from_profile(profile, options);
    for spec in &options.devices {
        let here = plan
            .placement
            .iter()
            .filter(|replica| replica.worker == spec.worker);
        let bytes: u64 = here
            .map(|replica| {
                models.memory_bytes(
                    (0..models.len())
                        .find(|m| models.name(*m) == replica.variant)
                        .unwrap(),
                )
            })
            .sum();
        assert!(bytes <= spec.memory_bytes);
    }
    match options.slo {
        Slo::Latency { p95_us } => {
            assert!(
                plan.gears
                    .iter()
                    .all(|gear| gear.expected.unwrap().p95_us <= p95_us)
            );
        }
        Slo::Accuracy { at_least } => assert!(found.accuracy >= at_least - 1e-9),
    }
}

#[test]
fn a_latency_objective_holds_and_low_loads_are_served_best() {
    let profile = small(bert());
    let options = options(within(60 * MS), 7_600.0, 2);
    let found = plan(&profile, &options).unwrap();
    check(&profile, &options, &found);
    let accuracies: Vec<f64> = found.chosen.iter().map(|cascade| cascade.accuracy).collect();
    assert!(
        accuracies.windows(2).all(|pair| pair[0] >= pair[1] - 1e-9),
        "{accuracies:?}"
    );
    assert!(accuracies[0] > accuracies[5]);
    assert!(!found.violations.is_empty() && found.effort.calls() > 10);
}

#[test]
fn an_accuracy_objective_holds_at_the_least_latency() {
    let profile = small(bert());
    let mut before = 0.0;
    for at_least in [0.76, 0.79, 0.82] {
        let options = options(accurate(at_least), 7_600.0, 4);
        let found = plan(&profile, &options).unwrap();
        check(&profile, &options, &found);
        assert!(found.p95_us >= before, "more accuracy takes longer");
        before = found.p95_us;
    }
}

#[test]
fn models_too_large_to_share_a_device_are_placed_apart() {
    let profile = small(llama());
    let options = options(within(2_000 * MS), 60.0, 6);
    let found = plan(&profile, &options).unwrap();
    check(&profile, &options, &found);
    assert!(
        found
            .plan
            .placement
            .iter()
            .any(|replica| replica.variant == "llama-70b")
    );
    assert!(
        found
            .plan
            .placement
            .iter()
            .any(|replica| replica.variant != "llama-70b")
    );
}

#[test]
fn a_single_small_device_still_gets_a_plan() {
    let profile = small(llama());
    let mut options = options(within(2_000 * MS), 20.0, 1);
    options.devices[0].memory_bytes = 12_000_000_000;
    let found = plan(&profile, &options).unwrap();
    check(&profile, &options, &found);
}

#[test]
fn too_much_load_names_range_model_and_devices() {
    let profile = small(llama());
    let error = plan(&profile, &options(within(2_000 * MS), 2_000.0, 2)).unwrap_err();
    let GearError::Unattainable {
        violation,
        devices,
        remedy: Remedy::Devices { at_least },
        certified: false,
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (violation.range, violation.bottleneck.as_str(), *devices),
        (5, "llama-3b", 2)
    );
    assert!(*at_least > 2);
    let text = error.to_string();
    for part in ["1666.7 to 2000.0", "llama-3b", "more devices"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_latency_below_the_smallest_model_says_what_was_reached() {
    let profile = small(llama());
    let error = plan(&profile, &options(within(10 * MS), 5.0, 2)).unwrap_err();
    let GearError::Unattainable {
        remedy: Remedy::Objective { p95_us },
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*p95_us > 10 * MS);
    assert!(error.to_string().contains("looser objective"), "{error}");
    // In milliseconds, the objective was 0.0.
    let error = plan(&profile, &options(within(20), 5.0, 2))
        .unwrap_err()
        .to_string();
    assert!(error.contains("the objective 20 µs"), "{error}");
}

#[test]
fn memory_for_no_model_says_so() {
    let profile = small(llama());
    let mut options = options(within(2_000 * MS), 5.0, 2);
    for device in &mut options.devices {
        device.memory_bytes = 1_000_000_000;
    }
    let error = plan(&profile, &options).unwrap_err();
    assert!(
        matches!(&error, GearError::Unattainable { remedy: Remedy::Memory, violation, .. } if violation.bottleneck == "llama-3b"),
        "{error}"
    );
}

#[test]
fn an_accuracy_out_of_reach_says_what_was_reached() {
    let profile = small(bert());
    let idle = plan(&profile, &options(accurate(0.99), 100.0, 1)).unwrap_err();
    assert!(
        matches!(idle, GearError::Inaccurate { violation: None, reached, .. } if reached > 0.8),
        "{idle}"
    );
    // Devices do not make a cascade more accurate.
    let message = idle.to_string();
    assert!(
        message.ends_with("ask for less") && !message.contains("devices"),
        "{message}"
    );
}

/// The sum that ruling cascades out ended at was named, though no plan reaches it.
#[test]
fn the_accuracy_that_an_error_names_can_be_met() {
    let profile = small(bert());
    let mut named = 0;
    for qps in [3_000.0, 6_000.0, 12_000.0, 30_000.0] {
        let options = |at_least| options(accurate(at_least), qps, 1);
        match plan(&profile, &options(0.849)).unwrap_err() {
            GearError::Inaccurate { reached, .. } => {
                named += 1;
                assert!(plan(&profile, &options(reached)).is_ok(), "{qps}: {reached}");
            }
            GearError::NoLimitKnown { .. } | GearError::Unattainable { .. } => {}
            other => panic!("{other}"),
        }
    }
    assert!(named >= 3, "{named}");
}

#[test]
fn ablations_leave_out_what_they_say() {
    let profile = small(bert());
    let with = |ablation| {
        let options = GearOptions {
            ablation,
            ..options(within(60 * MS), 7_600.0, 2)
        };
        let found = plan(&profile, &options).unwrap();
        check(&profile, &options, &found);
        found
    };
    let (full, fixed) = (with(Ablation::Full), with(Ablation::NoSwitching));
    let (single, neither) = (with(Ablation::NoCascade), with(Ablation::Neither));
    assert_eq!((fixed.plan.gears.len(), neither.plan.gears.len()), (1, 1));
    let stages = |found: &GearPlan| {
        found
            .plan
            .gears
            .iter()
            .map(|gear| gear.wiring.stages.len())
            .max()
            .unwrap()
    };
    assert_eq!((stages(&single), stages(&neither)), (1, 1));
    let accuracies = [&full, &fixed, &single, &neither].map(|found| found.accuracy);
    let [full, fixed, single, neither] = accuracies;
    assert!(full > fixed && full >= single, "{accuracies:?}");
    assert!(fixed >= neither && single >= neither, "{accuracies:?}");
}

/// A load that is never there would be served by the largest model, which leaves no memory to those that are.
#[test]
fn rare_loads_take_no_memory_from_common_ones() {
    let profile = llama().profile();
    let common = GearOptions {
        ranges: 10,
        search: CascadeSearch {
            max_cascades: 32,
            ..CascadeSearch::default()
        },
        prior: Prior::Measured {
            weights: vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.3, 3.5, 2.7],
        },
        ..options(within(4_000 * MS), 60.0, 2)
    };
    let accuracy = |ablation| {
        let options = GearOptions {
            ablation,
            ..common.clone()
        };
        let found = plan_gears(&profile, &options, |_| {}).unwrap();
        found.accuracy
    };
    let full = accuracy(Ablation::Full);
    for less in [Ablation::NoSwitching, Ablation::NoCascade] {
        assert!(full >= accuracy(less) - 1e-9, "{less:?} gives more than {full}");
    }
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let profile = small(llama());
    let options = options(within(2_000 * MS), 60.0, 6);
    assert_eq!(
        plan(&profile, &options).unwrap(),
        plan(&profile, &options).unwrap()
    );
}

#[test]
fn a_small_plan_looks_like_this() {
    let profile = small(llama());
    let options = GearOptions {
        ranges: 3,
        ..options(within(2_000 * MS), 30.0, 3)
    };
    let found = plan(&profile, &options).unwrap();
    insta::assert_snapshot!("small_gear_plan", found.plan.to_json().unwrap());
}

#[test]
fn progress_tells_every_call() {
    let profile = small(llama());
    let options = options(within(2_000 * MS), 60.0, 6);
    let mut steps: Vec<Step> = Vec::new();
    let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |step| {
        steps.push(step.clone());
    })
    .unwrap();
    assert_eq!(steps.len() as u64, found.effort.calls());
    assert_eq!(steps[0].submodule, Submodule::CascadeSearch);
    assert!(steps.iter().any(|step| step.violation.is_some()));
}

#[test]
fn unusable_options_are_refused() {
    let profile = small(llama());
    let good = options(within(2_000 * MS), 60.0, 2);
    let mut cases = vec![good.clone(); 7];
    cases[0].qps_max = f64::NAN;
    cases[1].ranges = 0;
    cases[2].devices.clear();
    cases[3].devices[1] = good.devices[0].clone();
    cases[4].prior = Prior::Measured { weights: vec![1.0] };
    cases[5].batching = BatchLimits {
        max_min_queue: 0,
        ..BatchLimits::default()
    };
    cases[6].slo = accurate(1.5);
    for (index, case) in cases.iter().enumerate() {
        let error = plan(&profile, case).unwrap_err();
        assert!(matches!(error, GearError::Option(_)), "{index}: {error}");
    }
    let twice = plan(&profile, &cases[3]).unwrap_err();
    assert!(
        matches!(twice, GearError::Option(OptionError::SameDevice { .. })),
        "{twice}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Appendix A: it ends within the bound, with a sound plan or an error that names range and model.
    #[test]
    fn planning_ends(
        latency in proptest::bool::ANY,
        level in 0.0..1.0_f64,
        qps_max in 1.0..400.0_f64,
        memory in prop::collection::vec(2..45_u64, 1..6),
        seed in 0..4_u64,
    ) {
        let profile = small(llama());
        let slo = if latency { within((20.0 * 200.0_f64.powf(level)) as u64 * MS) } else { accurate(0.45 + 0.2 * level) };
        let mut options = options(slo, qps_max, memory.len());
        options.ranges = 4;
        options.seed = seed;
        for (device, gigabytes) in options.devices.iter_mut().zip(&memory) {
            device.memory_bytes = gigabytes * 1_000_000_000;
        }
        let mut mappings = 0;
        let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |step| {
            mappings += u64::from(step.submodule == Submodule::HardwareMapping);
        });
        let (ranges, cascades) = (4, 40);
        let passes = ranges * cascades * (1 + PASSES);
        // An objective that cannot be met is followed by plans for lower ones.
        let plans = if found.is_ok() { 1 } else { 1 + u64::from(LIMIT_PASSES) };
        prop_assert!(mappings <= plans * passes * 4 * memory.len() as u64);
        match found {
            Ok(found) => check(&profile, &options, &found),
            Err(GearError::Unattainable { violation, .. }) => {
                prop_assert!(violation.range < 4 && profile.variants.iter().any(|variant| variant.name == violation.bottleneck));
            }
            Err(error) => prop_assert!(
                matches!(error, GearError::Inaccurate { .. } | GearError::NoLimitKnown { .. }),
                "{}",
                error
            ),
        }
    }
}

#[test]
fn more_devices_are_never_worse() {
    for (profile, p95_ms, qps_max) in [(small(bert()), 60, 7_600.0), (small(llama()), 2_000, 60.0)] {
        let mut before = 0.0;
        for devices in [1, 2, 3, 4, 6, 8, 12] {
            let Ok(found) = plan(&profile, &options(within(p95_ms * MS), qps_max, devices)) else {
                assert!(before == 0.0, "{devices} devices");
                continue;
            };
            assert!(
                found.accuracy >= before - 0.002,
                "{devices}: {} after {before}",
                found.accuracy
            );
            before = found.accuracy;
        }
        assert!(before > 0.0);
    }
}

#[test]
fn replicas_name_the_profiled_checkpoints() {
    let mut profile = small(llama());
    for variant in &mut profile.variants {
        variant.checkpoint = Some(format!("of-{}", variant.name));
    }
    let options = GearOptions {
        ranges: 3,
        ..options(within(2_000 * MS), 30.0, 3)
    };
    for replica in plan(&profile, &options).unwrap().plan.placement {
        assert_eq!(replica.checkpoint, Some(format!("of-{}", replica.variant)));
    }
}
