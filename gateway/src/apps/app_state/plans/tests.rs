use kaskade_actors::wire::Hop;

use super::*;

/// Returns a cascade of the stages `first` and `last` with these variants.
fn plan(first: &str, last: &str) -> Plan {
    let cascade = Plan::cascade("a").stage("first", first);
    cascade.below(0.5).then("last", last).build().unwrap()
}

fn reply(stages: &[&str], variant: &str) -> InferReply {
    let hop = |stage: &&str| Hop {
        stage: (*stage).to_owned(),
        wait_us: 0,
        run_us: 0,
        batch: 1,
        cost: None,
        answer: None,
    };
    InferReply {
        stage: stages.last().unwrap().to_string(),
        variant: variant.to_owned(),
        hops: stages.iter().map(hop).collect(),
        ..InferReply::default()
    }
}

/// Returns the variants of the gear that a reply fits.
fn variants(plans: &Plans, reply: &InferReply) -> Option<Vec<String>> {
    let (plan, gear) = plans.of_reply(reply)?;
    let stages = &plan.gear(gear).unwrap().wiring.stages;
    Some(stages.iter().map(|stage| stage.variant.clone()).collect())
}

/// Regression: a stored plan whose models could not be loaded was shown, and replies were counted by its variants.
#[test]
fn the_plan_that_ingresses_admit_under_counts_and_not_the_newest() {
    let mut plans = Plans::default();
    assert!(plans.admitted().is_none());
    plans.stored(1, plan("small", "large"));
    plans.admits("i", 0);
    assert_eq!(plans.admitted().unwrap().0, 1, "no ingress admits yet");
    plans.admits("i", 1);
    plans.stored(2, plan("tiny", "huge"));
    assert_eq!(plans.admitted().unwrap().0, 1);
    let answered = reply(&["first", "last"], "large");
    assert_eq!(variants(&plans, &answered).unwrap(), ["small", "large"]);
    // One ingress is ahead of the other: the variants of both their replies are found.
    plans.admits("j", 2);
    assert_eq!(plans.admitted().unwrap().0, 2);
    assert_eq!(variants(&plans, &answered).unwrap(), ["small", "large"]);
    assert_eq!(
        variants(&plans, &reply(&["first"], "tiny")).unwrap(),
        ["tiny", "huge"]
    );
    assert_eq!(variants(&plans, &reply(&["first"], "unknown")), None);
    plans.left("j");
    assert_eq!(plans.admitted().unwrap().0, 1);
    plans.admits("j", 7);
    assert!(
        plans.admitted().is_none(),
        "its plan is unknown, and no other is it"
    );
    plans.keep_ingresses(|ingress| ingress == "i");
    assert_eq!(plans.admitted().unwrap().0, 1);
}

#[test]
fn a_reply_belongs_to_the_gear_that_admitted_it_and_not_to_the_one_in_force() {
    let mut two = plan("small", "large");
    let mut fast = two.gears[0].clone();
    fast.name = "fast".to_owned();
    fast.wiring.stages[0].variant = "tiny".to_owned();
    two.gears.push(fast);
    let mut plans = Plans::default();
    plans.stored(3, two);
    plans.admits("i", 3);
    plans.shifted(GearShift { epoch: 2, gear: 1 });
    assert_eq!(plans.gear(3), 0, "the gear of another plan");
    plans.shifted(GearShift { epoch: 3, gear: 1 });
    assert_eq!(plans.gear(3), 1);
    assert_eq!(
        variants(&plans, &reply(&["first"], "small")).unwrap(),
        ["small", "large"]
    );
    assert_eq!(
        variants(&plans, &reply(&["first"], "tiny")).unwrap(),
        ["tiny", "large"]
    );
    // Both gears fit; the current one is returned.
    assert_eq!(
        variants(&plans, &reply(&["first", "last"], "large")).unwrap(),
        ["tiny", "large"]
    );
}

#[test]
fn only_the_newest_plans_are_kept() {
    let mut plans = Plans::default();
    for epoch in 1..=20 {
        plans.stored(epoch, plan("small", "large"));
    }
    assert_eq!(plans.stored.len(), KEPT);
    assert_eq!(plans.admitted().unwrap().0, 20);
}
