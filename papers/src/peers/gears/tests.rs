use super::*;
use kaskade_planners::gears::DeviceSpec;
use kaskade_planners::reference::Fluid;
use kaskade_stated::workloads::{StatedWorkload, bert, llama};

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
        ..GearOptions::new(slo, qps_max, DeviceSpec::fleet(devices, 32_000_000_000))
    }
}

const WITHIN_60_MS: Slo = Slo::Latency { p95_us: 60_000 };

fn peer(profile: &Profile, options: &GearOptions, peer: &Peer) -> Result<GearPlan, GearError> {
    plan_peer(profile, options, peer, Fluid::new(profile))
}

#[test]
fn dynba_serves_one_variant_and_the_best_that_holds() {
    let profile = small(bert());
    let options = options(WITHIN_60_MS, 7_600.0, 4);
    let found = peer(&profile, &options, &Peer::DynBa { variant: None }).unwrap();
    assert_eq!((found.plan.gears.len(), found.plan.variants.len()), (1, 1));
    let expected = found.plan.gears[0].expected.unwrap();
    assert!(expected.p95_us <= 60_000);
    // The next larger one does not hold it.
    let names: Vec<&str> = profile
        .variants
        .iter()
        .map(|variant| variant.name.as_str())
        .collect();
    let chosen = names
        .iter()
        .position(|name| *name == found.plan.variants[0].name)
        .unwrap();
    let variant = Some(names[chosen + 1].to_owned());
    let larger = peer(&profile, &options, &Peer::DynBa { variant }).unwrap();
    assert!(larger.plan.gears[0].expected.unwrap().p95_us > 60_000);
    assert!(found.plan.made_by.starts_with("dynba: "));
}

#[test]
fn dynba_with_a_name_serves_whatever_comes_of_it() {
    let profile = small(bert());
    let options = options(WITHIN_60_MS, 7_600.0, 2);
    let named = |name: &str| {
        let variant = Some(name.to_owned());
        peer(&profile, &options, &Peer::DynBa { variant })
    };
    let found = named("base").unwrap();
    assert_eq!(found.plan.placement.len(), 2);
    assert!(found.plan.gears[0].expected.unwrap().p95_us > 60_000);
    assert!(matches!(named("gpt"), Err(GearError::NoVariant { .. })));
}

#[test]
fn model_switching_serves_single_variants_by_load() {
    let profile = small(bert());
    let options = options(WITHIN_60_MS, 7_600.0, 3);
    let found = peer(&profile, &options, &Peer::MsPlus).unwrap();
    assert!(found.plan.gears.len() >= 2);
    assert!(found.plan.gears.iter().all(|gear| gear.wiring.stages.len() == 1));
    let accuracies: Vec<f64> = found.chosen.iter().map(|cascade| cascade.accuracy).collect();
    assert!(
        accuracies.windows(2).all(|pair| pair[0] >= pair[1]),
        "{accuracies:?}"
    );
    assert!(found.plan.made_by.starts_with("ms+: "));
    let planned = plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {}).unwrap();
    assert!(planned.accuracy > found.accuracy);
}

#[test]
fn model_switching_reaches_an_accuracy_or_says_so() {
    let profile = small(bert());
    let with = |at_least| {
        peer(
            &profile,
            &options(Slo::Accuracy { at_least }, 7_600.0, 4),
            &Peer::MsPlus,
        )
    };
    assert!(with(0.80).unwrap().accuracy >= 0.80);
    assert!(matches!(with(0.95), Err(GearError::Inaccurate { .. })));
}

#[test]
fn models_are_collocated_and_each_is_somewhere() {
    let profile = small(llama());
    let options = options(Slo::Latency { p95_us: 3_000_000 }, 20.0, 4);
    let models = Models::from_profile(&profile, &options);
    let alike = Group {
        speed: 1.0,
        memory_bytes: 32_000_000_000,
        hosted: ModelSet::default(),
        devices: (0..4).collect(),
    };
    let groups = collocate(vec![alike], &models);
    for model in 0..4 {
        assert!(groups.iter().any(|group| group.hosted.contains(model)), "{model}");
    }
    assert!(
        groups
            .iter()
            .all(|group| models.memory_of(group.hosted) <= group.memory_bytes)
    );
    let alone = groups.iter().find(|group| group.hosted.contains(3)).unwrap();
    assert_eq!(alone.hosted, ModelSet::default().with(3));
}

#[test]
fn the_ablations_are_peers_too() {
    let profile = small(bert());
    let options = options(WITHIN_60_MS, 7_600.0, 3);
    let fixed = peer(&profile, &options, &Peer::NoSwitching).unwrap();
    let single = peer(&profile, &options, &Peer::NoCascade).unwrap();
    assert_eq!(fixed.plan.gears.len(), 1);
    assert!(single.plan.gears.iter().all(|gear| gear.wiring.stages.len() == 1));
}
