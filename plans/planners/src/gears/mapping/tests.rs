use proptest::prelude::*;

use super::*;
use kaskade_stated::workloads::{bert, llama};

const GB: u64 = 1_000_000_000;

fn cascade(variants: &[usize], reach: &[f64]) -> Cascade {
    Cascade {
        variants: variants.to_vec(),
        thresholds: vec![0.5; variants.len() - 1],
        accuracy: 0.5,
        reach: reach.to_vec(),
    }
}

fn need(cascade: &Cascade, range: usize, qps: f64) -> Need<'_> {
    Need { cascade, range, qps }
}

fn fits(groups: &[Group], models: &Models) -> bool {
    groups
        .iter()
        .all(|group| models.memory_of(group.hosted) <= group.memory_bytes)
}

fn devices_of(groups: &[Group]) -> Vec<usize> {
    let mut devices: Vec<usize> = groups.iter().flat_map(|group| group.devices.clone()).collect();
    devices.sort_unstable();
    devices
}

#[test]
fn what_fits_is_everywhere() {
    let models = Models::new(&bert().profile(), 64, None);
    let wanted = cascade(&[0, 4], &[1.0, 0.3]);
    let fleet = Fleet::new(&DeviceSpec::fleet(3, 32 * GB));
    let groups = place(&fleet, &models, &[need(&wanted, 0, 100.0)], &BTreeMap::new()).unwrap();
    assert_eq!(
        (replicas(&groups, 0), replicas(&groups, 4), replicas(&groups, 1)),
        (3, 3, 0)
    );
}

#[test]
fn the_largest_and_the_others_share_the_devices_by_load() {
    let models = Models::new(&llama().profile(), 32, None);
    let wanted = cascade(&[0, 1, 2, 3], &[1.0, 0.6, 0.4, 0.2]);
    let fleet = Fleet::new(&DeviceSpec::fleet(8, 32 * GB));
    let groups = place(&fleet, &models, &[need(&wanted, 0, 60.0)], &BTreeMap::new()).unwrap();
    assert!(fits(&groups, &models));
    assert_eq!(devices_of(&groups), (0..8).collect::<Vec<_>>());
    // 60 requests/s: 0.2 of them keep 1.6 devices busy with the largest model, the rest 1.5 with the others.
    let large_models = replicas(&groups, 3);
    assert!((2..=6).contains(&large_models), "{large_models}");
    let load = HallBounds::new(wanted.demands(&models, 60.0), &groups).load();
    assert!(load.utilisation < 0.6, "{load:?}");
}

#[test]
fn a_replica_more_can_be_demanded() {
    let models = Models::new(&llama().profile(), 32, None);
    let wanted = cascade(&[0, 3], &[1.0, 0.2]);
    let fleet = Fleet::new(&DeviceSpec::fleet(8, 32 * GB));
    let needs = [need(&wanted, 0, 60.0)];
    let before = replicas(&place(&fleet, &models, &needs, &BTreeMap::new()).unwrap(), 3);
    let demanded = [(3, before + 1)].into();
    let groups = place(&fleet, &models, &needs, &demanded).unwrap();
    assert!(replicas(&groups, 3) > before && fits(&groups, &models));
    let everywhere = [(3, 8)].into();
    assert!(place(&fleet, &models, &needs, &everywhere).is_err());
}

#[test]
fn too_much_load_names_range_and_model() {
    let models = Models::new(&llama().profile(), 32, None);
    let (light, heavy) = (cascade(&[0], &[1.0]), cascade(&[0, 3], &[1.0, 0.9]));
    let fleet = Fleet::new(&DeviceSpec::fleet(4, 32 * GB));
    let needs = [need(&light, 0, 10.0), need(&heavy, 5, 60.0)];
    let unplaced = place(&fleet, &models, &needs, &BTreeMap::new()).unwrap_err();
    assert_eq!((unplaced.range, unplaced.model), (5, 3));
    assert!(matches!(unplaced.kind, ViolationKind::Utilisation { utilisation } if utilisation > 1.0));
}

