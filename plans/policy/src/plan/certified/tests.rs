use super::super::Plan;
use crate::certificate_monitor::tests::{list, plan};

#[test]
fn a_plan_with_a_certified_list_survives_the_file() {
    let plan = plan(list(&[0, 10, 20]));
    let text = plan.to_json().unwrap();
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
    assert_eq!(plan.gear(0).unwrap().name, "only");
    assert_eq!(plan.gear(1).unwrap().name, "c0");
    assert_eq!(
        (plan.gear_of_certified(2), plan.gear_of_certified(3)),
        (Some(3), None)
    );
    assert_eq!(
        (
            plan.certified_index(0),
            plan.certified_index(1),
            plan.certified_index(4)
        ),
        (Some(2), Some(0), None)
    );
    assert!(plan.gear(4).is_none());
}

#[test]
fn an_unsound_list_is_refused_with_its_path() {
    let refused = |change: &dyn Fn(&mut Plan), path: &str| {
        let mut plan = plan(list(&[0, 10, 20]));
        change(&mut plan);
        let error = plan.validate().unwrap_err();
        assert_eq!(error.path, path, "{error}");
    };
    refused(
        &|plan| plan.certified.as_mut().unwrap().cascade_of_gear[0] = 3,
        "certified.cascade_of_gear[0]",
    );
    refused(
        &|plan| plan.certified.as_mut().unwrap().cascade_of_gear.clear(),
        "certified.cascade_of_gear",
    );
    refused(
        &|plan| plan.certified.as_mut().unwrap().cascades[1].differs = Some(1_001),
        "certified.cascades[1].differs",
    );
    refused(
        &|plan| plan.certified.as_mut().unwrap().cascades[1].stages[0].deferred += 1,
        "certified.cascades[1].stages[0].samples",
    );
    refused(
        &|plan| plan.certified.as_mut().unwrap().cascades[1].stages[0].edges[1] = 0.7,
        "certified.cascades[1].stages[0].edges[1]",
    );
    refused(
        &|plan| {
            plan.certified.as_mut().unwrap().cascades[2].gear.wiring.stages[0].variant = "tiny".to_owned();
        },
        "certified.cascades[2].gear.wiring.stages[0].variant",
    );
}

#[test]
fn a_result_has_one_category() {
    let plan = plan(list(&[0, 10]));
    let stage = &plan.certified.as_ref().unwrap().cascades[1].stages[0];
    let of = |deferred, confidence| stage.category(deferred, confidence);
    assert_eq!(
        [of(true, 0.1), of(false, 0.5), of(false, 0.7), of(false, 0.95)],
        [0, 1, 2, 3]
    );
}
