//! The names of the classes, as the workers announce them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::wire::Heartbeat;

/// Most variants whose names are kept.
const VARIANTS: usize = 1024;

/// The names of the classes by variant, for all ingresses of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassNames(Arc<RwLock<BTreeMap<String, Arc<[String]>>>>);

impl ClassNames {
    /// Notes the names that a heartbeat announces.
    pub(crate) fn record(&self, beat: &Heartbeat) {
        let named = beat.models.iter().filter(|(_, model)| !model.labels.is_empty());
        for (variant, model) in named {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let is_known = known.get(variant).is_some_and(|names| **names == *model.labels);
            let is_full = known.len() >= VARIANTS && !known.contains_key(variant);
            drop(known);
            if !is_known && !is_full {
                let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
                known.insert(variant.clone(), model.labels.as_slice().into());
            }
        }
    }

    /// Returns the names of that number of classes: those of the variant, else those of another one, because the variants of a family have
    /// the same classes in the same order. `None` if they are unknown.
    pub(super) fn of(&self, variant: &str, classes: u64) -> Option<Arc<[String]>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut fitting = known.get(variant).into_iter().chain(known.values());
        fitting
            .find(|names| u64::try_from(names.len()) == Ok(classes))
            .cloned()
    }
}

/// Returns the name that a misspelt one is nearest to; `None` if none is alike.
pub(super) fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let alike = names
        .iter()
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known));
    let (alike, known) = alike.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (alike > 0.8).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ModelInterface;

    #[test]
    fn names_are_those_of_the_variant_or_of_its_family() {
        let names = ClassNames::default();
        let announce = |variant: &str, labels: &[&str]| {
            let model = ModelInterface {
                labels: labels.iter().map(ToString::to_string).collect(),
                ..ModelInterface::default()
            };
            names.record(&Heartbeat {
                models: [(variant.to_owned(), model)].into(),
                ..Heartbeat::default()
            });
        };
        assert_eq!(names.of("small", 2), None);
        announce("small", &[]);
        assert_eq!(names.of("small", 0), None);
        announce("large", &["negative", "positive"]);
        assert_eq!(*names.of("small", 2).unwrap(), ["negative", "positive"]);
        assert_eq!(names.of("small", 3), None);
        announce("small", &["bad", "good"]);
        assert_eq!(*names.of("small", 2).unwrap(), ["bad", "good"]);
        announce("small", &["poor", "good"]);
        assert_eq!(*names.of("small", 2).unwrap(), ["poor", "good"]);
    }

    #[test]
    fn a_misspelt_name_is_near_one_name() {
        let names = ["negative", "positive"].map(str::to_owned);
        assert_eq!(nearest("Positve", &names), Some("positive"));
        assert_eq!(nearest("sea", &names), None);
        assert_eq!(nearest("sea", &[]), None);
    }
}
