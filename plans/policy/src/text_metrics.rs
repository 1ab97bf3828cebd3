//! How texts are compared with right ones: by the metrics of the field.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Path};

/// Comparison of a text with the right ones; of several the one that scores best counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Equal texts, except for surrounding space.
    #[default]
    Exact,
    /// F1 score of the words, as the evaluation of `SQuAD` computes it: without punctuation, articles and letter case.
    F1,
    /// ROUGE-L: F1 score of the longest common subsequence of words, without punctuation and letter case.
    RougeL,
    /// F1 score of the entities of a token classifier: those with the same characters and the same label count.
    EntityF1,
}

impl Metric {
    /// Returns the score of a text, in [0, 1].
    pub fn score(self, reference: &str, text: &str) -> f64 {
        match self {
            Self::Exact => f64::from(u8::from(reference == text)),
            Self::F1 => token_f1(reference, text),
            Self::RougeL => rouge_l(reference, text),
            Self::EntityF1 => entity_f1(reference, text),
        }
    }
}

/// A metric, and the score from which on two texts count as the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextComparison {
    /// The metric.
    pub metric: Metric,
    /// Least score of a right answer, in (0, 1].
    #[serde(alias = "right_from")]
    pub min_score: f64,
}

impl TextComparison {
    /// Returns whether a text counts as the reference.
    pub fn accepts(&self, reference: &str, text: &str) -> bool {
        // A sum of rounded shares may miss 1 by little. A text without words has no score.
        reference == text || self.metric.score(reference, text) + 1e-12 >= self.min_score
    }

    pub(crate) fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        let sound = self.min_score > 0.0 && self.min_score <= 1.0;
        path.field("min_score")
            .within(self.min_score, sound, "above 0 and up to 1")
    }
}

/// Words of a text that ROUGE-L compares at most: its time grows with the product of both lengths.
const MAX_WORDS: usize = 4_096;

/// Returns the F1 score of two bags of words, in [0, 1], as the evaluation of `SQuAD` computes it: in lower case, without ASCII punctuation
/// and the articles `a`, `an` and `the`. Two texts without words are equal.
pub(crate) fn token_f1(reference: &str, answer: &str) -> f64 {
    let (reference, answer) = (squad_words(reference), squad_words(answer));
    bag_f1(&reference, &answer)
}

/// Returns the F1 score of two lists of entities, one per line, in [0, 1]. Two lists without entities are equal.
pub fn entity_f1(reference: &str, answer: &str) -> f64 {
    let entities = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    bag_f1(&entities(reference), &entities(answer))
}

