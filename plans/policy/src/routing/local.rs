//! Decides which requests without shares stay in the sender's own process.

/// Returns whether a request on an edge without shares goes to the replica in the sender's own process rather than to the queue
/// group.
///
/// Delivery in the process saves encoding, two hops through the broker and decoding. This outweighs the best placement as long as
/// the request joins the replica's next batch. Once a whole batch waits there, the request would wait for a run of the model, and
/// the queue group may choose an idle replica elsewhere.
pub fn prefer_local(local_queue: usize, max_batch: u32) -> bool {
    local_queue < max_batch as usize
}

/// The load of a replica in the sender's own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalLoad {
    /// Requests that it has taken and that are not in its running batch.
    pub waiting: usize,
    /// Requests that it has taken and not answered.
    pub taken: usize,
    /// Largest batch of the replica in the current gear.
    pub max_batch: u32,
}

/// Picks the replica in the sender's own process that gets a request on an edge without shares, among those that serve the edge's stage:
/// the least busy one with room in its next batch ([`prefer_local`]). If none has room and the plan places no replica of the stage in
/// another process, as `alone` tells, it is the least busy one at which fewer than 16 batches wait. The first of equally busy ones;
/// `None` leaves the choice to the queue group.
pub fn local_replica<R>(
    replicas: impl Iterator<Item = (R, LocalLoad)> + Clone,
    alone: impl FnOnce() -> bool,
) -> Option<R> {
    least_busy(replicas.clone(), prefer_local)
        .or_else(|| alone().then(|| least_busy(replicas, prefer_local_alone))?)
}

fn least_busy<R>(
    replicas: impl Iterator<Item = (R, LocalLoad)>,
    has_room: fn(usize, u32) -> bool,
) -> Option<R> {
    let candidates = replicas.filter(|(_, load)| has_room(load.waiting, load.max_batch));
    let least = candidates.min_by_key(|(_, load)| load.taken);
    least.map(|(replica, _)| replica)
}

/// Batches that may wait at a replica in the sender's own process while the plan places no replica of the stage elsewhere.
const BATCHES_ALONE: usize = 16;

/// Returns whether a request goes to the replica in the sender's own process if the plan places no replica of its stage elsewhere:
/// also while a batch waits there, because the queue group would give it to the same replica. Beyond 16 batches it goes to the
/// queue group, so that an actor outside the plan gets a part of the work.
fn prefer_local_alone(local_queue: usize, max_batch: u32) -> bool {
    local_queue < BATCHES_ALONE.saturating_mul(max_batch as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbour_is_preferred_until_a_batch_waits_there() {
        assert!(prefer_local(0, 1));
        assert!(prefer_local(31, 32));
        assert!(!prefer_local(32, 32));
        assert!(prefer_local_alone(32, 32) && prefer_local_alone(511, 32));
        assert!(!prefer_local_alone(512, 32));
    }

    #[test]
    fn the_least_busy_neighbour_with_room_is_picked_and_with_more_room_where_there_is_no_other() {
        let load = |waiting, running| LocalLoad {
            waiting,
            taken: waiting + running,
            max_batch: 4,
        };
        let pick =
            |loads: &[LocalLoad], alone: bool| local_replica((0..).zip(loads.iter().copied()), || alone);
        // The running batch counts, and a whole batch that waits leaves no room in the next one.
        assert_eq!(pick(&[load(2, 4), load(3, 0), load(4, 0)], false), Some(1));
        assert_eq!(pick(&[load(1, 2), load(3, 0)], false), Some(0), "equally busy");
        let full = [load(9, 4), load(5, 4), load(64, 0)];
        assert_eq!((pick(&full, false), pick(&full, true)), (None, Some(1)));
        assert_eq!(pick(&[load(64, 0)], true), None, "16 batches wait");
        assert_eq!(pick(&[], true), None);
    }
}
