use proptest::prelude::*;

use super::*;
use crate::thresholds::synthetic;
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::plan::Exit;
use kaskade_policy::profile::{BatchCost, Money, Validation, VariantProfile};
use kaskade_policy::remote::price::CostSource;

fn profile(skills: &[f64], energies: &[f64], samples: usize, seed: u64) -> Profile {
    let family = synthetic::family(skills, energies, 3.0, samples, seed);
    let variant = |column: &crate::thresholds::Column| VariantProfile {
        parameters: (column.energy_j * 1e6) as u64,
        ..VariantProfile::new(
            &*column.name,
            Calibration {
                estimator: Estimator::MaxSquared,
                temperature: 1.5,
            },
            [1, 32]
                .map(|batch| BatchCost {
                    energy_j: Some(column.energy_j * f64::from(batch)),
                    ..BatchCost::new(batch, column.energy_j * 1e-3 * f64::from(batch))
                })
                .to_vec(),
            Validation::new(
                vec![0; samples],
                column.confidences.to_vec(),
                column.correct.to_vec(),
            ),
        )
    };
    Profile::new(
        "made-up",
        Estimator::MaxSquared,
        family.columns().iter().map(variant).collect(),
    )
}

fn small() -> Profile {
    profile(&[1.0, 1.5, 2.0, 2.5], &[1.0, 4.0, 12.0, 40.0], 400, 11)
}

fn options(objective: Objective) -> CascadeOptions {
    CascadeOptions {
        objective,
        safety_margin: NonInferiorityTest::None,
        workers: vec!["w1".into(), "w2".into()],
        replicas_of: [("v0".to_owned(), 2)].into(),
        ..CascadeOptions::default()
    }
}

#[test]
fn a_profile_becomes_this_plan() {
    let planned = plan_cascade(&small(), &options(Objective::Ap)).unwrap();
    insta::assert_snapshot!("ap_plan", planned.plan.to_json().unwrap());
    let rest = (
        &planned.estimates,
        &planned.dropped,
        planned.split,
        &planned.skips,
        &planned.ap,
        &planned.eo,
    );
    insta::assert_json_snapshot!("ap_rest", rest);
}

#[test]
fn the_same_profile_gives_the_same_bytes() {
    for objective in [Objective::Ap, Objective::Eo] {
        let plan = || plan_cascade(&small(), &options(objective.clone())).unwrap();
        assert_eq!(plan(), plan());
        assert_eq!(plan().plan.to_json().unwrap(), plan().plan.to_json().unwrap());
    }
}

#[test]
fn each_objective_does_what_it_says() {
    let profile = small();
    let plan = |objective| plan_cascade(&profile, &options(objective)).unwrap();
    let (ap, eo, largest) = (plan(Objective::Ap), plan(Objective::Eo), plan(Objective::Largest));
    assert!(ap.estimates.accuracy >= ap.estimates.largest_accuracy);
    assert!(ap.estimates.energy_j < ap.estimates.largest_energy_j / 2.0);
    assert!(eo.estimates.energy_j < ap.estimates.energy_j);
    assert_eq!(largest.plan.gears[0].wiring.stages.len(), 1);
    assert_eq!(largest.plan.gears[0].wiring.stages[0].exit, Exit::Reply);
    assert!((largest.estimates.energy_j - 40.0).abs() < 1e-9);
    let given = plan(Objective::Thresholds(vec![0.5, 0.25, 0.0]));
    assert_eq!(
        given.plan.gears[0].wiring.stages.len(),
        3,
        "nothing comes to the fourth"
    );
}

