use super::*;
use crate::certify::AccuracyTarget;
use crate::device::DeviceSpec;
use crate::gears::options::GearOptions;
use crate::gears::planner::plan_gears_with;
use crate::gears::violation::{GearError, Remedy};
use crate::reference::Fluid;
use crate::thresholds::{evaluate, threshold_exits};
use kaskade_policy::plan::{Exit, Guarantee, Plan, Slo, Target};
use kaskade_stated::workloads::{StatedWorkload, bert};

fn profile(samples: usize) -> Profile {
    StatedWorkload { samples, ..bert() }.profile()
}

fn loss(loss: f64) -> CertifyOptions {
    CertifyOptions::new(AccuracyTarget::MaxLoss { loss })
}

fn options(profile: &Profile, guarantee: Option<CertifyOptions>) -> GearOptions {
    GearOptions {
        ranges: 6,
        guarantee,
        ..GearOptions::new(
            Slo::Latency { p95_us: 400_000 },
            0.6 * bert().peak_qps,
            DeviceSpec::fleet(profile.variants.len(), 32_000_000_000),
        )
    }
}

/// Accuracy of a gear's cascade on all samples of a profile.
fn accuracy(profile: &Profile, plan: &Plan, gear: usize) -> f64 {
    let stages = &plan.gears[gear].wiring.stages;
    let columns = stages.iter().map(|stage| {
        let variant = profile
            .variants
            .iter()
            .find(|variant| variant.name == stage.variant)
            .unwrap();
        crate::thresholds::Column {
            name: variant.name.clone(),
            energy_j: 1.0,
            confidences: variant.validation.confidences.as_slice().into(),
            correct: variant.validation.correct.as_slice().into(),
        }
    });
    let thresholds = stages.iter().filter_map(|stage| match &stage.exit {
        Exit::Bands { bands } => Some(bands.iter().find(|band| band.to == Target::Reply).unwrap().from),
        _ => None,
    });
    let family = Family::new(columns.collect()).unwrap();
    evaluate(&family, &threshold_exits(&thresholds.collect::<Vec<_>>())).accuracy
}

#[test]
fn every_gear_is_certified_and_keeps_the_bound() {
    let (profile, bound) = (profile(2_000), 0.02);
    let plan = |guarantee| {
        let options = GearOptions {
            qps_max: 0.1 * bert().peak_qps,
            ..options(&profile, guarantee)
        };
        plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {}).unwrap()
    };
    let certified = guaranteed(&profile, &loss(bound), 64).unwrap();
    let is_certified = |cascade: &Cascade| certified.iter().any(|(one, _)| one == cascade);
    let (free, held) = (plan(None), plan(Some(loss(bound))));
    assert!(!free.chosen.iter().all(is_certified) && free.plan.certificate.is_none());
    assert!(held.chosen.iter().all(is_certified));
    let largest = profile.variants.last().unwrap().validation.correct.iter();
    let largest = largest.filter(|right| **right).count() as f64 / profile.samples as f64;
    for gear in 0..held.plan.gears.len() {
        let found = accuracy(&profile, &held.plan, gear);
        assert!(found >= largest - bound, "{gear}: {found} of {largest}");
    }
    let list = held.plan.certified.as_ref().unwrap();
    assert_eq!(list.cascades[0].gear.wiring.stages.len(), 1);
    assert_eq!(list.cascade_of_gear.len(), held.plan.gears.len());
    for (gear, place) in held.plan.gears.iter().zip(&list.cascade_of_gear) {
        let exits = |gear: &kaskade_policy::plan::Gear| {
            let stages = gear.wiring.stages.iter();
            stages
                .map(|stage| (stage.name.clone(), stage.exit.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(exits(gear), exits(&list.cascades[*place as usize].gear));
    }
    assert!(free.plan.certified.is_none());
    let certificate = held.plan.certificate.as_ref().unwrap();
    assert!(certificate.p_value <= 0.05);
    assert!(
        matches!(&certificate.guarantee, Guarantee::MaxLoss { loss, .. } if (*loss - bound).abs() < 1e-12)
    );
}

/// The stated family with answers whose accuracy falls with every step to a cheaper cascade.
fn falling(samples: usize) -> Profile {
    let mut profile = profile(samples);
    let count = profile.variants.len();
    let skills: Vec<f64> = (0..count)
        .map(|variant| 2.5 - 1.5 * (count - 1 - variant) as f64 / count as f64)
        .collect();
    let drawn = crate::thresholds::synthetic::family(&skills, &vec![1.0; count], 1.5, samples, 7);
    for (variant, column) in profile.variants.iter_mut().zip(drawn.columns()) {
        variant.validation.confidences = column.confidences.to_vec();
        variant.validation.correct = column.correct.to_vec();
    }
    profile
}

/// With a dozen gears, the list was left out for want of room, and with it all audits.
#[test]
fn a_plan_of_many_gears_has_a_certified_list() {
    let profile = falling(20_000);
    for (ranges, share) in [(16, 7.0), (120, 4.0)] {
        let options = GearOptions {
            ranges,
            prior: crate::gears::options::Prior::Uniform,
            qps_max: share * bert().peak_qps,
            ..options(&profile, Some(loss(0.1)))
        };
        let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {}).unwrap();
        let gears = found.plan.gears.len();
        assert!(gears > 12, "{gears}");
        assert_eq!(found.unaudited, None, "{ranges} ranges, {gears} gears");
        let list = found.plan.certified.as_ref().unwrap();
        assert!(list.cascades.len() > 12, "{}", list.cascades.len());
        assert_eq!(list.cascade_of_gear.len(), gears);
        assert_eq!(list.cascades[0].gear.wiring.stages.len(), 1);
    }
}

/// Where no gear ran the largest variant, nothing hosted it, and a certified plan was not audited.
#[test]
fn the_largest_variant_has_a_replica_for_audits() {
    let mut profile = profile(4_000);
    // All answer alike, so the cheapest is as good.
    let answers = profile.variants.last().unwrap().validation.clone();
    for variant in &mut profile.variants {
        variant.validation = answers.clone();
    }
    let largest = profile.variants.last().unwrap().name.clone();
    let options = options(&profile, Some(loss(0.05)));
    let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {}).unwrap();
    let runs =
        |gear: &kaskade_policy::plan::Gear| gear.wiring.stages.iter().any(|stage| stage.variant == largest);
    assert!(!found.plan.gears.iter().any(runs));
    let replicas = found
        .plan
        .placement
        .iter()
        .filter(|replica| replica.variant == largest);
    assert_eq!(replicas.count(), 1);
    assert!(found.unaudited.is_none() && found.plan.certified.is_some());
}

