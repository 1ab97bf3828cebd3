//! Class names as announced by workers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kaskade_policy::certificate_monitor::Class;

use crate::wire::Heartbeat;

/// Largest number of variants whose names are kept.
const VARIANTS: usize = 1024;

/// Longest name that is compared for similarity, bytes: the time grows with the product of both lengths.
const COMPARED: usize = 256;

/// Class names by variant, for all ingresses of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassNames(Arc<RwLock<BTreeMap<String, Arc<[String]>>>>);

impl ClassNames {
    /// Records the names that a heartbeat announces, and drops those of variants for which `is_planned` is false.
    pub(crate) fn record(&self, beat: &Heartbeat, is_planned: impl Fn(&str) -> bool) {
        let named = beat.models.iter().filter(|(_, model)| !model.labels.is_empty());
        for (variant, model) in named {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let is_known = known.get(variant).is_some_and(|names| **names == *model.labels);
            drop(known);
            if is_known || !is_planned(variant) {
                continue;
            }
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            known.retain(|variant, _| is_planned(variant));
            if known.len() < VARIANTS || known.contains_key(variant) {
                known.insert(variant.clone(), model.labels.as_slice().into());
            }
        }
    }

    /// Returns the names of the classes that a variant chose from: the names announced by the variant, else those of
    /// another variant, because the variants of a family have the same classes in the same order. `None` if no list has
    /// that number of classes with that class name at its index.
    pub(super) fn of(&self, variant: &str, class: &Class) -> Option<Arc<[String]>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |names: &&Arc<[String]>| u64::try_from(names.len()) == Ok(class.of);
        let agrees = |names: &&Arc<[String]>| {
            let place = usize::try_from(class.number);
            let own = place.ok().and_then(|place| names.get(place));
            class
                .name
                .as_deref()
                .is_none_or(|name| own.is_some_and(|own| own == name))
        };
        let own = known.get(variant).filter(fits);
        own.or_else(|| known.values().find(|names| fits(names) && agrees(names)))
            .cloned()
    }
}

/// Returns the name most similar to a misspelt one; `None` if none is similar. Long names are never similar.
pub(super) fn nearest<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    if name.len() > COMPARED {
        return None;
    }
    let name = name.to_lowercase();
    let alike = names
        .iter()
        .filter(|known| known.len() <= COMPARED)
        .map(|known| (strsim::jaro_winkler(&name, &known.to_lowercase()), known));
    let (alike, known) = alike.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (alike > 0.8).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ModelInterface;

    fn class(number: u64, of: u64, name: Option<&str>) -> Class {
        let name = name.map(Arc::from);
        Class { number, of, name }
    }

    fn announce(names: &ClassNames, variant: &str, labels: &[&str], planned: &[&str]) {
        let model = ModelInterface {
            labels: labels.iter().map(ToString::to_string).collect(),
            ..ModelInterface::default()
        };
        let beat = Heartbeat {
            models: [(variant.to_owned(), model)].into(),
            ..Heartbeat::default()
        };
        names.record(&beat, |variant| planned.contains(&variant));
    }

    #[test]
    fn names_are_those_of_the_variant_or_of_its_family() {
        let names = ClassNames::default();
        let announce =
            |variant: &str, labels: &[&str]| announce(&names, variant, labels, &["small", "large"]);
        let of = |count| names.of("small", &class(0, count, None));
        assert_eq!(of(2), None);
        announce("small", &[]);
        assert_eq!(of(0), None);
        announce("large", &["negative", "positive"]);
        assert_eq!(*of(2).unwrap(), ["negative", "positive"]);
        assert_eq!(of(3), None);
        announce("small", &["bad", "good"]);
        assert_eq!(*of(2).unwrap(), ["bad", "good"]);
        announce("small", &["poor", "good"]);
        assert_eq!(*of(2).unwrap(), ["poor", "good"]);
    }

    /// Regression: the names of any variant with the same number of classes were used, even if no plan had it any more.
    #[test]
    fn names_of_another_variant_are_used_only_if_the_answer_has_one_of_them_at_its_place() {
        let names = ClassNames::default();
        announce(&names, "old", &["negative", "positive"], &["old"]);
        let of = |number, name| names.of("new", &class(number, 2, name));
        assert_eq!(of(1, Some("spam")), None);
        assert_eq!(of(0, Some("positive")), None, "another order");
        assert_eq!(*of(1, Some("positive")).unwrap(), ["negative", "positive"]);
        announce(&names, "new", &["ham", "spam"], &["new"]);
        assert!(
            names.of("other", &class(1, 2, Some("positive"))).is_none(),
            "`old` is in no plan"
        );
        announce(&names, "stranger", &["a", "b", "c"], &["new"]);
        assert_eq!(names.of("stranger", &class(0, 3, None)), None);
    }

    #[test]
    fn a_misspelt_name_is_near_one_name() {
        let names = ["negative", "positive"].map(str::to_owned);
        assert_eq!(nearest("Positve", &names), Some("positive"));
        assert_eq!(nearest("sea", &names), None);
        assert_eq!(nearest("sea", &[]), None);
        let long = ["a".repeat(COMPARED), "b".repeat(COMPARED + 1)];
        assert_eq!(nearest(&long[0], &long), Some(long[0].as_str()));
        assert_eq!(nearest(&long[1], &long), None);
    }
}
