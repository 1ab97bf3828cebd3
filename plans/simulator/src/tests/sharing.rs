//! Devices that are shared: chains of partitions, batches that slow each other down, and the joules of all of it.

use super::*;
use kaskade_policy::energy::EnergyModel;
use kaskade_policy::plan::Partition;

/// Two copies of a model in two partitions each: 500 us a partition for a batch of one.
fn chained(pairs: &[(&str, &str)]) -> (Plan, Profile) {
    let mut to = Edge::to("back");
    to.shares = [("m-2".to_owned(), 0.5), ("m-3".to_owned(), 0.5)].into();
    to.pairs = pairs
        .iter()
        .map(|(from, to)| ((*from).into(), (*to).into()))
        .collect();
    let mut stages = vec![
        stage("m", Exit::Next { to }, BATCHING),
        stage("m", Exit::Reply, BATCHING),
    ];
    stages[1].name = "back".into();
    for (index, stage) in (0..).zip(&mut stages) {
        stage.partition = Some(Partition { index, of: 2 });
    }
    let mut gear = gear(0.0, None, stages);
    gear.wiring.entry.shares = [("m-0".to_owned(), 0.5), ("m-1".to_owned(), 0.5)].into();
    let mut plan = plan(
        &["m-0@a", "m-1@b", "m-2@c", "m-3@d"],
        Sharing::Concurrent,
        vec![gear],
    );
    for (number, replica) in (0..).zip(&mut plan.placement) {
        replica.partition = Some(Partition {
            index: number / 2,
            of: 2,
        });
    }
    (plan, profile(vec![variant("m", 900, 100, &[(1, 0.9, true)])]))
}

/// The order of batches, request by request.
fn ways(seen: &Seen) -> Vec<(u32, u32)> {
    let fronts = seen.runs.iter().filter(|run| run.replica < 2);
    let back = |front: &Run| {
        let mut backs = seen.runs.iter().filter(|run| run.replica >= 2);
        backs.find(|back| back.from_us == front.to_us).unwrap().replica
    };
    fronts.map(|front| (front.replica, back(front))).collect()
}

#[test]
fn what_a_copy_begins_it_ends_where_its_slices_are_paired() {
    let (plan, profile) = chained(&[("m-0", "m-3"), ("m-1", "m-2")]);
    let arrivals = (0..40).map(|n| n * 2_000);
    let (report, seen) = simulate(&plan, &profile, &SimConfig::default(), arrivals);
    assert_eq!((report.answered, report.lost), (40, 0));
    let ways = ways(&seen);
    assert!(ways.contains(&(0, 3)) && ways.contains(&(1, 2)));
    assert!(ways.iter().all(|way| [(0, 3), (1, 2)].contains(way)), "{ways:?}");
}

#[test]
fn a_sender_without_a_partner_routes_by_shares() {
    let (plan, profile) = chained(&[("m-0", "m-3"), ("m-1", "m-2")]);
    let config = SimConfig {
        initially_down: vec!["m-3".into()],
        ..SimConfig::default()
    };
    let (report, seen) = simulate(&plan, &profile, &config, (0..20).map(|n| n * 2_000));
    assert_eq!(report.answered, 20);
    assert!(ways(&seen).iter().all(|(_, back)| *back == 2));
}

#[test]
fn the_queue_group_of_a_slice_is_its_replicas_and_no_others() {
    let (mut plan, profile) = chained(&[]);
    plan.gears[0].wiring.entry.shares.clear();
    if let Exit::Next { to } = &mut plan.gears[0].wiring.stages[0].exit {
        to.shares.clear();
    }
    let (report, seen) = simulate(&plan, &profile, &SimConfig::default(), (0..40).map(|n| n * 2_000));
    assert_eq!(report.answered, 40);
    assert_eq!(seen.runs.iter().filter(|run| run.replica < 2).count(), 40);
    assert_eq!(ways(&seen).len(), 40);
}

/// Variants that take 1000 us alone and want this share of a device.
fn sharing(kernels: &[(&str, Option<f64>)]) -> (Plan, Profile) {
    let variants: Vec<VariantProfile> = kernels
        .iter()
        .map(|(name, kernel)| {
            let mut variant = variant(name, 1_000, 0, &[(1, 0.9, true)]);
            for cost in &mut variant.costs {
                cost.utilisation = *kernel;
            }
            variant
        })
        .collect();
    let stages = kernels.iter().map(|(name, _)| stage(name, Exit::Reply, BATCHING));
    let mut gear = gear(0.0, None, stages.collect());
    // Every request goes to all of them at once.
    gear.wiring.ensemble = kernels.iter().skip(1).map(|(name, _)| Edge::to(*name)).collect();
    let replicas: Vec<String> = kernels.iter().map(|(name, _)| format!("{name}-0@a")).collect();
    let replicas: Vec<&str> = replicas.iter().map(String::as_str).collect();
    (
        plan(&replicas, Sharing::Concurrent, vec![gear]),
        profile(variants),
    )
}

