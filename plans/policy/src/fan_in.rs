//! The branches of a pipeline's request, gathered into one reply (Loki §3).
//!
//! A task's result may become many requests to each of its children, and their results many more; the frontend answers once all of
//! them have ended. Messages overtake each other: a child's answer may arrive before its parent's notice that the child
//! exists. So the gatherer waits for a set and not for a count, and nothing is complete before every member has reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum number of branches of one request.
pub const MAX_BRANCHES: usize = 4096;

/// Most levels of a pipeline's tree.
pub(crate) const MAX_LEVELS: usize = 16;

/// Position of a result in a request's tree: the root is empty, `classify.3` the fourth request that went to the task
/// `classify`, `classify.3/colour.0` the first that came of that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Branch(Vec<(String, u32)>);

/// Text that names no branch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a branch; a branch is written `task.index`, levels apart by `/`")]
pub struct InvalidBranch(String);

impl Branch {
    /// The request itself.
    pub const ROOT: Self = Self(Vec::new());

    /// Returns whether it is the request itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The tasks on the path to it, from the root.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(task, _)| task.as_str())
    }

    /// The branch of that number to a task below this one.
    #[must_use]
    pub fn child(&self, task: &str, index: u32) -> Self {
        let mut path = self.0.clone();
        path.push((task.to_owned(), index));
        Self(path)
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (level, (task, index)) in self.0.iter().enumerate() {
            let apart = if level == 0 { "" } else { "/" };
            write!(f, "{apart}{task}.{index}")?;
        }
        Ok(())
    }
}

impl FromStr for Branch {
    type Err = InvalidBranch;

