//! When a worker's heartbeats describe its models.

use std::collections::{BTreeMap, BTreeSet};

use super::replica::Hosted;
use crate::wire::ModelInterface;

/// Heartbeats from one that describes the models to the next: half a second, after which a gateway that has just started knows them.
const PERIOD: u32 = 5;

/// Decides which heartbeats describe the models: the first one that lists another variant, and every fifth, for those who listen since
/// then. The others stay small.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    announced: BTreeSet<String>,
    since: u32,
}

impl Announcements {
    /// Returns what the next heartbeat says of the models of these replicas, by variant.
    pub(super) fn next<'a>(
        &mut self,
        hosted: impl Iterator<Item = &'a Hosted>,
    ) -> BTreeMap<String, ModelInterface> {
        let described =
            hosted.filter_map(|hosted| Some((&hosted.replica.variant, hosted.interface.as_ref()?)));
        self.of(described)
    }

    fn of<'a>(
        &mut self,
        described: impl Iterator<Item = (&'a String, &'a ModelInterface)>,
    ) -> BTreeMap<String, ModelInterface> {
        self.since = self.since.saturating_add(1);
        let described: BTreeMap<&String, &ModelInterface> = described.collect();
        let is_new = described.keys().any(|variant| !self.announced.contains(*variant));
        if !is_new && self.since < PERIOD {
            return BTreeMap::new();
        }
        self.since = 0;
        self.announced = described.keys().map(|variant| (*variant).clone()).collect();
        let copied = described.into_iter();
        copied
            .map(|(variant, model)| (variant.clone(), model.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_described_when_they_are_new_and_every_few_heartbeats() {
        let model = ModelInterface {
            labels: vec!["sea".to_owned()],
            ..ModelInterface::default()
        };
        let names = ["small", "large"].map(str::to_owned);
        let mut announcements = Announcements::default();
        let mut beat = |hosted: usize| {
            let hosted = names.iter().take(hosted).map(|name| (name, &model));
            announcements.of(hosted).len()
        };
        assert_eq!([beat(0), beat(1), beat(1), beat(2)], [0, 1, 0, 2]);
        assert_eq!(
            [beat(2), beat(2), beat(2), beat(2), beat(2), beat(2)],
            [0, 0, 0, 0, 2, 0]
        );
    }
}
