use kaskade_planners::certify::{AccuracyTarget, CertifyOptions};
use kaskade_planners::skips::{Dropped, Reason};
use kaskade_policy::confidence::{Calibration, Estimator};
use kaskade_policy::profile::{BatchCost, BeforeAfter, Validation, VariantProfile};

use super::text::amount;
use super::*;
use crate::measure::text;
use crate::report::profile_warnings;

/// Returns a variant that is wrong on every `wrong`-th sample, and confident except where it is wrong or close to it.
fn variant(name: &str, place: u32, wrong: usize, energy_j: Option<f64>) -> VariantProfile {
    let correct: Vec<bool> = (0..240).map(|sample| sample % wrong != wrong - 1).collect();
    let confidence = |(sample, right): (usize, &bool)| {
        let spread = (sample * 37 % 100) as f64 / 100.0;
        if *right { 0.35 + 0.6 * spread } else { 0.5 * spread }
    };
    let cost = |batch: u32| BatchCost {
        energy_j: energy_j.map(|energy| energy * f64::from(batch)),
        utilisation: Some(0.5),
        ..BatchCost::new(
            batch,
            1e-4 * 8_f64.powi(place.cast_signed()) * (0.5 + 0.5 * f64::from(batch)),
        )
    };
    let calibration = Calibration {
        estimator: Estimator::MaxSquared,
        temperature: 1.25,
    };
    let confidences = correct.iter().enumerate().map(confidence).collect();
    let validation = Validation::new(vec![0; 240], confidences, correct);
    VariantProfile {
        parameters: 1_000 * 10_u64.pow(place),
        ece: BeforeAfter {
            before: 0.08,
            after: 0.02,
        },
        ..VariantProfile::new(name, calibration, vec![cost(1), cost(32)], validation)
    }
}

fn profile(energy: bool) -> Profile {
    let joules = |joules: f64| energy.then_some(joules);
    let variants = vec![
        variant("small", 0, 6, joules(1e-3)),
        variant("base", 1, 15, joules(8e-3)),
        variant("large", 2, 60, joules(64e-3)),
    ];
    Profile {
        device: "cpu (2 cores)".to_owned(),
        energy_source: if energy { "modelled" } else { "unknown" }.to_owned(),
        ..Profile::new("tiny-app", Estimator::MaxSquared, variants)
    }
}

fn planned(profile: &Profile, objective: Objective) -> CascadePlan {
    CascadePlanner::new(profile).objective(objective).plan().unwrap()
}

#[test]
fn a_plan_reads_well() {
    let profile = profile(true);
    let text = as_text(&profile, &planned(&profile, Objective::Eo));
    insta::assert_snapshot!("plan_text", text);
    insta::assert_snapshot!("profile_text", text::profile(&profile));
}

/// Regression: cascades dominated by the largest variant alone were shown as the frontier, and seconds as energy.
#[test]
fn the_frontier_has_no_cascade_that_the_largest_alone_dominates() {
    let mut profile = profile(true);
    let text = as_text(&profile, &planned(&profile, Objective::Eo));
    assert!(!text.contains(" 0.9x") && !text.contains(" AP "), "{text}");
    assert!(
        text.contains("left out, because the largest variant alone is as accurate at no more cost: AP\n"),
        "{text}"
    );
    // As slow as the largest variant, and no better than `base`.
    profile.variants[0].costs = profile.variants[2].costs.clone();
    let latency = CascadePlanner::new(&profile)
        .minimise(Minimise::Latency)
        .plan()
        .unwrap();
    let text = as_text(&profile, &latency);
    assert!(
        text.contains("dropped small: its latency benefit is -") && !text.contains("energy benefit"),
        "{text}"
    );
}

/// Regression: the largest variant was reported to stay loaded for audits only.
#[test]
fn a_dropped_variant_that_stays_loaded_answers_when_audits_ask_for_it() {
    let profile = profile(true);
    let mut planned = planned(&profile, Objective::Largest);
    planned.dropped.push(Dropped {
        name: "large".to_owned(),
        reason: Reason::NeverReached,
    });
    let text = as_text(&profile, &planned);
    assert!(
        text.contains("`large` answers no requests now; it stays loaded for audits, and to answer"),
        "{text}"
    );
}

/// Regression: a validation set with one class, or few samples of a class, was planned without a remark.
#[test]
fn samples_of_few_classes_are_remarked() {
    let mut profile = profile(true);
    let note = |profile: &Profile| profile_warnings::remarks_on_plan(profile, false);
    assert!(
        !note(&profile).contains("answers rightly"),
        "answers that are no classes"
    );
    for variant in &mut profile.variants {
        variant.validation.margins = vec![0.5; 240];
        variant.validation.predictions = vec![4; 240];
    }
    let said = note(&profile);
    assert!(
        said.contains("have class 4; thresholds that are chosen on them"),
        "{said}"
    );
    for variant in &mut profile.variants {
        variant.validation.predictions = (0..240).map(|sample| sample % 2).collect();
    }
    assert!(!note(&profile).contains("answers rightly"));
    for variant in &mut profile.variants {
        variant.validation.predictions = (0..240).map(|sample| u32::from(sample % 60 == 0)).collect();
    }
    let said = note(&profile);
    assert!(
        said.contains("few samples of some classes: 4 of class 1;"),
        "{said}"
    );
}

/// "At most 1 % less accurate than the largest" means little if the largest is the worst.
#[test]
fn a_largest_variant_that_is_not_the_best_is_remarked() {
    let mut profile = profile(true);
    profile.variants.swap(0, 2);
    let note = "note: `large` answers 98.33 % rightly, and the largest variant, `small`, 83.33 %";
    assert!(as_text(&profile, &planned(&profile, Objective::Ap)).contains(note));
    assert!(text::profile(&profile).contains(note));
    // Few differences may be due to chance.
    profile.variants.swap(0, 2);
    let [_, base, large] = &mut profile.variants[..] else {
        panic!("three variants");
    };
    large.validation = base.validation.clone();
    large.validation.correct[0] = false;
    assert!(!text::profile(&profile).contains("note"));
}

