//! Tracks the loading of a new plan's replicas from heartbeats.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kaskade_actors::wire::Heartbeat;
use kaskade_policy::plan::Replica;

/// Time for which replicas must have failed to load before a plan counts as unusable, since workers retry.
pub(super) const FAILED_FOR: Duration = Duration::from_secs(5);

/// Loading state of the replicas of an epoch, as reported by workers.
#[derive(Debug)]
pub(super) struct Loading {
    epoch: u64,
    placed: Vec<Replica>,
    /// Workers that have loaded all their replicas of the plan, except the failed ones.
    in_place: BTreeSet<String>,
    /// Replicas of custom actors and stages, by actor.
    attached: BTreeMap<String, Vec<String>>,
    /// Replicas that failed to load, by worker, with the time of the first heartbeat that reported it.
    failed: BTreeMap<String, (Vec<String>, Instant)>,
}

impl Loading {
    /// Creates the state of an epoch with these replicas, before any report.
    pub(super) fn new(epoch: u64, placed: Vec<Replica>) -> Self {
        Self {
            epoch,
            placed,
            in_place: BTreeSet::new(),
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Updates the state from a heartbeat.
    pub(super) fn record(&mut self, beat: Heartbeat, now: Instant) {
        if beat.kind != "worker" {
            let replicas = beat.replicas.into_iter().filter(|_| !beat.leaving);
            self.attached
                .insert(beat.actor, replicas.map(|replica| replica.id).collect());
            return;
        }
        if beat.in_place >= self.epoch && !beat.leaving {
            self.in_place.insert(beat.actor.clone());
        } else {
            self.in_place.remove(&beat.actor);
        }
        if beat.in_place != self.epoch || beat.failed.is_empty() {
            self.failed.remove(&beat.actor);
            return;
        }
        let since = self.failed.get(&beat.actor).map_or(now, |(_, since)| *since);
        self.failed.insert(beat.actor, (beat.failed, since));
    }

    /// Returns the replicas, by worker, of variants and partitions that no replica serves.
    pub(super) fn missing(&self) -> BTreeMap<String, Vec<String>> {
        let part = |replica: &Replica| (replica.variant.clone(), replica.partition.map(|part| part.index));
        let is_attached = |replica: &Replica| self.attached.values().flatten().any(|id| *id == replica.id);
        let is_loaded = |replica: &Replica| {
            let failed = self.failed.get(&replica.worker);
            self.in_place.contains(&replica.worker)
                && failed.is_none_or(|(ids, _)| !ids.contains(&replica.id))
        };
        let is_served = |replica: &&Replica| is_loaded(replica) || is_attached(replica);
        let served: BTreeSet<_> = self.placed.iter().filter(is_served).map(part).collect();
        let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for replica in self
            .placed
            .iter()
            .filter(|replica| !served.contains(&part(replica)))
        {
            missing
                .entry(replica.worker.clone())
                .or_default()
                .push(replica.id.clone());
        }
        missing
    }

    /// Returns the replicas that have failed to load for [`FAILED_FOR`], by worker; `None` if there are none.
    pub(super) fn lasting_failures(&self, now: Instant) -> Option<BTreeMap<String, Vec<String>>> {
        let lasting = self.failed.iter();
        let lasting = lasting.filter(|(_, (_, since))| now.saturating_duration_since(*since) >= FAILED_FOR);
        let lasting: BTreeMap<_, _> = lasting
            .map(|(worker, (replicas, _))| (worker.clone(), replicas.clone()))
            .collect();
        (!lasting.is_empty()).then_some(lasting)
    }
}

#[cfg(test)]
mod tests {
    use kaskade_actors::wire::ReplicaBeat;

    use super::*;

    fn beat(actor: &str, in_place: u64, failed: &[&str]) -> Heartbeat {
        Heartbeat {
            actor: actor.to_owned(),
            kind: "worker".to_owned(),
            in_place,
            failed: failed.iter().map(ToString::to_string).collect(),
            ..Heartbeat::default()
        }
    }

    fn loading(placed: &[(&str, &str, &str)]) -> Loading {
        let placed = placed
            .iter()
            .map(|(id, variant, worker)| Replica::whole(*id, *variant, *worker, "cpu"));
        Loading::new(5, placed.collect())
    }

    #[test]
    fn replicas_that_stay_unloaded_are_lasting_failures() {
        let (mut loading, begun) = (loading(&[("large-0", "large", "w")]), Instant::now());
        loading.record(beat("w", 5, &["large-0"]), begun);
        loading.record(beat("w", 5, &["large-0"]), begun + FAILED_FOR / 2);
        assert_eq!(loading.lasting_failures(begun + FAILED_FOR / 2), None);
        let lasting = loading.lasting_failures(begun + FAILED_FOR).unwrap();
        assert_eq!(lasting["w"], ["large-0"]);
        // The load succeeded after all, or another epoch is in place.
        loading.record(beat("w", 5, &[]), begun + FAILED_FOR);
        assert_eq!(loading.lasting_failures(begun + 2 * FAILED_FOR), None);
        loading.record(beat("w", 4, &["large-0"]), begun);
        assert_eq!(loading.lasting_failures(begun + 2 * FAILED_FOR), None);
    }

    #[test]
    fn a_variant_is_missing_until_one_of_its_replicas_is_in_place() {
        let placed = [
            ("s-0", "small", "a"),
            ("s-1", "small", "b"),
            ("l-0", "large", "b"),
        ];
        let (mut loading, now) = (loading(&placed), Instant::now());
        assert_eq!(loading.missing().len(), 2, "nothing has reported");
        loading.record(beat("a", 5, &[]), now);
        assert_eq!(
            loading.missing(),
            BTreeMap::from([("b".to_owned(), vec!["l-0".to_owned()])])
        );
        loading.record(beat("b", 4, &[]), now);
        assert_eq!(loading.missing().len(), 1, "an earlier epoch");
        loading.record(beat("b", 5, &["l-0"]), now);
        assert_eq!(loading.missing().len(), 1, "it failed to load");
        loading.record(beat("b", 6, &[]), now);
        assert!(loading.missing().is_empty(), "a newer epoch replaced it");
        let leaving = Heartbeat {
            leaving: true,
            ..beat("b", 6, &[])
        };
        loading.record(leaving, now);
        assert_eq!(loading.missing().len(), 1);
    }

    /// Plans place such replicas on a worker without a process.
    #[test]
    fn a_custom_actor_serves_its_replica() {
        let mut loading = loading(&[("rounder-0", "rounder", "unused")]);
        let beat = |leaving| Heartbeat {
            actor: "rounder-0".to_owned(),
            kind: "custom".to_owned(),
            leaving,
            replicas: vec![ReplicaBeat {
                id: "rounder-0".to_owned(),
                ..ReplicaBeat::default()
            }],
            ..Heartbeat::default()
        };
        assert_eq!(loading.missing().len(), 1);
        loading.record(beat(false), Instant::now());
        assert!(loading.missing().is_empty());
        loading.record(beat(true), Instant::now());
        assert_eq!(loading.missing().len(), 1);
    }
}