    fn from_str(text: &str) -> Result<Self, InvalidBranch> {
        if text.is_empty() {
            return Ok(Self::ROOT);
        }
        let level = |level: &str| {
            let (task, written) = level.rsplit_once('.')?;
            let index: u32 = written.parse().ok()?;
            // Branch names have one canonical form: `+3` and `03` are refused.
            let sound = !task.is_empty() && !task.contains('.') && index.to_string() == written;
            sound.then(|| (task.to_owned(), index))
        };
        let path: Option<Vec<_>> = text.split('/').map(level).collect();
        path.filter(|path| path.len() <= MAX_LEVELS)
            .map(Self)
            .ok_or_else(|| InvalidBranch(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for Branch {
    type Error = InvalidBranch;

    fn try_from(text: String) -> Result<Self, InvalidBranch> {
        text.parse()
    }
}

impl From<Branch> for String {
    fn from(branch: Branch) -> Self {
        branch.to_string()
    }
}

/// A request has more branches than are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the request fanned out into {found} branches; at most {MAX_BRANCHES} are allowed: raise the detector's threshold"
)]
pub struct TooManyBranches {
    found: usize,
}

/// The outcomes of a request so far, by branch.
#[derive(Debug, Clone)]
pub struct FanIn<R> {
    attempt: u32,
    /// Branches that their parents have announced.
    announced: BTreeSet<Branch>,
    arrived: BTreeMap<Branch, R>,
}

impl<R> Default for FanIn<R> {
    fn default() -> Self {
        Self {
            attempt: 0,
            announced: BTreeSet::new(),
            arrived: BTreeMap::new(),
        }
    }
}

impl<R> FanIn<R> {
    /// Notes the end of a branch: its outcome, and how many requests to which tasks it became. Reports of an older attempt
    /// are dropped, and earlier reports are discarded once a newer attempt reports: each attempt begins at the root, and another
    /// variant may split into other branches. A repeated report of a branch changes nothing, nor does an attempt beyond `newest`,
    /// which was never sent.
    ///
    /// # Errors
    /// [`TooManyBranches`]; nothing is noted.
    pub fn record(
        &mut self,
        attempt: u32,
        newest: u32,
        branch: Branch,
        children: &BTreeMap<String, u32>,
        result: R,
    ) -> Result<(), TooManyBranches> {
        if !(self.attempt..=newest).contains(&attempt) {
            return Ok(());
        }
        if attempt > self.attempt {
            *self = Self {
                attempt,
                ..Self::default()
            };
        }
        // Before the room is checked: the children of a repeated report are already counted.
        if self.arrived.contains_key(&branch) {
            return Ok(());
        }
        let more: usize = children.values().map(|count| *count as usize).sum();
        let found = self.announced.len().max(self.arrived.len()).saturating_add(more);
        if found > MAX_BRANCHES {
            return Err(TooManyBranches { found });
        }
        for (task, count) in children {
            self.announced
                .extend((0..*count).map(|index| branch.child(task, index)));
        }
        self.arrived.insert(branch, result);
        Ok(())
    }

    /// Returns whether a report of that branch would be noted: it is of the newest attempt that reports, and not a repetition.
    pub fn accepts(&self, attempt: u32, newest: u32, branch: &Branch) -> bool {
        (self.attempt..=newest).contains(&attempt)
            && (attempt > self.attempt || !self.arrived.contains_key(branch))
    }

    /// Returns how many more branches a report of that attempt may announce.
    pub fn remaining_branches(&self, attempt: u32) -> usize {
        if attempt > self.attempt {
            return MAX_BRANCHES;
        }
        MAX_BRANCHES.saturating_sub(self.announced.len().max(self.arrived.len()))
    }

    /// Returns whether every branch has ended.
    pub fn is_complete(&self) -> bool {
        // The sizes first: with thousands of branches, each arrival would otherwise look up all that came before it.
        self.arrived.len() > self.announced.len()
            && self.arrived.contains_key(&Branch::ROOT)
            && self
                .announced
                .iter()
                .all(|branch| self.arrived.contains_key(branch))
    }

    /// Returns whether the root branch has reported.
    pub fn has_begun(&self) -> bool {
        self.arrived.contains_key(&Branch::ROOT)
    }

    /// The outcome of each branch, the root first, then in order; `None` for those that are still outstanding. An arrival that
    /// was not announced belongs to no branch.
    pub fn into_branches(mut self) -> Vec<(Branch, Option<R>)> {
        let announced = std::mem::take(&mut self.announced);
        let all = std::iter::once(Branch::ROOT).chain(announced);
        all.map(|branch| {
            let result = self.arrived.remove(&branch);
            (branch, result)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn branch(text: &str) -> Branch {
        text.parse().unwrap()
    }

    fn of(task: &str, count: u32) -> BTreeMap<String, u32> {
        BTreeMap::from([(task.to_owned(), count)])
    }

    #[test]
    fn branches_are_written_and_read() {
        for text in ["", "classify.3", "classify.3/colour.0"] {
            assert_eq!(branch(text).to_string(), text);
        }
        assert_eq!(Branch::ROOT.child("a", 2).child("b", 0), branch("a.2/b.0"));
        assert!(branch("a.2") < branch("a.10"), "by number, not by letter");
        let deep = vec!["a.0"; MAX_LEVELS + 1].join("/");
        for bad in [
            "a",
            "a.",
            ".1",
            "a.b",
            "a.1.2",
            "a.-1",
            "a.+1",
            "a.01",
            "a.1/",
            "/",
            deep.as_str(),
        ] {
            assert!(bad.parse::<Branch>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_child_that_overtakes_its_parent_completes_nothing() {
        let mut fan_in = FanIn::default();
        fan_in
            .record(1, 2, branch("c.1"), &BTreeMap::new(), "late")
            .unwrap();
        assert!(!fan_in.is_complete() && !fan_in.has_begun());
        fan_in.record(1, 2, Branch::ROOT, &of("c", 2), "root").unwrap();
        assert!(!fan_in.is_complete() && fan_in.has_begun());
        fan_in
            .record(1, 2, branch("c.1"), &BTreeMap::new(), "twice")
            .unwrap();
        fan_in
            .record(1, 2, branch("x.0"), &BTreeMap::new(), "unannounced")
            .unwrap();
        assert!(!fan_in.is_complete());
        fan_in
            .record(1, 2, branch("c.0"), &BTreeMap::new(), "first")
            .unwrap();
        assert!(fan_in.is_complete());
        let answered: Vec<_> = fan_in
            .into_branches()
            .into_iter()
            .map(|(_, result)| result)
            .collect();
        assert_eq!(answered, [Some("root"), Some("first"), Some("late")]);
    }

    #[test]
    fn a_new_attempt_begins_anew_and_an_old_one_is_ignored() {
        let mut fan_in = FanIn::default();
        fan_in.record(1, 2, Branch::ROOT, &of("c", 1), 10).unwrap();
        fan_in.record(2, 2, branch("c.0"), &BTreeMap::new(), 21).unwrap();
        assert!(!fan_in.has_begun(), "the first attempt's root is forgotten");
        fan_in.record(1, 2, branch("c.0"), &BTreeMap::new(), 11).unwrap();
        fan_in.record(9, 2, Branch::ROOT, &BTreeMap::new(), 90).unwrap();
        assert!(!fan_in.is_complete(), "a ninth attempt was never sent");
        fan_in.record(2, 2, Branch::ROOT, &of("c", 1), 20).unwrap();
        assert!(fan_in.is_complete());
        assert_eq!(fan_in.into_branches().pop().unwrap().1, Some(21));
    }

    #[test]
    fn a_repeated_report_is_not_awaited_and_room_shrinks() {
        let mut fan_in = FanIn::default();
        assert!(fan_in.accepts(1, 1, &Branch::ROOT) && !fan_in.accepts(2, 1, &Branch::ROOT));
        assert_eq!(fan_in.remaining_branches(1), MAX_BRANCHES);
        fan_in.record(1, 2, Branch::ROOT, &of("c", 96), ()).unwrap();
        assert!(!fan_in.accepts(1, 2, &Branch::ROOT) && fan_in.accepts(1, 2, &branch("c.0")));
        assert_eq!(fan_in.remaining_branches(1), MAX_BRANCHES - 96);
        assert!(fan_in.accepts(2, 2, &Branch::ROOT), "a new attempt begins anew");
        assert_eq!(fan_in.remaining_branches(2), MAX_BRANCHES);
    }

    #[test]
    fn a_request_does_not_come_apart_without_end() {
        let mut fan_in = FanIn::default();
        let many = of("c", MAX_BRANCHES as u32 + 1);
        assert!(fan_in.record(1, 2, Branch::ROOT, &many, ()).is_err());
        assert!(!fan_in.has_begun());
        assert!(fan_in.record(1, 2, Branch::ROOT, &of("c", 3), ()).is_ok());
    }

    /// A doubled report of more than half of the allowed branches failed its request.
    #[test]
    fn a_repeated_report_of_many_branches_changes_nothing() {
        let mut fan_in = FanIn::default();
        let many = of("c", MAX_BRANCHES as u32);
        fan_in.record(1, 2, Branch::ROOT, &many, "first").unwrap();
        fan_in.record(1, 2, Branch::ROOT, &many, "second").unwrap();
        assert_eq!(fan_in.remaining_branches(1), 0);
        let branches = fan_in.into_branches();
        assert_eq!(branches.len(), MAX_BRANCHES + 1);
        assert_eq!(branches[0], (Branch::ROOT, Some("first")));
    }

    /// A tree as its branches with their children: every level has up to three children of one task.
    fn tree() -> impl Strategy<Value = Vec<(Branch, BTreeMap<String, u32>)>> {
        prop::collection::vec(0_u32..4, 1..30).prop_map(|counts| {
            let mut all = Vec::new();
            let mut open = vec![Branch::ROOT];
            let mut counts = counts.into_iter();
            while let Some(next) = open.pop() {
                let deepest = next.0.len() == MAX_LEVELS;
                let count = counts.next().filter(|_| !deepest).unwrap_or(0);
                open.extend((0..count).map(|index| next.child("t", index)));
                all.push((next, of("t", count)));
            }
            all
        })
    }

    proptest! {
        /// In whatever order the branches end, and whichever reports are repeated, the request is complete with the last of them and
        /// not before.
        #[test]
        fn complete_with_the_last(
            tree in tree(),
            shuffle in prop::collection::vec(any::<u32>(), 200),
            repeated in prop::collection::vec(any::<bool>(), 200),
        ) {
            let mut order: Vec<usize> = (0..tree.len()).collect();
            order.sort_by_key(|place| shuffle.get(*place).copied().unwrap_or(0));
            let mut fan_in = FanIn::default();
            for (arrived, place) in order.iter().enumerate() {
                prop_assert!(!fan_in.is_complete(), "after {arrived} of {}", tree.len());
                let (branch, children) = &tree[*place];
                fan_in.record(1, 2, branch.clone(), children, *place).unwrap();
                if repeated.get(*place).copied().unwrap_or(false) {
                    fan_in.record(1, 2, branch.clone(), children, usize::MAX).unwrap();
                }
            }
            prop_assert!(fan_in.is_complete());
            let branches = fan_in.into_branches();
            prop_assert_eq!(branches.len(), tree.len());
            prop_assert!(branches.iter().all(|(_, result)| result.is_some_and(|place| place < tree.len())));
        }
    }
}
