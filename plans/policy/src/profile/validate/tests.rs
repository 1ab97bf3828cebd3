use proptest::prelude::*;

use super::*;
use crate::confidence::{Calibration, Estimator};
use crate::profile::{BeforeAfter, Validation};

fn sound() -> Profile {
    let cost = |batch: u32| BatchCost {
        energy_j: Some(0.1),
        utilisation: Some(0.5),
        ..BatchCost::new(batch, 0.001 * f64::from(batch))
    };
    let calibration = Calibration {
        estimator: Estimator::MaxSquared,
        temperature: 1.25,
    };
    let validation = Validation::new(vec![1, 2, 3], vec![0.5, 0.25, 1.0], vec![true, false, true]);
    let variant = |name: &str| VariantProfile {
        ece: BeforeAfter {
            before: 0.1,
            after: 0.05,
        },
        ..VariantProfile::new(name, calibration, vec![cost(1), cost(8)], validation.clone())
    };
    Profile {
        device: "cpu".into(),
        energy_source: "modelled".into(),
        ..Profile::new(
            "digits",
            Estimator::MaxSquared,
            vec![variant("tiny"), variant("large")],
        )
    }
}

/// A newer format has fields that this build does not know: the first of them was named, not the version.
#[test]
fn another_version_is_named_before_its_fields() {
    let json = sound().to_json().unwrap();
    let newer = json.replace("{\"version\":1,", "{\"version\":2,\"more\":[],");
    assert_ne!(newer, json);
    let error = Profile::from_json(&newer).unwrap_err().to_string();
    assert!(error.starts_with("version: version 2 is not 1"), "{error}");
    let unknown = json.replace("{\"version\":1,", "{\"version\":1,\"more\":[],");
    let error = Profile::from_json(&unknown).unwrap_err().to_string();
    assert!(error.contains("unknown field `more`"), "{error}");
    assert!(Profile::from_json(&format!("\u{feff}{json}")).is_ok());
    assert!(Profile::from_json("{\"version\": \"new\"}").is_err());
}

fn after(change: impl FnOnce(&mut Profile)) -> String {
    let mut profile = sound();
    change(&mut profile);
    profile
        .validate()
        .expect_err("the profile should be unsound")
        .to_string()
}

#[test]
fn the_time_of_a_hop_is_checked() {
    let quantiles = crate::profile::LatencyQuantiles {
        p10: 0.5,
        p90: 2.0,
        p95: 3.0,
        p99: 4.0,
    };
    let hop = |median_s, quantiles| {
        Some(crate::profile::HopTime {
            median_s,
            quantiles: Some(quantiles),
            by_rate: Vec::new(),
        })
    };
    let mut profile = sound();
    profile.hop = hop(1e-4, quantiles);
    assert_eq!(Profile::from_json(&profile.to_json().unwrap()).unwrap(), profile);
    assert!(after(|profile| profile.hop = hop(0.0, quantiles)).contains("hop.median_s"));
    let falling = crate::profile::LatencyQuantiles {
        p95: 1.5,
        ..quantiles
    };
    assert!(after(|profile| profile.hop = hop(1e-4, falling)).contains("hop.quantiles"));
    let row = |qps, factor| crate::profile::HopAtRate {
        qps,
        factor,
        quantiles: None,
    };
    let by_rate = |rows: &[crate::profile::HopAtRate]| {
        let mut hop = hop(1e-4, quantiles).unwrap();
        hop.by_rate = rows.to_vec();
        Some(hop)
    };
    profile.hop = by_rate(&[row(30.0, 1.8), row(900.0, 1.0)]);
    assert_eq!(Profile::from_json(&profile.to_json().unwrap()).unwrap(), profile);
    let falling = after(|profile| profile.hop = by_rate(&[row(30.0, 1.8), row(30.0, 1.0)]));
    assert!(falling.contains("hop.by_rate[1].qps"), "{falling}");
    assert!(after(|profile| profile.hop = by_rate(&[row(30.0, 0.0)])).contains("by_rate[0].factor"));
}

