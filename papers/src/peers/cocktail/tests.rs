use super::*;
use kaskade_planners::gears::DeviceSpec;
use kaskade_policy::plan::Slo;
use kaskade_simulator::{SimConfig, Simulator};
use kaskade_stated::workloads::{StatedWorkload, bert};

fn profile() -> Profile {
    StatedWorkload {
        samples: 500,
        ..bert()
    }
    .profile()
}

fn options() -> GearOptions {
    GearOptions::new(
        Slo::Latency { p95_us: 100_000 },
        7_600.0,
        DeviceSpec::fleet(1, 32_000_000_000),
    )
}

fn autoscale(period_s: u64, loading_s: u64) -> Autoscale {
    Autoscale {
        period_us: period_s * 1_000_000,
        loading_us: loading_s * 1_000_000,
        ..Autoscale::default()
    }
}

/// A minute at 500 requests/s with ten seconds at 7,000 in the middle.
fn spike() -> Vec<f64> {
    (0..60)
        .map(|second| {
            if (30..40).contains(&second) {
                7_000.0
            } else {
                500.0
            }
        })
        .collect()
}

fn largest(profile: &Profile) -> Ensemble {
    ensembles(profile, &options(), 3).unwrap().pop().unwrap()
}

#[test]
fn ensembles_ascend_in_work_and_accuracy() {
    let profile = profile();
    let found = ensembles(&profile, &options(), 3).unwrap();
    assert!(found.len() >= 4);
    for pair in found.windows(2) {
        assert!(pair[0].work_s <= pair[1].work_s && pair[0].accuracy < pair[1].accuracy);
    }
    let single = found.iter().find(|ensemble| ensemble.variants == [0]).unwrap();
    assert!((single.accuracy - 0.745).abs() < 0.003);
}

#[test]
fn replicas_follow_the_load() {
    let profile = profile();
    let ensemble = largest(&profile);
    let with = |period, loading| {
        plan_cocktail(
            &profile,
            &options(),
            &ensemble,
            &autoscale(period, loading),
            &spike(),
        )
        .unwrap()
    };
    let (coarse, fine) = (with(60, 5), with(10, 5));
    assert_eq!(coarse.max_devices, fine.max_devices);
    assert!(
        (coarse.mean_devices - coarse.max_devices as f64).abs() < 1e-9,
        "one period pays for its peak"
    );
    assert!(fine.mean_devices < coarse.mean_devices / 2.0);
    assert!(coarse.timeline.is_empty() && coarse.initially_down.is_empty());
    // Up at 30 s, answering at 35 s, gone at 40 s.
    assert_eq!(fine.timeline.len(), 2 * fine.initially_down.len());
    for event in &fine.timeline {
        let expected = if event.change == Change::Starts { 35 } else { 40 };
        assert_eq!(event.at_us, expected * 1_000_000);
    }
}

#[test]
fn what_never_finishes_loading_is_paid_for_all_the_same() {
    let profile = profile();
    let ensemble = largest(&profile);
    let found = plan_cocktail(&profile, &options(), &ensemble, &autoscale(10, 20), &spike()).unwrap();
    assert!(found.timeline.is_empty() && !found.initially_down.is_empty());
    assert!(found.mean_devices > ensemble.variants.len() as f64);
}

#[test]
fn the_simulator_runs_it_with_the_expected_accuracy() {
    let profile = profile();
    let ensemble = largest(&profile);
    let found = plan_cocktail(&profile, &options(), &ensemble, &autoscale(10, 2), &spike()).unwrap();
    let config = SimConfig {
        timeline: found.timeline.clone(),
        initially_down: found.initially_down.clone(),
        ..SimConfig::default()
    };
    let simulator = Simulator::new(&found.plan, &profile, &config).unwrap();
    // Even arrivals at 500 requests/s for 20 s: whole rounds of the samples.
    let report = simulator.run((0..10_000).map(|request| request * 2_000), &mut ());
    assert_eq!(report.answered, 10_000);
    assert!((report.accuracy().unwrap() - ensemble.accuracy).abs() < 1e-9);
}

#[test]
fn a_period_gets_the_replicas_that_its_load_needs_on_the_devices_that_there_are() {
    let profile = profile();
    let ensemble = largest(&profile);
    let at = |qps_max, devices| {
        let options = GearOptions {
            qps_max,
            devices: DeviceSpec::fleet(devices, 1 << 40),
            ..options()
        };
        plan_period(&profile, &options, &ensemble, &Autoscale::default()).unwrap()
    };
    let scheduled =
        plan_cocktail(&profile, &options(), &ensemble, &Autoscale::default(), &[7_000.0]).unwrap();
    let (roomy, quiet, cramped) = (at(7_000.0, 100), at(1.0, 100), at(7_000.0, 2));
    assert_eq!(
        roomy.placement.len(),
        scheduled.max_devices,
        "one replica per device"
    );
    assert_eq!(quiet.placement.len(), ensemble.variants.len());
    for member in &ensemble.variants {
        let name = &profile.variants[*member].name;
        let of_member = cramped
            .placement
            .iter()
            .filter(|replica| replica.variant == *name);
        assert!((1..=2).contains(&of_member.count()));
    }
}

#[test]
fn the_objective_picks_the_ensemble() {
    let profile = profile();
    let with = |slo| choose(&profile, &GearOptions { slo, ..options() }, 3);
    let accurate = |at_least| with(Slo::Accuracy { at_least });
    let (loose, tight) = (accurate(0.75).unwrap(), accurate(0.82).unwrap());
    assert!(loose.accuracy >= 0.75 && tight.accuracy >= 0.82 && loose.work_s < tight.work_s);
    assert!(matches!(accurate(0.9999), Err(GearError::Inaccurate { .. })));
    let (slow, fast) = (
        with(Slo::Latency { p95_us: 10_000_000 }).unwrap(),
        with(Slo::Latency { p95_us: 1 }).unwrap(),
    );
    assert!(slow.accuracy > fast.accuracy);
    assert_eq!(
        fast.variants.len(),
        1,
        "no ensemble is that fast; the cheapest serves"
    );
}
