//! Whether a text is right: it is compared with the reference texts by a metric of the field.

use std::collections::HashMap;

use super::Label;
use crate::config::data::{DataSets, Metric};
use crate::config::scalar::Finite;

/// Decides whether an answer is right. A cascade is certified by right and wrong answers, so the score of a metric counts by a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Grading {
    metric: Metric,
    /// Least score of a right answer.
    right_from: Option<f64>,
}

impl Grading {
    /// Returns the grading that an app's data sets name.
    pub fn of(sets: &DataSets) -> Self {
        Self {
            metric: sets.metric,
            right_from: sets.right_from.map(Finite::get),
        }
    }

    /// Least score of a right answer; `None` if the app names none.
    pub fn right_from(&self) -> Option<f64> {
        self.right_from
    }

    /// Whether texts are compared by a metric with a score.
    pub(crate) fn scores_texts(&self) -> bool {
        self.metric != Metric::Exact
    }

    /// Whether an answer is right where this is the label. Only texts have a score; other answers are compared exactly.
    pub fn accepts(&self, label: &Label, answer: &Label) -> bool {
        let score = |reference: &String, text: &String| match self.metric {
            Metric::Exact => f64::from(u8::from(reference == text)),
            Metric::F1 => token_f1(reference, text),
            Metric::RougeL => rouge_l(reference, text),
        };
        let from = match self.metric {
            Metric::Exact => 1.0,
            // `App::problems` demands it.
            Metric::F1 | Metric::RougeL => self.right_from.unwrap_or(1.0),
        };
        // A sum of rounded shares may miss 1 by little.
        let right = |reference: &String, text: &String| score(reference, text) + 1e-12 >= from;
        match (label, answer) {
            (Label::Text(reference), Label::Text(text)) => right(reference, text),
            (Label::Texts(references), Label::Text(text)) => {
                references.iter().any(|reference| right(reference, text))
            }
            _ => label.accepts(answer),
        }
    }
}

/// Returns the F1 score of two bags of words, in [0, 1], as the evaluation of `SQuAD` computes it: in lower case, without ASCII punctuation
/// and the articles `a`, `an` and `the`. Two texts without words are equal.
pub fn token_f1(reference: &str, answer: &str) -> f64 {
    let (reference, answer) = (squad_words(reference), squad_words(answer));
    if reference.is_empty() || answer.is_empty() {
        return f64::from(u8::from(reference.is_empty() && answer.is_empty()));
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in &reference {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in &answer {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    f_measure(common, reference.len(), answer.len())
}

/// Returns the ROUGE-L score of an answer, in [0, 1]: the F1 score of the longest common subsequence of words, as Google's `rouge_score`
/// computes it without stemming. Words are runs of letters and digits, in lower case.
pub fn rouge_l(reference: &str, answer: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        let text = text.to_lowercase();
        text.split(|character: char| !character.is_alphanumeric())
            .filter(|word| !word.is_empty())
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
            serde_json::from_str(include_str!("../../fixtures/text_metrics.json")).unwrap();
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

    fn grading(toml: &str) -> Grading {
        Grading::of(&toml::from_str(toml).unwrap())
    }

    #[test]
    fn an_answer_is_right_from_a_score_on_by_any_reference() {
        let references = Label::Texts(vec![
            "the old lighthouse keeper".to_owned(),
            "a keeper".to_owned(),
        ]);
        let keeper = Label::text("The keeper.");
        // 2 of 1 + 3 words agree with the first reference, all with the second.
        assert!(grading("metric = 'f1'\nright_from = 1.0").accepts(&references, &keeper));
        let first = Label::text("the old lighthouse keeper");
        assert!(grading("metric = 'f1'\nright_from = 0.5").accepts(&first, &keeper));
        assert!(!grading("metric = 'f1'\nright_from = 0.51").accepts(&first, &keeper));
        assert!(!grading("").accepts(&references, &keeper));
        // "the" and "keeper" are a common subsequence: 4 of 6 words.
        assert!(grading("metric = 'rouge_l'\nright_from = 0.66").accepts(&first, &keeper));
        assert!(!grading("metric = 'rouge_l'\nright_from = 0.67").accepts(&first, &keeper));
    }

    #[test]
    fn classes_are_compared_exactly_by_every_metric() {
        let lenient = grading("metric = 'f1'\nright_from = 0.01");
        assert!(lenient.accepts(&Label::Class(1), &Label::Class(1)));
        assert!(!lenient.accepts(&Label::Class(1), &Label::Class(2)));
        assert!(!lenient.accepts(&Label::Class(1), &Label::text("1")));
    }
}
