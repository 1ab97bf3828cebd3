//! Decides when a worker's heartbeats describe its models.

use std::collections::{BTreeMap, BTreeSet};

use super::replica::Hosted;
use crate::wire::ModelInterface;

/// Interval between descriptions of the models, in heartbeats: half a second, so that a new gateway learns them within
/// that time.
const PERIOD: u32 = 5;

/// Interval between descriptions with class names, in heartbeats: two seconds. Class names are most of a description,
/// and only delayed labels need them.
const PERIOD_OF_LABELS: u32 = 20;

/// Largest size of the class names in one heartbeat, bytes, so that it fits into one message of the broker. A variant
/// whose names do not fit is described without them; the other variants of its family have the same names.
const MAX_LABEL_BYTES: usize = 256 << 10;

/// Decides which heartbeats describe the models: the first one that lists a new variant, and every fifth, for listeners
/// that joined later. The others stay small.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    announced: BTreeSet<String>,
    since: u32,
    since_labels: u32,
}

impl Announcements {
    /// Returns the model descriptions for the next heartbeat, by variant.
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
        self.since_labels = self.since_labels.saturating_add(1);
        let described: BTreeMap<&String, &ModelInterface> = described.collect();
        let is_new = described.keys().any(|variant| !self.announced.contains(*variant));
        if !is_new && self.since < PERIOD {
            return BTreeMap::new();
        }
        self.since = 0;
        self.announced = described.keys().map(|variant| (*variant).clone()).collect();
        let mut room = 0;
        if is_new || self.since_labels >= PERIOD_OF_LABELS {
            (room, self.since_labels) = (MAX_LABEL_BYTES, 0);
        }
        let copied = described.into_iter().map(|(variant, model)| {
            let bytes = model.labels.iter().map(String::len).sum();
            let fits = room.checked_sub(bytes);
            room = fits.unwrap_or(room);
            let labels = fits.map(|_| model.labels.clone()).unwrap_or_default();
            let described = ModelInterface {
                inputs: model.inputs.clone(),
                outputs: model.outputs.clone(),
                labels,
            };
            (variant.clone(), described)
        });
        copied.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Heartbeat, Message as _};

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

    /// A heartbeat above the broker's limit would be lost, and its worker would count as lost.
    #[test]
    fn names_of_classes_come_seldom_and_fit_into_a_heartbeat() {
        let model = ModelInterface {
            labels: vec!["n".repeat(60); 1 << 10],
            ..ModelInterface::default()
        };
        let names: Vec<String> = (0..20).map(|number| format!("variant-{number}")).collect();
        let mut announcements = Announcements::default();
        let mut beat = || {
            let models = announcements.of(names.iter().map(|name| (name, &model)));
            let with_labels = models.values().filter(|model| !model.labels.is_empty()).count();
            let beat = Heartbeat {
                models,
                ..Heartbeat::default()
            };
            assert!(beat.encode().unwrap().len() < 512 << 10);
            (beat.models.len(), with_labels)
        };
        assert_eq!(beat(), (20, 4));
        let later: Vec<(usize, usize)> = (0..20).map(|_| beat()).filter(|beat| beat.0 > 0).collect();
        assert_eq!(later, [(20, 0), (20, 0), (20, 0), (20, 4)]);
    }
}