#[test]
fn skips_under_given_thresholds_cost_no_more_accuracy_than_they_may() {
    let profile = kaskade_stated::families::gpt_of_eight().profile();
    let given = |skips: bool, skip_loss: f64| {
        let options = CascadeOptions {
            objective: Objective::Thresholds(vec![0.942, 0.854, 0.753, 0.523, 0.627, 0.393, 0.278]),
            skips,
            skip_loss,
            exact_steps: 1_000,
            ..CascadeOptions::default()
        };
        plan_cascade(&profile, &options).unwrap()
    };
    let (plain, careful, careless) = (given(false, 0.0), given(true, 0.0), given(true, 1.0));
    assert_eq!(plain.split, Split::None);
    assert!(careful.estimates.accuracy >= plain.estimates.accuracy);
    assert_ne!(careless.split, Split::None, "{:?}", careless.skips);
    assert!(careless.estimates.energy_j < plain.estimates.energy_j);
    assert!(careless.estimates.hops < plain.estimates.hops);
}

#[test]
fn latency_stands_in_where_energy_is_unknown_and_says_so() {
    let mut profile = small();
    for cost in &mut profile.variants[2].costs {
        cost.energy_j = None;
    }
    let planned = plan_cascade(&profile, &options(Objective::Ap)).unwrap();
    assert_eq!(planned.estimates.basis, CostBasis::Latency);
    assert!((planned.estimates.largest_energy_j - 0.04).abs() < 1e-9);
}

#[test]
fn money_is_minimised_where_it_is_known() {
    let mut profile = small();
    let mut cheapest = options(Objective::Ap);
    cheapest.minimise = Minimise::Cost;
    // The third variant is the most expensive in money, although others need more energy.
    for (variant, per_request) in profile.variants.iter_mut().zip([0.0, 0.001, 0.5, 0.01]) {
        variant.money = Some(Money {
            per_request,
            source: CostSource::Priced,
        });
    }
    let planned = plan_cascade(&profile, &cheapest).unwrap();
    assert_eq!(planned.estimates.basis, CostBasis::Money);
    assert!((planned.estimates.largest_energy_j - 0.01).abs() < 1e-9);
    assert!(planned.estimates.energy_j <= 0.01, "{:?}", planned.estimates);
    assert!(planned.estimates.stages.iter().all(|stage| stage.variant != "v2"));
    profile.variants[1].money = None;
    let refused = plan_cascade(&profile, &cheapest).unwrap_err().to_string();
    assert!(refused.contains("`v1`") && refused.contains("price"), "{refused}");
    cheapest.minimise = Minimise::Latency;
    let planned = plan_cascade(&profile, &cheapest).unwrap();
    assert_eq!(planned.estimates.basis, CostBasis::Latency);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let profile = small();
    let refuse = |objective, change: fn(&mut CascadeOptions)| {
        let mut options = options(objective);
        change(&mut options);
        plan_cascade(&profile, &options).unwrap_err()
    };
    let thresholds = |list: &[f64]| refuse(Objective::Thresholds(list.to_vec()), |_| ());
    assert!(matches!(
        thresholds(&[0.5]),
        PlanError::Thresholds {
            found: 1,
            expected: 3
        }
    ));
    assert!(matches!(
        thresholds(&[0.5, f64::NAN, 0.5]),
        PlanError::Threshold(_)
    ));
    assert!(matches!(
        refuse(Objective::Ap, |o| o.batch = 0),
        PlanError::Zero { .. }
    ));
    assert!(matches!(
        refuse(Objective::Ap, |o| o.workers.clear()),
        PlanError::Zero { .. }
    ));
    assert!(matches!(
        refuse(Objective::Ap, |o| o.replicas = 0),
        PlanError::Zero { .. }
    ));
    assert!(matches!(
        refuse(Objective::Ap, |o| o.workers = vec!["a.b".into()]),
        PlanError::Plan(_)
    ));
    let mut unsound = small();
    unsound.variants[0].validation.confidences[3] = f64::NAN;
    assert!(matches!(
        plan_cascade(&unsound, &options(Objective::Ap)),
        Err(PlanError::Profile(_))
    ));
}

