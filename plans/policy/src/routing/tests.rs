use proptest::prelude::*;

use super::*;

fn cascade() -> Exit {
    Exit::Bands {
        bands: vec![
            Band::forward(0.0, Edge::to("large")),
            Band::forward(0.3, Edge::to("middle")),
            Band::reply(0.7),
        ],
    }
}

fn leads_to(confidence: f64) -> String {
    match route(&cascade(), Some(confidence)).unwrap() {
        Route::Reply => "reply".into(),
        Route::Forward(edge) => edge.stage.clone(),
        Route::FanOut(_) => "children".into(),
    }
}

#[test]
fn what_is_too_long_for_a_stage_goes_where_its_least_certain_answers_go() {
    let onward = |exit: &Exit| past_a_short_context(exit).map(|edge| edge.stage.clone());
    assert_eq!(onward(&cascade()).as_deref(), Some("large"));
    let always = Band::reply(0.0);
    assert_eq!(onward(&Exit::Bands { bands: vec![always] }), None);
    assert_eq!(onward(&Exit::Reply), None);
    // The next partition is of the same model.
    assert_eq!(
        onward(&Exit::Next {
            to: Edge::to("second")
        }),
        None
    );
}

#[test]
fn a_living_replica_is_named_only_while_another_is_silent() {
    let replicas = ["a", "b", "c"];
    let named = |silent: &'static str, draw| {
        let (silent, alive) = (|id: &str| id == silent, |id: &str| id != silent && id != "c");
        past_the_silent(replicas.into_iter(), silent, alive, draw)
    };
    assert_eq!(named("missing", 0.5), None);
    assert_eq!((named("a", 0.0), named("a", 0.99)), (Some("b"), Some("b")));
    let none_alive = past_the_silent(replicas.into_iter(), |_| true, |_| false, 0.5);
    assert_eq!(none_alive, None, "the group may have members");
}

#[test]
fn what_must_settle_is_answered_where_it_would_be_passed_on() {
    let exit = cascade();
    assert_eq!(accept_below_threshold(&exit, Some(0.1)), Ok(Route::Reply));
    assert_eq!(
        accept_below_threshold(&exit, None),
        Err(RoutingError::NoConfidence),
        "never without a confidence"
    );
    let partition = Exit::Next { to: Edge::to("rest") };
    assert!(
        matches!(accept_below_threshold(&partition, None), Ok(Route::Forward(_))),
        "half a model has no answer"
    );
}

#[test]
fn the_band_picks_the_target_and_starts_inclusive() {
    let ways: Vec<_> = [0.0, 0.299, 0.3, 0.69, 0.7, 1.0].map(leads_to).to_vec();
    assert_eq!(ways, ["large", "large", "middle", "middle", "reply", "reply"]);
}

#[test]
fn a_result_without_a_usable_confidence_is_an_error() {
    assert_eq!(route(&cascade(), None), Err(RoutingError::NoConfidence));
    for bad in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        assert!(matches!(
            route(&cascade(), Some(bad)),
            Err(RoutingError::BadConfidence(_))
        ));
    }
    assert_eq!(
        route(&Exit::Bands { bands: vec![] }, Some(0.5)),
        Err(RoutingError::NotCovered(0.5))
    );
}

#[test]
fn other_exits_ask_for_no_confidence() {
    let next = Exit::Next { to: Edge::to("b") };
    assert!(matches!(route(&next, None), Ok(Route::Forward(edge)) if edge.stage == "b"));
    assert_eq!(route(&Exit::Reply, None), Ok(Route::Reply));
    let children = vec![Child {
        to: Edge::to("c"),
        multiplicity: 2.0,
    }];
    assert!(matches!(
        route(&Exit::FanOut { children }, None),
        Ok(Route::FanOut([_]))
    ));
    let only = Band::reply(0.0);
    assert_eq!(route(&Exit::Bands { bands: vec![only] }, None), Ok(Route::Reply));
}

fn shared(shares: &[(&str, f64)], backup: &[&str]) -> Edge {
    Edge {
        shares: shares
            .iter()
            .map(|(id, share)| ((*id).to_owned(), *share))
            .collect(),
        backup: backup.iter().map(|id| (*id).to_owned()).collect(),
        ..Edge::to("s")
    }
}

#[test]
fn shares_divide_the_draws() {
    let edge = shared(&[("a", 0.25), ("b", 0.75)], &[]);
    let count = (0..1000)
        .filter(|i| destination(&edge, |_| true, f64::from(*i) / 1000.0) == Destination::Replica("a"))
        .count();
    assert_eq!(count, 250);
}