#[test]
fn too_little_memory_names_the_largest_of_the_models() {
    let models = Models::new(&llama().profile(), 32, None);
    let (cheap, dear) = (cascade(&[0, 1], &[1.0, 0.1]), cascade(&[3], &[1.0]));
    let fleet = Fleet::new(&DeviceSpec::fleet(1, 32 * GB));
    let needs = [need(&dear, 0, 0.5), need(&cheap, 7, 20.0)];
    let unplaced = place(&fleet, &models, &needs, &BTreeMap::new()).unwrap_err();
    assert_eq!((unplaced.range, unplaced.model), (0, 3));
    assert!(matches!(unplaced.kind, ViolationKind::Memory { needed_bytes, .. } if needed_bytes > 32 * GB));
}

#[test]
fn what_is_put_back_fits() {
    // Pruning the small ones first leaves room once the large one has gone.
    let models = Models::new(&llama().profile(), 32, None);
    let wanted = cascade(&[0, 1, 2, 3], &[1.0, 0.5, 0.4, 0.05]);
    let fleet = Fleet::new(&DeviceSpec::fleet(6, 40 * GB));
    let groups = place(&fleet, &models, &[need(&wanted, 0, 40.0)], &BTreeMap::new()).unwrap();
    assert!(fits(&groups, &models));
    for group in &groups {
        for model in 0..4 {
            let more = group.hosted.with(model);
            assert!(more == group.hosted || models.memory_of(more) > group.memory_bytes);
        }
    }
}

#[test]
fn a_thousand_devices_are_placed_like_ten() {
    let models = Models::new(&llama().profile(), 32, None);
    let wanted = cascade(&[0, 1, 2, 3], &[1.0, 0.6, 0.4, 0.2]);
    let utilisation = |devices: usize| {
        let fleet = Fleet::new(&DeviceSpec::fleet(devices, 32 * GB));
        let qps = 6.0 * devices as f64;
        let groups = place(&fleet, &models, &[need(&wanted, 0, qps)], &BTreeMap::new()).unwrap();
        assert!(fits(&groups, &models));
        assert_eq!(devices_of(&groups), (0..devices).collect::<Vec<_>>());
        HallBounds::new(wanted.demands(&models, qps), &groups)
            .load()
            .utilisation
    };
    let (ten, thousand) = (utilisation(10), utilisation(1_000));
    assert!(thousand <= ten + 0.05, "{ten} {thousand}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn placements_fit_and_carry(
        memory in prop::collection::vec((5..45_u64, 1..4_u32), 1..10),
        sets in prop::collection::vec((1..16_usize, 0.0..8.0_f64), 1..4),
    ) {
        let models = Models::new(&llama().profile(), 32, None);
        let mut devices = Vec::new();
        for (index, (gigabytes, speed)) in memory.iter().enumerate() {
            devices.push(DeviceSpec {
                speed: f64::from(*speed) / 2.0,
                ..DeviceSpec::fleet(index + 1, gigabytes * GB).pop().unwrap()
            });
        }
        let cascades: Vec<Cascade> = sets.iter().map(|(set, _)| {
            let variants: Vec<usize> = (0..4).filter(|model| set >> model & 1 == 1).collect();
            let reach: Vec<f64> = (0..variants.len()).map(|place| 0.5_f64.powf(place as f64)).collect();
            cascade(&variants, &reach)
        }).collect();
        let needs: Vec<Need<'_>> =
            cascades.iter().zip(&sets).enumerate().map(|(range, (cascade, (_, qps)))| need(cascade, range, *qps)).collect();
        match place(&Fleet::new(&devices), &models, &needs, &BTreeMap::new()) {
            Ok(groups) => {
                prop_assert!(fits(&groups, &models));
                prop_assert_eq!(devices_of(&groups), (0..devices.len()).collect::<Vec<_>>());
                for need in &needs {
                    for model in need.cascade.models().iter() {
                        prop_assert!(replicas(&groups, model) >= 1);
                    }
                    let load = HallBounds::new(need.cascade.demands(&models, need.qps), &groups).load();
                    prop_assert!(load.utilisation <= 1.0 + 1e-9);
                }
            }
            Err(unplaced) => {
                prop_assert!(unplaced.range < needs.len());
                prop_assert!(needs[unplaced.range].cascade.models().contains(unplaced.model));
            }
        }
    }
}
