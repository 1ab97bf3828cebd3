//! Decides whether a text answer is correct by comparing it with reference texts.

use kaskade_policy::text_metrics::{Metric, TextComparison};

use super::Label;
use crate::config::data::DataSets;
use crate::config::scalar::Finite;

/// Grades text answers. A cascade is certified with binary outcomes, so a metric's score counts as correct from a
/// threshold on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Grading {
    metric: Metric,
    /// Threshold: the lowest score of a correct answer.
    min_score: Option<f64>,
}

impl Grading {
    /// Returns the grading configured for an app's data sets.
    pub fn from_data_sets(sets: &DataSets) -> Self {
        Self {
            metric: sets.metric,
            min_score: sets.min_score.map(Finite::get),
        }
    }

    /// Returns the lowest score of a correct answer; `None` if the app states none.
    pub fn min_score(&self) -> Option<f64> {
        self.min_score
    }

    /// Returns the comparison by a metric with a score; `None` if texts must be equal.
    pub fn comparison(&self) -> Option<TextComparison> {
        (self.metric != Metric::Exact).then(|| TextComparison {
            metric: self.metric,
            // `App::problems` requires it.
            min_score: self.min_score.unwrap_or(1.0),
        })
    }

    /// Returns whether an answer is correct for a label. Only texts are scored; other answers must be equal.
    pub fn accepts(&self, label: &Label, answer: &Label) -> bool {
        let comparison = self.comparison();
        let right = |reference: &String, text: &String| {
            comparison.map_or(reference == text, |comparison| {
                comparison.accepts(reference, text)
            })
        };
        match (label, answer) {
            (Label::Text(reference), Label::Text(text)) => right(reference, text),
            (Label::Texts(references), Label::Text(text)) => {
                references.iter().any(|reference| right(reference, text))
            }
            _ => label.accepts(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grading(toml: &str) -> Grading {
        Grading::from_data_sets(&toml::from_str(toml).unwrap())
    }

    #[test]
    fn an_answer_is_right_from_a_score_on_by_any_reference() {
        let references = Label::Texts(vec![
            "the old lighthouse keeper".to_owned(),
            "a keeper".to_owned(),
        ]);
        let keeper = Label::text("The keeper.");
        // Two of 1 + 3 words match the first reference, all words match the second.
        assert!(grading("metric = 'f1'\nmin_score = 1.0").accepts(&references, &keeper));
        let first = Label::text("the old lighthouse keeper");
        assert!(grading("metric = 'f1'\nmin_score = 0.5").accepts(&first, &keeper));
        assert!(!grading("metric = 'f1'\nmin_score = 0.51").accepts(&first, &keeper));
        assert!(!grading("").accepts(&references, &keeper));
        // The common subsequence "the keeper" matches 4 of 6 words.
        assert!(grading("metric = 'rouge_l'\nmin_score = 0.66").accepts(&first, &keeper));
        assert!(!grading("metric = 'rouge_l'\nmin_score = 0.67").accepts(&first, &keeper));
    }

    #[test]
    fn classes_are_compared_exactly_by_every_metric() {
        let lenient = grading("metric = 'f1'\nmin_score = 0.01");
        assert!(lenient.accepts(&Label::Class(1), &Label::Class(1)));
        assert!(!lenient.accepts(&Label::Class(1), &Label::Class(2)));
        assert!(!lenient.accepts(&Label::Class(1), &Label::text("1")));
    }
}