#[test]
fn the_dead_get_nothing_and_backups_step_in() {
    let edge = shared(&[("a", 0.25), ("b", 0.75)], &["x", "y"]);
    for i in 0..100 {
        let draw = f64::from(i) / 100.0;
        assert_eq!(
            destination(&edge, |id| id != "b", draw),
            Destination::Replica("a")
        );
        assert_eq!(
            destination(&edge, |id| id == "y", draw),
            Destination::Replica("y")
        );
        assert_eq!(destination(&edge, |_| false, draw), Destination::QueueGroup);
    }
    assert_eq!(
        destination(&Edge::to("s"), |_| true, 0.5),
        Destination::QueueGroup
    );
    assert_eq!(destination(&edge, |_| true, f64::NAN), Destination::Replica("b"));
}

#[test]
fn a_partner_gets_all_of_its_senders_requests_while_it_lives() {
    let edge = Edge {
        pairs: [("x".to_owned(), "b".to_owned())].into(),
        ..shared(&[("a", 1.0), ("b", 0.0)], &[])
    };
    let to = |sender, dead: &'static str| destination_from(&edge, sender, move |id| id != dead, 0.5);
    assert_eq!(to("x", ""), Destination::Replica("b"));
    assert_eq!(to("x", "b"), Destination::Replica("a"));
    assert_eq!(to("y", ""), Destination::Replica("a"));
}

#[test]
fn a_member_is_a_living_one_or_else_any() {
    let replicas = ["a", "b", "c"];
    let chosen = |alive: &[&str], draw| member(replicas.into_iter(), |id| alive.contains(&id), draw);
    assert_eq!(
        [0.0, 0.34, 0.99].map(|draw| chosen(&replicas, draw)),
        [Some("a"), Some("b"), Some("c")]
    );
    assert_eq!(
        [0.0, 0.49, 0.5].map(|draw| chosen(&["a", "c"], draw)),
        [Some("a"), Some("a"), Some("c")]
    );
    assert_eq!(chosen(&[], 0.5), Some("b"), "no heartbeats: any of them");
    assert_eq!(member(std::iter::empty(), |_| true, 0.5), None);
    for odd in [1.0, f64::NAN, -1.0] {
        assert!(chosen(&["b"], odd) == Some("b"), "{odd}");
    }
}

#[test]
fn a_request_without_a_reachable_replica_goes_back_to_its_ingress() {
    let replicas = || ["a", "b"].into_iter();
    assert!(leave_to_ingress(true, replicas(), |_| false));
    assert!(!leave_to_ingress(true, replicas(), |id| id == "b"));
    assert!(!leave_to_ingress(false, replicas(), |_| false), "a branch");
    assert!(leave_to_ingress(true, std::iter::empty(), |_| true));
}

#[test]
fn draws_are_even() {
    let mut tenths = [0; 10];
    (0..1000).for_each(|count| tenths[(draw(count) * 10.0) as usize] += 1);
    assert!(tenths.iter().all(|n| (98..=102).contains(n)), "{tenths:?}");
}

proptest! {
    #[test]
    fn a_draw_never_lands_on_the_dead(
        shares in prop::collection::btree_map("[a-f]", 0.0..1.0_f64, 1..6),
        dead in prop::collection::btree_set("[a-f]", 0..6),
        draw in 0.0..1.0_f64,
    ) {
        let edge = Edge { shares: shares.clone(), ..Edge::to("s") };
        let living = shares.iter().any(|(id, share)| *share > 0.0 && !dead.contains(id));
        match destination(&edge, |id| !dead.contains(id), draw) {
            Destination::Replica(id) => prop_assert!(shares[id] > 0.0 && !dead.contains(id)),
            Destination::QueueGroup => prop_assert!(!living),
        }
    }

    #[test]
    fn the_prepared_choice_is_the_same(
        shares in prop::collection::btree_map("[a-f]", 0.0..1.0_f64, 0..6),
        backup in prop::collection::vec("[a-h]", 0..3),
        dead in prop::collection::btree_set("[a-h]", 0..8),
        draws in prop::collection::vec(0.0..1.0_f64, 20),
    ) {
        let edge = Edge { shares, backup, ..Edge::to("s") };
        let shares: Vec<(&str, f64)> = edge.shares.iter().map(|(id, share)| (id.as_str(), *share)).collect();
        let backup: Vec<&str> = edge.backup.iter().map(String::as_str).collect();
        let living = EdgeCache::new(&shares, &backup, |id| !dead.contains(id));
        prop_assert_eq!(
            living.is_queue_group(),
            destination(&edge, |id| !dead.contains(id), 0.5) == Destination::QueueGroup
        );
        for draw in draws {
            prop_assert_eq!(living.destination(draw), destination(&edge, |id| !dead.contains(id), draw));
        }
    }
}
