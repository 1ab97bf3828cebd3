//! Where a result goes next, and which replica gets it.
//!
//! The router of a replica calls these functions per result, and so does the simulator.

mod local;

use thiserror::Error;

use crate::plan::{Band, Child, Edge, Exit, Target};
pub use local::{LocalLoad, local_replica, prefer_local};

/// What to do with a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Route<'a> {
    /// Answer the client.
    Reply,
    /// Send the request on along one edge.
    Forward(&'a Edge),
    /// Send it to every child.
    FanOut(&'a [Child]),
}

/// Why a result has no route.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum RoutingError {
    /// The stage exits by confidence and the result has none.
    #[error("the stage exits by confidence bands and the result carries none; calibrate its variant")]
    NoConfidence,
    /// The confidence is not a number in [0, 1].
    #[error("confidence {0} is not in [0, 1]")]
    BadConfidence(f64),
    /// No band covers the confidence; a validated plan has no such stage.
    #[error("no band covers confidence {0}; validate the plan")]
    NotCovered(f64),
}

/// Returns the exit of a stage for a result of this confidence (HybridServe §IV-B, §IV-C).
///
/// Bands must be ascending, as [`Plan::validate`](crate::plan::Plan::validate) demands. A single band needs no confidence.
///
/// # Errors
/// A [`RoutingError`] if bands must choose and the confidence is absent or not in [0, 1]: such a result is an error to
/// report, neither an answer to trust nor one to pass on.
pub fn route(exit: &Exit, confidence: Option<f64>) -> Result<Route<'_>, RoutingError> {
    match exit {
        Exit::Reply => Ok(Route::Reply),
        Exit::Next { to } => Ok(Route::Forward(to)),
        Exit::FanOut { children } => Ok(Route::FanOut(children)),
        Exit::Bands { bands } => Ok(match &band(bands, confidence)?.to {
            Target::Reply => Route::Reply,
            Target::Stage(edge) => Route::Forward(edge),
        }),
    }
}

/// Returns the exit of a stage if the request must not escalate any more: where a band would escalate, the result is the reply.
/// Partitions of a model and tasks of a pipeline are forwarded as usual, because their results are not answers.
///
/// # Errors
/// As [`route`].
pub fn accept_below_threshold(exit: &Exit, confidence: Option<f64>) -> Result<Route<'_>, RoutingError> {
    let route = route(exit, confidence)?;
    Ok(match exit {
        Exit::Bands { .. } => Route::Reply,
        Exit::Reply | Exit::Next { .. } | Exit::FanOut { .. } => route,
    })
}

/// Returns where a request goes that is too long for the model of a stage: where the stage sends what it is least sure of. `None` if it
/// replies to that too, or does not exit by confidence.
pub fn past_a_short_context(exit: &Exit) -> Option<&Edge> {
    let Exit::Bands { bands } = exit else {
        return None;
    };
    match &bands.first()?.to {
        Target::Stage(edge) => Some(edge),
        Target::Reply => None,
    }
}

fn band(bands: &[Band], confidence: Option<f64>) -> Result<&Band, RoutingError> {
    if let [only] = bands {
        return Ok(only);
    }
    let confidence = confidence.ok_or(RoutingError::NoConfidence)?;
    if !(0.0..=1.0).contains(&confidence) {
        return Err(RoutingError::BadConfidence(confidence));
    }
    bands
        .partition_point(|band| band.from <= confidence)
        .checked_sub(1)
        .and_then(|last| bands.get(last))
        .ok_or(RoutingError::NotCovered(confidence))
}

/// The destination of a request that takes an edge. Replicas are ids for the actors and numbers for the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination<R> {
    /// This replica.
    Replica(R),
    /// Whichever replica of the stage the broker picks.
    QueueGroup,
}

/// Picks the replica for one request: by the edge's shares, renormalised over the living; if none of those lives, the
/// first living backup (Loki §5.1); if there is none either, or the edge has no shares, the stage's queue group.
///
/// `draw` is uniform in [0, 1), from the caller's generator. The queue group comes last because the caller's view of live
/// replicas is always slightly stale: the broker knows of a replica that started a moment ago.
pub fn destination(edge: &Edge, alive: impl Fn(&str) -> bool, draw: f64) -> Destination<&str> {
    if edge.shares.is_empty() {
        return Destination::QueueGroup;
    }
    let shares = edge.shares.iter().map(|(id, share)| (id.as_str(), *share));
    let living = summed(shares, &alive);
    let point = draw * living.clone().last().map_or(0.0, |(_, end)| end);
    let mut chosen = None;
    for (id, end) in living {
        chosen = Some(id);
        if point < end {
            break;
        }
    }
    let backup = || edge.backup.iter().map(String::as_str).find(|id| alive(id));
    chosen
        .or_else(backup)
        .map_or(Destination::QueueGroup, Destination::Replica)
}

/// Picks the replica for one request that this replica sends: its partner on the edge while that lives, so that what goes from
/// partition to partition stays in one copy of the model; otherwise as [`destination`].
pub fn destination_from<'a>(
    edge: &'a Edge,
    sender: &str,
    alive: impl Fn(&str) -> bool,
    draw: f64,
) -> Destination<&'a str> {
    let partner = edge.pairs.get(sender).filter(|partner| alive(partner));
    partner.map_or_else(
        || destination(edge, &alive, draw),
        |partner| Destination::Replica(partner),
    )
}

