//! Answers as audits and labels compare them.

use std::sync::Arc;

use crate::texts::TextComparison;

/// Bytes of a text that are kept of an answer at most: thousands of them wait for their labels.
const MAX_BYTES: usize = 16 << 10;

/// An answer to a request, or a right one.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The number of a class, or of a text that must be the same.
    Number(u64),
    /// A text that is compared by a metric.
    Text {
        /// The text.
        text: Arc<str>,
        /// How it is compared.
        by: TextComparison,
    },
}

impl Answer {
    /// Returns the answer of a text, without space around it and cut off after 16 KiB.
    pub fn text(text: &str, by: TextComparison) -> Self {
        let text = text.trim();
        let text = text.get(..text.floor_char_boundary(MAX_BYTES)).unwrap_or(text);
        Self::Text {
            text: text.into(),
            by,
        }
    }

    /// Returns whether an answer counts as this one.
    pub fn accepts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::Text { text: one, by }, Self::Text { text: other, .. }) => by.accepts(one, other),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::texts::Metric;

    #[test]
    fn texts_are_compared_by_their_metric_and_numbers_exactly() {
        let by = TextComparison {
            metric: Metric::F1,
            right_from: 0.5,
        };
        let (one, other) = (Answer::text("a whale ", by), Answer::text("The whale.", by));
        assert!(one.accepts(&other) && other.accepts(&one));
        assert!(!one.accepts(&Answer::text("a ship", by)));
        assert!(Answer::Number(7).accepts(&Answer::Number(7)));
        assert!(!Answer::Number(7).accepts(&Answer::Number(8)) && !Answer::Number(7).accepts(&one));
        let Answer::Text { text, .. } = Answer::text(&"ä".repeat(MAX_BYTES), by) else {
            panic!("a text");
        };
        assert_eq!(text.len(), MAX_BYTES);
    }
}