#[test]
fn an_order_that_looks_reversed_is_remarked() {
    let mut profile = profile(true);
    assert!(!text::profile(&profile).contains("reversed"));
    profile.variants.swap(1, 2);
    let parts = [
        "note: `base` takes ",
        " per sample in batches of 32, and `large`, which is listed before it, ",
        "the order looks reversed",
    ];
    for text in [
        text::profile(&profile),
        as_text(&profile, &planned(&profile, Objective::Ap)),
    ] {
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }
    // Faster on another device, at higher energy.
    for cost in &mut profile.variants[2].costs {
        cost.energy_j = Some(100.0);
    }
    assert!(!text::profile(&profile).contains("reversed"));
}

#[test]
fn few_samples_are_remarked() {
    let mut profile = profile(true);
    let note = "on so few validation samples (30) may be off by 18 points";
    assert!(!profile_warnings::remarks_on_plan(&profile, false).contains("so few"));
    profile.samples = 30;
    assert!(profile_warnings::remarks_on_plan(&profile, false).contains(note));
}

/// Regression: the warning of `profile` was not in the file, although a certificate counts every repeat as a draw.
#[test]
fn a_certificate_from_repeated_samples_is_remarked() {
    let note = "warning: 13 of 240 validation samples have the inputs of an earlier one";
    let certified = || {
        let target = AccuracyTarget::MaxLoss { loss: 0.2 };
        Objective::Certified(CertifyOptions::new(target))
    };
    let mut profile = profile(true);
    for (repeats, warned) in [(None, false), (Some(12), false), (Some(13), true)] {
        profile.repeats = repeats;
        let planned = planned(&profile, certified());
        let certificate = planned.plan.certificate.as_ref().unwrap();
        let text = as_text(&profile, &planned);
        assert_eq!(text.contains(note), warned, "{repeats:?}");
        let expected = format!(
            "expected, on the {} samples that it was not chosen on: ",
            certificate.samples
        );
        assert!(text.contains(&expected), "{text}");
    }
    let text = as_text(&profile, &planned(&profile, Objective::Ap));
    assert!(!text.contains(note), "nothing is certified");
}

/// Regression: a remote variant has no joules, and seconds were minimised without a remark.
#[test]
fn one_variant_without_joules_is_named() {
    let mut profile = profile(true);
    assert!(!as_text(&profile, &planned(&profile, Objective::Ap)).contains("in their place"));
    for cost in &mut profile.variants[1].costs {
        cost.energy_j = None;
    }
    let text = as_text(&profile, &planned(&profile, Objective::Ap));
    assert!(
        text.contains("the joules of `base` are unknown: seconds are minimised in their place"),
        "{text}"
    );
    let latency = CascadePlanner::new(&profile)
        .minimise(Minimise::Latency)
        .plan()
        .unwrap();
    assert!(!as_text(&profile, &latency).contains("in their place"));
}

/// Regression: a request for four ten-millionths of the currency was shown as 0.000000.
#[test]
fn small_prices_are_no_zeros() {
    assert_eq!(amount(4e-7, CostBasis::Money), "0.000000400");
}

#[test]
fn a_plan_stays_what_it_is() {
    let profile = profile(true);
    let plan = planned(&profile, Objective::Eo).plan;
    insta::assert_snapshot!("plan_json", plan.to_json().unwrap());
    assert_eq!(plan, planned(&profile, Objective::Eo).plan);
}

#[test]
fn without_joules_seconds_stand_in_and_say_so() {
    let profile = profile(false);
    let planned = planned(&profile, Objective::Ap);
    let graph = graph(&profile, &planned, 32);
    assert_eq!(graph.unit, "s");
    assert!(graph.axis.contains("standing in"), "{}", graph.axis);
    let text = as_text(&profile, &planned);
    assert!(!text.contains(" mJ"));
    assert!(
        text.contains("the joules of `small`, `base`, `large` are unknown: seconds"),
        "{text}"
    );
    assert!(graph::svg(&graph).unwrap().contains("AP"));
}

#[test]
fn an_app_places_the_plan_on_its_workers() {
    let variants =
        ["small", "base", "large"].map(|name| format!("[[variants]]\nname = \"{name}\"\ndir = \"x\"\n"));
    let app = |name: &str| {
        let workers = "[[workers]]\nname = \"a\"\nreplicas = 2\n[[workers]]\nname = \"b\"\n";
        App::parse(&format!("name = \"{name}\"\n{}{workers}", variants.concat())).unwrap()
    };
    let (mut profile, ours) = (profile(true), app("tiny-app"));
    for variant in &mut profile.variants {
        variant.checkpoint = Some(format!("of-{}", variant.name));
    }
    let plan = CascadePlanner::new(&profile).app(&ours).plan().unwrap().plan;
    let of_a = plan
        .placement
        .iter()
        .filter(|replica| replica.worker == "a")
        .count();
    assert_eq!(
        (plan.placement.len(), of_a),
        (3 * plan.variants.len(), 2 * plan.variants.len())
    );
    for replica in &plan.placement {
        assert_eq!(replica.checkpoint, Some(format!("of-{}", replica.variant)));
    }
    // The error occurs before planning, which would fail for this batch size.
    let error = CascadePlanner::new(&profile)
        .app(&app("other"))
        .batch(0)
        .plan()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`tiny-app`") && error.contains("`other`"),
        "{error}"
    );
}