/// Picks one of the replicas that serve a stage, each as likely as the others, for what the stage's queue group cannot be given: a
/// live one or, if no heartbeat of any has arrived, any of them; the broker reports it if it is absent. `draw` as in
/// [`destination`].
pub fn member<'a>(
    replicas: impl Iterator<Item = &'a str> + Clone,
    alive: impl Fn(&str) -> bool,
    draw: f64,
) -> Option<&'a str> {
    let one_of = |count: usize, draw: f64| ((draw * count as f64) as usize).min(count.saturating_sub(1));
    let mut living = replicas.clone().filter(|id| alive(id));
    let count = living.clone().count();
    living
        .nth(one_of(count, draw))
        .or_else(|| replicas.clone().nth(one_of(replicas.count(), draw)))
}

/// The replica of a stage to name instead of using its queue group: a live one, if another is silent. A stopped process
/// keeps its place in the group, and the broker goes on giving it requests. `draw` as in [`destination`].
///
/// Actors in the group that the plan does not place get nothing while this lasts.
pub fn past_the_silent<'a>(
    replicas: impl Iterator<Item = &'a str> + Clone,
    silent: impl Fn(&str) -> bool,
    alive: impl Fn(&str) -> bool,
    draw: f64,
) -> Option<&'a str> {
    if !replicas.clone().any(silent) {
        return None;
    }
    member(replicas.filter(|id| alive(id)), |_| true, draw)
}

/// Whether a sender that knows none of the replicas behind an edge to be reachable leaves the request to the ingress that owns it: the
/// broker reports "no responders" only to the connection that sends the request and subscribes to the reply. A branch of a pipeline
/// (`is_root` is false) is sent regardless, because its inputs exist nowhere else.
pub fn leave_to_ingress<'a>(
    is_root: bool,
    mut replicas: impl Iterator<Item = &'a str>,
    reachable: impl Fn(&str) -> bool,
) -> bool {
    is_root && !replicas.any(reachable)
}

/// The living replicas that have a share, each with the sum of the shares up to and with its own.
fn summed<R: Copy>(
    shares: impl Iterator<Item = (R, f64)> + Clone,
    alive: impl Fn(R) -> bool + Clone,
) -> impl Iterator<Item = (R, f64)> + Clone {
    shares
        .filter(move |(id, share)| *share > 0.0 && alive(*id))
        .scan(0.0, |sum, (id, share)| {
            *sum += share;
            Some((id, *sum))
        })
}

/// Caches the result of [`destination`] for one edge while liveness does not change: the same choice in constant time, for a
/// caller that routes millions of requests in between.
#[derive(Debug, Clone, PartialEq)]
pub struct Living<R> {
    replicas: Vec<R>,
    /// By replica, the sum of the shares up to and with its own.
    ends: Vec<f64>,
    /// By equal parts of [0, 1), the first replica that a draw from there can mean: from it the search begins.
    guide: Vec<usize>,
    backup: Option<R>,
}

impl<R: Copy> Living<R> {
    /// Of an edge with these shares, in the order of the replicas' ids, and this backup list.
    pub fn of(shares: &[(R, f64)], backup: &[R], alive: impl Fn(R) -> bool) -> Self {
        let (replicas, ends): (Vec<R>, Vec<f64>) = summed(shares.iter().copied(), &alive).unzip();
        let total = ends.last().copied().unwrap_or_default();
        let part = |part: usize| part as f64 / ends.len() as f64 * total;
        Self {
            guide: (0..ends.len())
                .map(|at| ends.partition_point(|end| *end <= part(at)))
                .collect(),
            backup: backup.iter().copied().find(|id| !shares.is_empty() && alive(*id)),
            replicas,
            ends,
        }
    }

    /// Whether every draw leads to the stage's queue group.
    pub fn is_queue_group(&self) -> bool {
        self.replicas.is_empty() && self.backup.is_none()
    }

    /// Picks the replica for one request, as [`destination`] does.
    pub fn destination(&self, draw: f64) -> Destination<R> {
        let (Some(total), Some(last)) = (self.ends.last(), self.replicas.last()) else {
            return self.backup.map_or(Destination::QueueGroup, Destination::Replica);
        };
        let point = draw * total;
        let part = (draw * self.guide.len() as f64) as usize;
        let mut place = self.guide.get(part).copied().unwrap_or(self.ends.len());
        // Rounding may have led one part too far.
        while place > 0 && self.ends.get(place - 1).is_some_and(|end| point < *end) {
            place -= 1;
        }
        while self.ends.get(place).is_some_and(|end| *end <= point) {
            place += 1;
        }
        Destination::Replica(*self.replicas.get(place).unwrap_or(last))
    }
}

/// Returns the draw with this number, of a low-discrepancy sequence in [0, 1) (multiples of the golden ratio): successive draws follow
/// the shares as evenly as possible.
pub fn draw(count: u64) -> f64 {
    let turned = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (turned >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cascade() -> Exit {
        let band = |from, to: Option<&str>| Band {
            from,
            to: to.map_or(Target::Reply, |stage| Target::Stage(Edge::to(stage))),
        };
        Exit::Bands {
            bands: vec![
                band(0.0, Some("large")),
                band(0.3, Some("middle")),
                band(0.7, None),
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
        let always = Band {
            from: 0.0,
            to: Target::Reply,
        };
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
        let slice = Exit::Next { to: Edge::to("rest") };
        assert!(
            matches!(accept_below_threshold(&slice, None), Ok(Route::Forward(_))),
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
        let only = Band {
            from: 0.0,
            to: Target::Reply,
        };
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
            let living = Living::of(&shares, &backup, |id| !dead.contains(id));
            prop_assert_eq!(
                living.is_queue_group(),
                destination(&edge, |id| !dead.contains(id), 0.5) == Destination::QueueGroup
            );
            for draw in draws {
                prop_assert_eq!(living.destination(draw), destination(&edge, |id| !dead.contains(id), draw));
            }
        }
    }
}