#[test]
fn the_time_between_batches_is_checked_and_read_in_microseconds() {
    let mut profile = sound();
    assert_eq!(profile.turnaround_us(), 0, "not measured");
    profile.turnaround_s = Some(8.4e-5);
    assert_eq!(Profile::from_json(&profile.to_json().unwrap()).unwrap(), profile);
    assert_eq!(profile.turnaround_us(), 84);
    for bad in [-1e-6, f64::NAN, f64::INFINITY] {
        assert!(after(|profile| profile.turnaround_s = Some(bad)).starts_with("turnaround_s: "));
    }
}

#[test]
fn repeats_are_fewer_than_the_samples_and_may_be_unknown() {
    let mut profile = sound();
    assert!(!profile.to_json().unwrap().contains("repeats"));
    for repeats in [0, 2] {
        profile.repeats = Some(repeats);
        assert_eq!(Profile::from_json(&profile.to_json().unwrap()).unwrap(), profile);
    }
    assert!(after(|profile| profile.repeats = Some(3)).starts_with("repeats: "));
}

#[test]
fn a_sound_profile_passes_and_survives_the_file() {
    let text = sound().to_json().unwrap();
    assert_eq!(Profile::from_json(&text).unwrap(), sound());
}

#[test]
fn columns_are_of_one_length_and_confidences_in_the_unit_interval() {
    let short = after(|profile| profile.variants[1].validation.correct.truncate(2));
    assert_eq!(
        short,
        "variants[1].validation.correct: has 2 entries for 3 samples"
    );
    assert!(
        after(|profile| profile.variants[0].validation.predictions.push(1)).contains("predictions: has 4")
    );
    for bad in [f64::NAN, 1.01, -0.01, f64::INFINITY] {
        let error = after(|profile| profile.variants[0].validation.confidences[2] = bad);
        assert!(
            error.starts_with("variants[0].validation.confidences[2]: "),
            "{error}"
        );
    }
    assert!(after(|profile| profile.samples = 0).starts_with("samples: "));
}

#[test]
fn costs_are_there_ascending_and_finite() {
    assert!(after(|profile| profile.variants[0].costs.clear()).starts_with("variants[0].costs: is empty"));
    assert!(
        after(|profile| profile.variants[0].costs[1].batch = 1).starts_with("variants[0].costs[1].batch")
    );
    assert!(
        after(|profile| profile.variants[0].costs[0].latency_s = f64::NAN).contains("costs[0].latency_s")
    );
    assert!(after(|profile| profile.variants[0].costs[0].latency_s = 0.0).contains("costs[0].latency_s"));
    assert!(
        after(|profile| profile.variants[0].costs[0].energy_j = Some(-1.0)).contains("costs[0].energy_j")
    );
    assert!(
        after(|profile| profile.variants[0].costs[0].utilisation = Some(1.5))
            .contains("costs[0].utilisation")
    );
}

#[test]
fn the_rest_is_checked_too() {
    assert!(after(|profile| profile.version = 7).starts_with("version: "));
    assert!(after(|profile| profile.variants.clear()).starts_with("variants: is empty"));
    assert!(after(|profile| profile.variants[1].name = "tiny".into()).starts_with("variants[1].name: "));
    assert!(after(|profile| profile.variants[1].ece.after = f64::NAN).starts_with("variants[1].ece.after"));
    let temperature = after(|profile| profile.variants[1].calibration.temperature = -1.0);
    assert!(
        temperature.starts_with("variants[1].calibration.temperature"),
        "{temperature}"
    );
}

#[test]
fn the_committed_schema_is_the_one_of_the_types() {
    crate::schema_tests::committed("profile.schema.json", &Profile::json_schema());
}

proptest! {
    /// Reading moves a number by one unit in the last place at most.
    #[test]
    fn any_columns_survive_the_file(confidences in prop::collection::vec(0.0..=1.0_f64, 1..50)) {
        let mut profile = sound();
        profile.samples = confidences.len();
        for variant in &mut profile.variants {
            variant.validation = Validation::new(
                vec![0; confidences.len()],
                confidences.clone(),
                vec![true; confidences.len()],
            );
        }
        let read = Profile::from_json(&profile.to_json().unwrap()).unwrap();
        for (a, b) in read.variants[0].validation.confidences.iter().zip(&confidences) {
            prop_assert!((a - b).abs() <= f64::EPSILON * b);
        }
    }
}
