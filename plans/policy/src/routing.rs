//! Where a result goes next, and which replica gets it.
//!
//! The router of a replica calls these functions per result, and so does the simulator.

mod local;

use thiserror::Error;

use crate::plan::{Band, Child, Edge, Exit, Target};
pub use local::{LocalLoad, local_replica, prefer_local};

/// Route of a result.
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
/// keeps its place in the group, and the broker continues to give it requests. `draw` as in [`destination`].
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

/// Returns whether a sender that knows none of the replicas behind an edge to be reachable leaves the request to the ingress that
/// owns it: the broker reports "no responders" only to the connection that sends the request and subscribes to the reply. A branch
/// of a pipeline (`is_root` is false) is sent regardless, because its inputs exist nowhere else.
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
pub struct EdgeCache<R> {
    replicas: Vec<R>,
    /// Cumulative sum of the shares up to and including each replica's own.
    ends: Vec<f64>,
    /// First replica that a draw from each equal part of [0, 1) can mean: from it the search begins.
    guide: Vec<usize>,
    backup: Option<R>,
}

impl<R: Copy> EdgeCache<R> {
    /// Caches an edge with these shares, in the order of the replicas' ids, and this backup list.
    pub fn new(shares: &[(R, f64)], backup: &[R], alive: impl Fn(R) -> bool) -> Self {
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

    /// Returns whether every draw leads to the stage's queue group.
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
mod tests;