#[test]
fn a_family_of_one_is_a_cascade_of_one() {
    let one = profile(&[1.0], &[5.0], 50, 1);
    for objective in [Objective::Ap, Objective::Eo, Objective::Largest] {
        let planned = plan_cascade(&one, &options(objective)).unwrap();
        assert_eq!(planned.plan.gears[0].wiring.stages.len(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The router, given the profile's confidences, routes every sample as planned.
    #[test]
    fn the_router_does_what_the_planner_estimated(seed in any::<u64>(), samples in 2..120_usize, eo in any::<bool>()) {
        let profile = profile(&[0.5, 1.2, 1.8, 2.2], &[1.0, 4.0, 12.0, 40.0], samples, seed);
        let planned = plan_cascade(&profile, &options(if eo { Objective::Eo } else { Objective::Ap })).unwrap();
        let wiring = &planned.plan.gears[0].wiring;
        let mut right = 0;
        let mut energy = 0.0;
        for sample in 0..samples {
            let mut at = wiring.entry.stage.clone();
            loop {
                let stage = wiring.stages.iter().find(|stage| stage.name == at).unwrap();
                let variant = profile.variants.iter().find(|variant| variant.name == stage.variant).unwrap();
                energy += variant.costs[0].energy_j.unwrap();
                let confidence = variant.validation.confidences[sample];
                let way = kaskade_policy::routing::route(&stage.exit, Some(confidence)).unwrap();
                let kaskade_policy::routing::Route::Forward(edge) = way else {
                    right += usize::from(variant.validation.correct[sample]);
                    break;
                };
                at.clone_from(&edge.stage);
            }
        }
        prop_assert!((right as f64 / samples as f64 - planned.estimates.accuracy).abs() < 1e-9);
        prop_assert!((energy / samples as f64 - planned.estimates.energy_j).abs() < 1e-6);
    }
}

/// A profile whose right answers are 7, and whose wrong ones are another number for each variant.
fn with_answers(samples: usize) -> Profile {
    let mut profile = profile(&[1.0, 1.5, 2.0, 2.5], &[1.0, 4.0, 12.0, 40.0], samples, 12);
    for (number, variant) in (0..).zip(&mut profile.variants) {
        let answers = variant.validation.correct.iter();
        variant.validation.predictions = answers.map(|right| if *right { 7 } else { number }).collect();
    }
    profile
}

fn certified_plan(profile: &Profile) -> CascadePlan {
    let options = CertifyOptions::new(certify::AccuracyTarget::MaxLoss { loss: 0.03 });
    plan_cascade(profile, &self::options(Objective::Certified(options))).unwrap()
}

#[test]
fn a_certified_plan_lists_its_safer_cascades_and_what_to_expect_of_them() {
    let profile = with_answers(3_000);
    let planned = certified_plan(&profile);
    let list = planned.plan.certified.as_ref().unwrap();
    assert!(list.cascades.len() > 2, "{}", list.cascades.len());
    let first = &list.cascades[0].gear.wiring.stages;
    assert_eq!((first.len(), first[0].variant.as_str()), (1, "v3"));
    assert_eq!(list.cascades[0].differs, Some(0));
    let cheapest = list.cascades.last().unwrap();
    assert_eq!(cheapest.gear.wiring, planned.plan.gears[0].wiring);
    assert_eq!(Some(&cheapest.certificate), planned.plan.certificate.as_ref());
    assert_eq!(list.cascade_of_gear, [list.cascades.len() as u32 - 1]);
    for cascade in &list.cascades {
        let certificate = &cascade.certificate;
        // Where only one of the two is right, they differ; two wrong answers may differ too.
        let one_right = certificate.lost.unwrap() + certificate.gained.unwrap();
        assert!(cascade.differs.unwrap() >= one_right, "{cascade:?}");
        assert_eq!(cascade.stages[0].samples, certificate.samples);
        let next: u64 = cascade
            .stages
            .iter()
            .skip(1)
            .map(|stage| stage.samples)
            .max()
            .unwrap_or(0);
        assert!(next <= cascade.stages[0].deferred);
    }
    let placed = |name: &str| {
        planned
            .plan
            .placement
            .iter()
            .any(|replica| replica.variant == name)
    };
    assert!(placed("v3"), "audits ask the largest variant");
}

#[test]
fn a_profile_without_answers_says_nothing_about_differences() {
    let planned = certified_plan(&profile(
        &[1.0, 1.5, 2.0, 2.5],
        &[1.0, 4.0, 12.0, 40.0],
        3_000,
        12,
    ));
    let list = planned.plan.certified.unwrap();
    assert!(list.cascades.iter().all(|cascade| cascade.differs.is_none()));
}

#[test]
fn a_plan_that_is_not_certified_has_no_list() {
    let planned = plan_cascade(&with_answers(400), &options(Objective::Ap)).unwrap();
    assert_eq!(planned.plan.certified, None);
}

#[test]
fn a_certified_plan_carries_its_scores_and_the_router_does_what_was_certified() {
    use crate::certify::{AccuracyTarget, CertifyOptions, split_samples};
    use kaskade_policy::routing::{Route, route};

    let mut family = kaskade_stated::families::gpt();
    family.models = [0, 2, 5]
        .map(|place: usize| family.models[place].clone())
        .to_vec();
    family.samples = 2_000;
    let profile = family.profile();
    let certify = CertifyOptions::new(AccuracyTarget::MaxLoss { loss: 0.06 });
    let options = CascadeOptions {
        exact_steps: 200_000,
        ..CascadeOptions::default()
    };
    let with = |learn_scores| {
        let options = CascadeOptions {
            objective: Objective::Certified(certify),
            learn_scores,
            ..options.clone()
        };
        plan_cascade(&profile, &options).unwrap().plan
    };
    let plan = Plan::from_json(&with(true).to_json().unwrap()).unwrap();
    let stages = &plan.gears[0].wiring.stages;
    assert!(stages.iter().any(|stage| stage.score.is_some()), "{stages:?}");
    let answer = |sample: usize| {
        let mut stage = &stages[0];
        loop {
            let confidence = profile.confidence_at(stages, stage, sample);
            let Route::Forward(edge) = route(&stage.exit, confidence).unwrap() else {
                let mut variants = profile.variants.iter();
                let variant = variants.find(|variant| variant.name == stage.variant).unwrap();
                return variant.validation.correct[sample];
            };
            stage = stages.iter().find(|next| next.name == edge.stage).unwrap();
        }
    };
    let certified = plan.certificate.as_ref().unwrap();
    let right = split_samples(2_000)
        .certification
        .into_iter()
        .filter(|sample| answer(*sample));
    assert_eq!(right.count() as u64, certified.right);
    let entry = &stages[0];
    let deferred = split_samples(2_000).certification.into_iter().filter(|sample| {
        let confidence = profile.confidence_at(stages, entry, *sample);
        matches!(route(&entry.exit, confidence), Ok(Route::Forward(_)))
    });
    let expected = &plan.certified.as_ref().unwrap().cascades.last().unwrap().stages[0];
    assert_eq!(
        expected.deferred,
        deferred.count() as u64,
        "the list expects what the router does"
    );
    assert!(
        with(false).gears[0]
            .wiring
            .stages
            .iter()
            .all(|stage| stage.score.is_none())
    );
}

#[test]
fn replicas_name_the_profiled_checkpoints() {
    let mut profile = small();
    profile.variants.last_mut().unwrap().checkpoint = Some("c0ffee".to_owned());
    let plan = plan_cascade(&profile, &options(Objective::Ap)).unwrap().plan;
    assert!(plan.placement.iter().any(|replica| replica.checkpoint.is_some()));
    for replica in &plan.placement {
        assert_eq!(
            replica.checkpoint.as_deref(),
            profile.checkpoint(&replica.variant)
        );
    }
}