/// Audits ask the largest variant, and it was not said that nothing hosts it.
#[test]
fn a_certified_plan_that_does_not_host_the_largest_variant_says_that_it_is_not_audited() {
    let profile = profile(4_000);
    let largest = profile.variants.last().unwrap();
    let memory = largest
        .costs
        .iter()
        .filter_map(|cost| cost.memory_bytes)
        .min()
        .unwrap();
    let options = GearOptions {
        devices: DeviceSpec::fleet(8, memory - 1),
        ..options(&profile, Some(loss(0.05)))
    };
    let found = plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {}).unwrap();
    assert!(found.plan.certificate.is_some() && found.plan.certified.is_none());
    assert_eq!(found.unaudited, Some(crate::gears::Unaudited::LargestNotPlaced));
}

#[test]
fn certified_cascades_come_with_their_figures_on_the_certification_part() {
    let profile = profile(2_000);
    let found = guaranteed(&profile, &loss(0.02), 32).unwrap();
    let (first, _) = &found[0];
    assert_eq!(
        (first.variants.as_slice(), first.reach.as_slice()),
        (&[profile.variants.len() - 1][..], &[1.0][..])
    );
    assert!(found.len() > 2, "{}", found.len());
    for (cascade, certificate) in &found {
        assert_eq!(cascade.thresholds.len() + 1, cascade.variants.len());
        assert!(cascade.variants.is_sorted() && cascade.thresholds.iter().all(|threshold| *threshold <= 1.0));
        assert!((cascade.accuracy - certificate.right as f64 / certificate.samples as f64).abs() < 1e-9);
    }
}

#[test]
fn too_few_samples_are_refused() {
    let profile = profile(100);
    let error = guaranteed(&profile, &loss(0.01), 32).unwrap_err().to_string();
    assert!(
        error.contains("100 validation samples cannot prove this"),
        "{error}"
    );
}

/// A largest variant that is less accurate than the cascades was tried last, so the error told its work.
#[test]
fn an_error_names_the_work_of_the_cheapest_certified_cascade() {
    let mut profile = profile(2_000);
    let largest = profile.variants.last_mut().unwrap();
    for correct in largest.validation.correct.iter_mut().step_by(10) {
        *correct = false;
    }
    let plan = |qps_max: f64| {
        let options = GearOptions {
            qps_max,
            ..options(&profile, Some(loss(0.02)))
        };
        plan_gears_with(&profile, &options, Fluid::new(&profile), |_| {})
    };
    let devices = profile.variants.len();
    let mut rate = 0.1 * bert().peak_qps;
    let error = loop {
        match plan(rate) {
            Ok(_) => rate *= 1.2,
            Err(error) => break error,
        }
    };
    let GearError::Unattainable {
        remedy: Remedy::Devices { at_least },
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(*at_least <= 2 * devices, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("cascade that is certified") && text.contains("a larger loss"),
        "{text}"
    );
}
