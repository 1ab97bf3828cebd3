use proptest::prelude::*;

use super::super::channel::{Channel, Channels};
use super::super::exhaustive;
use super::super::outcome::Proof;
use super::super::problem::Problem;
use super::super::shapes::cuts;
use super::*;
use crate::cascade::{CascadeOptions, CascadePlan, Objective, plan_cascade};
use crate::device::DeviceSpec;
use crate::placement::shapes::ReplicaPartition;
use kaskade_policy::plan::{
    Certificate, CertifiedCascade, CertifiedList, Exit, ExpectedStage, Gear, Guarantee, Target,
};
use kaskade_stated::families::{self as stated, StatedFamily};

fn cascade(profile: &Profile, objective: Objective) -> CascadePlan {
    let options = CascadeOptions {
        objective,
        exact_steps: 1_000_000,
        ..CascadeOptions::default()
    };
    plan_cascade(profile, &options).unwrap()
}

fn options(family: &StatedFamily, devices: usize, goal: PlacementObjective) -> PlacementOptions {
    PlacementOptions {
        request_bytes: family.request_bytes,
        hidden_bytes: family.hidden_bytes(),
        layers: family.layers(),
        ..PlacementOptions::new(DeviceSpec::fleet(devices, family.device.memory_bytes), goal)
    }
}

/// Checks equations 3 and 4, and the reported devices, from the plan alone.
fn holds(placed: &Placement, options: &PlacementOptions) {
    placed.plan.validate().unwrap();
    let load = |worker: &str| {
        let here = placed
            .plan
            .placement
            .iter()
            .filter(|replica| replica.worker == worker);
        here.fold((0.0, 0.0), |(memory, work), replica| {
            let models = &placed.models;
            let model = models
                .iter()
                .find(|model| model.variant == replica.variant)
                .unwrap();
            (memory + model.memory_bytes, work + model.utilisation)
        })
    };
    for (device, stated) in options.devices.iter().zip(&placed.devices) {
        let (memory, work) = load(&device.worker);
        assert!(memory <= device.memory_bytes as f64 * (1.0 + 1e-6));
        assert!(work / device.speed <= options.utilisation * (1.0 + 1e-6));
        assert!(
            (memory - stated.memory_bytes).abs() < 1.0
                && (work / device.speed - stated.utilisation).abs() < 1e-9
        );
    }
    let instances: u32 = placed
        .models
        .iter()
        .map(|model| model.replicas * model.partitions)
        .sum();
    assert_eq!(placed.plan.placement.len(), instances as usize);
}

#[test]
fn a_large_model_is_partitioned_chained_and_paired() {
    let family = stated::gpt();
    let mut profile = family.profile();
    for variant in &mut profile.variants {
        variant.checkpoint = Some(format!("of-{}", variant.name));
    }
    let options = options(&family, 12, PlacementObjective::Carry { qps: 20.0 });
    let placed = plan_placement(&profile, &cascade(&profile, Objective::Ap).plan, &options).unwrap();
    holds(&placed, &options);
    for replica in &placed.plan.placement {
        assert_eq!(replica.checkpoint, Some(format!("of-{}", replica.variant)));
    }
    let large = placed.models.last().unwrap();
    assert_eq!(large.variant, "GPT-XXL");
    assert!(large.partitions >= 2, "{large:?}");
    let wiring = &placed.plan.gears[0].wiring;
    let partitions: Vec<_> = wiring
        .stages
        .iter()
        .filter(|stage| stage.variant == "GPT-XXL")
        .collect();
    assert_eq!(partitions.len(), large.partitions as usize);
    for pair in partitions.windows(2) {
        let Exit::Next { to } = &pair[0].exit else {
            panic!("{:?}", pair[0].exit);
        };
        assert_eq!(to.stage, pair[1].name);
        assert_eq!(to.pairs.len(), large.replicas as usize);
    }
    assert_eq!(partitions.last().unwrap().exit, Exit::Reply);
    // Between models there are shares over the copies, and no pairs.
    let Exit::Bands { bands } = &wiring.stages[0].exit else {
        panic!("{:?}", wiring.stages[0].exit);
    };
    for band in bands {
        if let Target::Stage(edge) = &band.to {
            assert!(!edge.shares.is_empty() && edge.pairs.is_empty());
        }
    }
}

