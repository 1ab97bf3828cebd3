//! Finds the subscriptions that match a subject: a trie over the tokens of the patterns.
//!
//! Pure. A lookup visits only nodes that can still match: a few hash probes for a subject of a few tokens,
//! independent of the number of subscriptions. Results are not cached: most subjects of a request/reply system are
//! reply subjects that occur once, so a cache would mostly be filled and emptied.

use std::collections::HashMap;
use std::slice::Split;

/// Matches one or more further tokens at the end of a pattern.
const TAIL: &[u8] = b">";
/// Matches any single token.
const ANY: &[u8] = b"*";

/// Returns whether a client may subscribe to it: non-empty tokens, `>` only as the last one.
pub(super) fn is_pattern(subject: &[u8]) -> bool {
    let mut tokens = tokens(subject);
    let no_early_tail = |token: &[u8]| !token.is_empty() && token != TAIL;
    // `all` stops at the first invalid token; a `>` is valid if nothing follows it.
    tokens.all(no_early_tail) || (subject.ends_with(b".>") || subject == TAIL) && tokens.next().is_none()
}

/// Returns whether a client may publish to it: non-empty tokens.
pub(super) fn is_subject(subject: &[u8]) -> bool {
    tokens(subject).all(|token| !token.is_empty())
}

fn tokens(subject: &[u8]) -> Tokens<'_> {
    subject.split(is_separator as fn(&u8) -> bool)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that `split` asks for"
)]
fn is_separator(byte: &u8) -> bool {
    *byte == b'.'
}

type Tokens<'a> = Split<'a, u8, fn(&u8) -> bool>;

/// Values stored under subject patterns.
#[derive(Debug)]
pub(super) struct SubjectTrie<T> {
    root: Node<T>,
}

#[derive(Debug)]
struct Node<T> {
    /// Patterns that end here.
    here: Vec<T>,
    /// Patterns that end with `>` after this token.
    tail: Vec<T>,
    any: Option<Box<Node<T>>>,
    children: HashMap<Box<[u8]>, Node<T>>,
}

impl<T> Default for SubjectTrie<T> {
    fn default() -> Self {
        Self {
            root: Node::default(),
        }
    }
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self {
            here: Vec::new(),
            tail: Vec::new(),
            any: None,
            children: HashMap::new(),
        }
    }
}

impl<T> SubjectTrie<T> {
    /// Stores `value` under `pattern`, which must satisfy [`is_pattern`].
    pub(super) fn insert(&mut self, pattern: &[u8], value: T) {
        let mut node = &mut self.root;
        for token in tokens(pattern) {
            match token {
                TAIL => return node.tail.push(value),
                ANY => node = node.any.get_or_insert_default(),
                // Looked up twice, so that a known token costs no allocation.
                token if !node.children.contains_key(token) => {
                    node = node.children.entry(token.into()).or_default();
                }
                token => match node.children.get_mut(token) {
                    Some(child) => node = child,
                    None => return,
                },
            }
        }
        node.here.push(value);
    }

    /// Removes the values under exactly `pattern` that `which` selects, and the nodes that become empty.
    pub(super) fn remove(&mut self, pattern: &[u8], which: impl Fn(&T) -> bool) {
        self.root.remove(tokens(pattern), &which);
    }

    /// Calls `found` with every value whose pattern matches `subject`, in no particular order.
    pub(super) fn each_match<'a>(&'a self, subject: &[u8], mut found: impl FnMut(&'a T)) {
        self.root.each_match(tokens(subject), &mut found);
    }

    /// Returns whether no node is left, not even an empty one.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.root.is_empty()
    }
}

impl<T> Node<T> {
    fn remove(&mut self, mut rest: Tokens<'_>, which: &impl Fn(&T) -> bool) {
        match rest.next() {
            None => self.here.retain(|value| !which(value)),
            Some(TAIL) => self.tail.retain(|value| !which(value)),
            Some(ANY) => {
                if let Some(child) = &mut self.any {
                    child.remove(rest, which);
                    self.any.take_if(|child| child.is_empty());
                }
            }
            Some(token) => {
                if let Some(child) = self.children.get_mut(token) {
                    child.remove(rest, which);
                    if child.is_empty() {
                        self.children.remove(token);
                    }
                }
            }
        }
    }

    fn each_match<'a>(&'a self, mut rest: Tokens<'_>, found: &mut impl FnMut(&'a T)) {
        let Some(token) = rest.next() else {
            return self.here.iter().for_each(found);
        };
        self.tail.iter().for_each(&mut *found);
        if let Some(child) = &self.any {
            child.each_match(rest.clone(), found);
        }
        if let Some(child) = self.children.get(token) {
            child.each_match(rest, found);
        }
    }

    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.tail.is_empty() && self.any.is_none() && self.children.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition of a match, token by token.
    fn naive(pattern: &str, subject: &str) -> bool {
        let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
        loop {
            match (pattern.next(), subject.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(expected), Some(actual)) if expected == actual => {}
                _ => return false,
            }
        }
    }

    fn found(trie: &SubjectTrie<usize>, subject: &str) -> Vec<usize> {
        let mut found = Vec::new();
        trie.each_match(subject.as_bytes(), |value| found.push(*value));
        found.sort_unstable();
        found
    }

    #[test]
    fn valid_subjects_and_patterns_are_recognised() {
        for good in ["a", "a.b", "*", ">", "a.*", "a.>", "a.*x.b", "a.b>"] {
            assert!(is_pattern(good.as_bytes()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.>.b", ">.a", ">.>", ">>.>.>"] {
            assert!(!is_pattern(bad.as_bytes()), "{bad}");
        }
        assert!(is_subject(b"a.b") && is_subject(b"a.*") && !is_subject(b"a..b") && !is_subject(b""));
    }

    #[test]
    fn deep_patterns_neither_overflow_nor_leak() {
        let pattern = vec!["*"; 2048].join(".");
        let mut trie = SubjectTrie::default();
        trie.insert(pattern.as_bytes(), 1);
        assert_eq!(found(&trie, &vec!["x"; 2048].join(".")), [1]);
        trie.remove(pattern.as_bytes(), |_| true);
        assert!(trie.is_empty());
    }

    fn pattern() -> impl Strategy<Value = String> {
        let middle = prop::collection::vec("(a|b|c|[*])", 1..5);
        (middle, prop::bool::weighted(0.3)).prop_map(|(tokens, tail)| {
            let end = if tail { ".>" } else { "" };
            tokens.join(".") + end
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_the_definition_finds(
            patterns in prop::collection::vec(pattern(), 0..30),
            removed in prop::collection::vec(any::<bool>(), 30),
            subjects in prop::collection::vec("(a|b|c)([.](a|b|c)){0,5}", 1..20),
        ) {
            let mut trie = SubjectTrie::default();
            for (value, pattern) in patterns.iter().enumerate() {
                trie.insert(pattern.as_bytes(), value);
            }
            for (value, pattern) in patterns.iter().enumerate().filter(|(value, _)| removed[*value]) {
                trie.remove(pattern.as_bytes(), |filed| *filed == value);
            }
            for subject in &subjects {
                let left = patterns.iter().enumerate().filter(|(value, _)| !removed[*value]);
                let expected: Vec<_> = left.filter(|(_, p)| naive(p, subject)).map(|(value, _)| value).collect();
                prop_assert_eq!(found(&trie, subject), expected);
            }
            for (value, pattern) in patterns.iter().enumerate() {
                trie.remove(pattern.as_bytes(), |filed| *filed == value);
            }
            prop_assert!(trie.is_empty());
        }
    }
}