fn contended() -> SimConfig {
    SimConfig {
        contention: true,
        ..SimConfig::default()
    }
}

#[test]
fn batches_that_fit_together_do_not_notice_each_other() {
    let (plan, profile) = sharing(&[("a", Some(0.5)), ("b", Some(0.5))]);
    let (report, seen) = simulate(&plan, &profile, &contended(), [0]);
    assert_eq!(latencies(&seen), [1_000]);
    assert_eq!(
        (report.devices[0].busy_us, report.devices[0].kernel_us),
        (1_000, 1_000)
    );
}

#[test]
fn batches_that_want_more_than_there_is_take_longer() {
    let (plan, profile) = sharing(&[("a", Some(0.8)), ("b", Some(0.8))]);
    let (report, seen) = simulate(&plan, &profile, &contended(), [0]);
    assert_eq!(latencies(&seen), [1_600]);
    assert_eq!(report.devices[0].kernel_us, 1_600);
    let (_, free) = simulate(&plan, &profile, &SimConfig::default(), [0]);
    assert_eq!(latencies(&free), [1_000]);
}

#[test]
fn a_batch_that_joins_slows_the_others_and_one_that_leaves_frees_them() {
    // Unmeasured utilisation is all of the device.
    let (mut plan, profile) = sharing(&[("a", None)]);
    plan.placement.push(plan.placement[0].clone());
    plan.placement[1].id = "a-1".into();
    plan.gears[0].wiring.entry.shares = [("a-0".to_owned(), 0.5), ("a-1".to_owned(), 0.5)].into();
    let (report, seen) = simulate(&plan, &profile, &contended(), [0, 500]);
    let mut runs: Vec<(u64, u64)> = seen.runs.iter().map(|run| (run.from_us, run.to_us)).collect();
    runs.sort_unstable();
    // Alone until 500, at half speed until 1500; then the second alone with the other half of its work.
    assert_eq!(runs, [(0, 1_500), (500, 2_000)]);
    assert_eq!(
        (report.devices[0].busy_us, report.devices[0].kernel_us),
        (2_000, 2_000)
    );
}

#[test]
fn a_share_below_the_whole_leaves_part_of_the_device_idle() {
    let (plan, profile) = sharing(&[("a", Some(0.25))]);
    let config = SimConfig {
        power: Some(Power::Modelled(EnergyModel {
            idle_watts: 10.0,
            active_watts_per_core: 40.0,
        })),
        spare: Some(IdleDevices {
            devices: 3,
            watts: 2.0,
        }),
        ..contended()
    };
    let (report, _) = simulate(&plan, &profile, &config, [0]);
    let device = &report.devices[0];
    assert_eq!((device.busy_us, device.kernel_us), (1_000, 250));
    let near = |found: Option<f64>, joules: f64| assert!((found.unwrap() - joules).abs() < 1e-9, "{found:?}");
    near(device.idle_j, 0.01);
    near(device.busy_j, 0.01);
    near(device.energy_j(), 0.02);
    near(report.spare_j, 0.006);
    near(report.energy_j, 0.026);
}

#[test]
fn a_failure_frees_the_device_for_those_that_are_left() {
    let (plan, profile) = sharing(&[("a", None), ("b", None)]);
    let config = SimConfig {
        timeline: vec![ReplicaEvent {
            at_us: 1_000,
            replica: "b-0".into(),
            change: Change::Fails,
        }],
        ..contended()
    };
    let (_, seen) = simulate(&plan, &profile, &config, [0]);
    let first = seen.runs.iter().find(|run| run.replica == 0).unwrap();
    // Half done after 1000 us at half speed, and alone from there on.
    assert_eq!(first.to_us, 1_500);
}

#[test]
fn spare_devices_need_a_power_to_be_known() {
    let (plan, profile) = sharing(&[("a", None)]);
    let spare = Some(IdleDevices {
        devices: 1,
        watts: f64::NAN,
    });
    let config = SimConfig {
        spare,
        ..SimConfig::default()
    };
    assert!(Simulator::new(&plan, &profile, &config).is_err());
    let (report, _) = simulate(&plan, &profile, &SimConfig::default(), [0]);
    assert_eq!((report.energy_j, report.spare_j), (None, None));
}