/// The cascade as certified, with the largest variant alone before it.
fn certified(profile: &Profile, objective: Objective) -> Plan {
    let mut plan = cascade(profile, objective).plan;
    let certificate = Certificate {
        guarantee: Guarantee::MinAccuracy { accuracy: 0.5 },
        confidence: 0.95,
        samples: 10,
        right: 9,
        judge: None,
        lost: None,
        gained: None,
        p_value: 0.01,
    };
    let listed = |name: &str, gear: &Gear| CertifiedCascade {
        gear: Gear {
            name: name.to_owned(),
            ..gear.clone()
        },
        certificate: certificate.clone(),
        differs: None,
        stages: gear
            .wiring
            .stages
            .iter()
            .map(|stage| ExpectedStage {
                stage: stage.name.clone(),
                samples: 10,
                deferred: 0,
                edges: Vec::new(),
                exits: vec![10],
            })
            .collect(),
    };
    let largest = cascade(profile, Objective::Largest).plan;
    plan.certified = Some(CertifiedList {
        cascade_of_gear: vec![1],
        texts: None,
        samples: None,
        cascades: vec![
            listed("largest", &largest.gears[0]),
            listed("cheaper", &plan.gears[0]),
        ],
    });
    plan.certificate = Some(certificate);
    plan.validate().unwrap();
    plan
}

/// The list was dropped without a word, and the certificate stayed.
#[test]
fn a_certified_list_that_a_placement_cannot_run_is_told() {
    let family = stated::gpt();
    let profile = family.profile();
    let plan = certified(&profile, Objective::Ap);
    let split = options(&family, 12, PlacementObjective::Carry { qps: 20.0 });
    let placed = plan_placement(&profile, &plan, &split).unwrap();
    assert!(placed.plan.certified.is_none() && placed.plan.certificate.is_some());
    assert_eq!(placed.unaudited, ["GPT-XXL"]);
    let family = stated::t5();
    let profile = family.profile();
    let mut whole = options(&family, 12, PlacementObjective::Most);
    whole.max_partitions = 1;
    let plan = certified(&profile, Objective::Largest);
    let placed = plan_placement(&profile, &plan, &whole).unwrap();
    assert_eq!(placed.plan.certified, plan.certified);
    assert_eq!(placed.unaudited, Vec::<String>::new());
}

