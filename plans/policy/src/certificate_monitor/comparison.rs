//! Answers as audits and labels compare them.

use std::sync::Arc;

use crate::text_metrics::TextComparison;

/// Bytes of a text that are kept of an answer at most: thousands of them wait for their labels.
const MAX_BYTES: usize = 16 << 10;

/// An answer to a request, or a right one.
#[derive(Debug, Clone, PartialEq)]
pub enum ComparedAnswer {
    /// A class.
    Class(Class),
    /// The number of a text that must be the same.
    Number(u64),
    /// A text that is compared by a metric.
    Text {
        /// The text.
        text: Arc<str>,
        /// How it is compared.
        by: TextComparison,
    },
}

/// The class of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its number, from 0.
    pub number: u64,
    /// How many classes there are.
    pub of: u64,
    /// Its name, if the model names its classes.
    pub name: Option<Arc<str>>,
}

impl ComparedAnswer {
    /// Returns the answer of a class; a name is cut off after 16 KiB.
    pub fn class(number: u64, of: u64, name: Option<&str>) -> Self {
        Self::Class(Class {
            number,
            of,
            name: name.map(|name| cut(name).into()),
        })
    }

    /// Returns the answer of a text, without space around it and cut off after 16 KiB.
    pub fn text(text: &str, by: TextComparison) -> Self {
        Self::Text {
            text: cut(text.trim()).into(),
            by,
        }
    }

    /// Returns whether an answer counts as this one.
    pub fn accepts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Class(one), Self::Class(other)) => one.number == other.number,
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::Text { text: one, by }, Self::Text { text: other, .. }) => by.accepts(one, other),
            _ => false,
        }
    }
}

/// Cuts a text off after [`MAX_BYTES`].
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_BYTES)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text_metrics::Metric;

    #[test]
    fn texts_are_compared_by_their_metric_and_numbers_exactly() {
        let by = TextComparison {
            metric: Metric::F1,
            min_score: 0.5,
        };
        let (one, other) = (
            ComparedAnswer::text("a whale ", by),
            ComparedAnswer::text("The whale.", by),
        );
        assert!(one.accepts(&other) && other.accepts(&one));
        assert!(!one.accepts(&ComparedAnswer::text("a ship", by)));
        assert!(ComparedAnswer::Number(7).accepts(&ComparedAnswer::Number(7)));
        assert!(
            !ComparedAnswer::Number(7).accepts(&ComparedAnswer::Number(8))
                && !ComparedAnswer::Number(7).accepts(&one)
        );
        // The number of a text is no class.
        let class = |name| ComparedAnswer::class(7, 9, name);
        assert!(
            class(None).accepts(&class(Some("seven"))) && !class(None).accepts(&ComparedAnswer::Number(7))
        );
        let ComparedAnswer::Text { text, .. } = ComparedAnswer::text(&"ä".repeat(MAX_BYTES), by) else {
            panic!("a text");
        };
        assert_eq!(text.len(), MAX_BYTES);
    }
}
