use serde_json::json;

use super::*;
use crate::cascade::{CascadeOptions, Objective, plan_cascade};
use kaskade_stated::families as stated;

#[test]
fn the_flow_is_what_the_cascade_was_planned_to_do() {
    let profile = stated::vit().profile();
    for objective in [Objective::Ap, Objective::Eo, Objective::Largest] {
        let options = CascadeOptions {
            objective,
            ..CascadeOptions::default()
        };
        let planned = plan_cascade(&profile, &options).unwrap();
        let flow = flow(&profile, &planned.plan).unwrap();
        for (place, stage) in planned.estimates.stages.iter().enumerate() {
            assert_eq!(flow.variants[place], stage.variant);
            assert!((flow.reach[place] - stage.reach).abs() < 1e-12);
            assert!((flow.answered[place] - stage.answered).abs() < 1e-12);
        }
        assert!((flow.answered.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // What comes into a stage is what it is reached by.
        for (place, reach) in flow.reach.iter().enumerate().skip(1) {
            let comes = flow.edges.iter().filter(|edge| edge.to == place);
            assert!((comes.map(|edge| edge.share).sum::<f64>() - reach).abs() < 1e-12);
        }
    }
}

#[test]
fn only_a_cascade_of_whole_models_has_a_flow() {
    let profile = stated::vit().profile();
    let planned = plan_cascade(&profile, &CascadeOptions::default()).unwrap();
    let spoilt = |place: &str, value: serde_json::Value| {
        let mut text = serde_json::to_value(&planned.plan).unwrap();
        text["gears"][0]["wiring"]["stages"][0][place] = value;
        flow(&profile, &serde_json::from_value(text).unwrap()).unwrap_err()
    };
    let task = spoilt("task", json!("find"));
    assert!(matches!(task, PlacementError::NotACascade { .. }), "{task}");
    let mut stranger = planned.plan.clone();
    let mut small = profile.clone();
    small.variants.remove(0);
    let name = profile.variants[0].name.clone();
    if stranger.variants.iter().all(|variant| variant.name != name) {
        stranger.variants[0].name.clone_from(&name);
    }
    assert!(flow(&small, &planned.plan).is_err() || planned.plan.variants.iter().all(|v| v.name != name));
    let broken = spoilt("variant", json!("missing"));
    assert!(matches!(broken, PlacementError::Cascade(_)), "{broken}");
}