#[test]
fn the_most_load_is_carried_and_little_more_is_not() {
    for family in [stated::t5(), stated::vit()] {
        let profile = family.profile();
        let plan = cascade(&profile, Objective::Eo).plan;
        let most = plan_placement(&profile, &plan, &options(&family, 12, PlacementObjective::Most)).unwrap();
        holds(&most, &options(&family, 12, PlacementObjective::Most));
        let beyond = options(&family, 12, PlacementObjective::Carry { qps: most.qps * 1.2 });
        let error = plan_placement(&profile, &plan, &beyond).unwrap_err();
        assert!(
            matches!(
                error,
                PlacementError::Overloaded { .. } | PlacementError::Unplaced { .. }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_model_alone_gets_a_copy_on_every_device() {
    let family = stated::t5();
    let profile = family.profile();
    let cascade = cascade(&profile, Objective::Largest).plan;
    for devices in [5, 12, 23] {
        let mut options = options(&family, devices, PlacementObjective::Most);
        options.max_partitions = 1;
        let placed = plan_placement(&profile, &cascade, &options).unwrap();
        assert_eq!(placed.models[0].replicas as usize, devices);
        assert!(placed.devices.iter().all(|device| device.utilisation > 0.99));
    }
}

#[test]
fn as_few_devices_as_carry_the_load() {
    let family = stated::vit();
    let profile = family.profile();
    let plan = cascade(&profile, Objective::Ap).plan;
    let mut options = options(&family, 12, PlacementObjective::Carry { qps: 300.0 });
    options.fleet = Fleet::Fewest;
    let placed = plan_placement(&profile, &plan, &options).unwrap();
    holds(&placed, &options);
    let used = placed.used();
    assert!(used < 12);
    options.fleet = Fleet::All;
    options.devices.truncate(used - 1);
    assert!(plan_placement(&profile, &plan, &options).is_err(), "{used}");
}

#[test]
fn the_same_seed_gives_the_same_plan() {
    let family = stated::t5();
    let profile = family.profile();
    let plan = cascade(&profile, Objective::Ap).plan;
    let once = || {
        let placed = plan_placement(&profile, &plan, &options(&family, 8, PlacementObjective::Most)).unwrap();
        placed.plan.to_json().unwrap()
    };
    assert_eq!(once(), once());
}

#[test]
fn faster_devices_carry_more() {
    let family = stated::vit();
    let profile = family.profile();
    let plan = cascade(&profile, Objective::Ap).plan;
    let mut mixed = options(&family, 4, PlacementObjective::Most);
    let even = plan_placement(&profile, &plan, &mixed).unwrap();
    mixed.devices[0].speed = 3.0;
    let placed = plan_placement(&profile, &plan, &mixed).unwrap();
    holds(&placed, &mixed);
    assert!(placed.qps > 1.2 * even.qps, "{} {}", placed.qps, even.qps);
}

fn refused(change: impl FnOnce(&mut Profile, &mut PlacementOptions)) -> PlacementError {
    let family = stated::gpt();
    let mut profile = family.profile();
    let plan = cascade(&profile, Objective::Largest).plan;
    let mut options = options(&family, 12, PlacementObjective::Carry { qps: 10.0 });
    change(&mut profile, &mut options);
    plan_placement(&profile, &plan, &options).unwrap_err()
}

#[test]
fn refusals_say_which_constraint_fails_with_figures() {
    let none = refused(|_, options| options.devices.clear());
    assert_eq!(none, PlacementError::NoDevices);
    let large = refused(|_, options| options.max_partitions = 1);
    let message = large.to_string();
    assert!(
        message.starts_with("memory: `GPT-XXL` with 1 partition (its maximum) needs 268")
            && message.contains("has 15000000000"),
        "{message}"
    );
    let layers = refused(|_, options| {
        options.layers.insert("GPT-XXL".to_owned(), 1);
    });
    assert!(
        matches!(layers, PlacementError::TooLarge { partitions: 1, .. }),
        "{layers}"
    );
    let two_small = refused(|_, options| {
        for device in &mut options.devices {
            device.memory_bytes = 2_000_000_000;
        }
    });
    assert!(
        matches!(two_small, PlacementError::TooLarge { partitions: 8, .. }),
        "{two_small}"
    );
    let crowded = refused(|_, options| {
        options.devices.truncate(8);
        options
            .devices
            .iter_mut()
            .skip(1)
            .for_each(|device| device.memory_bytes = 1_000_000_000);
    });
    assert!(
        matches!(crowded, PlacementError::NoMemory { devices: 8, .. }),
        "{crowded}"
    );
    let busy = refused(|_, options| options.goal = PlacementObjective::Carry { qps: 1_000.0 });
    let message = busy.to_string();
    assert!(
        message.starts_with("utilisation: 1000.000 requests/s need 2")
            && message.contains("the 12 devices")
            && message.contains("at most 4"),
        "{message}"
    );
    // Six copies in two halves are needed, and eleven devices hold five.
    let tight = refused(|_, options| {
        options.goal = PlacementObjective::Carry { qps: 40.0 };
        options.max_partitions = 2;
        options.devices.truncate(11);
    });
    assert!(
        matches!(
            tight,
            PlacementError::Unplaced {
                memory: 1..,
                unpacked: 0,
                ..
            }
        ),
        "{tight}"
    );
    assert!(tight.to_string().contains("(proven)"), "{tight}");
    let nan = refused(|profile, _| profile.variants[5].costs[1].latency_s = f64::NAN);
    assert!(
        nan.to_string()
            .contains("variants[5].costs[1].latency_s: NaN is not positive and finite"),
        "{nan}"
    );
    let hole = refused(|profile, _| profile.variants[5].costs[1].utilisation = None);
    assert!(matches!(hole, PlacementError::Hole { batch: 2, .. }), "{hole}");
    let gone = refused(|profile, _| drop(profile.variants.remove(5)));
    assert!(matches!(gone, PlacementError::NoVariant { .. }), "{gone}");
    for (option, break_field) in [
        (
            "qps",
            (|options| options.goal = PlacementObjective::Carry { qps: f64::NAN })
                as fn(&mut PlacementOptions),
        ),
        ("utilisation", |options| options.utilisation = 1.5),
        ("batch", |options| options.batch = 0),
        ("request_bytes", |options| options.request_bytes = -1.0),
        ("devices.speed", |options| options.devices[3].speed = 0.0),
        ("max_partitions", |options| options.max_partitions = 0),
    ] {
        let error = refused(|_, options| break_field(options));
        assert!(
            matches!(&error, PlacementError::Option { option: named, .. } if *named == option),
            "{error}"
        );
    }
    let channel = refused(|_, options| {
        options.channels.network = Channel::Given {
            latency_s: f64::INFINITY,
            bytes_per_s: 1.0,
        };
    });
    assert!(matches!(channel, PlacementError::Channel { .. }), "{channel}");
}

/// The best of all placements of all combinations of up to four copies and two partitions that one scale rounds to.
fn by_trying_everything(planner: &Case<'_>, cluster: &Cluster, qps: f64) -> Option<f64> {
    let models = &planner.models;
    let period_s = models.batch / qps;
    let count = models.curves.len();
    let numbers = |most: u32| {
        let (all, _) = cuts(&vec![1; count], &vec![most; count], u64::MAX);
        all
    };
    let mut best: Option<f64> = None;
    for partitions in numbers(2.min(cluster.devices.len() as u32)) {
        for replicas in numbers(4) {
            let scales = (0..count).map(|model| {
                let at = |copies: f64| copies * f64::from(partitions[model]) / models.demand[model];
                let copies = f64::from(replicas[model]);
                (
                    if copies < 1.5 { 0.0 } else { at(copies - 0.5) },
                    at(copies + 0.5),
                )
            });
            let (low, high) = scales.fold((0.0, f64::INFINITY), |(low, high), (from, to)| {
                (f64::max(low, from), f64::min(high, to))
            });
            let shape = ReplicaPartition {
                replicas,
                partitions: partitions.clone(),
            };
            if low >= high || shape.instances() > 7 {
                continue;
            }
            let parts = models.parts(&shape, period_s);
            let problem = Problem::new(cluster, parts.kinds, parts.pairs, parts.chains);
            let found = exhaustive::best(&problem);
            best = best
                .into_iter()
                .chain(found.map(|found| found.overhead))
                .reduce(f64::min);
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn small_placements_are_as_good_as_by_trying_everything(
        eo in any::<bool>(),
        devices in 1..4_usize,
        hosts in 1..3_usize,
        gigabytes in 1.0..16.0_f64,
        load in 0.05..0.9_f64,
        network in 1.0..20.0_f64,
    ) {
        let family = stated::vit();
        let profile = family.profile();
        let plan = cascade(&profile, if eo { Objective::Eo } else { Objective::Ap }).plan;
        let mut options = options(&family, devices, PlacementObjective::Carry { qps: 1.0 });
        options.max_partitions = 2;
        options.channels = Channels {
            network: Channel::Given { latency_s: 1e-4 * network, bytes_per_s: 5e9 / network },
            ..Channels::stated()
        };
        for (number, device) in options.devices.iter_mut().enumerate() {
            device.worker = format!("w{}", number / hosts);
            device.device = format!("cuda:{number}");
            device.memory_bytes = (gigabytes * 1e8) as u64;
        }
        let flow = flow::flow(&profile, &plan).unwrap();
        let curves = curves(&profile, &flow, &options).unwrap();
        let models = Models::new(&flow, &curves, &options);
        let qps = load * devices as f64 / models.least_kernel();
        options.goal = PlacementObjective::Carry { qps };
        let planner = Case { models, options: &options };
        let cluster = Cluster::new(&options, devices);
        let best = by_trying_everything(&planner, &cluster, qps);
        match (plan_placement(&profile, &plan, &options), best) {
            (Ok(placed), Some(best)) => {
                holds_somewhere(&placed, &options);
                prop_assert!(placed.overhead_s <= best * (1.0 + 1e-9) + 1e-12, "{} {best}", placed.overhead_s);
                // Trying everything stops at four copies and seven instances; the planner does not.
                let few = placed.models.iter().all(|model| model.replicas <= 4) && placed.plan.placement.len() <= 7;
                if few {
                    prop_assert!((placed.overhead_s - best).abs() <= best * 1e-9 + 1e-12);
                }
                if let Proof::Gap { lower_s, .. } = placed.proof {
                    prop_assert!(lower_s <= best * (1.0 + 1e-9));
                }
            }
            (Err(_), None) => {}
            (Ok(placed), None) => prop_assert!(
                placed.plan.placement.len() > 7 || placed.models.iter().any(|model| model.replicas > 4)
            ),
            (Err(error), Some(_)) => prop_assert!(false, "{error}"),
        }
    }
}

/// [`holds`] where a worker has several devices.
fn holds_somewhere(placed: &Placement, options: &PlacementOptions) {
    placed.plan.validate().unwrap();
    for load in &placed.devices {
        assert!(load.memory_bytes <= load.capacity_bytes as f64 * (1.0 + 1e-6));
        assert!(load.utilisation <= options.utilisation * (1.0 + 1e-6));
    }
}
