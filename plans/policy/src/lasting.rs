//! Conditions that count once they last, such as a missing worker: each is reported once when it counts, and once when it ends.

use std::collections::{BTreeMap, BTreeSet};

/// Conditions by name. Times are microseconds.
#[derive(Debug, Clone)]
pub struct LastingConditions {
    /// Time for which a condition must hold before it counts.
    delay_us: u64,
    /// When each condition that holds began.
    since: BTreeMap<String, u64>,
    /// Those that count.
    counted: BTreeSet<String>,
}

/// What an observation has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionChanges {
    /// The conditions that count from now on.
    pub began: Vec<String>,
    /// The conditions that counted and no longer hold.
    pub ended: Vec<String>,
}

impl LastingConditions {
    /// Creates a state without conditions; each counts once it has held for `delay_us`.
    pub fn after(delay_us: u64) -> Self {
        Self {
            delay_us,
            since: BTreeMap::new(),
            counted: BTreeSet::new(),
        }
    }

    /// Records which conditions hold at `now`, and returns what that changes.
    pub fn observe<'a>(&mut self, holding: impl IntoIterator<Item = &'a str>, now: u64) -> ConditionChanges {
        let holding: BTreeSet<&str> = holding.into_iter().collect();
        self.since.retain(|name, _| holding.contains(name.as_str()));
        for name in &holding {
            self.since.entry((*name).to_owned()).or_insert(now);
        }
        let lasts = |since: u64| now.saturating_sub(since) >= self.delay_us;
        let counted = self.since.iter().filter(|(_, since)| lasts(**since));
        let counted: BTreeSet<String> = counted.map(|(name, _)| name.clone()).collect();
        let changes = ConditionChanges {
            began: counted.difference(&self.counted).cloned().collect(),
            ended: self.counted.difference(&counted).cloned().collect(),
        };
        self.counted = counted;
        changes
    }

    /// Returns the conditions that count.
    pub fn counted(&self) -> impl Iterator<Item = &str> {
        self.counted.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_reported_once_when_it_has_lasted_and_once_when_it_ends() {
        let mut conditions = LastingConditions::after(3);
        let mut observe = |holding: &[&str], now| {
            let changes = conditions.observe(holding.iter().copied(), now);
            (changes.began, changes.ended)
        };
        let none = (Vec::<String>::new(), Vec::<String>::new());
        assert_eq!(observe(&["a"], 10), none);
        assert_eq!(observe(&["a", "b"], 12), none);
        assert_eq!(observe(&["a", "b"], 13), (vec!["a".to_owned()], vec![]));
        assert_eq!(observe(&["a"], 15), none, "b ended before it counted");
        assert_eq!(observe(&["b"], 16), (vec![], vec!["a".to_owned()]));
        assert_eq!(observe(&["b"], 18), none, "it began again");
        assert_eq!(observe(&["b"], 19), (vec!["b".to_owned()], vec![]));
        assert_eq!(conditions.counted().collect::<Vec<_>>(), ["b"]);
    }
}