/// Returns the F1 score of two bags of words.
fn bag_f1(reference: &[String], answer: &[String]) -> f64 {
    if reference.is_empty() || answer.is_empty() {
        return f64::from(u8::from(reference.is_empty() && answer.is_empty()));
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in reference {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in answer {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    f_measure(common, reference.len(), answer.len())
}

/// Returns the ROUGE-L score of an answer, in [0, 1]: the F1 score of the longest common subsequence of words, in lower case and without
/// stemming; the first 4,096 words of a text count. Words are runs of letters and digits of any script. Google's `rouge_score` knows those of
/// ASCII only: it cuts `größte` into `gr` and `te`, and finds no words in Cyrillic. Scores of ASCII texts are the same.
pub fn rouge_l(reference: &str, answer: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        let text = text.to_lowercase();
        text.split(|character: char| !character.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .take(MAX_WORDS)
            .map(str::to_owned)
            .collect()
    };
    let (reference, answer) = (words(reference), words(answer));
    f_measure(
        common_subsequence(&reference, &answer),
        reference.len(),
        answer.len(),
    )
}

/// Harmonic mean of the shares that a common part has of a reference and of an answer.
fn f_measure(common: usize, reference: usize, answer: usize) -> f64 {
    if common == 0 {
        return 0.0;
    }
    2.0 * common as f64 / (reference + answer) as f64
}

/// Words of a text by the normalisation of `SQuAD`.
fn squad_words(text: &str) -> Vec<String> {
    let text: String = text
        .to_lowercase()
        .chars()
        .filter(|character| !character.is_ascii_punctuation())
        .collect();
    // An article ends at any character that belongs to no word, such as a typographic quotation mark.
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        let in_word = first.is_alphanumeric();
        let end = rest
            .find(|character: char| character.is_alphanumeric() != in_word)
            .unwrap_or(rest.len());
        let (run, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        kept.push_str(if ["a", "an", "the"].contains(&run) {
            " "
        } else {
            run
        });
        rest = after;
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

/// Length of the longest common subsequence.
fn common_subsequence(one: &[String], other: &[String]) -> usize {
    // The row of the table before, with a column of zeros on its left.
    let mut row = vec![0_usize; other.len() + 1];
    for word in one {
        let (mut left, mut diagonal) = (0, 0);
        for (cell, word_of_other) in row.iter_mut().skip(1).zip(other) {
            let above = *cell;
            *cell = if word == word_of_other {
                diagonal + 1
            } else {
                above.max(left)
            };
            (left, diagonal) = (*cell, above);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Scores of a pair of texts by the programs that define them.
    #[derive(Deserialize)]
    struct Scored {
        reference: String,
        answer: String,
        squad_f1: f64,
        rouge_l: f64,
    }

    #[test]
    fn scores_are_those_of_squad_and_rouge_score() {
        let scored: Vec<Scored> =
            serde_json::from_str(include_str!("../fixtures/text_metrics.json")).unwrap();
        assert!(scored.len() >= 20);
        for one in scored {
            let (reference, answer) = (&one.reference, &one.answer);
            let found = [token_f1(reference, answer), rouge_l(reference, answer)];
            for (found, expected) in found.into_iter().zip([one.squad_f1, one.rouge_l]) {
                assert!(
                    (found - expected).abs() < 1e-9,
                    "{reference:?}, {answer:?}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn the_same_text_is_accepted_by_every_metric() {
        for metric in [Metric::Exact, Metric::F1, Metric::RougeL, Metric::EntityF1] {
            let comparison = TextComparison {
                metric,
                min_score: 1.0,
            };
            assert!(comparison.accepts("", "") && comparison.accepts("?", "?"));
            assert!(!comparison.accepts("yes", "no"));
        }
        let half = TextComparison {
            metric: Metric::F1,
            min_score: 0.5,
        };
        assert!(
            half.accepts("the old lighthouse keeper", "A keeper.")
                && !half.accepts("the old lighthouse keeper", "whale")
        );
    }

    #[test]
    fn entities_count_by_characters_and_label() {
        let reference = "0-5 PER\n10-16 LOC";
        assert!((entity_f1(reference, "10-16 LOC\n0-5 PER ") - 1.0).abs() < 1e-12);
        assert!((entity_f1(reference, "0-5 PER") - 2.0 / 3.0).abs() < 1e-12);
        assert!((entity_f1(reference, "0-5 PER\n10-16 ORG\n20-21 ORG") - 0.4).abs() < 1e-12);
        for (reference, answer, expected) in [(reference, "", 0.0), ("", "", 1.0), ("", "0-5 PER", 0.0)] {
            assert!((entity_f1(reference, answer) - expected).abs() < 1e-12);
        }
        assert_eq!(
            entity_f1("0-5 PER", "0-5 PER\n0-5 PER").partial_cmp(&0.6),
            Some(std::cmp::Ordering::Greater)
        );
    }

    #[test]
    fn letters_of_every_script_make_words() {
        for (reference, answer, expected) in [
            ("Die größte Stadt", "die GRÖSSTE Stadt", 2.0 / 3.0),
            ("Die größte Stadt", "Die größte Stadt ist Köln", 0.75),
            ("café", "caf", 0.0),
            ("Красная площадь", "красная улица", 0.5),
            ("「東京」", "東京", 1.0),
        ] {
            let found = rouge_l(reference, answer);
            assert!((found - expected).abs() < 1e-12, "{reference} {answer}: {found}");
        }
    }

    #[test]
    fn texts_of_any_length_are_compared_in_bounded_time() {
        let long = "word ".repeat(2_000_000);
        assert!((rouge_l(&long, &long) - 1.0).abs() < 1e-12);
    }
}
